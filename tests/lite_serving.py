"""fleetbert-lite-server, started for a test."""

from __future__ import annotations

import contextlib
import re
import subprocess

INFER = "/v2/models/model/infer"
DEADLINE = 300  # seconds that a busy machine may take


@contextlib.contextmanager
def serving(programs, bundle, *words):
    """A server on a free port: (its URL, its process)."""
    words = ("--bundle", bundle, "--engine=fake", "--host=127.0.0.1", "--port=0", *words)
    command = programs.command("fleetbert-lite-server", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"http://\S+", process.stdout.readline())
            yield found[0], process
        finally:
            process.kill()
