"""Whether a job still moves. Nothing tells a process that waits from one that hangs; so what counts
is that any of them does something that can be seen from outside: it writes a line, or a file in
FLEETBERT_RUN, as trainers on servers do at each step, evaluation batch and meeting."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fleetbert.launch.output import Output
from fleetbert.launch.process import Process

POLL = 0.5  # seconds between looks at the folder


class Signs:
    """Of one start of a job, whose shared folder is `folder`, until `limit` seconds without any;
    0 means that there is no limit."""

    def __init__(self, folder: Path, output: Output, limit: float):
        self.folder, self.output, self.limit = folder, output, limit
        self.last = self.looked = time.monotonic()
        self.heard = output.heard
        self.seen = self._look()

    def missing(self) -> bool:
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
        found = set()
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    try:
                        found.add((entry.name, entry.stat().st_mtime_ns))
                    except FileNotFoundError:  # it was renamed just now
                        continue
        except FileNotFoundError:  # its processes may clear it up at their end
            pass
        return found


def stopped(processes: list[Process]) -> list[str]:
    """The names of those that someone has stopped (SIGSTOP); on Linux, elsewhere none."""
    return [process.name for process in processes if process.is_stopped()]
