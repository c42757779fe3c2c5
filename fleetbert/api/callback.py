"""Imports `fleetbert.Callback` in a program that may not have imported Paddle yet."""

from fleetbert.compat import environment

environment.import_paddle()

from fleetbert.training.loop import Callback  # noqa: E402  imports Paddle, now without its warnings

__all__ = ["Callback"]
