"""The output of a job's processes. Each has its log, and all lines go to one merged log. Trainer 0
is shown on the terminal byte by byte, so that its progress bar works."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import termios
import tty
from collections import deque
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from fleetbert.core import locks
from fleetbert.core.errors import UserError

LINE_LIMIT = 1 << 20  # bytes after which a line in the merged log becomes another
TAIL = 20  # lines of a process that failed, for the terminal
TAIL_WIDTH = 2000  # bytes of each
PATIENCE = 1.0  # seconds that a terminal (Ctrl-S) or a reader of a pipe may let the job wait

OUT, ERR = 1, 2


class Lines:
    """Splits a stream of bytes into lines as a terminal shows them in the end: of a progress bar,
    which overwrites itself after each carriage return, the last state."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes."""
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]
        if len(self.rest) > LINE_LIMIT:
            lines.append(self.rest)
            self.rest = b""
        return [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]

    def close(self) -> list[bytes]:
        """Return the last line, if it has no end."""
        return self.feed(b"\n") if self.rest else []


class _Source(NamedTuple):
    """One stream of a process, as the launcher reads it."""

    name: str
    log: FileIO
    tail: deque[bytes]
    lines: Lines
    shown: int | None  # the launcher's stream that shows it


class Output:
    """The logs of a job in `folder`, and its terminal. UserError if they cannot be written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.heard = 0  # how often a process has written something
        self.sources: dict[int, _Source] = {}  # by descriptor
        self.logs: dict[str, FileIO] = {}
        self.full: set[str] = set()  # logs that could not be written
        self.tails: dict[str, deque[bytes]] = {}
        self.closing = contextlib.ExitStack()
        self.out = ERR if os.path.sameopenfile(OUT, ERR) else OUT
        self.fresh = True  # stderr is at the start of a line
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = locks.only_writer(
                folder / ".writing", f"--log_dir {folder}", "name another folder"
            )
            self.closing.enter_context(lock)
            self.merged = self._log(folder / "merged.log")
        except OSError as error:
            raise UserError(
                f"--log_dir {folder}: {error.strerror}; name a folder that can be written"
            ) from None

    def say(self, text: str) -> None:
        """Write a line of the launcher to stderr and to the merged log."""
        start = b"launch: " if self.fresh else b"\nlaunch: "  # in the middle of a progress bar
        self._show(ERR, start + text.encode(errors="backslashreplace") + b"\n")
        self.note(text)

    def note(self, text: str) -> None:
        """Write a line of the launcher to the merged log."""
        self._append(self.merged, b"[launch] " + text.encode(errors="backslashreplace") + b"\n")

    def _log(self, path: Path) -> FileIO:
        return self.closing.enter_context(path.open("ab", buffering=0))

    def _append(self, log: FileIO, data: bytes) -> None:
        """Append to a log. A full disk is reported once and does not end the job."""
        try:
            while data:
                data = data[log.write(data) or 0 :]
        except OSError as error:
            if str(log.name) not in self.full:
                self.full.add(str(log.name))
                self.say(f"{log.name}: {error.strerror}; lines are missing in it from here on")

    def path(self, name: str) -> Path:
        """Return the log file of the process `name`."""
        return self.folder / f"{name.replace(' ', '.')}.log"

    def open(self, name: str, shown: bool) -> tuple[int, int]:
        """Descriptors for a new process to write stdout and stderr to, the caller's to close;
        `shown`: on the terminal as well. OSError when no more files can be opened."""
        if name not in self.logs:
            self.logs[name] = self._log(self.path(name))
        self.tails[name] = deque(maxlen=TAIL)
        err = self._open(name, ERR if shown else None)
        if shown and self.out != ERR:
            return self._open(name, self.out), err
        return os.dup(err), err

    def _open(self, name: str, shown: int | None) -> int:
        """Open a pipe, or for bars and colours a pseudo terminal if the launcher has one."""
        is_pty = shown is not None and os.isatty(shown)
        ours, theirs = os.openpty() if is_pty else os.pipe()
        if is_pty and shown is not None:
            tty.setraw(theirs)  # bytes as they are: the real terminal translates
            size = fcntl.ioctl(shown, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        os.set_blocking(ours, False)
        self.sources[ours] = _Source(name, self.logs[name], self.tails[name], Lines(), shown)
        return theirs

    def pump(self, timeout: float) -> None:
        """Pass on what has been written; waits at most `timeout` seconds for it."""
        poll = select.poll()
        for descriptor in self.sources:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(1000 * timeout):
            self._read(descriptor)

    def _read(self, descriptor: int) -> bool:
        """Pass some output on. Return False, and close the stream, if none is left."""
        source = self.sources[descriptor]
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # EAGAIN; EIO: nobody has the pseudo terminal open any more
            data = b""
        if not data:
            self._close(descriptor)
            return False
        self.heard += 1
        self._append(source.log, data)
        if source.shown is not None:
            self._show(source.shown, data)
        self._merge(source, source.lines.feed(data))
        return True

    def _show(self, stream: int, data: bytes) -> None:
        if stream == ERR:
            self.fresh = data.endswith(b"\n")
        ready = select.poll()
        ready.register(stream, select.POLLOUT)
        # A reader may go away, or stall: the logs have it all.
        with contextlib.suppress(OSError):
            while data and ready.poll(1000 * PATIENCE):
                data = data[os.write(stream, data[: select.PIPE_BUF]) :]

    def _merge(self, source: _Source, lines: list[bytes]) -> None:
        source.tail.extend(lines)
        prefix = f"[{source.name}] ".encode()
        self._append(self.merged, b"".join(prefix + line + b"\n" for line in lines))

    def _close(self, descriptor: int) -> None:
        source = self.sources.pop(descriptor)
        self._merge(source, source.lines.close())
        os.close(descriptor)

    def drain(self, name: str) -> None:
        """Read the rest of the output of the process `name`, which has ended."""
        for descriptor in [d for d, source in self.sources.items() if source.name == name]:
            while self._read(descriptor):
                pass

    def show_tail(self, name: str) -> None:
        """Show the last lines of a process on the terminal."""
        for line in self.tails[name]:
            cut = line if len(line) <= TAIL_WIDTH else line[:TAIL_WIDTH] + b" ..."
            self._show(ERR, f"[{name}] ".encode() + cut + b"\n")

    def close(self) -> None:
        for descriptor in list(self.sources):
            self._close(descriptor)
        self.closing.close()
