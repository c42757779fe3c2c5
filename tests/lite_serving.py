"""fleetbert-lite-server, started for a test."""

from __future__ import annotations

import contextlib
import re
import subprocess

import requests
from lite_build import DEADLINE

INFER = "/v2/models/model/infer"
LENGTH = "Inference-Header-Content-Length"


def post(url, body, **headers):
    """Ask for an inference; the header of LENGTH as `length`."""
    if "length" in headers:
        headers[LENGTH] = headers.pop("length")
    return requests.post(url + INFER, data=body, headers=headers, timeout=DEADLINE)


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
