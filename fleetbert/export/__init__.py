"""A trained network → a program → a bundle."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
