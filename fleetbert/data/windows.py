"""Windows of long texts: overlapping pieces that a model reads one by one.

A text that has more tokens than a model reads at once becomes several rows, each a window of its
tokens between those that every row repeats: special tokens, and the other text of a pair.
"""

from __future__ import annotations


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Where each window of `length` tokens begins and ends.

    room: tokens of a window, its longest. stride: tokens that a window shares with the next one, at
    least; below `room`. There are as few windows as that allows, evenly spread: all are full, unless
    one holds the whole text.
    """
    if not 0 <= stride < room:
        raise ValueError(f"a stride of {stride} is not from 0 to {room - 1}, with room for {room}")
    if length <= room:
        return [(0, length)]
    steps = -(-(length - room) // (room - stride))
    begins = [number * (length - room) // steps for number in range(steps + 1)]
    return [(begin, begin + room) for begin in begins]
