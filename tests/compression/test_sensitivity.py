"""The errors of layers beside figures made by other means; layers that stay float32."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_bert import make_network

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import sensitivity, smooth, static
from fleetbert.compression.observed import observe
from fleetbert.compression.texts import read_batches
from fleetbert.compression.work import Source
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.export import program as export
from fleetbert.graph import program as programs
from fleetbert.graph import weights


def feeds(seed=0, count=2):
    random = np.random.default_rng(seed)
    batches = [random_batch(random, shape, 100) for shape in ((3, 32), (2, 48))[:count]]
    return [dict(zip(("input_ids", "token_type_ids"), batch)) for batch in batches]


def test_groups_are_the_parts_of_each_layer(whole_program):
    program = programs.read(whole_program / "model.pdmodel")
    arrays = programs.read_parameters(program, whole_program / "model.pdiparams")
    found = sensitivity.groups(program)
    shapes = {name: [arrays[weight].shape for weight in found[name]] for name in found}
    attention, feed_forward = [(64, 64)] * 4, [(64, 128), (128, 64)]
    assert shapes == {
        "layer 0 attention": attention,
        "layer 0 feed-forward": feed_forward,
        "layer 1 attention": attention,
        "layer 1 feed-forward": feed_forward,
        "head": [(64, 64), (64, 3)],
    }


def test_inputs_of_layers_are_what_float32_computes(whole_program):
    """The last layer's input, multiplied here, is the logits of the program."""
    layers = Source(whole_program).layers
    last = list(layers.inputs)[-1]
    bias = layers.parameters[last.replace(".w_", ".b_")]
    opened = engine.open_folder(engine.FLOAT32, whole_program, "cpu", 1)
    for batch, inputs in zip(feeds(), layers.run(feeds())):
        assert len(inputs) == 2 * 6 + 2
        logits = inputs[last] @ layers.parameters[last] + bias
        np.testing.assert_allclose(logits, opened(*batch.values()), atol=1e-5)


def test_errors_of_outputs_are_those_of_the_quantized_arithmetic(whole_program):
    layers = Source(whole_program).layers
    names = list(layers.inputs)[:4]
    quantized = {name: weights.quantize(layers.parameters[name], 1) for name in names}
    thresholds = {names[0]: 4.0, names[1]: 0.1}  # 0.1 cuts nearly everything off
    found = sensitivity.output_errors(layers, quantized, thresholds, feeds(count=1))
    assert set(found) == set(names)
    assert max(found, key=lambda name: found[name]) == names[1]
    assert found[names[1]] > 0.5 > 20 * found[names[2]]
    (inputs,) = layers.run(feeds(count=1))
    x, weight = inputs[names[0]], layers.parameters[names[0]]
    rounded = np.clip(np.rint(x / 4 * 127), -128, 127) * 4 / 127
    y, exact = rounded @ weights.widen(quantized[names[0]]), x @ weight
    change, size = np.linalg.norm(y - exact, axis=1), np.linalg.norm(exact, axis=1)
    expected = np.sqrt(np.mean((change / size) ** 2))  # of tokens of any size alike
    assert found[names[0]] == pytest.approx(expected, rel=1e-3)


def test_padding_counts_nothing(whole_program):
    """The same texts in longer rows: as many inputs of each layer, and the same errors."""
    layers = Source(whole_program).layers
    (batch,) = feeds(count=1)
    longer = {name: np.pad(ids, ((0, 0), (0, 16))) for name, ids in batch.items()}
    real = int((batch["input_ids"] != 0).sum())
    for inputs in layers.run([batch, longer]):
        assert {len(x) for x in inputs.values()} == {real, len(batch["input_ids"])}
    name = next(iter(layers.inputs))
    quantized = {name: weights.quantize(layers.parameters[name], 1)}
    found = [
        sensitivity.output_errors(layers, quantized, {name: 3.0}, [one])[name]
        for one in (batch, longer)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_what_is_observed_leaves_padding_out(trained):
    layers = Source(bundles.read(trained).folder("float32")).layers
    observed = observe(layers, feeds())
    ends = []
    for batch in feeds():
        lengths = (batch["input_ids"] != 0).sum(1)
        assert len(set(lengths)) > 1
        texts = [
            {name: x[text : text + 1, :length] for name, x in batch.items()}
            for text, length in enumerate(lengths)
        ]
        alone = list(layers.run(texts))
        ends.append({n: np.concatenate([x[n] for x in alone]) for n in layers.inputs})
    for name in layers.inputs:
        lowest, highest = ([end(x[name], 0) for x in ends] for end in (np.min, np.max))
        np.testing.assert_allclose(observed.lowest[name], lowest, atol=1e-5)
        np.testing.assert_allclose(observed.highest[name], highest, atol=1e-5)
        largest = [np.abs(x[name]).max() for x in ends]
        assert observed.threshold(name) == pytest.approx(np.mean(largest), rel=1e-4)
        assert observed.threshold(name, "abs_max") == pytest.approx(max(largest), rel=1e-4)


def test_layers_left_in_float32_are_as_they_were(trained, tiny_data, tmp_path):
    """Both programs of a variant compute the layers that `skip` names in float32."""
    bundle = bundles.read(trained)
    source = Source(bundle.folder("float32"))
    groups = sensitivity.groups(source.program)
    left = groups["layer 0 feed-forward"] + groups["layer 1 attention"]
    settings = config.Calibration(data=str(tiny_data / "train.tsv"), texts=64)
    observed = observe(source.layers, read_batches(settings, bundle))
    (tmp_path / "all").mkdir()
    (tmp_path / "mix").mkdir()
    whole = static.write(static.of_texts(source, observed), tmp_path / "all")
    mix = static.write(static.of_texts(source, observed, skip=left), tmp_path / "mix")
    assert mix.thresholds == {n: t for n, t in whole.thresholds.items() if n not in left}
    assert mix.float32_layers == [*left, *whole.float32_layers]
    quantized, others = weights.load(tmp_path / "mix")
    for name in left:
        assert name not in quantized
        np.testing.assert_array_equal(others[name], source.arrays[name])
    program = programs.read(tmp_path / "mix" / "x86.pdmodel")
    kinds = {
        programs.argument(op.inputs, "W"): any(a.name == "Scale_in" and a.f for a in op.attrs)
        for op in program.blocks[0].ops
        if op.type == "fc"
    }
    assert {name for name, int8 in kinds.items() if not int8} == set(mix.float32_layers)

    batch = feeds(count=1)[0]
    exact = engine.open_folder(engine.FLOAT32, source.folder, "cpu", 1)(*batch.values())
    served = engine.open_folder(engine.INT8, tmp_path / "mix", "cpu", 1)(*batch.values())
    assert 0 < np.abs(served - exact).max() < 0.2


def test_layers_without_a_bias_stay_float32(tmp_path):
    """As imported programs may have them."""
    network = make_network()
    encoder = network.network.bert.encoder.layers[0]
    for layer in (encoder.self_attn.q_proj, encoder.linear2):
        layer.bias = None
    export.save_program(network, tmp_path)
    source = Source(tmp_path)
    linear = sensitivity.linear_weights(source.program)
    left = source.float32_layers(())
    assert left == [linear[0], linear[5], linear[-1]]
    observed = observe(source.layers, feeds())
    assert not set(smooth.choose(source.program, source.layers, observed, left).smoothed) & {*left}
    thresholds = static.of_texts(source, observed).thresholds
    assert set(thresholds) == set(linear) - set(left)
