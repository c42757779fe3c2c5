"""Measures this project beside other engines, in one run and by turns."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
