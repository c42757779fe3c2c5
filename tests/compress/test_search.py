"""The errors of layers and the search for a mix, beside figures made by other means."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import clip, search, sensitivity, static
from fleetbert.compress.gate import Gate
from fleetbert.compress.texts import read_batches
from fleetbert.compress.work import Source
from fleetbert.core.errors import GateFailed
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
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


def test_what_clip_tells_is_what_the_report_tells(whole_program):
    layers = Source(whole_program).layers
    name = list(layers.inputs)[4]
    quantized = {name: weights.quantize(layers.parameters[name], 1)}
    found = SimpleNamespace(weights=quantized)
    cut = clip.choose(found, layers, feeds(), {name: 60.0})[name]
    for threshold, told in ((cut.former, cut.former_error), (cut.threshold, cut.error)):
        errors = sensitivity.output_errors(layers, quantized, {name: threshold}, feeds())
        assert errors[name] == pytest.approx(told, rel=1e-4)


def made_up(harm):
    """A measure whose accuracy is 0.9 less the harm of all groups in int8."""

    def measure(float32):
        lost = sum(harm[name] for name in harm if name not in float32)
        return bundles.Mix(
            float32=list(float32),
            accuracy=0.9 - lost,
            logit_error=lost,
            texts_per_s=1.0,
            int8_share=1 - len(float32) / len(harm),
        )

    return measure


def test_the_most_harmful_groups_stay_in_float32():
    harm = {"a": 0.01, "b": 0.05, "c": 0.002, "d": 0.02}
    found = search.search(list(harm), made_up(harm), 0.885)
    assert found.chosen.float32 == ["b", "d"]
    assert [trial.float32 for trial in found.mixes[:4]] == [[], ["b"], ["b", "d"], ["b", "d", "a"]]
    assert {name: trial.accuracy for name, trial in found.alone.items()} == {
        name: pytest.approx(0.9 - harm[name]) for name in harm
    }
    short = search.search(list(harm), made_up(harm), 0.885, whole_curve=False)
    assert short.chosen.float32 == ["b", "d"]
    assert len(short.mixes) == 3 + 1
    assert search.search(list(harm), made_up(harm), 0.8).chosen.float32 == []
    assert search.search(list(harm), made_up(harm), 0.899).chosen is None


def test_a_group_that_need_not_stay_goes_back_to_int8():
    """Alone "a" changes the logits most, but only "b" costs accuracy."""
    plain = made_up({"a": 0.03, "b": 0.02, "c": 0.001})

    def measure(float32):
        return plain(float32).model_copy(update={"accuracy": 0.9 if "b" in float32 else 0.5})

    assert search.search(["a", "b", "c"], measure, 0.9).chosen.float32 == ["b"]


@pytest.fixture(scope="module")
def prepared(trained, tiny_data):
    bundle = bundles.read(trained)
    settings = config.Calibration(data=str(tiny_data / "train.tsv"), texts=64)
    return static.of_texts(Source(bundle.folder("float32")), read_batches(settings, bundle))


def test_mixes_come_from_one_calibration(trained, prepared, tmp_path):
    """A mix computes the layers it names in float32 and all others as the whole int8 program; the
    program for converters says the same."""
    source = bundles.read(trained).folder("float32")
    groups = sensitivity.groups(programs.read(source / "model.pdmodel"))
    left = groups["layer 0 feed-forward"] + groups["layer 1 attention"]
    (tmp_path / "all").mkdir()
    (tmp_path / "mix").mkdir()
    whole = static.write_mix(prepared, tmp_path / "all")
    mix = static.write_mix(prepared, tmp_path / "mix", left)
    thresholds = whole.thresholds
    assert mix.thresholds == {n: t for n, t in thresholds.items() if n not in left}
    quantized, others = weights.load(tmp_path / "mix")
    for name in left:
        assert name not in quantized
        np.testing.assert_array_equal(others[name], prepared.arrays[name])
    program = programs.read(tmp_path / "mix" / "x86.pdmodel")
    kinds = {
        programs.argument(op.inputs, "W"): any(a.name == "Scale_in" and a.f for a in op.attrs)
        for op in program.blocks[0].ops
        if op.type == "fc"
    }
    assert {name for name, int8 in kinds.items() if not int8} == {*left, prepared.left[0]}

    batch = feeds(count=1)[0]
    exact = engine.open_folder(engine.FLOAT32, source, "cpu", 1)(*batch.values())
    served = engine.open_folder(engine.INT8, tmp_path / "mix", "cpu", 1)(*batch.values())
    assert 0 < np.abs(served - exact).max() < 0.2

    program = programs.read(tmp_path / "mix" / "model.pdmodel")
    assert set(weights.parameters(tmp_path / "mix", program)) == set(
        programs.parameter_names(program)
    )
    float32 = programs.read(source / "model.pdmodel")
    for before, after in zip(products(float32), products(program)):
        weight = programs.argument(before.inputs, "Y")
        same = [
            programs.argument(before.inputs, slot) == programs.argument(after.inputs, slot)
            for slot in ("X", "Y")
        ]
        assert all(same) if weight in left else same[1] == (weight in prepared.left), weight
    written = {name for op in program.blocks[0].ops for s in op.outputs for name in s.arguments}
    read = {name for op in program.blocks[0].ops for s in op.inputs for name in s.arguments}
    assert not {name for name in written - read if name.endswith(("quantized", "dequantized"))}


def products(program):
    """The Linear layers' operators, in order: their second factor is no activation."""
    factors = [
        (op, programs.argument(op.inputs, "Y"))
        for op in program.blocks[0].ops
        if op.type == "matmul_v2"
    ]
    return [op for op, name in factors if name.startswith("linear") and ".w_" in name]


def test_a_search_that_finds_nothing_fails_at_the_gate(trained, tiny_data, prepared):
    source = bundles.read(trained).folder("float32")
    groups = sensitivity.groups(programs.read(source / "model.pdmodel"))
    groups["head"].remove(prepared.left[0])
    settings = config.Gate(data=str(tiny_data / "dev.tsv"))
    sample = Gate(bundles.read(trained), settings, 1)
    measure = functools.partial(search.measure_mix, prepared, groups, sample, 1)
    least = sample.float32_accuracy + 0.5
    with pytest.raises(GateFailed, match=r"no mix of float32 and int8 .* harm most are .*layer"):
        search.check(search.search(list(groups), measure, least), least)
