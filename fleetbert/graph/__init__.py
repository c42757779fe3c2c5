"""Paddle programs as data, and the passes over them; nothing here runs a program."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
