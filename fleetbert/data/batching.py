"""Which texts go together, and how they lie in arrays. Pure functions of their arguments."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from functools import cached_property
from typing import Callable, NamedTuple, Sequence

import numpy as np

from fleetbert.compat.lengths import SAFE_LENGTHS
from fleetbert.data.rows import Rows
from fleetbert.data.tokenizers import Encodings

# In rows of so many tokens attention takes as long as all else: MiniLM in int8, one thread, Xeon
# with AMX (BERT-base: 380).
ATTENTION_LENGTH = 180
# A call takes as long as 90 tokens (MiniLM; BERT-base: 100). But parts of a batch fill their rows
# worse, and have more numbers of rows: of 64 texts or fewer none gain that gain less than this.
CALL_TOKENS = 250

# Batches in one pool of `bucket`: more sort better, fewer mix better.
POOL_BATCHES = 50


class Batch(NamedTuple):
    """Texts as arrays; `rows` is the number of texts, or fewer where rows are packed.

    input_ids, token_type_ids: int64 [rows, length], padded with the pad id and 0.
    position_ids: int64 [rows, length], restarting with each text; None: 0..length-1 in every row.
    segments: int64 [rows, length], the number of the text in its row from 1, 0 for padding; a
        token may attend to those of its own number only. None: one text a row.
    first: int64 [texts], where each text's [CLS] is: row * length + offset.
    order: int64 [texts], which entry of collate's `indices` each text is.
    n_tokens: tokens without padding.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    position_ids: np.ndarray | None
    segments: np.ndarray | None
    first: np.ndarray
    order: np.ndarray
    n_tokens: int


class Plan(Rows):
    """The steps of an epoch, in order: `plan[n]` are the texts of one, as indices (int32).

    It holds four bytes a text and four a step, and neither before the first step is asked for:
    without `batch_tokens` their number is known before their order is.
    """

    def __init__(self, count: int | None, make: Callable[[], tuple[np.ndarray, ...]]):
        """`make` gives all texts in the order of cutting, where steps begin and end in it (one
        more than steps), and in which order the steps come."""
        self._count = count
        self._make = make

    @cached_property
    def _made(self) -> tuple[np.ndarray, ...]:
        return self._make()

    def __len__(self) -> int:
        return len(self._made[2]) if self._count is None else self._count

    def row(self, number: int) -> np.ndarray:
        order, bounds, turns = self._made
        turn = turns[number]
        return order[bounds[turn] : bounds[turn + 1]]


def plan_epoch(
    lengths: Sequence[int] | np.ndarray,
    *,
    batching: str,
    batch_size: int | None,
    batch_tokens: int | None,
    max_length: int,
    seed: int,
    epoch: int,
) -> Plan:
    """The texts (indices into `lengths`) of each optimizer step of an epoch, each text once.

    A step ends before it would hold more than `batch_size` texts or `batch_tokens` tokens; one of
    the two may be None. Both count over all ranks and accumulated parts (see `share`), so that
    gradients do not depend on how many there are. A text longer than `batch_tokens` is a step of
    its own.

    - "pad": in shuffled order; tokens are counted with padding (texts * longest).
    - "bucket": the shuffled order is cut into pools of about 50 steps; each is sorted by length
      and cut into steps, whose order is shuffled again; tokens are counted with padding.
    - "pack": in shuffled order; tokens are counted without padding.
    """
    lengths = np.asarray(lengths)
    count = len(lengths)
    if count and lengths.max() > max_length:
        raise ValueError(f"a text of {lengths.max()} tokens, but max_length is {max_length}")

    def make() -> tuple[np.ndarray, ...]:
        random = np.random.default_rng([seed, epoch])
        order = np.arange(count, dtype=np.int32)
        random.shuffle(order)
        bounds = array("i", [0])
        if batching == "bucket":
            texts = count if batch_size is None else batch_size
            if batch_tokens is not None and count:
                texts = min(texts, max(1, int(batch_tokens / lengths.mean())))
            for start in range(0, count, POOL_BATCHES * max(1, texts)):
                pool = order[start : start + POOL_BATCHES * texts]
                pool[:] = pool[np.argsort(lengths[pool], kind="stable")]
                _cut(pool, lengths, batch_size, batch_tokens, True, bounds)
        else:
            _cut(order, lengths, batch_size, batch_tokens, batching == "pad", bounds)
        turns = np.arange(len(bounds) - 1, dtype=np.int32)
        if batching == "bucket":
            random.shuffle(turns)
        return order, np.array(bounds), turns

    if batch_tokens is None:
        assert batch_size is not None
        return Plan(-(-count // batch_size), make)
    return Plan(None, make)


def share(
    indices: np.ndarray, lengths: Sequence[int] | np.ndarray, parts: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split a step's texts over `parts` (ranks * accumulated micro-batches) of about equal cost.

    Returns for each part its texts (int64) and their weights (float32, 1.0). What is minimized is
    the cost of the slowest part, texts * longest: texts of like length go together, and the
    smallest bound is searched that `parts` groups of the sorted texts can keep. Where there are
    fewer texts than parts, a part left over repeats one text with weight 0.0, because every rank
    has to join the all-reduce.
    """
    indices = np.asarray(indices, np.int64)
    if len(indices) == 0 or parts < 1:
        raise ValueError(f"{len(indices)} texts cannot be shared over {parts} parts")
    costs = np.asarray(lengths)[indices].astype(np.int64)
    by_length = np.argsort(-costs, kind="stable")  # longest first
    descending = costs[by_length].tolist()
    low, high = descending[0], descending[0] * len(indices)
    while low < high:
        middle = (low + high) // 2
        if len(_groups(descending, middle, parts)) <= parts:
            high = middle
        else:
            low = middle + 1
    shares = []
    start = 0
    for count in _groups(descending, low, parts):
        part = indices[by_length[start : start + count]]
        shares.append((part, np.ones(count, np.float32)))
        start += count
    shortest = indices[by_length[-1:]]
    while len(shares) < parts:
        shares.append((shortest, np.zeros(1, np.float32)))
    return shares


def collate(
    encodings: Encodings,
    indices: Sequence[int] | np.ndarray,
    *,
    packed: bool,
    max_length: int,
    pad_id: int,
    round_to: Sequence[int] | None = None,
) -> Batch:
    """Lay the texts `indices` of `encodings` out as a Batch.

    Unpacked, each text is a row padded to the longest. Packed, rows of at most `max_length` are
    filled best-fit-decreasing; they are as short as the same number of rows allows. With
    `round_to` (ascending) rows have the first of these lengths that suffices.
    """
    indices = np.asarray(indices, np.int64)
    ids = [encodings.ids[index] for index in indices]
    lengths = list(map(len, ids))
    first_lengths = encodings.first_lengths[indices].tolist()
    rows = _pack(lengths, max_length) if packed else []
    filled = [sum(lengths[number] for number in row) for row in rows] if packed else lengths
    length = max(filled, default=0)
    if round_to is not None:
        length = round_up(length, round_to)
    input_ids = np.full((len(filled), length), pad_id, np.int64)
    token_type_ids = np.zeros(input_ids.shape, np.int64)
    if not packed:
        texts = zip(input_ids, token_type_ids, ids, lengths, first_lengths)
        for row_ids, row_types, text, end, first_end in texts:
            row_ids[:end] = text
            row_types[first_end:end] = 1
        order = np.arange(len(ids))
        return Batch(input_ids, token_type_ids, None, None, order * length, order, sum(lengths))

    position_ids = np.zeros_like(input_ids)
    segments = np.zeros_like(input_ids)
    first = []
    for row, members in enumerate(rows):
        start = 0
        for segment, number in enumerate(members, 1):
            end = start + lengths[number]
            input_ids[row, start:end] = ids[number]
            token_type_ids[row, start + first_lengths[number] : end] = 1
            position_ids[row, start:end] = np.arange(end - start)
            segments[row, start:end] = segment
            first.append(row * length + start)
            start = end
    return Batch(
        input_ids,
        token_type_ids,
        position_ids,
        segments,
        np.array(first, np.int64),
        np.array([number for row in rows for number in row], np.int64),
        sum(lengths),
    )


def plan_inference(
    lengths: Sequence[int] | np.ndarray,
    batch_tokens: int,
    safe_lengths: Sequence[int] = SAFE_LENGTHS,
) -> list[np.ndarray]:
    """Batches (int64 indices into `lengths`) for inference, texts of like length together.

    Each batch is to be padded to one of `safe_lengths` (`ragged.pad`) and then has at most
    `batch_tokens` tokens with padding, unless one text alone has more. A batch goes on into longer
    safe lengths only while this pads the texts before by a sixteenth of the budget at most: a call
    of its own costs about as much.
    """
    lengths = np.asarray(lengths, np.int64)
    order = np.argsort(lengths, kind="stable")
    batches = []
    start = 0
    alone = 0  # tokens of the batch's texts if each had its own safe length
    for end, index in enumerate(order):
        needed = round_up(int(lengths[index]), safe_lengths)
        count = end - start
        if count and (
            (count + 1) * needed > batch_tokens or (count * needed - alone) * 16 > batch_tokens
        ):
            batches.append(order[start:end])
            start, alone = end, 0
        alone += needed
    if len(order):
        batches.append(order[start:])
    return batches


def cut_by_length(lengths: np.ndarray, call_tokens: float) -> list[np.ndarray]:
    """The texts of a batch (int64 indices into `lengths`) in parts that cost least, each in rows of
    its own (`packing.pack_rows`).

    A part costs its tokens, which attention makes dearer in long rows, and `call_tokens`: as many
    tokens as take the time of a call.
    """
    if lengths.sum() * lengths.max() <= call_tokens * ATTENTION_LENGTH:  # all that could be gained
        return [np.arange(len(lengths))]
    order = np.argsort(lengths, kind="stable")
    steps, starts = np.unique(lengths[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]
    sums = [0, *np.cumsum(lengths[order]).tolist()]
    best: list[tuple[float, int]] = [(0.0, 0)]  # of the first steps: their cost, the last part
    for end, step in enumerate(steps.tolist(), 1):
        each = 1 + step / ATTENTION_LENGTH
        costs = (
            (best[start][0] + call_tokens + (sums[bounds[end]] - sums[bounds[start]]) * each, start)
            for start in range(end)
        )
        best.append(min(costs))
    parts = []
    end = len(steps)
    while end:
        start = best[end][1]
        parts.append(order[bounds[start] : bounds[end]])
        end = start
    return parts[::-1]


def padded_size(lengths: np.ndarray) -> int:
    """Tokens of texts of these lengths, padded to one of SAFE_LENGTHS."""
    return len(lengths) * round_up(int(lengths.max()), SAFE_LENGTHS)


def round_up(length: int, allowed: Sequence[int]) -> int:
    """The first of the ascending lengths `allowed` that is at least `length`."""
    place = bisect_left(allowed, length)
    if place == len(allowed):
        raise ValueError(f"a row of {length} tokens, but the longest allowed is {allowed[-1]}")
    return allowed[place]


def _cut(
    order: np.ndarray,
    lengths: np.ndarray,
    batch_size: int | None,
    batch_tokens: int | None,
    padded: bool,
    bounds: array[int],
) -> None:
    """Cut `order` greedily into steps that keep the limits that are set; where they end is added
    to `bounds`, whose last entry is where `order` begins."""
    first = bounds[-1]
    if batch_tokens is None:
        assert batch_size is not None
        bounds.extend(range(first + batch_size, first + len(order), batch_size))
    else:
        start = longest = total = end = 0
        for block in range(0, len(order), 1 << 16):  # as Python's numbers they take much memory
            for length in lengths[order[block : block + (1 << 16)]].tolist():
                count = end - start
                longest = max(longest, length)
                tokens = (count + 1) * longest if padded else total + length
                if count and (tokens > batch_tokens or count == batch_size):
                    bounds.append(first + end)
                    start, longest, total = end, length, 0
                total += length
                end += 1
    if len(order):
        bounds.append(first + len(order))


def _groups(descending: list[int], bound: int, parts: int) -> list[int]:
    """Sizes of groups of texts in descending length with size * longest <= bound.

    Groups are as large as the bound allows, but leave one text for each of the parts after them.
    """
    sizes: list[int] = []
    start = 0
    while start < len(descending):
        spare = len(descending) - start - (parts - len(sizes) - 1)
        sizes.append(max(1, min(bound // descending[start], spare, len(descending) - start)))
        start += sizes[-1]
    return sizes


def _pack(lengths: list[int], max_length: int) -> list[list[int]]:
    """Rows of text numbers: the fewest that best-fit-decreasing finds, then the shortest."""
    if not lengths:
        return []
    longest, total = max(lengths), sum(lengths)
    if longest > max_length:
        raise ValueError(f"a text of {longest} tokens, but max_length is {max_length}")
    best = best_fit(lengths, max_length)
    low, high = max(longest, -(-total // len(best))), max_length
    while low < high:
        middle = (low + high) // 2
        rows = best_fit(lengths, middle)
        if len(rows) <= len(best):
            best, high = rows, middle
        else:
            low = middle + 1
    return best


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit-decreasing: each text, longest first, goes to the row with the least room for it."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room and row, ascending
    shortest = min(lengths)
    for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[number]
        place = bisect_left(free, (length, 0))
        if place == len(free):
            room, row = capacity, len(rows)
            rows.append([number])
        else:
            room, row = free.pop(place)
            rows[row].append(number)
        if room - length >= shortest:
            insort(free, (room - length, row))
    return rows
