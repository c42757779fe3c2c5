"""Bodies to requests and responses to bodies, whatever is sent."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
import zlib

import fake_core
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oip_answers import outputs_of, read_raw
from oip_cases import IDS, TEXT, body_of, raw_texts, with_binary, without

from fleetbert.deploy.inference.messages import Failure, Reason, Response
from fleetbert.deploy.inference.protocol import http_body, http_json
from fleetbert.deploy.inference.protocol.validation import validate

OUTPUTS = ("label", "scores", "logits", "exit_layer")
SST, PAIRS = fake_core.version("sst", "2"), fake_core.version("pairs", "1", pair=True)
LIMIT = fake_core.SAFETY.max_body_bytes

few = settings(max_examples=40)

texts = st.lists(
    st.text(max_size=20).filter(lambda text: text.strip() and "\0" not in text),
    min_size=1,
    max_size=8,
)
ids = st.tuples(st.integers(1, 5), st.integers(1, fake_core.MAX_LENGTH)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, fake_core.VOCAB - 1), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["text", "input_ids", "BYTES", "INT64", "label"]),
)
keys = st.sampled_from(
    (
        *("id", "inputs", "outputs", "parameters", "name", "shape", "datatype", "data", "x"),
        *("binary_data_size", "binary_data", "timeout", "speed", "binary_data_output"),
    )
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5)
)


def ask(body, header=None, found=SST):
    return validate(http_json.parse(body, header).request, found, "stable", fake_core.SAFETY)


@few
@given(texts, texts)
def test_texts_in_json_and_in_binary_are_the_same_request(first, second):
    count = min(len(first), len(second))
    first, second = first[:count], second[:count]
    entry = {"name": "text", "shape": [count], "datatype": "BYTES"}
    other = {**entry, "name": "text_pair"}
    by_json = ask(body_of({**other, "data": second}, {**entry, "data": first}), found=PAIRS)
    body, header = with_binary((entry, raw_texts(first)), (other, raw_texts(second)))
    assert ask(body, header, PAIRS) == by_json
    assert (by_json.texts, by_json.texts_b, by_json.ids) == (first, second, ())
    assert (by_json.model, by_json.version) == ("pairs", "stable")


@few
@given(ids, st.sampled_from(["INT64", "INT32"]), st.data())
def test_ids_nested_flat_and_binary_are_the_same_request(rows, datatype, data):
    array = np.array(rows)
    array[:, 0] = 1  # no text of padding only
    ends = data.draw(st.lists(st.integers(1, array.shape[1]), min_size=len(array)))
    for row, end in zip(array, ends):
        row[end:] = 0
    lengths = [np.flatnonzero(row)[-1] + 1 for row in array]
    firsts = [data.draw(st.integers(0, length)) for length in lengths]
    types = np.array([np.arange(array.shape[1]) >= first for first in firsts]).astype(int)
    entry = {"name": "input_ids", "shape": list(array.shape), "datatype": datatype}
    second = {**entry, "name": "token_type_ids"}
    dtype = "<i8" if datatype == "INT64" else "<i4"
    binary = with_binary(
        (entry, array.astype(dtype).tobytes()), (second, types.astype(dtype).tobytes())
    )
    nested = {**entry, "data": array.tolist()}, {**second, "data": types.tolist()}
    flat = {**entry, "data": array.ravel().tolist()}, {**second, "data": types.ravel().tolist()}
    for request in (ask(body_of(*nested)), ask(body_of(*reversed(flat))), ask(*binary)):
        assert [ids.dtype for ids in request.ids] == [np.int32] * len(array)
        assert [ids.tolist() for ids in request.ids] == [
            row[:length].tolist() for row, length in zip(array, lengths)
        ]
        assert list(request.first_lengths) == firsts
    assert list(ask(body_of(nested[0])).first_lengths) == lengths


def test_parameters_and_id():
    request = ask(body_of(TEXT, id="七" * 200, parameters={"timeout": 2500, "speed": 0.5}))
    assert (request.timeout, request.speed, request.id) == (0.0025, 0.5, "七" * 128)
    request = ask(body_of(TEXT, id=None, parameters={"timeout": 0, "speed": "1", "other": True}))
    assert (request.timeout, request.speed, request.id) == (None, 1.0, "")
    assert ask(body_of(TEXT, parameters={"timeout": 2**63 - 1})).timeout == 86400


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        ([[1, 1, 1], [1, 1, 0]], [[2, 7, 3], [2, 3]]),  # what the ids say
        ([[1, 1, 0], [1, 0, 0]], [[2, 7], [2]]),  # less
        ([[1, 1, 1], [1, 1, 1]], [[2, 7, 3], [2, 3, 0]]),  # more
    ],
)
def test_an_attention_mask_says_where_padding_begins(mask, rows):
    ids = {**IDS, "data": [[2, 7, 3], [2, 3, 0]]}
    request = ask(body_of(ids, {**IDS, "name": "attention_mask", "data": mask}))
    assert [row.tolist() for row in request.ids] == rows
    assert request.first_lengths == [len(row) for row in rows]


def refusal(*arguments, **words):
    with pytest.raises(Failure) as caught:
        ask(*arguments, **words)
    return caught.value


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([[1, 1, 1], [0, 1, 1]], "text 1 of input 'attention_mask' is not ones followed by"),
        ([[1, 1, 1], [1, 0, 1]], "text 1 of input 'attention_mask' is not ones followed by"),
        ([[0, 0, 0], [1, 1, 0]], "text 0 of input 'input_ids' holds only padding"),
        ([[1, 1, 2], [1, 1, 0]], "attention masks are 0 to 1"),
        ([[1, 1], [1, 1]], "shape of input 'attention_mask' is [2, 2]"),
    ],
)
def test_attention_masks_that_are_refused(mask, words):
    given = {**IDS, "name": "attention_mask", "shape": [2, len(mask[0])], "data": mask}
    assert words in str(refusal(body_of(IDS, given)))
    assert "send one or the other" in str(refusal(body_of(TEXT, given)))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([TEXT], "input 'text_pair' is missing"),
        ([TEXT, {**TEXT, "name": "text_pair", "shape": [1], "data": ["a"]}], "has 1 texts, but"),
        ([TEXT, {**TEXT, "name": "text_pair", "data": ["", "a"]}], "text 0 of input 'text_pair'"),
        ([IDS, {**TEXT, "name": "text_pair"}], "'text_pair' goes with input 'text'"),
    ],
)
def test_pairs_that_are_refused(inputs, words):
    assert words in str(refusal(body_of(*inputs), found=PAIRS))


@pytest.mark.parametrize(
    ("entry", "raw", "header", "named"),
    [
        (TEXT, raw_texts(["a", "bc"])[:-1], None, "element 1 of input 'text' goes past"),
        (TEXT, raw_texts(["a", "bc"]) + b"x", None, "1 bytes of data after"),
        (TEXT, raw_texts(["a"]), None, "element 1 of input 'text' goes past"),
        (TEXT, struct.pack("<I", 2**32 - 1), None, "element 0 of input 'text' goes past"),
        (TEXT, raw_texts(["a"]) + b"\1\0\0\0\xff", None, "element 1 of input 'text' is not UTF-8"),
        (IDS, bytes(47), None, "has 47 bytes of data; its shape [2, 3] and datatype INT64 need 48"),
        (TEXT, raw_texts(["a", "b"]), "-1", "Inference-Header-Content-Length"),
        (TEXT, raw_texts(["a", "b"]), "100000", "Inference-Header-Content-Length"),
        (TEXT, raw_texts(["a", "b"]), "", "Inference-Header-Content-Length"),
        (TEXT, raw_texts(["a", "b"]), "²", "Inference-Header-Content-Length"),
        (TEXT, raw_texts(["a", "b"]), "9" * 5000, "Inference-Header-Content-Length"),
        (TEXT, raw_texts(["a", "b"]), "0", "not JSON"),
    ],
)
def test_refused_binary_tensors(entry, raw, header, named):
    body, length = with_binary((without(entry, "data"), raw))
    failure = refusal(body, length if header is None else header)
    assert named in str(failure)
    assert failure.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    ("size", "named"), [(11, "bytes left"), (-1, "number of bytes"), (9, "1 bytes after the last")]
)
def test_sizes_of_binary_tensors_have_to_fit_the_body(size, named):
    entry = {**without(TEXT, "data"), "parameters": {"binary_data_size": size}}
    head = body_of(entry)
    assert named in str(refusal(head + raw_texts(["a", "b"]), str(len(head))))


def only_failures(function, *arguments):
    try:
        return function(*arguments)
    except Failure as failure:
        assert failure.reason in (Reason.BAD_REQUEST, Reason.TOO_LARGE)
        assert 0 < len(str(failure)) < 400


@given(
    st.sampled_from([TEXT, IDS]),
    st.lists(st.tuples(keys, values), min_size=1, max_size=3),
    st.lists(st.tuples(keys, values), max_size=2),
)
def test_requests_with_wrong_fields_raise_nothing_but_failures(entry, wrong, wrong_outside):
    message = {"inputs": [{**entry, **dict(wrong)}], **dict(wrong_outside)}
    only_failures(ask, json.dumps(message).encode())


@given(st.data(), st.integers(0, 300))
def test_requests_with_wrong_bytes_raise_nothing_but_failures(data, length):
    body, header = with_binary(
        (without(TEXT, "data"), raw_texts(["good", "bad"])),
        outputs=[{"name": "scores", "parameters": {"binary_data": True}}],
    )
    position = data.draw(st.integers(0, len(body)))
    body = body[:position] + data.draw(st.binary(max_size=4)) + body[position + 1 :]
    only_failures(ask, body, header)
    only_failures(ask, body, str(length))


def make_response():
    logits = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    told = {**outputs_of(logits), "label": ["positive", "无", ""]}
    return Response("sst", "2", told, 0.001, 0.002, 1)


@few
@given(st.lists(st.sampled_from(OUTPUTS), unique=True), st.booleans(), st.data())
def test_answers_are_the_same_in_json_and_in_binary(names, all_binary, data):
    response, wanted, binary = make_response(), [], {}
    for name in names:
        flag = data.draw(st.none() | st.booleans())
        parameters = {} if flag is None else {"parameters": {"binary_data": flag}}
        wanted.append({"name": name, **parameters})
        binary[name] = all_binary if flag is None else flag
    body = body_of(TEXT, id="a", outputs=wanted, parameters={"binary_data_output": all_binary})
    content, head = http_json.render(response, http_json.parse(body))
    message = json.loads(content[:head])
    outputs = message.pop("outputs")
    assert message.pop("parameters") == {"truncated": 1, "cut": 1}
    assert message == {"model_name": "sst", "model_version": "2", "id": "a"}
    assert [output["name"] for output in outputs] == (names or list(OUTPUTS))
    position = head
    for output in outputs:
        name, expected = output["name"], np.array(response.outputs[output["name"]])
        assert output["shape"] == list(expected.shape)
        assert ("data" in output) != binary.get(name, all_binary)
        if "data" not in output:
            size = output["parameters"]["binary_data_size"]
            output["data"] = read_raw(output["datatype"], content[position : position + size])
            position += size
        found = np.array(output["data"], expected.dtype)
        np.testing.assert_array_equal(found, expected.ravel())
    assert position == (len(content) if head is not None else None)


def test_an_answer_without_id_has_none():
    content, head = http_json.render(make_response(), http_json.parse(body_of(TEXT)))
    assert head is None
    assert "id" not in json.loads(content)


@few
@given(st.binary(max_size=2000), st.sampled_from(["gzip", "x-gzip", "deflate", "bare", "identity"]))
def test_encoded_bodies_are_decoded(body, encoding):
    bare = zlib.compressobj(wbits=-15)
    encoded = {
        "gzip": gzip.compress(body),
        "x-gzip": gzip.compress(body),
        "deflate": zlib.compress(body),
        "bare": bare.compress(body) + bare.flush(),
        "identity": body,
    }[encoding]
    assert http_body.decode(encoded, "deflate" if encoding == "bare" else encoding, LIMIT) == body


@few
@given(st.binary(min_size=1, max_size=100), st.sampled_from(["gzip", "deflate"]), st.data())
def test_truncated_or_longer_streams_are_refused(body, encoding, data):
    whole = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    twice = [whole + whole] if encoding == "deflate" else []  # gzip may have several members
    for wrong in (cut, whole + b"x", *twice):
        with pytest.raises(Failure) as caught:
            http_body.decode(wrong, encoding, LIMIT)
        assert caught.value.reason is Reason.BAD_REQUEST


def test_gzip_of_several_members():
    """As bgzip and `cat a.gz b.gz` make it."""
    members = [gzip.compress(b"some"), gzip.compress(b" words")]
    assert http_body.decode(b"".join(members), "gzip", LIMIT) == b"some words"
    with pytest.raises(Failure, match="bytes after its gzip stream"):
        http_body.decode(gzip.compress(b"") * 300, "gzip", LIMIT)


@few
@given(st.binary(max_size=100), st.sampled_from(["gzip", "deflate", "br", "gzip, gzip", "é", ""]))
def test_any_encoded_body_raises_nothing_but_failures(body, encoding):
    only_failures(http_body.decode, body, encoding, LIMIT)


def test_a_bomb_takes_no_more_than_the_limit():
    bomb = zlib.compress(bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(Failure, match="decoded body is too large") as caught:
            http_body.decode(bomb, "deflate", LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    finally:
        tracemalloc.stop()
    assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize(
    "body",
    [
        body_of({**IDS, "shape": [64, 2**62], "data": []}),
        body_of({**TEXT, "shape": [1] * 100000}),
        body_of({**IDS, "data": [[]] * 100000}),
        body_of(TEXT, x=[[[]]] * 100000),
        body_of(*[TEXT] * 2000),
        b'{"inputs": ' + b"9" * 300000 + b"}",
    ],
    ids=range(6),
)
def test_memory_is_that_of_the_body(body):
    tracemalloc.start()
    try:
        only_failures(ask, body)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(body) + (1 << 20)
    finally:
        tracemalloc.stop()
