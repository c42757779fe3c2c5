"""`fleetbert serve` over the fake core: `serve_fake.py key=value ...`.

Text "sleep 2" is answered after 2 seconds. FAKE_READY_FILE: not ready until that file exists.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import uvloop
from fake_core import FakeCore

from fleetbert import config
from fleetbert.core import errors
from fleetbert.deploy.inference import server, settings
from fleetbert.deploy.inference.messages import Failure, Reason, Request, Response, Version


class Fake(FakeCore):
    def __init__(self, _: settings.Serve):
        super().__init__()
        self.file = os.environ.get("FAKE_READY_FILE")
        self.asleep: list[asyncio.Future[None]] = []
        self.leaving = False

    def start(self) -> None:
        pass

    def ready(self) -> bool:
        return not self.leaving and (self.file is None or Path(self.file).exists())

    def find(self, model: str, version: str | None = None) -> Version:
        if self.leaving:
            raise Failure(Reason.UNAVAILABLE, "the server is leaving", retry_after=1.0)
        return super().find(model, version)

    async def answer(self, request: Request) -> Response:
        text = request.texts[0] if request.texts else ""
        if text.startswith("sleep "):
            logging.getLogger("fake").info("asleep")
            sleep = asyncio.ensure_future(asyncio.sleep(float(text.split()[1])))
            self.asleep.append(sleep)
            await asyncio.wait([sleep])
            if sleep.cancelled():
                raise Failure(Reason.UNAVAILABLE, "the grace is over")
        return await super().answer(request)

    async def close(self, grace: float) -> None:
        self.leaving = True
        if self.asleep:
            await asyncio.wait(self.asleep, timeout=grace)
        for sleep in self.asleep:
            sleep.cancel()


def main(argv: list[str]) -> None:
    section = config.load_as(settings.Serve, os.devnull, argv)
    uvloop.run(server.serve(section, Fake))


if __name__ == "__main__":
    errors.run(main)
