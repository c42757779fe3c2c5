"""The networks: encoders, heads, and loading of weights; no devices, no parallelism."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
