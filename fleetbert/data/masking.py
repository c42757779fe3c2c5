"""Masked-language modelling: which tokens a model has to guess, and what it sees instead."""

from __future__ import annotations

import numpy as np

from fleetbert.data.tokenizers import Tokenizer


def mask_tokens(
    ids: np.ndarray,
    tokenizer: Tokenizer,
    rng: np.random.Generator,
    probability: float = 0.15,
    whole_word: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mask one text as BERT does (Devlin et al. 2019, section 3.1).

    ids: int [length], with special tokens, which are never chosen ([UNK] is one of them).
    Returns (masked ids int32 [length], positions int64 [k] ascending, labels int64 [k]: the ids
    that were there). k is `probability` of the tokens that can be chosen, rounded, at least 1
    where there is one. Of the chosen 80 % become [MASK], 10 % a random token of the vocabulary
    that is not special, and 10 % stay.

    With `whole_word` the pieces of a word are chosen together, as many words as keep within k, at
    least one. A Chinese character is a word of its own here: BERT's tokenizer splits them so, and
    no word segmenter is used.
    """
    ids = np.asarray(ids, np.int32)
    masked = ids.copy()
    maskable = ~np.isin(ids, tokenizer.special_ids)
    candidates = np.flatnonzero(maskable)
    if len(candidates) == 0:
        return masked, np.zeros(0, np.int64), np.zeros(0, np.int64)
    count = max(1, round(len(candidates) * probability))
    if whole_word:
        positions = _choose_words(ids, maskable, tokenizer.is_subword, count, rng)
    else:
        positions = rng.permutation(candidates)[:count]
    positions = np.sort(positions).astype(np.int64)
    labels = ids[positions].astype(np.int64)
    draw = rng.random(len(positions))
    masked[positions[draw < 0.8]] = tokenizer.mask_id
    random = positions[draw >= 0.9]
    masked[random] = rng.choice(tokenizer.ordinary_ids, len(random))
    return masked, positions, labels


def _choose_words(
    ids: np.ndarray,
    maskable: np.ndarray,
    is_subword: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Positions of whole words in random order, skipping those that would exceed `count`."""
    continues = is_subword[ids] & maskable
    continues[1:] &= maskable[:-1]  # a piece after a special token starts a word
    continues[0] = False
    word_of = np.cumsum(~continues)
    candidates = np.flatnonzero(maskable)
    words = np.split(candidates, np.flatnonzero(np.diff(word_of[candidates])) + 1)
    order = rng.permutation(len(words))
    chosen = [words[order[0]]]
    left = count - len(chosen[0])
    for number in order[1:]:
        if len(words[number]) <= left:
            chosen.append(words[number])
            left -= len(words[number])
    return np.concatenate(chosen)
