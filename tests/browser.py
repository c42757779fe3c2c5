"""Headless Chromium, spoken to over its DevTools pipe: a page's DOM, console and requests."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
DEADLINE = 120


def find() -> str:
    """The program; skips the test where there is none."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip(
        f"no browser: none of {', '.join(NAMES)} is installed: `sudo .ci/packages` installs it"
    )


class Browser:
    """One page. `requests` are the URLs that it asked for since it was opened, `errors` what its
    console complained of. End it with `close`."""

    def __init__(self, folder: Path):
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        read, self._out = os.pipe()  # the browser reads commands from 3 and answers on 4
        self._in, write = os.pipe()
        command = " ".join(("exec", '"$0"', *FLAGS, '--user-data-dir="$1"', "3<&$2", "4>&$3"))
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", command, find(), str(folder / "profile"), str(read), str(write)],
                pass_fds=(read, write),
                stdout=log,
                stderr=log,
            )
        os.close(read)
        os.close(write)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        self._call("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank'")
        self.requests.clear()
        self.errors.clear()
        self._call("Page.navigate", url=url)
        self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Until the expression is true; returns it."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            found = self.run(expression)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited in vain for {expression}; console: {self.errors}")

    def check(self, url: str) -> None:
        """The page asked nobody but the server at `url`, and its console has no complaint."""
        asked = {urlsplit(one) for one in self.requests}
        hosts = {one.netloc for one in asked if one.scheme not in ("data", "about")}
        assert hosts == {urlsplit(url).netloc}
        assert self.errors == []

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + DEADLINE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, until - time.monotonic()))
            data = os.read(self._in, 1 << 16) if ready else b""
            assert data, "the browser went silent; see browser.log"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        name, what = event.get("method"), event.get("params", {})
        if name == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(what["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(what["args"]))
        elif name == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(json.dumps(what["entry"]))
