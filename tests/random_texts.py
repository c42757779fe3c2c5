"""Random Unicode strings, the same ones for the same seed: every plane, controls, marks, spaces."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Sequence

ALPHABETS = [
    (0x0, 0x21), (0x20, 0x7F), (0x20, 0x7F), (0x80, 0x250), (0x250, 0x600), (0x300, 0x370),
    (0x600, 0x3000), (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4),
    (0xE000, 0x10000), (0x10000, 0x11000), (0x1F000, 0x1FB00), (0x20000, 0x2FA20),
    (0xE0000, 0xE0200), (0x0, 0xD800), (0xE000, 0x110000),
]  # fmt: skip
PARTS = ["  ", " ", "\n", "\r\n", "\u3000", "\u200b", "\u2028", "\ufeff", "ﬁ", "①", "İ", "ß", "ǅ",
         "don't", "e\u0301", "한글", "👩‍👩‍👧", "～", "##ing", "\u2581", "Ġ"]  # fmt: skip


def draw(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)

    def part() -> str:
        if chance.random() < 0.3:
            return chance.choice(PARTS)
        first, end = chance.choice(ALPHABETS)
        return "".join(chr(chance.randrange(first, end)) for _ in range(chance.randint(1, 8)))

    return ["".join(part() for _ in range(chance.randint(0, 12))) for _ in range(count)]


def digests(ids: Sequence[list[int]], texts: int = 100) -> list[str]:
    """One for the token ids of every hundred texts."""
    parts = [json.dumps(ids[at : at + texts]).encode() for at in range(0, len(ids), texts)]
    return [hashlib.sha256(part).hexdigest()[:16] for part in parts]
