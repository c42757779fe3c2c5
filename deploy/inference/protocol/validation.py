"""The one validation: what was sent, over HTTP or gRPC → a `Request` that the model can answer."""

from __future__ import annotations

from collections import Counter
from typing import Container, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.data import fields
from fleetbert.data.hashed_ids import hashed
from fleetbert.deploy.inference.messages import Request, Version, list_names, show
from fleetbert.deploy.inference.protocol.tensors import (
    Tensor,
    read_categories,
    read_integers,
    read_numbers,
    read_texts,
    refuse,
)
from fleetbert.deploy.inference.settings import Safety

IDS = ("input_ids", "token_type_ids", "attention_mask")
INPUTS = ("text", "text_pair", *IDS)
QUESTION = {"question": "text", "context": "text_pair"}  # what models of questions call them
FIELDS = ("dense", "sparse")  # of models of rows, in place of texts that are rows
PARAMETERS = ("timeout", "speed", "truncate", "binary_data_output")  # of a request
TOKEN_TYPES = 2  # BERT's segments
# A timer has to hold it; whoever waits longer than a day waits for ever.
LONGEST_TIMEOUT = 86400.0
# Of a request's id in logs; what the client gets back is not cut.
LOGGED_ID = 128
# Of Triton's extensions that this server does not have: what they ask for would be left out.
NOT_OFFERED = ("shared_memory_region", "classification")


class RawRequest(NamedTuple):
    """An inference request as it was sent: nothing of it is checked against a model yet."""

    id: str
    parameters: Mapping[str, object]
    inputs: Sequence[Tensor]
    outputs: Sequence[str]  # none: all
    unknown: Sequence[str] = ()  # parameters of inputs and outputs that change nothing


def check_tensor_parameters(
    parameters: Mapping[str, object], where: str, known: Container[str] = ()
) -> list[str]:
    """Of an input or output, called `where`: those that are not `known`, as a message names them.
    Failure BAD_REQUEST for what this server has not."""
    for key in NOT_OFFERED:
        if key in parameters:
            raise refuse(f"parameter '{key}' of {where} is not offered by this server")
    return [f"{show(key)} of {where}" for key in parameters if key not in known]


def validate(
    raw: RawRequest, target: Version, version: str | None, safety: Safety, log_id: str = ""
) -> Request:
    """The request `raw` to the version `target`, which it named `version`.

    `log_id` stands for a request without an id. Failure BAD_REQUEST or TOO_LARGE, with the field
    that is wrong.
    """
    usual = QUESTION if target.answers_questions else {}
    inputs = {usual.get(tensor.name, tensor.name): tensor for tensor in raw.inputs}
    if len(inputs) != len(raw.inputs):
        raise refuse(f"input '{_repeated(t.name for t in raw.inputs)}' is given twice")
    for name in inputs:
        known = (*FIELDS, "text") if target.fields else INPUTS
        if name not in known or (name == "text_pair" and not target.pair):
            takes = "text and text_pair" if target.pair else "text"
            takes = " and ".join(QUESTION) if target.answers_questions else takes
            others = " and ".join(FIELDS if target.fields else IDS[:2])
            takes = takes if target.answers_questions else f"{takes}, or {others}"
            raise refuse(f"input {show(name)} is unknown; model {target.model} takes {takes}")
    for name in raw.outputs:
        names = [tensor.name for tensor in target.outputs]
        if name not in names:
            raise refuse(f"output {show(name)} is unknown; choose from {', '.join(names)}")
    if len(set(raw.outputs)) != len(raw.outputs):
        raise refuse(f"output '{_repeated(raw.outputs)}' is asked for twice")
    texts = texts_b = None
    ids: Sequence[np.ndarray] = ()
    first_lengths: Sequence[int] = ()
    if "text" in inputs:
        texts, texts_b = _read_texts(inputs, target, safety)
    elif target.fields:
        ids, first_lengths = _read_fields(inputs, safety)
    else:
        ids, first_lengths = _read_ids(inputs, target, safety)
    return Request(
        target.model,
        version,
        texts,
        texts_b,
        ids,
        first_lengths,
        _read_speed(raw.parameters),
        _read_timeout(raw.parameters),
        (raw.id or log_id)[:LOGGED_ID],
        _read_truncate(raw.parameters),
    )


def _read_texts(
    inputs: Mapping[str, Tensor], target: Version, safety: Safety
) -> tuple[list[str], list[str] | None]:
    if len(inputs) > 1:
        for name in (*IDS, *FIELDS):
            if name in inputs:
                raise refuse(
                    f"input 'text' and input '{name}' are both given; send one or the other"
                )
    texts = read_texts(inputs["text"], safety.max_texts, safety.max_text_bytes)
    if not target.pair:
        return texts, None
    if "text_pair" not in inputs:
        if target.answers_questions:
            raise refuse(f"input 'context' is missing: model {target.model} finds answers in it")
        raise refuse(f"input 'text_pair' is missing: model {target.model} answers pairs of texts")
    texts_b = read_texts(inputs["text_pair"], safety.max_texts, safety.max_text_bytes)
    if len(texts_b) != len(texts):
        raise refuse(
            f"input '{inputs['text_pair'].name}' has {len(texts_b)} texts, but input "
            f"'{inputs['text'].name}' has {len(texts)}"
        )
    return texts, texts_b


def _read_fields(
    inputs: Mapping[str, Tensor], safety: Safety
) -> tuple[list[np.ndarray], list[int]]:
    """Each row as `fields.pack` has it, and its length."""
    for name in FIELDS:
        if name not in inputs:
            raise refuse(f"input '{name}' is missing; send dense and sparse, or rows as text")
    rows, sparse = safety.max_texts, inputs["sparse"]
    numbers = read_numbers(inputs["dense"], rows, fields.NUMBERS)
    categories = read_categories(sparse, rows, fields.CATEGORIES, fields.LONGEST)
    if len(numbers) != len(categories):
        raise refuse(
            f"input 'sparse' has {len(categories)} rows, but input 'dense' has {len(numbers)}"
        )
    words = fields.pack(numbers, hashed(categories))
    return list(words), [fields.WORDS] * len(words)


def _read_ids(
    inputs: Mapping[str, Tensor], target: Version, safety: Safety
) -> tuple[list[np.ndarray], list[int]]:
    """Each text's ids, int32, without the padding at its end, and its tokens of segment 0.

    Where the padding begins, attention_mask says, if there is one.
    """
    if target.answers_questions and "input_ids" not in inputs:
        raise refuse(f"input 'question' is missing: model {target.model} answers it")
    if "input_ids" not in inputs:
        raise refuse("inputs hold neither 'text' nor 'input_ids'; send one of them")
    if "text_pair" in inputs:
        raise refuse("input 'text_pair' goes with input 'text', not with 'input_ids'")
    size = (safety.max_texts, target.max_length)
    ids = read_integers(inputs["input_ids"], *size, target.vocab_size, "the model's token ids")
    columns = np.arange(ids.shape[1])
    lengths = ((columns + 1) * (ids != target.pad_id)).max(axis=1).tolist()
    if "attention_mask" in inputs:
        mask = read_integers(inputs["attention_mask"], *size, 2, "attention masks")
        _check_shape("attention_mask", mask, ids)
        sums = mask.sum(axis=1)
        wrong = (mask != (columns < sums[:, None])).any(axis=1)
        if wrong.any():
            raise refuse(
                f"text {int(wrong.argmax())} of input 'attention_mask' is not ones followed by "
                "zeros: padding stands at the end"
            )
        lengths = sums.tolist()
    if 0 in lengths:
        raise refuse(f"text {lengths.index(0)} of input 'input_ids' holds only padding")
    rows = [row[:length].astype(np.int32) for row, length in zip(ids, lengths)]
    if "token_type_ids" not in inputs:
        return rows, lengths
    types = read_integers(inputs["token_type_ids"], *size, TOKEN_TYPES, "token types")
    _check_shape("token_type_ids", types, ids)
    first_lengths = []
    for number, (row, length) in enumerate(zip(types, lengths)):
        first = int(np.count_nonzero(row[:length] == 0))
        if row[:first].any():
            raise refuse(f"text {number} of input 'token_type_ids' is not zeros followed by ones")
        first_lengths.append(first)
    return rows, first_lengths


def _check_shape(name: str, array: np.ndarray, ids: np.ndarray) -> None:
    if array.shape != ids.shape:
        raise refuse(
            f"shape of input '{name}' is {list(array.shape)}, but that of 'input_ids' is "
            f"{list(ids.shape)}"
        )


def unknown_parameters(raw: RawRequest, known: Container[str] = PARAMETERS) -> str:
    """The names of a request's parameters that change nothing, those of its inputs and outputs too,
    in ASCII; "" if there are none."""
    names = [show(key) for key in raw.parameters if key not in known]
    names.extend(raw.unknown)
    return list_names(names).encode("ascii", "backslashreplace").decode() if names else ""


def _read_speed(parameters: Mapping[str, object]) -> float | None:
    """From 0 (slowest, all layers) to 1; a string too, for clients whose protocol has no floats."""
    speed = parameters.get("speed")
    if speed is None:
        return None
    try:
        if isinstance(speed, bool) or not isinstance(speed, (int, float, str)):
            raise ValueError
        value = float(speed)
        if not 0 <= value <= 1:
            raise ValueError
    except (ValueError, OverflowError):
        raise refuse(
            f"parameter 'speed' is {show(speed)}; it has to be a number from 0 to 1"
        ) from None
    return value


def _read_timeout(parameters: Mapping[str, object]) -> float | None:
    """Seconds; None where the server's default holds."""
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < 0:
        raise refuse(
            f"parameter 'timeout' is {show(timeout)}; it has to be a whole number of microseconds"
        )
    return min(timeout / 1e6, LONGEST_TIMEOUT) or None


def _read_truncate(parameters: Mapping[str, object]) -> bool:
    """Whether texts that are too long are cut; refused otherwise."""
    truncate = parameters.get("truncate")
    if truncate is not None and type(truncate) is not bool:
        raise refuse(f"parameter 'truncate' is {show(truncate)}; it has to be true or false")
    return truncate is not False


def _repeated(names: Iterable[str]) -> str:
    [(name, _)] = Counter(names).most_common(1)
    return show(name)[1:-1]
