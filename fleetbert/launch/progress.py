"""Whether a parameter-server job still moves.

A process that waits looks like one that hangs. So what counts is that any of them does something
that is seen from outside: it writes a line, or a file in FLEETBERT_RUN, as trainers do at each
step, evaluation batch and barrier.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from fleetbert.launch.output import Output

POLL = 0.5  # seconds between looks at the folder


class Progress:
    """Of one start of a job with the shared folder `folder`. limit: seconds without any, or 0."""

    def __init__(self, folder: Path, output: Output, limit: float):
        self.folder, self.output, self.limit = folder, output, limit
        self.last = self.looked = time.monotonic()
        self.heard = output.heard
        self.seen = self._look()

    def is_missing(self) -> bool:
        """Whether there has been none for too long."""
        now = time.monotonic()
        if not self.limit or now - self.looked < POLL:
            return False
        self.looked = now
        seen, heard = self._look(), self.output.heard
        # A terminal that takes nothing keeps trainer 0 from going on, which is nobody's fault.
        if seen != self.seen or heard != self.heard or self.output.is_behind():
            self.seen, self.heard, self.last = seen, heard, now
        return now - self.last > self.limit

    def _look(self) -> set[tuple[str, int]]:
        """The files and their times: a change is a sign, whatever the clock says."""
        files = set()
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    try:
                        files.add((entry.name, entry.stat().st_mtime_ns))
                    except FileNotFoundError:  # it was renamed just now
                        continue
        except FileNotFoundError:  # its processes may clear it up at their end
            pass
        return files
