"""PaddleSlim 2.6.0's calls give what the Paddle classes give that are taken here.

Where one of these fails with another PaddleSlim, its call does something of its own, and the text
in docs/paddleslim.md has to be looked at again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from fleetbert.compat.static_graph import static_graph
from fleetbert.compression import dynamic, qat, static
from fleetbert.compression.observed import observe
from fleetbert.compression.work import Source
from fleetbert.graph import program as programs
from fleetbert.graph import quantizers
from fleetbert.graph.mul import to_mul

paddleslim = pytest.importorskip("paddleslim", reason="PaddleSlim 2.6.0: on Paddle 2.6.2 only")
quant = paddleslim.quant
pytestmark = pytest.mark.slow


class Texts(paddle.io.IterableDataset):
    """Random token ids, without padding, which PaddleSlim measures too. Its avg is the mean over
    texts, ours over batches: here both are the same."""

    def __init__(self):
        super().__init__()
        ids = np.random.default_rng(0).integers(1, 90, (8, 1, 16))
        self.batches = [{"input_ids": one, "token_type_ids": 0 * one} for one in ids]

    def __iter__(self):
        return iter(self.batches)


@pytest.fixture(scope="module")
def source(tiny_bundle) -> Source:
    return Source(Path(tiny_bundle) / "float32")


@pytest.mark.parametrize("algorithm", ["avg", "abs_max"])
def test_quant_post_static_has_the_same_thresholds_and_integers(source, tmp_path, algorithm):
    """It also has thresholds of attention's products and of what no layer reads."""
    ours = static.of_texts(source, observe(source.layers, Texts().batches), algorithm)
    place, scope = paddle.CPUPlace(), paddle.static.Scope()
    with static_graph(), paddle.static.scope_guard(scope):
        quant.quant_post_static(
            paddle.static.Executor(place),
            str(source.folder),
            str(tmp_path),
            data_loader=paddle.io.DataLoader(Texts(), batch_size=None, places=[place]),
            model_filename="model.pdmodel",
            params_filename="model.pdiparams",
            batch_nums=8,
            scope=scope,
            algo=algorithm,
            quantizable_op_type=[quantizers.LINEAR],
            skip_tensor_list=ours.left,
        )
    program = programs.read(tmp_path / "model.pdmodel")
    arrays = programs.read_parameters(program, tmp_path / "model.pdiparams")
    thresholds, weights = quantizers.read(program, arrays)
    assert set(weights) == set(ours.weights) and len(weights) > 10
    for name, found in weights.items():
        np.testing.assert_array_equal(found.integers, ours.weights[name].integers)
        np.testing.assert_array_equal(found.scales, ours.weights[name].scales)
    for op in source.program.blocks[0].ops:
        weight = programs.argument(op.inputs, "Y") if op.type == quantizers.LINEAR else None
        if weight in weights:
            expected = thresholds[programs.argument(op.inputs, "X")]
            assert ours.thresholds[weight] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bits", [8, 16])
def test_quant_post_dynamic_is_weightquantization(source, tmp_path, bits):
    ours = dynamic.quantize_weights(source, bits)
    (tmp_path / "mul").mkdir()
    programs.write_model(tmp_path / "mul", to_mul(source.program, source.arrays), source.arrays)
    with static_graph():
        quant.quant_post_dynamic(
            str(tmp_path / "mul"),
            str(tmp_path / "made"),
            "model.pdmodel",
            "model.pdiparams",
            quantizable_op_type=["mul"],  # it takes no matmul_v2, as Linear layers are exported
            weight_bits=bits,
        )
    (saved,) = (tmp_path / "made").rglob("*.pdmodel")
    program = programs.read(saved)
    arrays = programs.read_parameters(program, saved.with_suffix(".pdiparams"))
    integers = {name: array for name, array in arrays.items() if array.dtype != np.float32}
    assert len(integers) > 10
    for name, array in integers.items():
        np.testing.assert_array_equal(array, ours.weights[name].integers)
    tables = set(programs.embedding_tables(source.program))
    assert set(ours.weights) - set(integers) == tables  # which PaddleSlim leaves in float32


def network() -> nn.Layer:
    paddle.seed(3)
    made = nn.Layer()
    made.network = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 8))
    return made


def test_qat_rounds_as_imperativequantaware():
    """The same answers as PaddleSlim's with its own thresholds."""
    theirs, ours = network(), network()
    paddleslim.QAT(config={"quantizable_layer_type": ["Linear"]}).quantize(theirs)
    batches = np.random.default_rng(0).normal(size=(5, 5, 24)).astype(np.float32)
    theirs.train()
    for x in batches[:4]:
        theirs.network(paddle.to_tensor(x))
    theirs.eval()
    scales = {
        name.split(".")[1]: float(value)
        for name, value in theirs.state_dict().items()
        if name.endswith("_fake_quant_input._scale")
    }
    starts = {
        f"{place}.weight": qat.Input(scale, np.ones(width, np.float32))
        for (place, scale), width in zip(scales.items(), (24, 40))
    }
    qat.quantize_network(ours, starts)
    ours.eval()
    plain = network().network(paddle.to_tensor(batches[4])).numpy()
    expected = theirs.network(paddle.to_tensor(batches[4])).numpy()
    found = ours.network(paddle.to_tensor(batches[4])).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(plain - expected).max() > 1e-3
