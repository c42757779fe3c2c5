"""Quantization-aware training: what is trained is what is served, in one process and in ranks."""

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
from compressing import add_trained, in_two_ranks, job, killed_after, values
from halves import needs_bfloat16
from paddle import nn
from paddle.nn.quant.quant_layers import QuantizedLinear
from tiny_bert import telling_places

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import from_program, pipeline, qat, split, tuning
from fleetbert.compression.texts import read_batches
from fleetbert.core.errors import UserError
from fleetbert.engines import engine
from fleetbert.graph import int8, weights
from fleetbert.graph import program as programs
from fleetbert.models import fused, layers

SCRIPT = processes.ROOT / "launch" / "quantize.py"


@pytest.fixture(scope="module")
def done(trained, tiny_data, tmp_path_factory):
    """A bundle with its variant int8-qat, and what was trained."""
    bundle = Path(shutil.copytree(trained, tmp_path_factory.mktemp("qat") / "bundle"))
    return bundle, add_trained(job(bundle, tiny_data, "qat"))


def run_of(done: Any) -> Path:
    return done[0].with_name("run")


def dev_batches(bundle: Path, data: Path) -> Any:
    settings = config.Calibration(data=str(data / "dev.tsv"), texts=60)
    return read_batches(settings, bundles.read(bundle))


def test_the_served_program_answers_like_the_trained_network(done, tiny_data):
    bundle, trained = done
    served = engine.open_folder(engine.INT8, bundle / "int8-qat", "cpu", 1)
    float32 = engine.open_folder(engine.FLOAT32, bundle / "float32", "cpu", 1)
    differences, distances = [], []
    for batch in dev_batches(bundle, tiny_data):
        inputs = batch.values()
        expected = tuning.answers(trained.network, batch)
        differences.append(np.abs(served(*inputs) - expected).max())
        distances.append(np.abs(float32(*inputs) - expected).max())
    # A value now and then falls on the other side of a half.
    assert max(differences) < 0.01
    assert max(distances) > 0.03  # the comparison can tell models apart
    variant = bundles.read(bundle).variant("int8-qat")
    assert variant.kind == "paddle-inference-int8"
    assert variant.max_difference_to_network < 0.01
    assert variant.accuracy[0].accuracy > 0.8
    assert not telling_places(bundle)
    assert max(variant.output_errors.values()) < 0.1  # beside the trained layers, not those before


def test_thresholds_and_weights_are_the_trained_ones(done):
    bundle, trained = done
    program = programs.read(bundle / "float32" / "model.pdmodel")
    names = from_program.names(program, "bundle").linear
    stored, _ = weights.load(bundle / "int8-qat")
    found = bundles.read(bundle).variant("int8-qat")
    layers = qat.quantized_layers(trained.network)
    assert len(layers) == 2 * 6 + 1  # two layers and the pooler; the classifier stays float32
    assert found.thresholds == pytest.approx(trained.thresholds)
    assert len(trained.thresholds) == len(layers)
    for name, own in names.items():
        layer = layers.get(own[: -len(".weight")])
        assert (layer is None) == (name in found.float32_layers)
        if layer is not None:
            rounded = layer.rounded_weight().numpy()
            # Of the value's weight the scales are others: attention's output is divided there.
            integers = rounded * 127 / np.abs(rounded).max(0)
            off = np.abs(stored[name].integers - integers)
            assert off.max() < 1.01  # a weight that is a half may go to either side
            assert (off > 0.01).mean() < 0.002
            assert found.thresholds[name] == pytest.approx(
                float(layer._fake_quant_input.threshold())
            )
    query, key, value = list(found.thresholds.values())[:3]
    assert query == key == value > 0.1  # one input, quantized once
    # The form for converters says the same.
    converted = programs.read(bundle / "int8-qat" / "model.pdmodel")
    arrays = weights.parameters(bundle / "int8-qat", converted)
    scales = [
        float(arrays[programs.argument(op.inputs, "Scale")])
        for op in converted.blocks[0].ops
        if op.type == "quantize_linear"
    ]
    # Query, key and value read one input, which is rounded once.
    inputs = [x for n, x in enumerate(found.thresholds.values()) if n % 6 not in (1, 2)]
    assert scales == pytest.approx(inputs)


@pytest.mark.slow
def test_units_in_pieces_are_trained_as_they_are_served(bundle, tiny_data, monkeypatch):
    """Every feed-forward, as if a quarter of its threshold were enough, and three pieces a unit."""

    def choose(rounded: Any, layers: Any, observed: Any, thresholds: Any) -> dict:
        chosen = {}
        for second in split.graph.pairs(layers.program):
            units = layers.parameters[second].shape[0]
            former = thresholds[second]
            chosen[second] = bundles.Split(
                former=former,
                threshold=former / 4,
                units=np.repeat(np.arange(units), 3).tolist(),
                former_error=1,
                error=0,
            )
        return chosen

    monkeypatch.setattr(split, "choose", choose)
    trained = add_trained(job(bundle, tiny_data, "qat"))
    variant = bundles.read(bundle).variant("int8-qat")
    assert len(variant.split) == 2
    for name, one in variant.split.items():
        assert one.threshold == pytest.approx(variant.thresholds[name])
        assert one.threshold != pytest.approx(one.former / 4, rel=1e-4)  # it was learned
    served = engine.open_folder(engine.INT8, bundle / "int8-qat", "cpu", 1)
    without, differences = [], []
    for batch in dev_batches(bundle, tiny_data):
        expected = tuning.answers(trained.network, batch)
        differences.append(np.abs(served(*batch.values()) - expected).max())
        with monkeypatch.context() as patch:
            for layer in qat.quantized_layers(trained.network).values():
                patch.setattr(layer._fake_quant_input, "pieces", None)
            without.append(np.abs(tuning.answers(trained.network, batch) - expected).max())
    assert max(differences) < 0.01 < max(without)


def quantized_linear(width: int, outputs: int, threshold: float) -> tuple[Any, Any]:
    """A network with one quantized Linear whose channels are divided, and that layer."""
    paddle.seed(3)
    network = nn.Layer()
    network.network = nn.Sequential(nn.Linear(width, outputs))
    by = np.random.default_rng(8).uniform(0.25, 4, width).astype(np.float32)
    qat.quantize_network(network, {"0.weight": qat.Input(threshold, by)})
    (layer,) = qat.quantized_layers(network).values()
    assert isinstance(layer, QuantizedLinear)
    layer.bias.set_value(paddle.randn([outputs]))
    return network, layer


def test_a_layer_computes_the_arithmetic_that_onednn_is_tested_with():
    _, layer = quantized_linear(24, 40, threshold=2.0)
    by = layer._fake_quant_input.by.numpy()
    x = np.random.default_rng(0).normal(size=(5, 7, 24)).astype(np.float32)
    layer.eval()
    found = layer(paddle.to_tensor(x)).numpy()  # some are beyond the threshold
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    cut = np.clip(x / by, -2, 2)
    expected = int8.simulate(cut, 2.0, weights.quantize(weight * by[:, None], 1)) + bias
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(x @ weight + bias - expected).max() > 0.1


def test_gradients_of_a_threshold_are_those_of_the_paper():
    """Esser et al. 2020, equation 3, of the step; then of its logarithm."""
    rounded = qat.Rounded(qat.Input(2.0, np.ones(16, np.float32)))
    rounded.change.set_value(np.log([1.5]).astype(np.float32))
    x = np.random.default_rng(0).normal(scale=2, size=(8, 16)).astype(np.float32)
    up = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
    given = paddle.to_tensor(x, stop_gradient=False)
    (rounded(given) * paddle.to_tensor(up)).sum().backward()
    step = 3.0 / 127
    inside = np.abs(x) <= 3.0
    of_step = np.where(inside, np.rint(x / step) - x / step, 127 * np.sign(x))
    np.testing.assert_allclose(rounded.change.grad, [(up * of_step).sum() * step], rtol=1e-3)
    np.testing.assert_allclose(given.grad.numpy(), up * inside, atol=1e-6)
    assert not inside.all()


def test_rows_of_embeddings_are_rounded_as_they_are_stored():
    network, layer = nn.Layer(), nn.Embedding(9, 16)
    network.network = nn.Sequential(layer)
    qat.quantize_network(network, {})
    ids = paddle.to_tensor([[3, 1, 8]])
    rows = layer(ids)
    table = layer.weight.numpy()
    expected = weights.widen(weights.quantize(table, 0))[[3, 1, 8]]
    np.testing.assert_allclose(rows.numpy()[0], expected, atol=1e-6)
    assert np.abs(rows.numpy()[0] - table[[3, 1, 8]]).max() > 1e-4
    (rows * 2.0).sum().backward()
    np.testing.assert_allclose(
        layer.weight.grad.numpy().sum(1), 16 * 2.0 * np.bincount([3, 1, 8], minlength=9)
    )


@pytest.mark.parametrize("how", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_fast_layers_give_the_same_gradients(how, monkeypatch):
    monkeypatch.setattr(fused, "SMALLEST", 1)
    found = []
    fast = fused.Functions(fused.FLOAT32 if how == "float32" else fused.BFLOAT16)
    for functions in (layers.Functions(), fast):
        network, layer = quantized_linear(24, 40, 1.0)
        network.train()
        x = paddle.to_tensor(np.random.default_rng(1).normal(size=(4, 6, 24)).astype(np.float32))
        x.stop_gradient = False
        with layers.during(functions):
            y = layer(x)
        (y * y).sum().backward()
        tensors = (
            y,
            x.grad,
            layer.weight.grad,
            layer.bias.grad,
            layer._fake_quant_input.change.grad,
        )
        found.append([tensor.numpy() for tensor in tensors])
    for expected, fast_one in zip(*found):
        if how == "float32":
            np.testing.assert_allclose(fast_one, expected, rtol=1e-4, atol=1e-4)
        else:
            error = np.linalg.norm(fast_one - expected) / np.linalg.norm(expected)
            assert 0 < error < 0.01


@pytest.mark.slow
def test_two_ranks_train_the_same(done, bundle, tiny_data, tmp_path):
    _, expected = done
    in_two_ranks(tmp_path, SCRIPT, values(bundle, tiny_data, "qat"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["world_size"] == 2
    losses = tiny_job.losses(tmp_path / "run")
    assert losses == pytest.approx(tiny_job.losses(run_of(done)), rel=0.02)
    assert len(losses) == 9  # a tenth of the 160 texts is held out
    found = bundles.read(bundle).variant("int8-qat").thresholds
    assert found == pytest.approx(expected.thresholds, rel=0.03)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_result(done, bundle, tiny_data, tmp_path):
    _, expected = done
    changes = {"trainer.checkpoint_every": 2, "trainer.eval_every": 10}
    with killed_after(4):
        pipeline.quantize(job(bundle, tiny_data, "qat", changes))
    assert not (tmp_path / "run" / "summary.json").exists()
    assert bundles.read(bundle).names == ["float32"]
    with pytest.raises(UserError, match=r"was trained with distill\.weight: 0\.5, this job has 0"):
        pipeline.quantize(job(bundle, tiny_data, "qat", {**changes, "distill.weight": 0.0}))
    pipeline.quantize(job(bundle, tiny_data, "qat", changes))
    losses = tiny_job.losses(tmp_path / "run")
    assert losses == pytest.approx(tiny_job.losses(run_of(done)), rel=1e-4)
    found = bundles.read(bundle).variant("int8-qat").thresholds
    assert found == pytest.approx(expected.thresholds, rel=1e-4)
