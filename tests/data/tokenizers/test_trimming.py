"""Tokenizers without the tokens that texts do not need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import random_texts
from tokenizer_files import EXPECTED, FAMILIES, write

from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import trimming

TEXTS = [text for text in EXPECTED["texts"] if "<" not in text]
WORDS = ["play", "##ing", "##in", "##g", "playing", "un", "##known", "2026", "？", "字"]
LETTERS = [mark + letter for mark in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyz026"]


@pytest.fixture(params=[*FAMILIES, "bert"])
def spec(request, tmp_path, monkeypatch) -> tokenizers.Spec:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param in FAMILIES:
        return tokenizers.find(write(tmp_path / "model", request.param))
    special = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab = list(dict.fromkeys([*special, *WORDS, *LETTERS]))
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    return tokenizers.of_vocab(tmp_path / "vocab.txt", True)


def ids(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> list[np.ndarray]:
    return list(tokenizer.encode(texts, None, 1 << 16).ids)


def test_texts_become_the_tokens_that_they_were(spec):
    """Of half of the texts; ids stand for the same tokens, and special ones for themselves."""
    former, texts = tokenizers.open(spec), [*TEXTS[::2], "playing 2026 unknown", "Ünknown？"]
    cut, kept = trimming.trim(spec, texts, [])
    trimmed = tokenizers.open(cut)
    assert trimmed.vocab_size == len(kept) < former.vocab_size
    assert [trimmed.token(n) for n in range(len(kept))] == [former.token(n) for n in kept]
    for before, after in zip(ids(former, texts), ids(trimmed, texts)):
        assert before.tolist() == kept[after].tolist()
    for name in ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id"):
        assert kept[getattr(trimmed, name)] == getattr(former, name)
    assert kept[list(trimmed.special_ids)].tolist() == list(former.special_ids)
    assert trimming.changed_share(former, trimmed, texts) == 0
    pair = [t.encode(texts[:2], texts[2:4], 99) for t in (former, trimmed)]
    assert [kept[text].tolist() for text in pair[1].ids] == [t.tolist() for t in pair[0].ids]
    assert pair[0].first_lengths.tolist() == pair[1].first_lengths.tolist()


def test_other_texts_fall_back_to_smaller_tokens(spec):
    """The same characters, of which no more are unknown; nothing that a text can hold crashes."""
    former, (cut, kept) = tokenizers.open(spec), trimming.trim(spec, ["un"], [])
    trimmed, texts = tokenizers.open(cut), [*TEXTS, "playing 2026 unknown"]
    assert 0 < trimming.changed_share(former, trimmed, texts) < 1
    pairs = list(zip(ids(former, texts), ids(trimmed, texts)))
    assert sum(len(after) for _, after in pairs) > sum(len(before) for before, _ in pairs)
    for before, after in pairs:
        if former.unk_id not in before:
            assert trimmed.unk_id not in after
        assert spelled(former, before) == spelled(former, kept[after])
    ids(trimmed, random_texts.draw(500, 5))


def spelled(tokenizer: tokenizers.Tokenizer, text: np.ndarray) -> str:
    return "".join(tokenizer.token(number).replace("##", "") for number in text)


def test_words_are_kept_by_name(spec):
    former = tokenizers.open(spec)
    without, with_words = (trimming.trim(spec, ["un"], keep).kept for keep in ([], TEXTS[:3]))
    assert set(without) < set(with_words)
    assert set(np.concatenate(ids(former, TEXTS[:3]))) <= set(with_words)


def test_a_kind_from_outside_says_that_it_cannot(tmp_path):
    class Other(tokenizers.Tokenizer):
        kind = "other"
        find = open = encode = save = None

    with pytest.raises(tokenizers.base.UserError, match="a tokenizer of the kind other cannot be"):
        Other().write_trimmed(np.arange(3), Path(tmp_path))
