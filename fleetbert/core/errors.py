"""Errors that a user can cause, and how they leave the program."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Callable, Iterator, NoReturn

from fleetbert.core import log

NOT_CONNECTED = 75  # EX_TEMPFAIL of sysexits.h


class Error(Exception):
    """The base class of fleetbert's errors."""

    code = 2  # exit status
    title = "error"  # begins the line that is printed

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show instead of the stack; %debug still opens it."""
        return [f"{type(self).__name__}: {self}"]


class UserError(Error):
    """An error that the user can correct. Its message says what is wrong, where, and what to do."""


class GateFailed(UserError):
    """A compressed variant loses more accuracy than allowed. It was not added."""

    code = 3


class Stopped(Error):
    """The run was stopped by SIGTERM and has saved a checkpoint."""

    code, title = 143, "stopped"


class Interrupted(Stopped):
    """The run was stopped by Ctrl-C (SIGINT) and has saved a checkpoint."""

    code = 130


class NotConnected(Error):
    """The ranks could not connect to each other. Running the same command again may work."""

    code, title = NOT_CONNECTED, "not connected"


def of_system(error: BaseException | None) -> bool:
    """Whether the machine refused (a disk, memory, a limit), so that it may go well the next time.

    Another error says so by its cause: `raise UserError(…) from error`, and `from None` where the
    next time is no better.
    """
    while error is not None:
        if isinstance(error, (OSError, MemoryError)):
            return True
        error = error.__cause__
    return False


@contextlib.contextmanager
def renamed(key: str, name: str) -> Iterator[None]:
    """Have UserErrors about a key name what the user has given in its place."""
    try:
        yield
    except UserError as error:
        raise type(error)(str(error).replace(key, name)) from error


def run(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> None:
    """Run a command's `main` and exit with 0, or what its error says: 2 user error, 3 gate,
    75 ranks did not connect, 130 Ctrl-C, 143 stopped by SIGTERM.

    A UserError is printed as one line; `--debug` anywhere on the command line shows the stack.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It is closed, as some daemons leave it. What is opened gets the lowest number that is
            # free, and libuv aborts where it gets this one.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    log.start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal or a pipe cannot show is escaped: no result is lost after the work.
        sys.stdout.reconfigure(errors="backslashreplace")
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    try:
        _leave(main(argv) or 0)
    except Error as error:
        if debug and not isinstance(error, Stopped):
            raise
        print(f"{error.title}: {error}", file=sys.stderr)
        _leave(error.code)
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted", file=sys.stderr)
        _leave(130)
    except BrokenPipeError:  # `fleetbert predict ... | head`
        sys.stderr.close()
        _leave(141)
    except OSError as error:
        sentence = _of_the_machine(error)
        if debug or sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        _leave(UserError.code)


# What a disk or a container lacks, and no code does wrong; a folder in the place of a file.
OF_THE_MACHINE = (
    *(errno.EACCES, errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EPERM, errno.EROFS),
    *(errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
)


def _of_the_machine(error: OSError) -> str | None:
    """A sentence for what the user's machine refuses, wherever a library met it; else None."""
    if "usable temporary directory" in str(error):  # as `tempfile` says it, without a number
        return "TMPDIR: no temporary folder can be written; set TMPDIR to one that can be"
    if error.errno not in OF_THE_MACHINE:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}; make room or choose another folder (--debug shows who asked)"


def _leave(code: int) -> NoReturn:
    """Exit; a rank does so without the teardown of Paddle's native libraries and threads,
    which now and then aborts (SIGABRT) in one of two ranks after all has been written.
    """
    is_rank = "PADDLE_TRAINER_ID" in os.environ or "TRAINING_ROLE" in os.environ
    if is_rank and "paddle" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
