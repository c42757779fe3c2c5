"""A request's texts as tokens: in parts, so that a thread can stop between them."""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import WHOLE, Encodings, Tokenizer
from fleetbert.deploy.inference.messages import Failure, Reason, Request, Token

# Characters that a thread tokenizes before it looks whether somebody still waits.
MOST_AT_ONCE = 1 << 16


def parts_of(request: Request) -> Iterator[Request]:
    """Requests with its texts, each of MOST_AT_ONCE characters or a text that has more."""
    texts, others = request.texts or [], request.texts_b
    begin, characters = 0, 0
    for end, text in enumerate(texts):
        size = len(text) + (len(others[end]) if others else 0)
        if characters and characters + size > MOST_AT_ONCE:
            yield _part(request, begin, end)
            begin, characters = end, 0
        characters += size
    yield _part(request, begin, len(texts))


def _part(request: Request, begin: int, end: int) -> Request:
    texts, others = request.texts or [], request.texts_b
    return request._replace(texts=texts[begin:end], texts_b=others and others[begin:end])


def together(parts: Sequence[Encodings]) -> Encodings:
    """The tokens of parts, each of at least a text, one after the other."""
    words = [part.words for part in parts if part.words is not None]
    divided = [part.divided for part in parts if part.divided is not None]
    return Encodings(
        [ids for part in parts for ids in part.ids],
        np.concatenate([part.first_lengths for part in parts]),
        sum(part.truncated for part in parts),
        words=[text for part in words for text in part] if words else None,
        divided=np.concatenate(divided) if divided else None,
        reading=parts[0].reading,
    )


def tokens_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[Token]]:
    """The tokens of whole texts. Failure BAD_REQUEST if a text cannot be tokenized."""
    special = set(tokenizer.special_ids)
    try:
        encoded, places = tokenizer.encode_with_offsets(texts, WHOLE)
    except UserError as error:
        raise Failure(Reason.BAD_REQUEST, str(error)) from None
    rows: list[list[Token]] = []
    for text, ids, offsets in zip(texts, encoded.ids, places):
        rows.append([])
        for number, (start, stop) in zip(ids.tolist(), offsets.tolist()):
            inside = stop > start
            rows[-1].append(
                {
                    "id": number,
                    "text": text[start:stop] if inside else tokenizer.token(number),
                    "special": number in special and not inside,
                    "start": start if inside else None,
                    "stop": stop if inside else None,
                }
            )
    return rows


def golden_texts(tokenizer: Tokenizer, max_length: int) -> list[np.ndarray]:
    """Token ids of a few texts of different lengths, the same for the same vocabulary."""
    random = np.random.default_rng(0)
    longest = min(max_length, 32)
    return [
        np.array(
            [
                tokenizer.cls_id,
                *random.choice(tokenizer.ordinary_ids, length - 2),
                tokenizer.sep_id,
            ],
            np.int32,
        )
        for length in sorted({3, longest // 2 + 1, longest})
    ]
