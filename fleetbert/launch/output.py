"""What the processes of a job write: each into a log of its own, all into one merged log, line by
line, and trainer 0 to the terminal, byte by byte, so that its progress bar stays one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import termios
import time
from collections import deque
from pathlib import Path
from typing import Callable, Iterable

from fleetbert import locks
from fleetbert.errors import UserError

LINE_LIMIT = 1 << 20  # bytes of a line in the merged log; a longer one becomes several
PENDING_LIMIT = 1 << 20  # bytes that a stalled terminal may owe before trainer 0 has to wait
TAIL = 20  # lines of a process that failed, for the terminal
TAIL_WIDTH = 2000  # bytes of each

_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")  # colours and cursor movements (ECMA-48, CSI)


class Lines:
    """Cuts a stream of bytes into lines as they look in the end: of a progress bar, which writes
    over itself after each carriage return, what was written last."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        *lines, rest = (self.rest + data).split(b"\n")
        shown = _visible(lines)
        rest = rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]
        while len(rest) > LINE_LIMIT:
            shown += _visible([rest[:LINE_LIMIT]])
            rest = rest[LINE_LIMIT:]
        self.rest = rest
        return shown

    def close(self) -> list[bytes]:
        """The last line, if nothing ended it."""
        rest, self.rest = self.rest, b""
        return _visible([rest] if rest else [])


def _visible(lines: Iterable[bytes]) -> list[bytes]:
    shown = []
    for line in lines:
        bare = line.rstrip(b"\r")
        last = _ESCAPES.sub(b"", bare[bare.rfind(b"\r") + 1 :])
        if last.strip() or b"\r" not in bare:  # a bar that was wiped out is no line
            shown.append(last)
    return shown


class _Terminal:
    """The launcher's own stdout or stderr. A reader that stalls does not stall the launcher."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.pending = b""
        self.fresh = True  # at the start of a line
        self.gone = False
        try:
            status = os.fstat(descriptor)
            self.identity: tuple[int, int] | None = (status.st_dev, status.st_ino)
        except OSError:  # started with it closed
            self.gone, self.identity = True, None

    def write(self, data: bytes) -> None:
        if data and not self.gone:
            self.pending += data
            self.fresh = data.endswith(b"\n")

    def flush_some(self) -> None:
        try:
            written = os.write(self.descriptor, self.pending[: select.PIPE_BUF])
            self.pending = self.pending[written:]
        except BlockingIOError:
            pass
        except OSError:  # the reader went away: the logs have it all, and the job goes on
            self.gone, self.pending = True, b""

    def flush(self, seconds: float | None = None) -> None:
        """Write all of it, or what the reader takes without pausing so long."""
        while self.pending:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLOUT)
            if not poll.poll(None if seconds is None else 1000 * seconds):
                break
            self.flush_some()


class _Log:
    """A file that is appended to; a full disk is reported once and does not end the job."""

    def __init__(self, path: Path, report: Callable[[str], None]):
        self.path, self.report, self.reported = path, report, False
        self.file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self.file.write(data) or 0 :]
        except OSError as error:
            if not self.reported:
                self.reported = True
                self.report(f"{self.path}: {error.strerror}; lines are missing in it from here on")


class _Source:
    """One stream of a process, as the launcher reads it."""

    def __init__(self, name: str, descriptor: int, log: _Log, tail: deque[bytes]):
        self.name, self.descriptor, self.log, self.tail = name, descriptor, log, tail
        self.lines = Lines()
        self.terminal: _Terminal | None = None  # that shows it
        self.is_pty = False


class Output:
    """The logs of a job in `folder`, and its terminal. UserError if they cannot be written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.heard = 0  # how often a process has written something
        self.sources: list[_Source] = []
        self.logs: dict[str, _Log] = {}
        self.tails: dict[str, deque[bytes]] = {}
        self.lock = contextlib.ExitStack()
        self.out = _Terminal(1)
        self.err = _Terminal(2)
        if self.out.identity == self.err.identity:
            self.out = self.err
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = locks.only_writer(
                folder / ".writing", f"--log_dir {folder}", "name another folder"
            )
            self.lock.enter_context(lock)
            self.merged = _Log(folder / "merged.log", self.say)
        except OSError as error:
            raise UserError(
                f"--log_dir {folder}: {error.strerror}; name a folder that can be written"
            ) from None

    def say(self, text: str) -> None:
        """A line of the launcher's own, to stderr and into the merged log."""
        data = text.encode(errors="backslashreplace")
        if not self.err.fresh:  # in the middle of a progress bar
            self.err.write(b"\n")
        self.err.write(b"launch: " + data + b"\n")
        self.note(text)

    def note(self, text: str) -> None:
        """A line of the launcher's own in the merged log."""
        self.merged.write(b"[launch] " + text.encode(errors="backslashreplace") + b"\n")

    def path(self, name: str) -> Path:
        """Where the process `name` is logged."""
        return self.folder / f"{name.replace(' ', '.')}.log"

    def open(self, name: str, shown: bool) -> tuple[int, int]:
        """Descriptors for a new process to write stdout and stderr to, the caller's to close;
        `shown`: on the terminal as well. OSError when no more files can be opened."""
        if name not in self.logs:
            self.logs[name] = _Log(self.path(name), self.say)
        self.tails[name] = deque(maxlen=TAIL)
        if not shown:
            ours, theirs = os.pipe()
            self._add(name, ours, None, False)
            return theirs, os.dup(theirs)
        err = self._open_shown(name, self.err)
        if self.out is self.err:
            return os.dup(err), err
        return self._open_shown(name, self.out), err

    def _open_shown(self, name: str, terminal: _Terminal) -> int:
        """A pseudo terminal where the launcher has a terminal, for bars and colours; or a pipe."""
        is_pty = not terminal.gone and os.isatty(terminal.descriptor)
        ours, theirs = os.openpty() if is_pty else os.pipe()
        self._add(name, ours, terminal, is_pty)
        if is_pty:
            attributes = termios.tcgetattr(theirs)
            attributes[1] &= ~termios.OPOST  # bytes as they are: the real terminal translates
            termios.tcsetattr(theirs, termios.TCSANOW, attributes)
            self.copy_size()
        return theirs

    def _add(self, name: str, descriptor: int, terminal: _Terminal | None, is_pty: bool) -> None:
        source = _Source(name, descriptor, self.logs[name], self.tails[name])
        source.terminal, source.is_pty = terminal, is_pty
        self.sources.append(source)

    def copy_size(self) -> None:
        """Give pseudo terminals the size of the terminal that shows them."""
        for source in self.sources:
            if source.is_pty and source.terminal is not None:
                with contextlib.suppress(OSError):
                    size = fcntl.ioctl(source.terminal.descriptor, termios.TIOCGWINSZ, b"\0" * 8)
                    fcntl.ioctl(source.descriptor, termios.TIOCSWINSZ, size)

    def pump(self, timeout: float, wakeup: int | None = None) -> None:
        """Pass on what has been written; waits at most `timeout` seconds for something to do, or
        for signals' numbers to arrive at the descriptor `wakeup`."""
        poll = select.poll()
        sources = {source.descriptor: source for source in self.sources if not _is_behind(source)}
        for descriptor in sources:
            poll.register(descriptor, select.POLLIN)
        terminals = {
            terminal.descriptor: terminal for terminal in (self.out, self.err) if terminal.pending
        }
        for descriptor in terminals:
            poll.register(descriptor, select.POLLOUT)
        if wakeup is not None:
            poll.register(wakeup, select.POLLIN)
        for descriptor, _ in poll.poll(1000 * timeout):
            if descriptor in terminals:
                terminals[descriptor].flush_some()
            elif descriptor in sources:
                self._read(sources[descriptor])
            elif signal.SIGWINCH in os.read(descriptor, 4096):
                self.copy_size()

    def _read(self, source: _Source) -> None:
        try:
            data = os.read(source.descriptor, 1 << 16)
        except OSError:  # EIO: nobody has the pseudo terminal open any more
            data = b""
        if data:
            self.heard += 1
            source.log.write(data)
            if source.terminal is not None:
                source.terminal.write(data)
            self._merge(source, source.lines.feed(data))
        else:
            self._close(source)

    def _merge(self, source: _Source, lines: list[bytes]) -> None:
        source.tail.extend(lines)
        prefix = f"[{source.name}] ".encode()
        self.merged.write(b"".join(prefix + line + b"\n" for line in lines))

    def _close(self, source: _Source) -> None:
        self._merge(source, source.lines.close())
        os.close(source.descriptor)
        self.sources.remove(source)

    def is_behind(self) -> bool:
        """Whether a process has to wait, because the terminal does not take what it wrote."""
        return any(_is_behind(source) for source in self.sources)

    def drain(self, name: str) -> None:
        """Read what the process `name`, which has ended, left; a second is enough for it."""
        until = time.monotonic() + 1.0
        for source in [source for source in self.sources if source.name == name]:
            while source in self.sources:
                poll = select.poll()
                poll.register(source.descriptor, select.POLLIN)
                if poll.poll(max(0.0, 1000 * (until - time.monotonic()))):
                    self._read(source)
                else:
                    self._close(source)

    def show_tail(self, name: str) -> None:
        """The last lines of a process on the terminal, if they have not been there already."""
        for line in self.tails[name]:
            cut = line if len(line) <= TAIL_WIDTH else line[:TAIL_WIDTH] + b" ..."
            self.err.write(f"[{name}] ".encode() + cut + b"\n")

    def close(self) -> None:
        """Hand everything over, and give the logs free."""
        for source in list(self.sources):
            self._close(source)
        for terminal in (self.err, self.out):
            terminal.flush(0.1)
            if terminal.pending:  # nobody reads now: wait, until someone does or wants our end
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                terminal.flush()
        for log in [self.merged, *self.logs.values()]:
            log.file.close()
        self.lock.close()


def _is_behind(source: _Source) -> bool:
    return source.terminal is not None and len(source.terminal.pending) > PENDING_LIMIT
