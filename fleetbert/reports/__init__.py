"""The HTML reports: one builder, one stylesheet."""
