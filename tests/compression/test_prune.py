"""Pruning: what goes matters least, what stays computes as before, and the program is smaller."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import processes
import pytest
import tiny_job
from compressing import add_trained, content, in_two_ranks, job, values
from scipy import special

from fleetbert import bundle as bundles
from fleetbert.compression import from_program, importance, pipeline, prune, tuning
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.data import tokenizers
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.graph import program as programs
from fleetbert.models import sources, task_heads, weights
from fleetbert.tasks.classification.loss import LOSS
from fleetbert.training.strategies.single import Single

DRAWN = True  # see conftest.py

SCRIPT = processes.ROOT / "launch" / "quantize.py"
HEADS, UNITS, WIDTH = 4, 128, 16


def tensors_of(program_folder: Path) -> dict[str, np.ndarray]:
    """A program's tensors under PaddleNLP's names."""
    program = programs.read(program_folder / "model.pdmodel")
    names = from_program.names(program, "tiny").parameters
    arrays = programs.read_parameters(program, program_folder / "model.pdiparams")
    return {names[name]: array.copy() for name, array in arrays.items()}


def build(tensors: dict[str, np.ndarray], **shape: Any) -> paddle.nn.Layer:
    """The tiny classifier with these weights, in evaluation mode."""
    wanted = {
        "vocab_size": len(tensors["bert.embeddings.word_embeddings.weight"]),
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "intermediate_size": UNITS,
        "max_position_embeddings": 512,
        "type_vocab_size": len(tensors["bert.embeddings.token_type_embeddings.weight"]),
        **shape,
    }
    source = sources.Source("tiny", wanted, tokenizers.of_vocab(Path("vocab.txt"), True), tensors)
    network = task_heads.build("classification", weights.bert_config(source, 3, 1))
    weights.load(network, source)
    network.eval()
    return network


def scaled(tensors: dict[str, np.ndarray], layer: int, part: str, factors: np.ndarray) -> dict:
    """The tensors with the outputs of a layer's heads or units multiplied by factors, by way of
    the matrix that reads them."""
    name = {"heads": "self_attn.out_proj", "units": "linear2"}[part]
    name = f"bert.encoder.layers.{layer}.{name}.weight"
    rows = np.repeat(factors, WIDTH if part == "heads" else 1)
    return {**tensors, name: (tensors[name] * rows[:, None]).astype(np.float32)}


@pytest.fixture(scope="module")
def batches():
    """Labelled texts, all three labels."""
    random = np.random.default_rng(5)
    found = []
    for shape in ((12, 16), (8, 32)):
        ids, types = random_batch(random, shape, 190)
        labels = random.integers(0, 3, shape[0])
        found.append({"inputs": {"input_ids": ids, "token_type_ids": types}, "labels": labels})
    return found


def as_tensors(batch: dict[str, Any]) -> dict[str, Any]:
    inputs = {name: paddle.to_tensor(array) for name, array in batch["inputs"].items()}
    weight = paddle.full([len(batch["labels"])], 1 / len(batch["labels"]))
    return {"inputs": inputs, "labels": paddle.to_tensor(batch["labels"]), "weight": weight}


def losses(tensors: dict[str, np.ndarray], batches: Any) -> np.ndarray:
    """Each text's cross entropy, float64, in NumPy from the logits on."""
    network = build(tensors)
    found = []
    for batch in batches:
        logits = tuning.answers(network, batch["inputs"]).astype(np.float64)
        found.append(-special.log_softmax(logits, axis=1)[np.arange(len(logits)), batch["labels"]])
    return np.concatenate(found)


@pytest.fixture(scope="module")
def measured(whole_program, batches):
    """The importance of all heads and units over the texts."""
    network = build(tensors_of(whole_program))
    found = importance.measure(network, [as_tensors(batch) for batch in batches], LOSS)
    assert found.heads.shape == (2, HEADS) and found.feed_forward.shape == (2, UNITS)
    assert not any(layer._forward_pre_hooks for layer in network.sublayers())
    return found


@pytest.mark.parametrize(("part", "numbers"), [("heads", range(HEADS)), ("units", (3, 70, 127))])
def test_importance_is_the_slope_of_each_texts_loss(
    whole_program, batches, measured, part, numbers
):
    """Against differences of losses with the head's or the unit's output a little larger or
    smaller, done to the weights."""
    tensors = tensors_of(whole_program)
    found = measured.heads if part == "heads" else measured.feed_forward
    for layer in range(2):
        for number in numbers:
            ends = []
            for step in (0.02, -0.02):
                factors = np.ones(found.shape[1])
                factors[number] += step
                ends.append(losses(scaled(tensors, layer, part, factors), batches))
            slope = np.abs((ends[0] - ends[1]) / 0.04).mean()
            assert found[layer, number] == pytest.approx(slope, rel=0.03, abs=2e-4)


def test_heads_and_units_that_do_nothing_go_first(whole_program, batches):
    tensors = tensors_of(whole_program)
    idle_heads, idle_units = ([1, 3], [0, 2]), np.arange(0, 128, 2)
    for layer in range(2):
        factors = np.ones(HEADS)
        factors[idle_heads[layer]] = 0
        tensors = scaled(tensors, layer, "heads", factors)
        tensors = scaled(tensors, layer, "units", np.arange(128) % 2)
    network = build(tensors)
    found = importance.measure(network, [as_tensors(batch) for batch in batches], LOSS)
    kept = importance.choose(found, 0, 0.5, 0.5)
    assert kept.heads.tolist() == [[0, 2], [1, 3]]
    assert not np.isin(kept.units, idle_units).any()
    assert set(importance.lost(found, kept).values()) == {0.0}


def test_a_pruned_network_answers_like_a_masked_one(whole_program, pruned_program, kept):
    """The masks are zeros in the weights of the whole network."""
    tensors = tensors_of(whole_program)
    for layer in range(2):
        tensors = scaled(tensors, layer, "heads", np.isin(np.arange(HEADS), kept.heads[layer]))
        tensors = scaled(tensors, layer, "units", np.isin(np.arange(UNITS), kept.units[layer]))
    masked = build(tensors)
    narrow = build(tensors_of(pruned_program), kept_heads=2, intermediate_size=48)
    served = engine.open_folder(engine.FLOAT32, pruned_program, "cpu", 1)
    whole = engine.open_folder(engine.FLOAT32, whole_program, "cpu", 1)
    random = np.random.default_rng(6)
    for shape in ((3, 32), (1, 128), (8, 16)):
        ids, types = random_batch(random, shape, 190)
        inputs = {"input_ids": ids, "token_type_ids": types}
        expected = tuning.answers(masked, inputs)
        np.testing.assert_allclose(tuning.answers(narrow, inputs), expected, atol=1e-5)
        np.testing.assert_allclose(served(ids, types), expected, atol=2e-5)
        assert np.abs(whole(ids, types) - expected).max() > 1e-2
    sizes = [
        (folder / "model.pdiparams").stat().st_size for folder in (whole_program, pruned_program)
    ]
    # Of a layer: half of four matrices, and 48 / 128 of two.
    assert sizes[0] - sizes[1] == pytest.approx(4 * 2 * (4 * 64 * 32 + 2 * 64 * 80), rel=0.02)


def test_a_program_that_training_does_not_export_is_refused(tiny_bundle):
    program = programs.read(bundles.read(tiny_bundle).folder("float32") / "model.pdmodel")
    block = program.blocks[0]
    products = [op for op in block.ops if op.type == "matmul_v2"]
    programs.replace_ops(block, [op for op in block.ops if op is not products[-1]])
    with pytest.raises(UserError, match="here is not the program of a BERT as training exports it"):
        from_program.names(program, "here")


def test_the_top_layers_go(whole_program):
    """What stays answers as a network that never had them."""
    tensors = tensors_of(whole_program)
    measured = importance.Importance(np.ones((2, HEADS)), np.ones((2, UNITS)))
    kept = importance.choose(measured, 0.5, 0, 0)
    assert kept.heads.tolist() == [list(range(HEADS))]
    below = {name: array for name, array in tensors.items() if "layers.1." not in name}
    narrow = prune.narrow(build(tensors), kept)
    ids, types = random_batch(np.random.default_rng(6), (3, 32), 190)
    inputs = {"input_ids": ids, "token_type_ids": types}
    expected = tuning.answers(build(below, num_hidden_layers=1), inputs)
    np.testing.assert_allclose(tuning.answers(narrow, inputs), expected, atol=1e-6)
    lost = importance.lost(measured, kept)
    assert [part for part, value in lost.items() if value] == [
        "layer 1 attention",
        "layer 1 feed-forward",
    ]


def test_shares_become_numbers():
    found = importance.Importance(np.ones((2, 12)), np.ones((2, 1536)))
    for shares, units, expected in [
        (0.33, 0.5, (8, 768)),
        (0.99, 0.999, (1, 16)),
        (0.0, 0.33, (12, 1024)),
        (0.5, 0.0, (6, 1536)),
    ]:
        kept = importance.choose(found, 0, shares, units)
        assert (kept.heads.shape[1], kept.units.shape[1]) == expected
    with pytest.raises(UserError, match=r"prune\.heads: 0\.02 of 12 heads"):
        importance.choose(found, 0, 0.02, 0.001)
    deep = importance.Importance(np.ones((6, 12)), np.ones((6, 1536)))
    for share, layers in [(0.17, 5), (0.33, 4), (0.5, 3), (0.99, 1)]:
        kept = importance.choose(deep, share, 0, 0)
        assert kept.heads.tolist() == [list(range(12))] * layers
        gone = [value > 0 for value in importance.lost(deep, kept).values()]
        assert gone == [False] * 2 * layers + [True] * 2 * (6 - layers)


@pytest.fixture(scope="module")
def done(trained, tiny_data, tmp_path_factory):
    """A bundle with its variant pruned-float32, and what was trained."""
    bundle = Path(shutil.copytree(trained, tmp_path_factory.mktemp("prune") / "bundle"))
    return bundle, add_trained(job(bundle, tiny_data, "prune"))


def test_the_variant_is_smaller_and_what_was_trained(done, trained):
    bundle, pruned = done
    opened = bundles.read(bundle)
    bundles.verify(opened, "pruned-float32")
    variant = opened.variant("pruned-float32")
    assert variant.made_from == "float32"
    assert variant.kind == "paddle-inference"
    assert variant.pruning.heads == (2, 1)
    assert variant.pruning.feed_forward == (128, 48)
    assert variant.comparison.size_ratio < 0.8
    assert variant.max_difference_to_network < 1e-4
    assert variant.accuracy[0].accuracy > 0.8
    program = programs.read(bundle / "pruned-float32" / "model.pdmodel")
    arrays = programs.read_parameters(program, bundle / "pruned-float32" / "model.pdiparams")
    for name, array in arrays.items():
        described = programs.variable(program.blocks[0], name).type.lod_tensor.tensor
        assert list(described.dims) == list(array.shape)
    source = from_program.open_bundle(opened, 0.0, "pruned-float32")
    assert (source.shape["num_attention_heads"], source.shape["kept_heads"]) == (2, 1)
    assert source.shape["intermediate_size"] == 48
    state = pruned.network.state_dict()
    for name, array in source.tensors.items():
        np.testing.assert_array_equal(array, state[name].numpy())
    assert (bundle / "float32" / "model.pdiparams").read_bytes() == (
        trained / "float32" / "model.pdiparams"
    ).read_bytes()
    page = (bundle / "quantize-report.html").read_text(encoding="utf-8")
    assert "2 of 2 layers stay. Each layer keeps 1 of 2 attention heads and 48 of 128" in page
    assert "data:image" not in page  # nothing that the page's policy would refuse to show
    summary = bundle.with_name("run") / "summary.json"
    assert json.loads(summary.read_text())["steps"] == 9


@pytest.mark.parametrize(
    "method",
    [
        "prune",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("static", "dynamic", "qat")),
    ],
)
def test_a_pruned_variant_is_a_source(done, tiny_data, tmp_path, method):
    bundle = Path(shutil.copytree(done[0], tmp_path / "bundle"))
    changes = {"source": "pruned-float32", "gate.max_accuracy_drop": 0.1}
    if method == "prune":
        changes["prune"] = {"layers": 0.5, "heads": 0, "feed_forward": 0.3}
    pipeline.quantize(job(bundle, tiny_data, method, changes))
    made = "pruned-float32" if method == "prune" else f"int8-{method}"
    variant = bundles.read(bundle).variant(f"pruned-{made}")
    assert variant.made_from == "pruned-float32"
    assert (
        variant.comparison.size_ratio
        < bundles.read(bundle).variant("pruned-float32").comparison.size_ratio
    )
    assert variant.accuracy[0].accuracy > 0.8
    if method == "prune":
        assert variant.pruning.feed_forward == (48, 32)
        assert sorted(map(len, variant.pruning.kept_heads)) == [0, 1]
        shape = from_program.open_bundle(bundles.read(bundle), 0.0, variant.name).shape
        assert (shape["num_hidden_layers"], shape["intermediate_size"]) == (1, 32)
        page = (bundle / "quantize-report.html").read_text(encoding="utf-8")
        assert "1 of 2 layers stay" in page
    elif method == "qat":
        assert variant.max_difference_to_network < 0.02
    else:
        # Beside its source, and not only close to float32 by chance.
        ids, types = random_batch(np.random.default_rng(7), (8, 16), 100)
        source = engine.open_folder(engine.FLOAT32, bundle / "pruned-float32", "cpu", 1)(ids, types)
        found = engine.open_folder(variant.kind, bundle / variant.name, "cpu", 1)(ids, types)
        assert np.abs(found - source).max() < 0.1


@pytest.mark.slow
def test_two_ranks_prune_the_same_and_the_gate_ends_both(done, bundle, tiny_data, tmp_path):
    """The gate fails first; then the same run, all of its steps done, goes through it in one
    process."""
    before = content(bundle)
    words = ("gate.max_accuracy_drop=-0.5",)
    wanted = values(bundle, tiny_data, "prune")
    output = in_two_ranks(tmp_path, SCRIPT, wanted, words=words, code=GateFailed.code)
    assert "the parts that lost most of what matters are layer" in output
    assert "train.tsv, held out: 16 texts" in output
    assert "each layer keeps 1 of 2 attention heads and 48 of 128 feed" in output
    assert output.count("the bundle stays as it was") == 1  # and no second try
    after = content(bundle)
    page = after.pop("quantize-report.html").decode()
    assert after == before
    assert "pruned-float32 (not added)" in page
    run, alone = done[0].with_name("run"), bundles.read(done[0]).variant("pruned-float32")
    losses = tiny_job.losses(tmp_path / "run")
    assert losses == pytest.approx(tiny_job.losses(run), rel=0.02)
    pipeline.quantize(job(bundle, tiny_data, "prune"))
    found = bundles.read(bundle).variant("pruned-float32")
    assert found.pruning.kept_heads == alone.pruning.kept_heads
    assert tiny_job.losses(tmp_path / "run") == losses
    with pytest.raises(UserError, match=r"trained with prune\.heads: 0\.5, this job has 0\.0"):
        pipeline.quantize(job(bundle, tiny_data, "prune", {"prune.heads": 0.0}))


def test_the_gates_texts_do_not_choose_the_best_step(trained, tiny_data, tmp_path):
    """data.dev with gate.data's content is left out, wherever it lies; another table is taken."""
    opened = bundles.read(trained)
    copied = shutil.copyfile(tiny_data / "dev.tsv", tmp_path / "copied.tsv")
    other = tmp_path / "other.tsv"
    tiny_job.write_table(other, 20, 9)
    for dev, expected in [(copied, None), (None, None), (other, str(other))]:
        for method in ("qat", "prune"):
            wanted = job(trained, tiny_data, method, {"data.dev": dev and str(dev)})
            assert tuning.training_job(wanted, opened).data.dev == expected


def test_texts_that_are_held_out_are_not_trained_on(trained, tiny_data):
    opened = bundles.read(trained)
    settings = tuning.training_job(job(trained, tiny_data, "prune", {"held_out": 0.25}), opened)
    task = tuning.open_tuned(settings, Single("cpu"), opened, "float32", lambda *_: None)
    trained_on = {int(text) for step in task.plan(0) for text in step}
    assert trained_on == set(range(120))
    assert sorted([*task.train.lines, *task.dev.lines]) == list(range(2, 162))
    assert len(task.dev.lines) == 40
    arrays = task.dev_arrays(np.arange(40))
    rows = (tiny_data / "train.tsv").read_text().splitlines()
    for text, label in zip(arrays["texts"], arrays["labels"].numpy()):
        line = int(task.dev.lines[text])
        assert rows[line - 1].split("\t")[0] == task.labels[label]
