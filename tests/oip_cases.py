"""Inference requests that no server should answer, and what they are made of."""

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


def without(entry, key):
    return {name: value for name, value in entry.items() if name != key}


# Body, and what the refusal has to name.
REFUSED = {
    "shape over 64 bits": (body_of({**IDS, "shape": [2**40, 2**40]}), "input_ids"),
    "shape of 2**64": (body_of({**IDS, "shape": [2**64, 3]}), "shape of input 'input_ids'"),
    "shape product wraps to 0": (
        body_of({**IDS, "shape": [2**32, 2**32], "data": []}),
        "input_ids",
    ),
    "negative product": (body_of({**IDS, "shape": [-2, -3]}), "shape of input 'input_ids'"),
    "no texts": (body_of({**TEXT, "shape": [0], "data": []}), "shape of input 'text'"),
    "shape of rank 2": (body_of({**TEXT, "shape": [2, 2]}), "shape of input 'text'"),
    "shape of a bool": (body_of({**TEXT, "shape": [True]}), "shape of input 'text'"),
    "shape of a float": (body_of({**TEXT, "shape": [2.0]}), "shape of input 'text'"),
    "shape missing": (body_of(without(TEXT, "shape")), "shape of input 'text'"),
    "too many texts": (body_of({**TEXT, "shape": [65]}), "input 'text'"),
    "text too long": (body_of({**TEXT, "data": ["", "é" * 2049]}), "text 1 of input 'text'"),
    "nested": (b'{"x": ' + b"[" * 101 + b"]" * 101 + b"}", "nested"),
    "nested in an input": (body_of({**TEXT, "x": json.loads("[" * 101 + "]" * 101)}), "nested"),
    "nested in data": (body_of({**TEXT, "data": json.loads("[" * 101 + "]" * 101)}), "text"),
    "nested very deep": (b"[" * 100000 + b"]" * 100000, "nested"),
    "duplicate outputs": (body_of(TEXT, outputs=[{"name": "label"}] * 2), "output 'label'"),
    "unknown output": (body_of(TEXT, outputs=[{"name": "lable"}]), "output 'lable'"),
    "duplicate inputs": (body_of(TEXT, TEXT), "input 'text'"),
    "unknown input": (body_of({**TEXT, "name": "txet"}), "input 'txet'"),
    "data too short": (body_of({**TEXT, "shape": [3]}), "data of input 'text'"),
    "data too long": (body_of({**TEXT, "shape": [1]}), "data of input 'text'"),
    "ids too short": (body_of({**IDS, "data": [1, 2, 3]}), "data of input 'input_ids'"),
    "ids too few rows": (body_of({**IDS, "data": [[1, 2, 3]]}), "data of input 'input_ids'"),
    "ids ragged": (body_of({**IDS, "data": [[1, 2, 3], [4, 5]]}), "row 1 of input 'input_ids'"),
    "datatype of texts": (body_of({**TEXT, "datatype": "INT64"}), "datatype of input 'text'"),
    "datatype of ids": (body_of({**IDS, "datatype": "FP32"}), "datatype of input 'input_ids'"),
    "datatype is a list": (body_of({**IDS, "datatype": []}), "datatype of input 'input_ids'"),
    "NaN in ids": (body_of({**IDS, "data": [1, 2, 3, 4, 5, float("nan")]}), '"data": [1'),
    "float in ids": (
        body_of({**IDS, "data": [1, 2, 3, 4.0, 5, 0]}),
        "element 3 of input 'input_ids'",
    ),
    "bool in ids": (
        body_of({**IDS, "data": [1, 2, 3, 4, True, 0]}),
        "element 4 of input 'input_ids'",
    ),
    "text in ids": (body_of({**IDS, "data": ["1"] * 6}), "element 0 of input 'input_ids'"),
    "text empty": (body_of({**TEXT, "data": ["a", ""]}), "text 1 of input 'text' is empty"),
    "text blank": (
        body_of({**TEXT, "data": [" \t\u3000", "a"]}),
        "text 0 of input 'text' is empty",
    ),
    "NUL in a text": (
        body_of({**TEXT, "data": ["a", "a\0b"]}),
        "text 1 of input 'text' holds a NUL character",
    ),
    "number in texts": (body_of({**TEXT, "data": ["a", 1]}), "element 1 of input 'text'"),
    "ids outside": (body_of({**IDS, "data": [1, 2, 3, 4, 100, 0]}), "holds 100 at [1, 1]"),
    "ids negative": (body_of({**IDS, "data": [1, -1, 3, 4, 5, 0]}), "holds -1 at [0, 1]"),
    "ids over int64": (body_of({**IDS, "data": [1, 2**63, 3, 4, 5, 0]}), "input 'input_ids'"),
    "ids over uint64": (body_of({**IDS, "data": [1, 2**64, 3, 4, 5, 0]}), "element 1 of input"),
    "ids longer than the model": (
        body_of({**IDS, "shape": [1, 17], "data": [1] * 17}),
        "at most 16",
    ),
    "types outside": (body_of(IDS, {**IDS, "name": "token_type_ids"}), "'token_type_ids' holds 2"),
    "types of another shape": (
        body_of(IDS, {**IDS, "name": "token_type_ids", "shape": [3, 2], "data": [0] * 6}),
        "shape of input 'token_type_ids'",
    ),
    "types mixed": (
        body_of(IDS, {**IDS, "name": "token_type_ids", "data": [0, 0, 0, 0, 1, 0]}).replace(
            b"[1, 2, 3, 4, 5, 0]", b"[1, 2, 3, 4, 5, 6]"
        ),
        "text 1 of input 'token_type_ids' is not zeros followed by ones",
    ),
    "only padding": (
        body_of({**IDS, "data": [1, 2, 3, 0, 0, 0]}),
        "text 1 of input 'input_ids' holds only padding",
    ),
    "ids of rank 1": (body_of({**IDS, "shape": [6]}), "shape of input 'input_ids'"),
    "ids of no length": (body_of({**IDS, "shape": [2, 0], "data": []}), "shape of input"),
    "types alone": (body_of({**IDS, "name": "token_type_ids"}), "'input_ids'"),
    "texts and ids": (body_of(TEXT, IDS), "'input_ids'"),
    "pair for a model of texts": (body_of(TEXT, {**TEXT, "name": "text_pair"}), "'text_pair'"),
    "inputs missing": (b"{}", "inputs"),
    "inputs empty": (body_of(), "inputs"),
    "inputs is an object": (b'{"inputs": {}}', "inputs"),
    "input is a number": (body_of(1), "inputs[0]"),
    "name missing": (body_of(without(TEXT, "name")), "inputs[0].name"),
    "data missing": (body_of(without(TEXT, "data")), "data of input 'text'"),
    "data is a string": (body_of({**TEXT, "data": "ab"}), "data of input 'text'"),
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
    "shared memory": (
        body_of({**TEXT, "parameters": {"shared_memory_region": "a"}}),
        "'shared_memory_region' of inputs[0]",
    ),
    "binary without header": (
        body_of({**without(TEXT, "data"), "parameters": {"binary_data_size": 0}}),
        "Inference-Header-Content-Length",
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
