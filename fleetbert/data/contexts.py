"""Questions beside the contexts that answer them, whose tokens windows divide."""

from __future__ import annotations

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import WHOLE, Encodings, Tokenizer
from fleetbert.data.tokenizers.base import OfLibrary, assemble
from fleetbert.data.words import visible, with_marks


def encode(
    tokenizer: Tokenizer, questions: list[str], contexts: list[str], max_length: int
) -> Encodings:
    """Pairs of a question, cut to half of the room of `max_length` tokens, and a whole context.

    `words` are the tokens of each context that have characters: int32 [tokens, 3], the place of
    each among the pair's, and the characters where it begins, after blanks, and ends, with the
    marks that follow: tokenizers strip accents. `truncated` counts questions.
    """
    numbers = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
    whole, offsets = tokenizer.encode_with_offsets(list(numbers), WHOLE)
    assert isinstance(tokenizer, OfLibrary) and whole.divided is not None  # others have no offsets
    parts = [slice(*ends) for ends in whole.divided.tolist()]
    ids = [row[part].tolist() for row, part in zip(whole.ids, parts)]
    places = [visible(text, of[part]) for text, of, part in zip(numbers, offsets, parts)]
    for text, place in zip(numbers, places):
        place[:, 2] = with_marks(text)[place[:, 2]]
    template = tokenizer.template
    around = len(template.before) + len(template.between)
    room = max_length - around - len(template.after)
    if room < 2:
        raise UserError(f"max_length is {max_length}; a question and its context need more tokens")
    encoded = tokenizer.encode_whole(questions, None, WHOLE)
    assert encoded.divided is not None
    parts = [slice(*ends) for ends in encoded.divided.tolist()]
    firsts = [row[part].tolist() for row, part in zip(encoded.ids, parts)]
    kept = [template.cut(first, room // 2) for first in firsts]
    texts = [numbers[context] for context in contexts]
    encodings = assemble(kept, [ids[text] for text in texts], template, WHOLE)
    begins = around + np.array([len(first) for first in kept], np.int32)
    ends = np.asarray(encodings.lengths) - len(template.after)
    shifts = np.pad(begins[:, None], ((0, 0), (0, 2)))
    return encodings._replace(
        divided=np.stack([begins, ends], 1).astype(np.int32),
        truncated=sum(len(some) < len(every) for some, every in zip(kept, firsts)),
        words=[places[text] + shift for text, shift in zip(texts, shifts)],
    )
