"""The scripts of docs/examples, as a reader starts them, on little data."""

from __future__ import annotations

import pytest
from example_scripts import ONE_THREAD, losses, run, run_two_ranks

import fleetbert

pytestmark = pytest.mark.slow

TEXTS = ["word1 word2 word3 word4", "word21 word22 word23 word24"]
ANSWERED = ["bad", "good"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def start(tiny_data, folder):
    """A tiny encoder in Hugging Face's format to start from."""
    keys = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    trained = fleetbert.train(
        tiny_data / "train.tsv",
        init="random",
        model={"vocab": str(tiny_data / "vocab.txt"), "intermediate_size": 128, **keys},
        max_length=16,
        learning_rate=2e-3,
        epochs=8,
        output_dir=folder / "start",
        **{"callbacks.report": False, "callbacks.progress": False},
    )
    return trained.model


@pytest.fixture(scope="module")
def classified(start, tiny_data, folder):
    return run(
        folder, "classify.py", tiny_data / "train.tsv", tiny_data / "dev.tsv", "--init", start,
        "--max-length", 16, "--ask", *TEXTS,
    )  # fmt: skip


def test_classify(classified, folder):
    lines = classified.splitlines()
    assert lines[0].startswith("accuracy ")
    assert float(lines[0].split()[1]) > 0.8
    assert [line.split(" → ")[1].split()[0] for line in lines[-2:]] == ANSWERED
    assert (folder / "output/classify/bundle/manifest.json").is_file()


def test_compress(classified, tiny_data, folder):
    said = run(
        folder, "compress.py", "output/classify/bundle", tiny_data / "train.tsv",
        tiny_data / "dev.tsv", "--max-drop", 0.5,
    )  # fmt: skip
    names = [line.split()[0] for line in said.splitlines()]
    assert names == ["variant", "float32", "int8-dynamic", "int8-static"]


def test_serve(classified, folder):
    said = run(folder, "serve.py", "output/classify/bundle", *TEXTS)
    assert [line.split(" → ")[1].split()[0] for line in said.splitlines()] == ANSWERED


def test_wide_and_deep(tmp_path):
    said = run(
        tmp_path, "wide_deep.py", "--rows", 4000, "--modes", "async", "--servers", 1, "--trainers",
        1, "--set", "data.batch_size=256", "trainer.epochs=2",
    )  # fmt: skip
    best, _, single, servers = said.splitlines()
    assert single.startswith("one process ")
    aucs = [float(row.split()[-3]) for row in (single, servers)]
    assert min(aucs) > 0.55
    assert max(aucs) < float(best.split()[-1])


def test_formats(tiny_bundle, tiny_data, tmp_path):
    said = run(
        tmp_path, "formats.py", tiny_bundle, tiny_data / "dev.tsv", "--texts", 24, "--rounds", 1,
        "--batch-sizes", 2, 8, "--threads", 1,
    )  # fmt: skip
    names = ["texts/s,", "eager", "float32", "onnx"]
    lines = [line.split() for line in said.splitlines()]
    assert [line[0] for line in lines] == 2 * names
    assert all(float(cell) > 0 for line in lines if line[0] in names[1:] for cell in line[1:3])
    assert len({line[3] for line in lines if line[0] in names[1:]}) == 1
    assert all(float(line[4]) > 0 for line in lines if line[0] in names[1:])  # the first pass
    assert "sorted by length" in (tmp_path / "formats.svg").read_text(encoding="utf-8")


def test_bert_in_two_ranks_as_a_static_graph_has_the_losses_of_one_compiled(
    start, tiny_data, tmp_path
):
    words = (
        tiny_data / "train.tsv", f"model.init={start}", "data.max_length=16", "data.batch_size=8",
        "trainer.max_steps=5",
    )  # fmt: skip
    one = run(tmp_path, "bert.py", *words, "trainer.compile=true", environment=ONE_THREAD)
    found = losses(run_two_ranks(tmp_path, "bert.py", *words, "--static"))
    assert found == pytest.approx(losses(one), abs=1e-5)
    assert len(set(found)) == 5


def test_amp(fp16sim, start, tiny_data, folder):
    said = run(
        folder, "amp.py", tiny_data / "train.tsv", tiny_data / "dev.tsv", "--init", start,
        "--device", "fp16sim", "--steps", 20, "--levels", "O0", "O2", "--batch-sizes", 8,
        "--max-length", 16, environment=fp16sim,
    )  # fmt: skip
    # Paddle's own word on each step that is skipped is there too.
    lines = [line for line in said.splitlines() if not line.startswith("Found inf")]
    rows = [line.split() for line in lines[1:3]]
    assert [row[1] for row in rows] == ["O0", "O2"]
    single, half = (float(row[4]) for row in rows)
    assert half == pytest.approx(single, abs=0.02)
    found = [line.split("(")[1].split(" in half): ") for line in lines if " in half): " in line]
    assert [constant for constant, _ in found] == ["-inf", "-10000", "0", "1.00136e-05"]
    assert [result == "nan" for _, result in found] == [True, False, True, False]
    fixed, dynamic = lines[-2:]
    assert fixed.startswith("fixed at 2^40")
    assert "stopped: " in fixed
    assert dynamic.startswith("dynamic from 2^40")
    assert "steps skipped" in dynamic
