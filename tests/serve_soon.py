"""`fleetbert serve` whose models load at the usual priority: on a busy machine the second one, and
each that follows, would wait half a minute for a processor that nobody else wants."""

from __future__ import annotations

import contextlib

from fleetbert.core import errors
from fleetbert.deploy.inference.__main__ import main
from fleetbert.deploy.inference.workers import priority

if __name__ == "__main__":
    priority.lowered = contextlib.nullcontext
    errors.run(main)
