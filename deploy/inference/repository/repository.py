"""The models and versions that are served: what lies on disk, brought into service by policy.

A version is loaded beside those that answer, takes over when it is ready, and the old one answers
what it has taken. One that fails is refused until its files change, and what was served stays.
Where the machine failed (a disk, memory) or a worker ended, it is tried again, with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path

from fleetbert.core import limits
from fleetbert.core.errors import UserError, of_system
from fleetbert.deploy.inference.messages import (
    Failure,
    Reason,
    Request,
    Response,
    Statistics,
    Token,
    Version,
    list_names,
    show,
)
from fleetbert.deploy.inference.ops import metrics, observe
from fleetbert.deploy.inference.repository import index
from fleetbert.deploy.inference.repository.loading import LoadedVersion, Loader
from fleetbert.deploy.inference.repository.models import Model, Refusal, versions_of
from fleetbert.deploy.inference.settings import VERSION_NAME, Serve
from fleetbert.deploy.inference.workers import process
from fleetbert.deploy.inference.workers.connection import Lost, Refused

log = logging.getLogger(__name__)

# What was there so long ago at most, and is not now, is being replaced: rm, then cp.
REPLACING_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two tries of what the machine refused
TOLD_SECONDS = 600.0  # for so long the metrics tell of a version that is gone: scrapes are seldom
LOAD_TRIES = 3  # at once, of a version whose workers end while they open it


class Repository:
    """Implements messages.Core."""

    def __init__(self, settings: Serve):
        self._settings = settings
        self._root = Path(settings.repository.path)
        self._models: dict[str, Model] = {
            name: Model(name, policy, required=True)
            for name, policy in settings.repository.models.items()
        }
        self._index = index.Index(self._root, settings.repository.model())
        self._loader = Loader(settings)
        self._looked = False
        self._seen: dict[tuple[str, int], float] = {}  # when each version was last there
        self._lock = asyncio.Lock()  # one change at a time
        self._retiring: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._leaving = False

    def start(self) -> None:
        """Begin to load what there is, and to look for changes. `ready` says when it answers."""
        shares, threads = process.share_processors(self._settings.engine)
        words = "%s; each version has %d workers of %d threads"
        log.info(words, limits.read(), len(shares), threads)
        self._watching = asyncio.ensure_future(self._watch())

    async def close(self, grace: float) -> None:
        """End all. It takes nothing more and is not ready; what was taken is answered first, for
        at most `grace` seconds."""
        self._leaving = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for model in self._models.values():
            for number in list(model.held):
                self._retire(model, number, grace)
        await asyncio.gather(*self._retiring)

    def live(self) -> bool:
        pools = (h.scheduler.pool for model in self._models.values() for h in model.held.values())
        return all(pool.seconds_alone() < self._settings.engine.heal_seconds for pool in pools)

    def ready(self) -> bool:
        answers = {
            name: any(held.scheduler.pool.alive for held in model.held.values())
            for name, model in self._models.items()
        }
        return (
            not self._leaving
            and any(answers.values())
            and all(
                answers[name]
                for name, model in self._models.items()
                if model.required and not model.unloaded
            )
        )

    async def answer(self, request: Request) -> Response:
        self._check_stays()
        return await self._route(request.model, request.version).scheduler.answer(request)

    async def tokenize(
        self, model: str, version: str | None, texts: list[str]
    ) -> list[list[Token]]:
        self._check_stays()
        return await self._route(model, version).scheduler.tokenize(texts)

    def find(self, model: str, version: str | None = None) -> Version:
        self._check_stays()
        return self._route(model, version).version

    def versions(self, model: str | None = None) -> list[Version]:
        models = [self._model(model)] if model is not None else self._models.values()
        return [version for name in models for version in versions_of(name)]

    def statistics(self, model: str | None = None, version: str | None = None) -> list[Statistics]:
        if model is None:
            chosen = [loaded for name in self._models for loaded in self.loaded(name)]
        elif version is None:
            chosen = self.loaded(model)
        else:
            chosen = [self._route(model, version)]
        return [loaded.scheduler.counts.statistics() for loaded in chosen]

    def loaded(self, model: str) -> list[LoadedVersion]:
        """The versions of a model that answer, in the order of their numbers."""
        held = self._model(model).held
        return [held[number] for number in sorted(held)]

    async def load(self, model: str) -> None:
        self._check_stays()
        async with self._lock:
            await self._look(anew=model)
            known = self._model(model)
            known.unloaded = False
            known.refused.clear()
            hoped = known.wanted()
            await self._update(known)
            if not known.on_disk:
                raise Failure(Reason.NOT_FOUND, f"model {model} has no version on disk")
            refused = [number for number in hoped if number not in known.held]
            if refused or not known.held:
                number = refused[0] if refused else max(known.on_disk)
                raise Failure(
                    Reason.UNAVAILABLE,
                    f"version {number} of model {model} is not served: {known.state(number)[1]}",
                )

    async def unload(self, model: str) -> None:
        self._check_stays()
        async with self._lock:
            known = self._model(model)
            known.unloaded = True
            await self._update(known)
        await asyncio.gather(*self._retiring)

    def _check_stays(self) -> None:
        if self._leaving:
            raise Failure(Reason.UNAVAILABLE, "the server is leaving; ask another one", 1.0)

    def _model(self, name: str) -> Model:
        known = self._models.get(name)
        if known is None:
            names = list_names(sorted(self._models))
            raise self._absent(f"there is no model {show(name)}; there are: {names}", name)
        return known

    def _absent(self, message: str, name: str, number: int | None = None) -> Failure:
        """Of what is not there. Worth another try before the first look, or if it was there a
        moment ago."""
        since = time.monotonic() - REPLACING_SECONDS
        for (model, version), seen in self._seen.items():
            if model == name and number in (None, version) and seen > since:
                return Failure(Reason.UNAVAILABLE, f"{message}; it was there a moment ago", 1.0)
        if not self._looked:
            words = f"model {show(name)} is not known yet: the server has just started"
            return Failure(Reason.UNAVAILABLE, words, 1.0)
        return Failure(Reason.NOT_FOUND, message)

    def _route(self, name: str, version: str | None) -> LoadedVersion:
        """Which version answers a request with these words."""
        model = self._model(name)
        if version is None:
            if model.held:
                return model.held[max(model.held)]
            newest = max(model.on_disk, default=None)
            if newest is None or model.unloaded:
                raise Failure(Reason.UNAVAILABLE, f"model {name} is not loaded")
            raise Failure(
                Reason.UNAVAILABLE, f"model {name} is not ready: {model.state(newest)[1]}"
            )
        number = model.policy.aliases.get(version)
        if number is None and VERSION_NAME.fullmatch(version):
            number = int(version)
        if number in model.held:
            return model.held[number]
        if number not in model.on_disk:
            known = [*map(str, sorted(model.on_disk)), *sorted(model.policy.aliases)]
            raise self._absent(
                f"model {name} has no version {show(version)}; it has: {list_names(known)}",
                name,
                -1 if number is None else number,
            )
        raise Failure(
            Reason.UNAVAILABLE,
            f"version {version} of model {name} is not ready: {model.state(number)[1]}",
        )

    async def _watch(self) -> None:
        seconds, pause = self._settings.repository.poll_seconds, FIRST_PAUSE
        while True:
            try:
                async with self._lock:
                    await self._look()
                    for model in list(self._models.values()):
                        await self._update(model)
            except Exception:  # the next look may go well; what answers goes on
                log.exception("looking for changes in %s failed", self._root)
            if not (seconds or self._may_heal()):
                return
            await asyncio.sleep(seconds or pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _may_heal(self) -> bool:
        refused = (r for model in self._models.values() for r in model.refused.values())
        return self._index.may_heal() or any(r.due < math.inf for r in refused)

    async def _look(self, anew: str | None = None) -> None:
        """See what is on disk; `anew` the model of that name, also where it seems unchanged."""
        loop = asyncio.get_running_loop()
        on_disk = await loop.run_in_executor(None, self._index.look, anew)
        if on_disk is None:
            return
        for name in on_disk:
            if name not in self._models:
                policy = self._settings.repository.default
                self._models[name] = Model(name, policy, required=not self._looked)
        now = time.monotonic()
        for name, model in self._models.items():
            model.on_disk = on_disk.get(name, {})
            self._seen.update(((name, number), now) for number in model.on_disk)
        self._seen = {key: t for key, t in self._seen.items() if t > now - REPLACING_SECONDS}
        self._looked = True

    async def _update(self, model: Model) -> None:
        """Bring into service what is wanted, then out of it what is not."""
        while not model.unloaded:
            missing = [
                number
                for number in model.wanted()
                if number in model.on_disk
                and not model.is_refused(number)
                and model.on_disk[number].bundle is not None
                and (number not in model.held or model.held[number].folder != model.on_disk[number])
            ]
            if not missing:
                break
            await self._load(model, missing[0])
        wanted = model.wanted()
        # A volume that is unmounted looks like this, too.
        missed = bool(model.held) and not (wanted or model.unloaded)
        if missed and not model.missed:
            log.warning(
                f"model {model.name} is gone from {self._root}; it goes on being served until it "
                "is unloaded by request"
            )
        model.missed = missed
        for number in list(model.held):
            if model.unloaded or not (missed or number in wanted):
                self._retire(model, number, self._settings.listen.grace_seconds)
                log.info("version %d of model %s is no longer served", number, model.name)
                metrics.LOADS.labels(model.name, "unloaded").inc()
        configured = model.name in self._settings.repository.models
        # That it was unloaded is remembered while its folder is away.
        if not (model.on_disk or model.held or model.unloaded or configured):
            del self._models[model.name]

    async def _try(self, model: Model, number: int, folder: index.VersionFolder) -> LoadedVersion:
        """Open a version, again if a worker ended meanwhile: that need not be the version's fault
        (somebody's kill, want of memory)."""

        async def once() -> LoadedVersion:
            gently = any(model.held for model in self._models.values())
            usual = model.held[max(model.held)].scheduler.usual_batches() if model.held else ()
            return await self._loader.open(model.name, number, model.policy, folder, gently, usual)

        for _ in range(LOAD_TRIES - 1):
            try:
                return await once()
            except Lost as lost:
                log.warning("version %d of model %s: %s; trying again", number, model.name, lost)
        return await once()

    async def _load(self, model: Model, number: int) -> None:
        """Open a version; afterwards it is in `held` or in `refused`."""
        folder = model.on_disk[number]
        begin = time.monotonic()
        model.loading.add(number)
        try:
            held = await self._try(model, number, folder)
        except Exception as error:
            expected = isinstance(error, (UserError, Refused, Lost, OSError))
            reason, refusal = str(error) or type(error).__name__, model.refused.get(number)
            metrics.LOADS.labels(model.name, "refused").inc()
            if of_system(error) or isinstance(error, Lost):
                last = refusal.pause if refusal and refusal.folder == folder else 0.0
                pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * last))
                due, then = time.monotonic() + pause, f"; tried again after {pause:g} s"
            else:
                due, pause, then = math.inf, 0.0, ""
            model.refused[number] = Refusal(folder, reason, due, pause)
            words = f"version {number} of model {model.name} is refused: {reason}{then}"
            log.error(words, exc_info=not expected)
            self._forget_later(model.name, number)
            return
        finally:
            model.loading.discard(number)
        if number in model.held:
            self._retire(model, number, self._settings.listen.grace_seconds)
        model.refused.pop(number, None)
        model.held[number] = held
        model.required = True
        metrics.LOADS.labels(model.name, "ready").inc()
        log.info(
            f"version {number} of model {model.name} is ready: variant {held.version.variant}, "
            f"{held.scheduler.pool.size} workers, loaded in {time.monotonic() - begin:.1f} s"
        )

    def _retire(self, model: Model, number: int, grace: float) -> None:
        """Let a version answer what it has taken, then end it."""
        held = model.held.pop(number)
        model.draining.append(held)

        async def end() -> None:
            await held.scheduler.drain(grace)
            await held.scheduler.close()
            model.draining.remove(held)
            self._forget_later(model.name, number)

        task = asyncio.ensure_future(end())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _forget_later(self, name: str, number: int) -> None:
        """Drop the series of a version that does not answer, unless it has come back then."""

        def forget() -> None:
            model = self._models.get(name)
            draining = [int(held.version.version) for held in model.draining] if model else []
            if model is None or number not in (*model.held, *model.loading, *draining):
                observe.forget(name, str(number))

        asyncio.get_running_loop().call_later(TOLD_SECONDS, forget)
