"""Vocabulary trimming: a tokenizer without the tokens that a user's texts do not need (Abdaoui et
al. 2020, "Load What You Need").

Texts that the kept tokens were taken from become the same tokens as before. Words of other texts
fall back to smaller tokens, at the smallest to single characters.
"""

from __future__ import annotations

import hashlib
import re
from typing import Iterable, NamedTuple, Sequence

import numpy as np

from fleetbert.core import files
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import WHOLE, Spec, Tokenizer

# A character or a byte, at the beginning of a word or within one.
CHARACTER = re.compile("(?:##|\u2581|\u0120)?(?:.|<0x[0-9A-F]{2}>)", re.DOTALL)
BATCH = 1024  # texts


class Trimmed(NamedTuple):
    """kept: int64 [tokens], the former id of each id, ascending."""

    spec: Spec
    kept: np.ndarray


def trim(spec: Spec, texts: Sequence[str], keep: Iterable[str]) -> Trimmed:
    """A tokenizer with the tokens of `texts` and `keep`, special and added tokens, and single
    characters, among them digits and punctuation; its files are in the user's cache.

    UserError for a kind of tokenizer that cannot be trimmed.
    """
    tokenizer = tokenizers.open(spec)
    wanted = np.array(
        [bool(CHARACTER.fullmatch(tokenizer.token(n))) for n in range(tokenizer.vocab_size)]
    )
    wanted[list(tokenizer.special_ids)] = True
    wanted |= used(tokenizer, [*texts, *keep]) > 0
    kept = np.flatnonzero(tokenizer.needed(wanted))
    whole = hashlib.sha256(kept.tobytes())
    for path in spec.files.values():
        whole.update(files.sha256(path).encode())
    folder = files.cached(
        f"vocabulary-{whole.hexdigest()[:32]}", lambda new: tokenizer.write_trimmed(kept, new)
    )
    return Trimmed(spec._replace(files={name: folder / name for name in spec.files}), kept)


def used(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """int64 [vocab_size]: how often each token occurs in whole texts; special ones never."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for start in range(0, len(texts), BATCH):
        encoded = tokenizer.encode(list(texts[start : start + BATCH]), None, WHOLE)
        counts += np.bincount(np.concatenate(encoded.ids), minlength=len(counts))
    counts[list(tokenizer.special_ids)] = 0
    return counts


def changed_share(former: Tokenizer, trimmed: Tokenizer, texts: Sequence[str]) -> float:
    """The fraction, 0 to 1, of the texts' tokens that the trimmed tokenizer does not have."""
    left = {trimmed.token(number) for number in range(trimmed.vocab_size)}
    counts = used(former, texts)
    lost = [number for number in np.flatnonzero(counts) if former.token(number) not in left]
    return float(counts[lost].sum() / max(counts.sum(), 1))
