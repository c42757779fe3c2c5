"""The side of a measured process: takes commands, times what it does, reports.

A worker is a process of its own that stays alive, so that engines can take turns without loading
anew. Commands and reports are JSON, one a line, on stdin and stdout. Nothing but Python's standard
library is imported here: the peers use this file too, in an environment without fleetbert.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict

# A command or report: JSON has no types of its own.
Json = Dict[str, Any]


class Stop(Exception):
    """Nothing more is wanted of this worker."""


class Channel:
    """Commands in, reports out. What libraries print to stdout goes to stderr meanwhile."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, **message: object) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def receive(self) -> Json:
        line = sys.stdin.readline()
        if not line:
            raise Stop
        command: Json = json.loads(line)
        return command


class Clock:
    """Seconds and CPU seconds (user and system, all threads) between `start` and `stop`."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def start(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        ended = time.perf_counter(), time.process_time()
        self.seconds += ended[0] - self._began[0]
        self.cpu_seconds += ended[1] - self._began[1]


class Segments:
    """Training in segments: waits for {"steps": n, "untimed": m} before the first of n steps.

    Timed is what lies between `before_step` and `after_step`, but for the first m steps;
    evaluation and checkpoints lie outside. `dev` collects accuracies to report.
    """

    def __init__(self, channel: Channel):
        self.channel = channel
        self.left = 0
        self.dev: list[float] = []
        self.report: Json | None = None

    def before_step(self) -> None:
        if self.left == 0:
            self.send_report()
            self.command = self.channel.receive()
            self.left, self.untimed = self.command["steps"], self.command["untimed"]
            self.report = {"steps": 0, "texts": 0, "tokens": 0}
            self.clock = Clock()
        if not self.untimed:
            self.clock.start()

    def after_step(self, texts: int, tokens: int) -> None:
        assert self.report is not None
        if self.untimed:
            self.untimed -= 1
        else:
            self.clock.stop()
            self.report["steps"] += 1
            self.report["texts"] += texts
            self.report["tokens"] += tokens
        self.left -= 1

    def send_report(self) -> None:
        """Report the segment that has just ended, if there is one."""
        if self.report is not None:
            self.channel.send(
                **self.report,
                seconds=self.clock.seconds,
                cpu_seconds=self.clock.cpu_seconds,
                peak_mb=peak_mb(),
                dev=self.dev,
            )
            self.report = None


def peak_mb() -> float:
    """The largest resident memory of this process so far, in MB (0 where Linux does not tell)."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:  # noqa: PTH123
            line = next(line for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0.0
    return int(line.split()[1]) * 1024 / 1e6
