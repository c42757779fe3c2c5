"""What everything stands on: errors, files, locks, logging, limits, registries, charsets."""
