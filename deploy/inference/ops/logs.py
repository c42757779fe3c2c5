"""What the server writes about itself: one JSON object a line, or text for people.

A call has a number (`Call.id`), the client's own `x-request-id` or one made here; every line
that is written while it is answered carries it. Standard `logging` everywhere; a line's fields are
given as `extra={"fields": {...}}`.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import re
import sys
import time
from contextvars import ContextVar
from datetime import datetime, timezone

import orjson

from fleetbert.core import log as plain_log
from fleetbert.deploy.inference import settings
from fleetbert.deploy.inference.messages import printable
from fleetbert.deploy.inference.ops.observe import Done

log = logging.getLogger("fleetbert.serve")
LONGEST_ID = 128  # of a client's: a log line is not a place to store things in
# A call's own number: of this process, and within it.
_PROCESS = os.urandom(4).hex()
_NUMBERS = itertools.count(1)
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_AMBIGUOUS = re.compile(r'[\s"=]')  # in a field of a text line


class Call:
    """A call as the log tells it; who answers sets `code` and adds to `fields`."""

    __slots__ = ("began", "code", "fields", "id")

    def __init__(self, given: str | None = None):
        if given and len(given) <= LONGEST_ID and _PRINTABLE.fullmatch(given):
            self.id = given
        else:
            self.id = f"{_PROCESS}{next(_NUMBERS) & 0xFFFFFFFF:08x}"
        self.code = ""
        self.fields: dict[str, object] = {}
        self.began = time.perf_counter()

    def write(self, protocol: str, method: str) -> None:
        fields = {
            "protocol": protocol,
            "method": method,
            "code": self.code,
            "ms": round(1000 * (time.perf_counter() - self.began), 3),
            **self.fields,
        }
        log.info("request", extra={"fields": fields})


def note(done: Done) -> None:
    """An observer of inference: what it came to belongs into the request's line."""
    call = CALL.get()
    if call is None:
        return
    call.fields.update(model=done.model, version=done.version)
    if done.error:
        call.fields["error"] = done.error
    else:
        call.fields.update(
            texts=done.texts,
            queue_ms=round(1000 * done.queue_seconds, 3),
            compute_ms=round(1000 * done.compute_seconds, 3),
        )


CALL: ContextVar[Call | None] = ContextVar("call", default=None)


def start(section: settings.Logs) -> None:
    """Write all of this process's log lines to stderr, in the format asked for."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if section.format == "json" else _Text())
    plain_log.stop()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(section.level.upper())
    logging.captureWarnings(True)
    for noisy in ("asyncio", "grpc", "urllib3", "opentelemetry"):
        logging.getLogger(noisy).setLevel(max(root.level, logging.WARNING))
    # It warns of every line that is not HTTP: anyone could fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


@functools.lru_cache(maxsize=16)
def _warn_once(message: str, _minute: int) -> None:
    log.warning(message)


def warn_seldom(message: str) -> None:
    """Once a minute at most: what clients can cause must not fill the log."""
    _warn_once(message, int(time.monotonic() // 60))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    call = CALL.get()
    fields = getattr(record, "fields", {})
    return fields if call is None else {"request_id": call.id, **fields}


def _dump(line: dict[str, object]) -> str:
    return _escape(orjson.dumps(line, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode())


def _escape(text: str) -> str:
    """The text with \\n, \\u001b and the like in place of what is not printable: clients choose
    paths and names, and would write lines of their own, or command a terminal. In JSON it is the
    same value."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).replace(tzinfo=None)
        line: dict[str, object] = {
            "time": f"{when.isoformat(timespec='milliseconds')}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return _dump(line)
        except TypeError:  # a name that is no UTF-8
            return _dump({name: printable(str(value)) for name, value in line.items()})


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        words = [f"{_escape(name)}={_quote(str(value))}" for name, value in _fields(record).items()]
        message = _escape(record.getMessage())
        line = " ".join([clock, f"{record.levelname.lower():<7}", message, *words])
        if record.exc_info:  # indented: none of its lines looks like another one of the log
            lines = self.formatException(record.exc_info).split("\n")
            line = "\n    ".join([line, *map(_escape, lines)])
        return line


def _quote(value: str) -> str:
    """In quotes where it could be read as several fields."""
    if _AMBIGUOUS.search(value):
        value = json.dumps(value, ensure_ascii=False)
    return _escape(value)
