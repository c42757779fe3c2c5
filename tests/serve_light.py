"""`fleetbert serve` whose workers need no Paddle; see light.py."""

from __future__ import annotations

import light

from fleetbert.core import errors
from fleetbert.deploy.inference.__main__ import main
from fleetbert.deploy.inference.workers import process

if __name__ == "__main__":
    process.COMMAND = light.WORKER
    process.start_early = lambda _: None
    errors.run(main)
