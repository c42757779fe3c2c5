"""Figures of the servers: rows, memory, pulls, pushes and latency.

All figures are the servers' own. brpc counts requests and serves its counters over HTTP on each
server's port (`/vars`, see docs/en/vars.md of brpc); how many rows the word table has, the servers
tell Paddle's client. Trainer 0 asks when it logs, once a second at most.
"""

from __future__ import annotations

import contextlib
import http.client
import time
from typing import Callable, Dict, List, Tuple

import numpy as np

LIMIT = 1.0  # seconds for an answer, without which a row has no figures of servers
SPACING = 1.0  # seconds between two questions

MEMORY = "process_memory_resident"
_REQUESTS = "cost_profiler_pserver_server_{}_count"  # handled since the start, see _KINDS
_KINDS = {"pulls": ("pull_dense", "pull_sparse"), "pushes": ("push_dense", "push_sparse")}
HANDLED = _REQUESTS.format("push_dense")
_SERVICE = "_ps_service_service_"  # all requests, whatever they are for
VARIABLES = ";".join((MEMORY, _REQUESTS.format("pu*"), f"rpc_server_*{_SERVICE}latency*"))

# How the figures of several servers become one.
_TOGETHER: dict[str, Callable[[list[float]], float]] = {
    "memory_mb": max,
    "pulls_per_s": sum,
    "pushes_per_s": sum,
    "latency_ms": max,
    "latency_99_ms": max,
}


Look = Tuple[float, List[Dict[str, float]]]  # when, and each server's counters


class Servers:
    """Figures of the servers at `endpoints`, in their order. The connections stay open: some are
    asked for after each step."""

    def __init__(self, endpoints: list[str]):
        self.connections = [http.client.HTTPConnection(e, timeout=LIMIT) for e in endpoints]
        self.first = self.last = self._look()
        self.requested = -SPACING

    def handled(self) -> np.ndarray | None:
        """How many pushes of the vector each has handled since its start; None if one does not
        say."""
        counters = self._ask(HANDLED)
        if not counters or not all(HANDLED in each for each in counters):
            return None
        return np.array([int(each[HANDLED]) for each in counters])

    def row(self, count_rows: Callable[[], int | None]) -> dict[str, float]:
        """For a row of metrics.jsonl: `server.0.pulls_per_s` and so on, since the row before;
        of all of them together `servers.pulls_per_s` (the largest memory and latency).
        `count_rows` gives the rows of the word table on all servers, without one 0, or None if that
        is not known."""
        if time.monotonic() - self.requested < SPACING:
            return {}
        before, self.last = self.last, self._look()
        self.requested = time.monotonic()
        each = _between(before, self.last)
        if not each:
            return {}
        rows = count_rows()
        row: dict[str, float] = {} if rows is None else {"servers.rows": rows}
        for name, join in _TOGETHER.items():
            known = [server[name] for server in each if name in server]
            if known:
                row[f"servers.{name}"] = join(known)
        for number, server in enumerate(each):
            row.update({f"server.{number}.{name}": value for name, value in server.items()})
        return row

    def since_start(self) -> list[dict[str, float]]:
        """Each server's figures over the whole run of this trainer."""
        return _between(self.first, self._look())

    def _look(self) -> Look:
        return time.monotonic(), self._ask(VARIABLES)

    def _ask(self, names: str) -> list[dict[str, float]]:
        """Each server's counters by name; none of any if one does not answer in time."""
        try:
            return [_counters(connection, names) for connection in self.connections]
        except (OSError, http.client.HTTPException):
            for connection in self.connections:
                connection.close()  # the next call opens them again
            return []


def _counters(connection: http.client.HTTPConnection, names: str) -> dict[str, float]:
    connection.request("GET", f"/vars/{names}")
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    if answer.status != http.client.OK:
        raise http.client.HTTPException(f"status {answer.status}")
    counters = {}
    for line in text.splitlines():
        name, _, value = line.partition(" : ")
        with contextlib.suppress(ValueError):  # a text
            counters[name] = float(value)
    return counters


def _between(before: Look, after: Look) -> list[dict[str, float]]:
    seconds = max(after[0] - before[0], 1e-9)
    # Without a look before, there are no speeds.
    earlier = before[1] or [{} for _ in after[1]]
    return [_figures(old, new, seconds) for old, new in zip(earlier, after[1])]


def _figures(old: dict[str, float], new: dict[str, float], seconds: float) -> dict[str, float]:
    figures = {}
    if MEMORY in new:
        figures["memory_mb"] = new[MEMORY] / 1e6
    for kind, names in _KINDS.items():
        counters = [_REQUESTS.format(name) for name in names]
        if all(counter in old and counter in new for counter in counters):
            handled = sum(new[counter] - old[counter] for counter in counters)
            figures[f"{kind}_per_s"] = handled / seconds
    # Of brpc's last ten seconds, in microseconds; 0 where it has none yet.
    for name, value in new.items():
        for ending, figure in (("latency", "latency_ms"), ("latency_99", "latency_99_ms")):
            if name.endswith(_SERVICE + ending) and value:
                figures[figure] = value / 1000
    return figures
