"""What the server and its workers say to each other over a socket: a head and raw arrays.

A frame is two uint32 (lengths of head and body), a JSON object, and the bytes of NumPy arrays one
after the other. No pickles: a frame holds texts of strangers.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, Iterator, Sequence

import numpy as np
import orjson

from fleetbert.data.ragged import Texts

PREFIX = struct.Struct("<II")
INT = np.dtype("<i4")
FLOAT = np.dtype("<f4")

Head = Dict[str, Any]  # JSON


def pack(head: Head, *arrays: np.ndarray) -> bytes:
    text = orjson.dumps(head)
    body = [array.tobytes() for array in arrays]
    return b"".join((PREFIX.pack(len(text), sum(map(len, body))), text, *body))


def take(buffer: bytearray) -> Iterator[tuple[Head, bytes]]:
    """Head and body of each frame that has come whole; what is given is taken out of `buffer`."""
    while len(buffer) >= PREFIX.size:
        head_size, body_size = PREFIX.unpack_from(buffer)
        begin = PREFIX.size + head_size
        end = begin + body_size
        if len(buffer) < end:
            return
        frame = orjson.loads(buffer[PREFIX.size : begin]), bytes(buffer[begin:end])
        del buffer[:end]
        yield frame


def pack_texts(head: Head, ids: Sequence[np.ndarray], firsts: Sequence[int]) -> bytes:
    """A frame with texts; the head says how many."""
    lengths = np.fromiter(map(len, ids), INT, len(ids))
    first_lengths = np.fromiter(firsts, INT, len(ids))
    return pack({**head, "texts": len(ids)}, lengths, first_lengths, np.concatenate(ids, dtype=INT))


def unpack_answers(
    body: bytes, texts: int, labels: int, rows: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Logits float32 [rows, labels] and the layers that the texts left after, int32 [texts], of a
    frame that holds both; None if it holds anything else."""
    if len(body) != 4 * (rows * labels + texts):
        return None
    logits = np.frombuffer(body, FLOAT, rows * labels).reshape(rows, labels)
    return logits, np.frombuffer(body, INT, texts, 4 * rows * labels)


def unpack_texts(head: Head, body: bytes) -> Texts:
    values = np.frombuffer(body, INT)
    count = head["texts"]
    lengths, first_lengths, ids = np.split(values, [count, 2 * count])
    return Texts(ids, lengths, first_lengths)
