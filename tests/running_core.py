"""A server's core in a thread of the test's own process, with worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Coroutine, Iterator, Mapping

import light
import psutil
import pytest

from fleetbert.deploy.inference.messages import Failure, Request, Response
from fleetbert.deploy.inference.ops import metrics
from fleetbert.deploy.inference.repository.repository import Repository
from fleetbert.deploy.inference.scheduler.scheduler import Scheduler
from fleetbert.deploy.inference.settings import Serve
from fleetbert.deploy.inference.workers import process

REAL_WORKER = process.COMMAND
DEADLINE = 120.0  # against hanging only


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    """Until `condition()` is true, which is returned."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        result = condition()
        if result:
            return result
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what or condition}")


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class RunningCore:
    """`repository` in an event loop of its own thread. End it with `close`."""

    def __init__(self, settings: dict[str, Any]):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.settings = Serve.model_validate(settings)
        self.repository: Repository = self.call(self._start())

    async def _start(self) -> Repository:
        repository = Repository(self.settings)
        repository.start()
        return repository

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Start a coroutine in the loop; returns its concurrent.futures.Future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.submit(coroutine).result(DEADLINE)

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the loop's thread."""

        async def call() -> Any:
            return function(*arguments)

        return self.call(call())

    async def answer(self, request: Request) -> Response:
        """In the loop."""
        return await self.repository.answer(request)

    def ask(self, **words: Any) -> Response:
        return self.call(self.answer(Request(**words)))

    def failure(self, **words: Any) -> Failure:
        """The Failure that a request gets."""
        try:
            self.ask(**words)
        except Failure as failure:
            return failure
        raise AssertionError("it was answered")

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.do(self.repository.ready), "ready")

    def workers(self, model: str) -> list[int]:
        """The process ids of a model's workers that can answer."""

        loaded = self.do(self.repository.loaded, model)
        pools = [one.scheduler.pool for one in loaded]
        return [worker.process.pid for pool in pools for worker in pool._workers.values()]

    def scheduler(self, model: str) -> Scheduler:
        """That of the model's newest version."""
        return self.do(self.repository.loaded, model)[-1].scheduler

    def close(self) -> None:
        try:
            self.call(self.repository.close(grace=5.0))
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()
            for child in worker_processes():
                child.kill()


@contextlib.contextmanager
def running(
    models: Path,
    wait: bool = True,
    engine: Mapping[str, Any] = {},
    batching: Mapping[str, Any] = {},
    **repository: Any,
) -> Iterator[RunningCore]:
    """A core over the folder `models`, float32 on one worker of one thread unless told otherwise,
    which does not look for changes unless it is given `poll_seconds`; closed afterwards."""
    repository = {"poll_seconds": 0, "default": {"variant": "float32"}, **repository}
    core = RunningCore(
        {
            "repository": {"path": str(models), **repository},
            "engine": {"workers": 1, "threads": 1, **engine},
            "batching": {"timeout_ms": 1000 * DEADLINE, **batching},
        }
    )
    try:
        if wait:
            core.wait_until_ready()
        yield core
    finally:
        core.close()


@contextlib.contextmanager
def light_workers() -> Iterator[None]:
    """Workers that are started meanwhile need no Paddle; see `light.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "COMMAND", light.WORKER)
        patch.setattr(process, "forking", None)
        yield


def worker_processes() -> list[psutil.Process]:
    """Those of this process, whether they answer or not."""
    scripts = {REAL_WORKER[-1], light.WORKER[-1]}
    return [child for child in psutil.Process().children() if scripts & set(command(child))]


def command(found: psutil.Process) -> list[str]:
    """A process's command line; empty if it has ended."""
    try:
        return found.cmdline()
    except psutil.Error:
        return []


async def gather(*awaitables: Awaitable[Any]) -> list[Any]:
    """Results and exceptions of all."""
    return list(await asyncio.gather(*awaitables, return_exceptions=True))


def sample(name: str, **labels: str) -> float:
    """The value of one of the server's series; 0 if there is none yet."""
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0
