"""Inference requests that no server should answer, what they are made of, and how it says so."""

from __future__ import annotations

import json
import struct

TEXT = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["good", "坏 \x01"]}
IDS = {"name": "input_ids", "shape": [2, 3], "datatype": "INT64", "data": [1, 2, 3, 4, 5, 0]}


def body_of(*inputs, **rest):
    return json.dumps({"inputs": inputs, **rest}).encode()


def with_binary(*tensors, **rest):
    """A body whose tensors are raw, and its header; a tensor is (entry without data, bytes)."""
    entries = [{**entry, "parameters": {"binary_data_size": len(raw)}} for entry, raw in tensors]
    head = body_of(*entries, **rest)
    return head + b"".join(raw for _, raw in tensors), str(len(head))


def raw_texts(texts):
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def refused(response, code, words=""):
    """An answer of requests is a refusal, with these words."""
    assert response.status_code == code, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]


def without(entry, key):
    return {name: value for name, value in entry.items() if name != key}


def changed(entry, changes):
    """The body of one input with changes; what becomes None is left out."""
    both = {**entry, **changes}
    return body_of({name: value for name, value in both.items() if value is not None})


DEEP = json.loads("[" * 101 + "]" * 101)
TYPES = {**IDS, "name": "token_type_ids"}
# What is wrong in an input, and what the refusal has to name.
_WRONG_TEXTS = {
    "no texts": ({"shape": [0], "data": []}, "shape of input 'text'"),
    "shape of rank 2": ({"shape": [2, 2]}, "shape of input 'text'"),
    "shape of a bool": ({"shape": [True]}, "shape of input 'text'"),
    "shape of a float": ({"shape": [2.0]}, "shape of input 'text'"),
    "shape missing": ({"shape": None}, "shape of input 'text'"),
    "too many texts": ({"shape": [65]}, "input 'text'"),
    "text too long": ({"data": ["", "é" * 2049]}, "text 1 of input 'text'"),
    "nested in an input": ({"x": DEEP}, "nested"),
    "nested in data": ({"data": DEEP}, "text"),
    "unknown input": ({"name": "txet"}, "input 'txet'"),
    "data too short": ({"shape": [3]}, "data of input 'text'"),
    "data too long": ({"shape": [1]}, "data of input 'text'"),
    "datatype of texts": ({"datatype": "INT64"}, "datatype of input 'text'"),
    "text empty": ({"data": ["a", ""]}, "text 1 of input 'text' is empty"),
    "text blank": ({"data": [" \t\u3000\x1f", "a"]}, "text 0 of input 'text' is empty"),
    "NUL in a text": ({"data": ["a", "a\0b"]}, "text 1 of input 'text' holds a NUL character"),
    "number in texts": ({"data": ["a", 1]}, "element 1 of input 'text'"),
    "name missing": ({"name": None}, "inputs[0].name"),
    "data missing": ({"data": None}, "data of input 'text'"),
    "data is a string": ({"data": "ab"}, "data of input 'text'"),
    "shared memory": (
        {"parameters": {"shared_memory_region": "a"}},
        "'shared_memory_region' of inputs[0]",
    ),
    "binary without header": (
        {"data": None, "parameters": {"binary_data_size": 0}},
        "Inference-Header-Content-Length",
    ),
}
_WRONG_IDS = {
    "shape over 64 bits": ({"shape": [2**40, 2**40]}, "input_ids"),
    "shape of 2**64": ({"shape": [2**64, 3]}, "shape of input 'input_ids'"),
    "shape product wraps to 0": ({"shape": [2**32, 2**32], "data": []}, "input_ids"),
    "negative product": ({"shape": [-2, -3]}, "shape of input 'input_ids'"),
    "ids of rank 1": ({"shape": [6]}, "shape of input 'input_ids'"),
    "ids of no length": ({"shape": [2, 0], "data": []}, "shape of input"),
    "ids longer than the model": ({"shape": [1, 17], "data": [1] * 17}, "at most 16"),
    "datatype of ids": ({"datatype": "FP64"}, "datatype of input 'input_ids'"),
    "datatype is a list": ({"datatype": []}, "datatype of input 'input_ids'"),
    "ids too short": ({"data": [1, 2, 3]}, "data of input 'input_ids'"),
    "ids too few rows": ({"data": [[1, 2, 3]]}, "data of input 'input_ids'"),
    "ids ragged": ({"data": [[1, 2, 3], [4, 5]]}, "row 1 of input 'input_ids'"),
    "NaN in ids": ({"data": [1, 2, 3, 4, 5, float("nan")]}, '"data": [1'),
    "float in ids": ({"data": [1, 2, 3, 4.0, 5, 0]}, "element 3 of input 'input_ids'"),
    "bool in ids": ({"data": [1, 2, 3, 4, True, 0]}, "element 4 of input 'input_ids'"),
    "text in ids": ({"data": ["1"] * 6}, "element 0 of input 'input_ids'"),
    "ids outside": ({"data": [1, 2, 3, 4, 100, 0]}, "holds 100 at [1, 1]"),
    "ids negative": ({"data": [1, -1, 3, 4, 5, 0]}, "holds -1 at [0, 1]"),
    "ids over int64": ({"data": [1, 2**63, 3, 4, 5, 0]}, "input 'input_ids'"),
    "ids over uint64": ({"data": [1, 2**64, 3, 4, 5, 0]}, "element 1 of input"),
    "only padding": (
        {"data": [1, 2, 3, 0, 0, 0]},
        "text 1 of input 'input_ids' holds only padding",
    ),
    "types alone": ({"name": "token_type_ids"}, "'input_ids'"),
}
# Body, and what the refusal has to name.
REFUSED = {
    **{case: (changed(TEXT, wrong), named) for case, (wrong, named) in _WRONG_TEXTS.items()},
    **{case: (changed(IDS, wrong), named) for case, (wrong, named) in _WRONG_IDS.items()},
    "nested": (b'{"x": ' + b"[" * 101 + b"]" * 101 + b"}", "nested"),
    "nested very deep": (b"[" * 100000 + b"]" * 100000, "nested"),
    "duplicate outputs": (body_of(TEXT, outputs=[{"name": "label"}] * 2), "output 'label'"),
    "unknown output": (body_of(TEXT, outputs=[{"name": "lable"}]), "output 'lable'"),
    "duplicate inputs": (body_of(TEXT, TEXT), "input 'text'"),
    "types outside": (body_of(IDS, TYPES), "'token_type_ids' holds 2"),
    "types of another shape": (
        body_of(IDS, {**TYPES, "shape": [3, 2], "data": [0] * 6}),
        "shape of input 'token_type_ids'",
    ),
    "types mixed": (
        body_of({**IDS, "data": [1, 2, 3, 4, 5, 6]}, {**TYPES, "data": [0, 0, 0, 0, 1, 0]}),
        "text 1 of input 'token_type_ids' is not zeros followed by ones",
    ),
    "texts and ids": (body_of(TEXT, IDS), "'input_ids'"),
    "pair for a model of texts": (body_of(TEXT, {**TEXT, "name": "text_pair"}), "'text_pair'"),
    "inputs missing": (b"{}", "inputs"),
    "inputs empty": (body_of(), "inputs"),
    "inputs is an object": (b'{"inputs": {}}', "inputs"),
    "input is a number": (body_of(1), "inputs[0]"),
    "output is a string": (body_of(TEXT, outputs=["label"]), "outputs[0]"),
    "id is a number": (body_of(TEXT, id=7), "id is 7"),
    "parameters is a list": (body_of(TEXT, parameters=[]), "parameters"),
    "parameter is an object": (body_of(TEXT, parameters={"x": {}}), "parameter 'x'"),
    "timeout negative": (body_of(TEXT, parameters={"timeout": -1}), "'timeout'"),
    "timeout is a float": (body_of(TEXT, parameters={"timeout": 1.5}), "'timeout'"),
    "timeout is a bool": (body_of(TEXT, parameters={"timeout": True}), "'timeout'"),
    "speed over 1": (body_of(TEXT, parameters={"speed": 1.01}), "'speed'"),
    "speed is a word": (body_of(TEXT, parameters={"speed": "nan"}), "'speed'"),
    "speed is a bool": (body_of(TEXT, parameters={"speed": True}), "'speed'"),
    "binary_data_output is 1": (body_of(TEXT, parameters={"binary_data_output": 1}), "output'"),
    "classification": (
        body_of(TEXT, outputs=[{"name": "label", "parameters": {"classification": 1}}]),
        "'classification' of outputs[0]",
    ),
    "cut JSON": (body_of(TEXT)[:-3], "not JSON"),
    "half a surrogate": (
        body_of({**TEXT, "data": ["", "x"]}).replace(b'"x"', b'"\\ud800"'),
        "not JSON",
    ),
    "not UTF-8": (b'{"id": "\xff"}', "not JSON"),
    "a list": (b"[]", "JSON object"),
    "empty": (b"", "not JSON"),
}


TOO_LARGE = ("shape over 64 bits", "too many texts", "text too long", "shape product wraps to 0")
