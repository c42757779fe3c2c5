"""A server of rows: numbers and categories over HTTP and gRPC, and rows as texts."""

from __future__ import annotations

import struct

import grpc
import numpy as np
import pytest
import requests
import tiny_rows
from grpc_stub import make_stub
from served import DEADLINE, SOON, serving, settings_of

import fleetbert
from fleetbert.client import Client
from fleetbert.deploy.inference.protocol import inference_pb2 as pb

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows") / "models"
    tiny_rows.make_bundle(folder / "clicks" / "1")
    return folder


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    words = settings_of(models)
    with serving(tmp_path_factory.mktemp("server"), *words, command=SOON) as served:
        yield served


def tensors(rows):
    """dense and sparse, as JSON has them."""
    values = [row.split("\t") for row in rows]
    dense = [[float(value) if value else None for value in row[:13]] for row in values]
    return [
        {"name": "dense", "shape": [len(rows), 13], "datatype": "FP32", "data": dense},
        {
            "name": "sparse",
            "shape": [len(rows), 26],
            "datatype": "BYTES",
            "data": [row[13:] for row in values],
        },
    ]


def post(server, *inputs):
    url = f"{server.http}/v2/models/clicks/infer"
    return requests.post(url, json={"inputs": inputs}, timeout=DEADLINE).json()


def test_answers_are_those_of_the_bundle(server, models):
    rows = tiny_rows.lines()
    expected = [one.probability for one in fleetbert.load(models / "clicks" / "1")(rows)]
    with Client(server.http) as client:
        found = [one.probability for one in client.infer("clicks", rows)]
        inputs = client.metadata("clicks")["inputs"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert [(one["name"], one["shape"]) for one in inputs[:2]] == [
        ("dense", [-1, 13]),
        ("sparse", [-1, 26]),
    ]
    reply = requests.post(f"{server.http}/models/clicks", json={"text": rows}, timeout=DEADLINE)
    plain = [answer["probability"] for answer in reply.json()["answers"]]
    np.testing.assert_allclose(plain, expected, rtol=0, atol=1e-6)
    dense, sparse = tensors(rows)
    found = post(server, dense, sparse)["outputs"][0]["data"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    flat = [text.encode() for row in sparse["data"] for text in row]
    floats = np.array([[np.nan if x is None else x for x in row] for row in dense["data"]], "<f4")
    raw = [floats.tobytes(), b"".join(struct.pack("<I", len(text)) + text for text in flat)]
    typed = [
        pb.ModelInferRequest.InferInputTensor(
            **{name: one[name] for name in ("name", "shape", "datatype")}
        )
        for one in (dense, sparse)
    ]
    request = pb.ModelInferRequest(model_name="clicks", inputs=typed, raw_input_contents=raw)
    typed[0].contents.fp32_contents.extend(floats.reshape(-1).tolist())
    typed[1].contents.bytes_contents.extend(flat)
    listed = pb.ModelInferRequest(model_name="clicks", inputs=typed)
    with grpc.insecure_channel(server.grpc) as channel:
        for asked in (request, listed):
            reply = make_stub(channel).ModelInfer(asked, timeout=DEADLINE)
            found = np.frombuffer(reply.raw_output_contents[0], np.float32)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (
            0,
            {"shape": [2, 12], "data": [0] * 24},
            "'dense' has 12 columns; the model was",
        ),
        (
            1,
            {"shape": [2, 25], "data": [""] * 50},
            "'sparse' has 25 columns; the model was",
        ),
        (1, {"shape": [1, 26], "data": [""] * 26}, "'sparse' has 1 rows, but input 'dense' has 2"),
        (0, {"datatype": "FP64"}, "datatype of input 'dense' is 'FP64'; it has to be FP32"),
        (1, {"datatype": "INT64"}, "datatype of input 'sparse' is 'INT64'; it has to be BYTES"),
        (0, {"data": [1e39] * 26}, "holds inf at [0, 0]; numbers are finite"),
        (0, {"data": ["1"] * 26}, "element 0 of input 'dense' is '1'; it has to be a number"),
        (1, {"data": [7] * 52}, "element 0 of input 'sparse' is 7; it has to be a string"),
        (1, {"data": ["x" * 65] * 52}, "a category has at most 64 bytes"),
        (
            1,
            {"name": "input_ids"},
            "'input_ids' is unknown; model clicks takes text, or",
        ),
        (1, {"name": "text"}, "input 'text' and input 'dense' are both given"),
    ],
)
def test_what_is_wrong_is_named(server, number, changes, message):
    inputs = tensors(tiny_rows.lines(2))
    inputs[number].update(changes)
    assert message in post(server, *inputs)["error"]


def test_one_of_both_is_not_enough(server):
    dense, sparse = tensors(tiny_rows.lines(2))
    assert "input 'sparse' is missing" in post(server, dense)["error"]
    assert "input 'dense' is missing" in post(server, sparse)["error"]


def test_a_text_that_is_no_row_is_refused(server):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a lovely film"]}
    assert "row 1 of 1 has 1 columns, not 40" in post(server, tensor)["error"]


def test_a_new_table_takes_over_and_the_program_stays(server, models):
    """A version that differs in its table only."""
    rows, folder = tiny_rows.lines(), models / "clicks"
    before = [one.probability for one in fleetbert.load(folder / "1")(rows)]
    if not (folder / "2").exists():  # it does where this test is run again
        tiny_rows.make_bundle(models.parent / "aside", table_seed=1)
        (models.parent / "aside").rename(folder / "2")
    expected = [one.probability for one in fleetbert.load(folder / "2")(rows)]
    programs = [(folder / v / "float32" / "model.pdiparams").read_bytes() for v in "12"]
    assert programs[0] == programs[1]
    assert np.abs(np.subtract(expected, before)[: tiny_rows.KNOWN]).max() > 0.05
    url = f"{server.http}/v2/repository/models/clicks/load"
    assert requests.post(url, timeout=DEADLINE).status_code == 200
    with Client(server.http) as client:
        found = [one.probability for one in client.infer("clicks", rows)]
        assert client.metadata("clicks")["versions"] == ["2"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
