"""Processes that work beside this one: those that fill the token cache and those that collect
batches.

They are started anew and import no Paddle. A fork would copy the locks of Paddle's threads as
they are at that moment. They do not outlive the process that started them, however it ends, and
leave Ctrl-C and SIGTERM to it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import weakref
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Callable

from fleetbert.compat import environment
from fleetbert.core import files
from fleetbert.core.errors import UserError

LEFT_TO_PARENT = {signal.SIGINT, signal.SIGTERM}


def _check_main() -> None:
    """UserError for a script that a process which it starts would run once more, from its first
    line to the one that starts processes: Python 3.10 waits for that one's end for ever."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or str(getattr(getattr(main, "__spec__", None), "name", "")).endswith(
        "__main__"
    ):
        return  # it is not run again
    try:
        script = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if "__name__" not in script and not hasattr(sys, "ps1"):
        raise UserError(
            f"{path}: processes that read beside the training (data.num_workers, data.cache) run "
            "this script's lines too: put them below `if __name__ == '__main__':`, or set "
            "data.num_workers=0 and data.cache=none"
        )


class _Process(SpawnProcess):
    def start(self) -> None:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)  # it inherits this
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def terminate(self) -> None:
        """What an executor does to the others when one has died: they do not hear SIGTERM."""
        self.kill()


class _Context(SpawnContext):
    Process = _Process


def start(
    count: int, prepare: Callable[..., None] | None = None, *arguments: object
) -> ProcessPoolExecutor:
    """A ProcessPoolExecutor of `count` processes, in each of which `prepare(*arguments)` has run.

    To be used and closed by the thread that called this: they end with it. UserError where the
    system has no room for what they share, or where they would run the caller's script once more.
    """
    _check_main()
    with files.writing(Path(tempfile.gettempdir())):
        sent = tempfile.NamedTemporaryFile(prefix="fleetbert-")  # noqa: SIM115  as long as the pool
        pickle.dump((prepare, arguments), sent)
        sent.flush()
    try:
        pool = ProcessPoolExecutor(
            count, mp_context=_Context(), initializer=_begin, initargs=(os.getpid(), sent.name)
        )
    except OSError as error:  # of their semaphores, which Linux keeps there
        raise UserError(
            f"/dev/shm: {error.strerror}, so that no process can be started beside this one; make "
            "room there (docker run --shm-size=64m)"
        ) from error
    weakref.finalize(pool, sent.close)
    return pool


def _begin(parent: int, sent: str) -> None:
    """sent: the file with `prepare` and its arguments. Python (3.10) would send them down a pipe,
    and wait for ever, deaf to signals, for one that died before it read them."""
    environment.die_with_parent(parent)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    with Path(sent).open("rb") as file:
        prepare, arguments = pickle.load(file)
    if prepare is not None:
        prepare(*arguments)
