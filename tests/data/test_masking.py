from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.data.masking import mask_tokens
from fleetbert.data.tokenizers.wordpiece import SPECIAL_TOKENS, WordPiece, of_vocab

VOCAB = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(40)), *(f"##s{i}" for i in range(40)), "中"]
ids_strategy = st.lists(st.integers(0, len(VOCAB) - 1), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB), encoding="utf-8")
    return WordPiece(of_vocab(path, True))


@given(
    ids=ids_strategy,
    seed=st.integers(0, 10**6),
    probability=st.floats(0.01, 0.6),
    whole_word=st.booleans(),
)
def test_labels_restore_the_text(tokenizer, ids, seed, probability, whole_word):
    ids = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
    before = ids.copy()
    masked, positions, labels = mask_tokens(
        ids, tokenizer, np.random.default_rng(seed), probability, whole_word
    )
    assert (ids == before).all()
    restored = masked.copy()
    restored[positions] = labels
    assert (restored == ids).all()
    special = np.isin(ids, tokenizer.special_ids)
    assert not special[positions].any()
    maskable = int((~special).sum())
    assert (np.diff(positions) > 0).all()
    assert len(positions) >= min(1, maskable)
    others = [i for i in tokenizer.special_ids if i != tokenizer.mask_id]
    assert not np.isin(masked[masked != ids], others).any()
    if not whole_word and maskable:
        assert len(positions) == max(1, round(maskable * probability))


def test_eight_one_one(tokenizer):
    rng = np.random.default_rng(3)
    ids = np.array([tokenizer.cls_id, *rng.integers(5, len(VOCAB), 20_000), tokenizer.sep_id])
    masked, positions, labels = mask_tokens(ids, tokenizer, rng)
    assert len(positions) == 3000
    seen = masked[positions]
    assert (seen == tokenizer.mask_id).mean() == pytest.approx(0.8, abs=0.03)
    assert (seen == labels).mean() == pytest.approx(0.1, abs=0.03)
    assert ((seen != labels) & (seen != tokenizer.mask_id)).mean() == pytest.approx(0.1, abs=0.03)


@given(seed=st.integers(0, 10**6))
def test_whole_words_are_chosen_whole(tokenizer, seed):
    rng = np.random.default_rng(seed)
    subword = np.flatnonzero(tokenizer.is_subword)
    words = [[rng.integers(5, 45), *rng.choice(subword, rng.integers(0, 4))] for _ in range(20)]
    flat = np.array([tokenizer.cls_id, *(i for word in words for i in word), tokenizer.sep_id])
    _, positions, _ = mask_tokens(flat, tokenizer, rng, 0.2, whole_word=True)
    chosen = set(positions.tolist())
    start = 1
    for word in words:
        inside = chosen & set(range(start, start + len(word)))
        assert len(inside) in (0, len(word))
        start += len(word)
    assert len(chosen) <= max(4, round(0.2 * (len(flat) - 2)))


def test_chinese_characters_are_words_of_their_own(tokenizer):
    ids = np.array([tokenizer.cls_id, *[VOCAB.index("中")] * 20, tokenizer.sep_id])
    _, positions, _ = mask_tokens(ids, tokenizer, np.random.default_rng(0), 0.15, whole_word=True)
    assert len(positions) == 3
