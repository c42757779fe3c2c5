"""Variants that texts leave early: the C++ programs beside fleetbert's own scheduler and heads."""

from __future__ import annotations

import concurrent.futures
import json
import random
import struct

import numpy as np
import pytest
import requests
from boards import ENDS, LABELS, SPEED, VOCAB, add_early_exit, open_early_exit, write_bundle
from lite_build import answers_of, refused
from lite_serving import LENGTH, post, serving
from oip_cases import TEXT, body_of

from fleetbert import bundle as bundles
from fleetbert.data import ragged
from fleetbert.data.tokenizers.wordpiece import WordPiece, of_vocab
from fleetbert.tasks.metrics import softmax

CHANCE = random.Random(5)
TEXTS = [" ".join(CHANCE.choices(VOCAB[5:], k=CHANCE.randint(1, 20))) for _ in range(300)]


@pytest.fixture(scope="module", params=["fastbert", "pooled"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, here, kind):
    path = write_bundle(tmp_path_factory.mktemp("early"), targets=(here,))
    add_early_exit(path, here, kind)
    return path


@pytest.fixture(scope="module")
def name(here):
    return f"lite-{here}-int8-early-exit"


@pytest.fixture(scope="module")
def url(programs, bundle, name):
    words = ("--variant", name, "--max-texts=300", "--queue-texts=5000")
    with serving(programs, bundle, *words) as (url, process):
        yield url
        assert process.poll() is None


def expect(bundle, name, texts, speed):
    """Logits and layers of texts, as fleetbert has them."""
    tokenizer = WordPiece(of_vocab(bundle / "vocab.txt", True))
    encoded = tokenizer.encode(texts, None, 16)
    opened = open_early_exit(bundles.read(bundle).folder(name))
    logits = np.zeros((len(texts), len(LABELS)), np.float32)
    layers = np.zeros(len(texts), np.int64)
    for part in opened.run_all(ragged.of(encoded), speed, 4096):
        logits[part.numbers], layers[part.numbers] = part.outputs, part.layer
    return logits, layers


def ask(url, texts, speed):
    told = {"outputs": [{"name": output} for output in ("logits", "exit_layer")]}
    if speed is not None:
        told["parameters"] = {"speed": speed}
    found = post(url, body_of({**TEXT, "shape": [len(texts)], "data": texts}, **told))
    assert found.status_code == 200, found.text
    return {output["name"]: output for output in found.json()["outputs"]}


@pytest.mark.parametrize("speed", [0.0, 0.2, None, 0.9, 1.0])
def test_texts_leave_where_fleetbert_lets_them_leave(url, bundle, name, speed):
    logits, layers = expect(bundle, name, TEXTS, speed)
    found = ask(url, TEXTS, speed)
    assert found["exit_layer"]["data"] == layers.tolist()
    assert (found["exit_layer"]["datatype"], found["exit_layer"]["shape"]) == ("INT32", [300])
    # The last layer's are exact; the others are the heads', in another order of addition.
    answered = np.reshape(found["logits"]["data"], logits.shape)
    np.testing.assert_allclose(answered, logits, atol=1e-5, rtol=1e-6)
    if speed in (0.0, None, 1.0):
        assert {*layers.tolist()} == {0.0: {4}, None: {*ENDS}, 1.0: {1}}[speed]


def test_requests_that_share_a_batch_leave_at_their_own_speeds(programs, bundle, name):
    speeds = [0.0, 0.2, None, 1.0] * 2
    words = ("--variant", name, "--fake-delay-ms=50", "--queue-texts=5000")
    with serving(programs, bundle, *words) as (url, _):
        with concurrent.futures.ThreadPoolExecutor(len(speeds)) as pool:
            answers = [pool.submit(ask, url, TEXTS[:40], speed) for speed in speeds]
            found = [answer.result()["exit_layer"]["data"] for answer in answers]
        metrics = requests.get(f"{url}/metrics").text
    left = np.concatenate(found)
    for speed, layers in zip(speeds, found):
        assert layers == expect(bundle, name, TEXTS[:40], speed)[1].tolist()
    for layer in ENDS:
        line = f'exits_total{{model="model",version="1",layer="{layer}"}} {(left == layer).sum()}\n'
        assert line in metrics


def test_the_model_says_what_it_can(url, name):
    found = requests.get(f"{url}/v2/models/model").json()
    assert found["outputs"][-1] == {"name": "exit_layer", "datatype": "INT32", "shape": [-1]}
    assert found["parameters"]["speed"] == SPEED
    assert found["parameters"]["variant"] == name


def test_exit_layers_in_binary(url, bundle, name):
    body = body_of({**TEXT, "shape": [20], "data": TEXTS[:20]})
    outputs = b', "outputs": [{"name": "exit_layer", "parameters": {"binary_data": true}}]}'
    found = post(url, body[:-1] + outputs)
    layers = struct.unpack("<20i", found.content[int(found.headers[LENGTH]) :])
    assert list(layers) == expect(bundle, name, TEXTS[:20], None)[1].tolist()


def test_predict_writes_the_layer(predict, bundle, name):
    for given, speed in (((), None), (("--speed", "0.2"), 0.2), (("--speed=0",), 0.0)):
        done = predict(bundle, "--variant", name, *given, text="\n".join(TEXTS) + "\n")
        assert done.returncode == 0, done.stderr
        logits, layers = expect(bundle, name, TEXTS, speed)
        found = answers_of(done)
        assert [list(one) for one in found] == [["label", "scores", "exit_layer"]] * len(TEXTS)
        assert [one["exit_layer"] for one in found] == layers.tolist()
        assert [one["label"] for one in found] == [LABELS[best] for best in logits.argmax(1)]
        scores = [[one["scores"][label] for label in LABELS] for one in found]
        np.testing.assert_allclose(scores, softmax(logits), atol=1e-5)


def test_bench_and_info(lite, bundle, name):
    words = ("--bundle", bundle, "--variant", name, "--engine=fake", "--json=yes", "--repeats=3")
    assert json.loads(lite("bench", *words, "--speed=0").stdout)["mean_layers"] == ENDS[-1]
    found = json.loads(lite("bench", *words, "--speed=1", "--batch=8").stdout)
    assert (found["speed"], found["mean_layers"]) == (1, ENDS[0])
    assert f"{name}: int8 for".encode() in lite("info", "--bundle", bundle).stdout
    assert b"with early exit" in lite("info", "--bundle", bundle).stdout


def change_settings(**values):
    def change(folder):
        settings = json.loads((folder / "exits.json").read_text())
        (folder / "exits.json").write_text(json.dumps({**settings, **values}))

    return change


def change_header(old, new):
    def change(folder):
        data = (folder / "heads.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        head = data[8 : 8 + size].replace(old, new)
        assert head != data[8 : 8 + size]
        data = struct.pack("<Q", len(head)) + head + data[8 + size :]
        (folder / "heads.safetensors").write_bytes(data)

    return change


def write_heads(data):
    return lambda folder: (folder / "heads.safetensors").write_bytes(data)


def cut_heads(folder):
    write_heads((folder / "heads.safetensors").read_bytes()[:-4])(folder)


def remove(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_settings(ends=[1, 1, 4]), ("exits.json", "ends.1 is out of order")),
        (change_settings(ends=[4]), ("exits.json", "fewer than two")),
        (change_settings(ends=[0, 4]), ("exits.json", "ends.0")),
        (change_settings(ends=[1, 4, 6]), ("heads.safetensors", "no layer 4.inner")),
        (change_settings(ends=[1, 2, 6]), ("has no group-6.nb",)),
        (change_settings(ends="all"), ("exits.json", "ends has to be a list")),
        (change_settings(speed=1.5), ("exits.json", "speed is not from 0 to 1")),
        (change_settings(pad_id=-1), ("exits.json", "pad_id")),
        (change_settings(head="deep"), ("heads of the kind deep",)),
        (change_settings(head="fastbert"), ("heads.safetensors", "no layer 1.narrow")),
        (cut_heads, ("heads.safetensors", "data_offsets")),
        (write_heads(b"\xff" * 20), ("heads.safetensors", "cut short")),
        (write_heads(b"\2\0\0"), ("heads.safetensors", "cut short")),
        (write_heads(b"\2\0\0\0\0\0\0\0[["), ("heads.safetensors", "not JSON")),
        (change_header(b"F32", b"F16"), ("heads.safetensors", "dtype is not F32")),
        (change_header(b"[16,6]", b"[6,16]"), ("heads.safetensors", "no layer 1.inner")),
        (change_header(b"[16,6]", b"[9999999,6]"), ("shape.0 is out of bounds",)),
        (change_header(b"[16,6]", b"[999999,6]"), ("asks for more than the file has",)),
        (remove("heads.safetensors"), ("heads.safetensors",)),
        (remove("group-2.nb"), ("has no group-2.nb",)),
        (remove("exits.json"), ("has no exits.json",)),
    ],
)
def test_spoilt_variants_are_refused(predict, here, make, change, words):
    bundle = make()
    name = add_early_exit(bundle, here, change=change)
    refused(predict(bundle, "--variant", name), *words)


def test_wrong_speeds(predict, here, bundle, name):
    whole = f"lite-{here}-int8"
    done = predict(bundle, "--variant", whole, "--speed=0.5")
    refused(done, "no text leaves the variant", whole)
    for speed in ("1.5", "-1", "nan", "fast", ""):
        refused(predict(bundle, "--variant", name, f"--speed={speed}"), "from 0 to 1")
