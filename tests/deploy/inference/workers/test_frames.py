"""What the server and its workers say to each other, however the socket cuts it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.deploy.inference.workers import frames

HEADS = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.text(max_size=5))
BODIES = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20)


@given(st.lists(st.tuples(HEADS, BODIES), max_size=5), st.lists(st.integers(0, 400)))
def test_frames_are_found_whole_whatever_the_pieces(said, cuts):
    stream = b"".join(frames.pack(head, np.array(body, frames.INT)) for head, body in said)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    heard, held = [], bytearray()
    for begin, end in zip(bounds, bounds[1:]):
        held += stream[begin:end]
        for head, body in frames.take(held):
            heard.append((head, np.frombuffer(body, frames.INT).tolist()))
    assert heard == said
    assert not held


def test_texts_are_what_was_packed():
    texts = [np.array([2, 7, 3], frames.INT), np.array([2, 9, 8, 3, 5, 3], frames.INT)]
    [(head, body)] = frames.take(bytearray(frames.pack_texts({"do": "run"}, texts, [3, 4])))
    found = frames.unpack_texts(head, body)
    assert head == {"do": "run", "texts": 2}
    assert [ids.tolist() for ids in found.split()] == [[2, 7, 3], [2, 9, 8, 3, 5, 3]]
    assert found.lengths.tolist() == [3, 6]
    assert found.first_lengths.tolist() == [3, 4]
