"""The core as the protocols see it: from SIGTERM on it is not ready and takes no requests."""

from __future__ import annotations

from fleetbert.deploy.inference.messages import (
    Core,
    Failure,
    Reason,
    Request,
    Response,
    Statistics,
    Version,
)


class Draining:
    """Passes everything on to `core`, a `messages.Core`, until `leaving` is set; what was taken
    before is answered."""

    def __init__(self, core: Core):
        self._core = core
        self.leaving = False

    async def answer(self, request: Request) -> Response:
        self._check()
        return await self._core.answer(request)

    def live(self) -> bool:
        return self._core.live()

    def ready(self) -> bool:
        return not self.leaving and self._core.ready()

    def versions(self, model: str | None = None) -> list[Version]:
        return self._core.versions(model)

    def find(self, model: str, version: str | None = None) -> Version:
        self._check()
        return self._core.find(model, version)

    def statistics(self, model: str | None = None, version: str | None = None) -> list[Statistics]:
        return self._core.statistics(model, version)

    async def load(self, model: str) -> None:
        self._check()
        await self._core.load(model)

    async def unload(self, model: str) -> None:
        self._check()
        await self._core.unload(model)

    def _check(self) -> None:
        if self.leaving:
            raise Failure(
                Reason.UNAVAILABLE, "the server is leaving; ask another one", retry_after=1.0
            )
