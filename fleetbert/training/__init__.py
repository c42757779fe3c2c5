"""The training loop and what can be chosen for it: strategy, precision, callbacks."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
