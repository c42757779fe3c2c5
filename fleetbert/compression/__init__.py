"""Smaller and faster variants of a bundle, within an accuracy that the user names."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
