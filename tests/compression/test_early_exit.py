"""Variants that texts leave early: made, measured, asked, refused."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import commands
import numpy as np
import processes
import pytest
from compressing import in_two_ranks
from compressing import job as quantizing
from tiny_bert import telling_places

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import early_exit, pipeline
from fleetbert.compression.distill import exit_training
from fleetbert.compression.distill import exits as job_of_exits
from fleetbert.compression.early_exit import Observed
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.data import ragged
from fleetbert.engines import answer, evaluate, exit_heads, golden


def values(bundle, data, **distill):
    return {
        "bundle": str(bundle),
        "distill": {"kind": "self", "epochs": 3, "width": 16, "layers": [1, 2], **distill},
        "data": {"train": str(data / "train.tsv")},
        "gate": {"data": str(data / "dev.tsv"), "max_accuracy_drop": 0.05},
        "threads": 2,
    }


def job(bundle, data, **distill):
    return config.SelfDistill.model_validate(values(bundle, data, **distill))


@pytest.fixture(scope="module")
def made(trained, tiny_data, tmp_path_factory):
    """A bundle with both early-exit variants."""
    bundle = Path(shutil.copytree(trained, tmp_path_factory.mktemp("made") / "bundle"))
    pipeline.quantize(quantizing(bundle, tiny_data, "static", {"gate.max_accuracy_drop": 0.5}))
    found = job_of_exits.add_variants(job(bundle, tiny_data))
    assert [one.variant for one in found] == ["early-exit-float32", "early-exit-int8"]
    assert not telling_places(bundle)
    return bundle


def test_its_golden_texts_go_through_all_layers(made):
    bundle = bundles.read(made)
    kept = golden.read(bundle, "early-exit-float32")
    assert bundle.variant("early-exit-float32").speed > 0
    np.testing.assert_allclose(kept.logits, golden.read(bundle, "float32").logits, atol=1e-4)


@pytest.fixture(scope="module")
def texts(tiny_data):
    lines = (tiny_data / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t")[1] for line in lines]


@pytest.mark.parametrize(
    ("name", "source"), [("early-exit-float32", "float32"), ("early-exit-int8", "int8-static")]
)
def test_at_speed_0_it_answers_as_its_source_does(made, texts, name, source):
    expected = answer.compute_logits(answer.load(made, source), texts, None).values
    found = answer.compute_logits(answer.load(made, name, speed=0.0), texts, None)
    np.testing.assert_allclose(found.values, expected, atol=1e-5)
    assert {*found.exit_layers.tolist()} == {2}


def test_the_manifest_says_what_evaluate_finds(made, tiny_data):
    for name in ("early-exit-float32", "early-exit-int8"):
        variant = bundles.read(made).variant(name)
        by_speed = {point.speed: point for point in variant.by_speed}
        assert variant.ends == [1, 2]
        for speed in (0.0, 0.3, variant.speed):
            report = evaluate.evaluate(answer.load(made, name, speed=speed), tiny_data / "dev.tsv")
            assert report["accuracy"] == pytest.approx(by_speed[speed].accuracy, abs=1e-4)
            assert report["mean_layers"] == pytest.approx(by_speed[speed].mean_layers, abs=1e-3)
        own = evaluate.evaluate(answer.load(made, name), tiny_data / "dev.tsv")
        assert own["accuracy"] == pytest.approx(variant.accuracy[0].accuracy)
        assert own["accuracy"] == report["accuracy"]
        # At speed 1 all leave at once, and are right.
        report = evaluate.evaluate(answer.load(made, name, speed=1.0), tiny_data / "dev.tsv")
        assert report["mean_layers"] == 1.0
        assert report["accuracy"] >= 0.9
        assert "1.00 layers each" in evaluate.format_report(report)


def test_predict_says_where_texts_left(made, texts, tmp_path, capsys):
    table = tmp_path / "texts.txt"
    table.write_text("\n".join(texts[:3]), encoding="utf-8")
    asked = ["predict", "--bundle", str(made), "--variant", "early-exit-int8", "--speed", "1"]
    assert commands.call(*asked, "--input", table) == 0
    output = capsys.readouterr().out
    assert [json.loads(line)["exit_layer"] for line in output.splitlines()] == [1, 1, 1]


def test_the_gate_leaves_the_bundle_as_it_was(bundle, tiny_data):
    before = (bundle / "manifest.json").read_bytes()
    wanted = values(bundle, tiny_data)
    wanted["gate"]["max_accuracy_drop"] = -0.5
    with pytest.raises(GateFailed, match=r"early-exit-float32: accuracy .* distill.speed"):
        job_of_exits.add_variants(config.SelfDistill.model_validate(wanted))
    assert (bundle / "manifest.json").read_bytes() == before
    assert not list(bundle.glob("early-exit*"))


def observed():
    """Layer 1's head is right where it is certain, layer 2's always doubts."""
    truth = np.array([0, 1, 0, 1])
    predicted = np.array([[0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]])
    doubt = np.array([[0.1, 0.1, 0.4, 0.9], [0.95] * 4, [0.0] * 4])
    flops = np.array([[10.0, 20.0, 30.0, 40.0]]) * np.array([[1], [2], [3]])
    return Observed(truth, predicted, doubt, flops, layer_seconds=1.0, group_seconds=0.1)


def test_a_choice_is_evaluated_by_hand():
    found = early_exit.evaluate(observed(), [1, 3], 0.3)
    assert (found.accuracy, found.mean_layers) == (1.0, 2.0)
    assert found.cost == pytest.approx(1.1 + 0.5 * 2.0)  # the last group has no head
    assert found.mean_flops == (10 + 20 + 3 * 30 + 3 * 40) / 4
    assert early_exit.evaluate(observed(), [1, 3], 0.5).accuracy == 0.75


def test_operations_are_counted_by_hand(made):
    """2 layers of 64 units, 128 in between, 2 labels; the second computes [CLS] alone."""
    bundle = bundles.read(made)
    for name in ("float32", "int8-static"):
        found = early_exit.count_flops(early_exit.open_source(bundle, name), np.array([1, 10]))
        for text, tokens in enumerate((1, 10)):
            first = tokens * 2 * (4 * 64**2 + 2 * 64 * 128) + 4 * 64 * tokens**2
            keys_and_values = tokens * 2 * 2 * 64**2
            of_cls = 2 * (2 * 64**2 + 2 * 64 * 128 + 64**2 + 64 * 2)
            second = keys_and_values + of_cls + 4 * 64 * tokens
            assert found[:, text].tolist() == [first, first + second]


def test_the_report_shows_layers_and_speeds(made):
    for target in ("early-exit-float32", "early-exit-int8"):
        text = (made / f"report-{target}.html").read_text(encoding="utf-8")
        variant = bundles.read(made).variant(target)
        assert text.count("<svg") == 3
        assert f"speed {variant.speed}:" in text
        assert "http:" not in text and "https:" not in text
        assert f"Groups of layers end after {', '.join(map(str, variant.ends))}." in text


def test_the_cheapest_choice_that_keeps_the_accuracy():
    found = early_exit.choose(observed(), 1.0, None, None)
    assert (found.ends, found.accuracy, found.mean_layers) == ([1, 3], 1.0, 2.0)
    assert early_exit.choose(observed(), 0.7, None, None).mean_layers < 2.0
    assert early_exit.choose(observed(), 1.0, [2, 3], None).ends == [2, 3]
    assert early_exit.saves(observed(), found)
    # Nothing is accurate enough: the most accurate, which the gate then refuses.
    assert early_exit.choose(observed(), 0.99, [1, 3], 1.0).accuracy == 0.5


def test_a_choice_keeps_the_accuracy_by_a_standard_error():
    """Float32 is right on all of 400 texts; layer 1 loses 2 that leave at 0.3, and 6 at 0.5."""
    truth = np.zeros(400, np.int64)
    predicted, doubt = np.zeros((2, 400), np.int64), np.full((2, 400), 0.9)
    doubt[0, :200], doubt[0, 200:300] = 0.2, 0.4
    predicted[0, :2] = predicted[0, 200:204] = 1
    flops = np.ones((2, 400))
    found = Observed(truth, predicted, doubt, flops, 1.0, 0.1)
    assert early_exit.choose(found, 1 - 6 / 400, [1, 2], None).accuracy == 1 - 6 / 400
    careful = found._replace(reference=np.ones(400, bool))
    choice = early_exit.choose(careful, 1 - 6 / 400, [1, 2], None)
    assert choice.accuracy == 1 - 2 / 400
    assert choice.margin == pytest.approx(np.sqrt(3 - 4 / 402) / 402)


@pytest.mark.parametrize(("group_seconds", "ends"), [(0.1, [1, 2, 3]), (0.4, [1, 3])])
def test_of_choices_that_cost_about_as_much_the_one_with_fewer_groups(group_seconds, ends):
    """The group that ends with layer 2 saves half a layer in four and costs two heads in four:
    1.9 s instead of 2.1, or 2.35 instead of 2.4."""
    found = observed()._replace(group_seconds=group_seconds)
    found.predicted[1], found.doubt[1] = [0, 1, 0, 0], [0.95, 0.95, 0.2, 0.95]
    assert early_exit.choose(found, 1.0, None, None).ends == ends


@pytest.mark.parametrize("group_seconds", [0.0, 0.1])
def test_heads_that_are_never_certain_save_nothing(group_seconds):
    found = observed()._replace(doubt=np.full((3, 4), 0.99), group_seconds=group_seconds)
    choice = early_exit.choose(found, 1.0, None, None)
    assert (choice.accuracy, choice.mean_layers) == (1.0, 3.0)
    assert not early_exit.saves(found, choice)
    # Certain ones that cost more than the layers after them save nothing either.
    dear = observed()._replace(group_seconds=5.0)
    assert not early_exit.saves(dear, early_exit.choose(dear, 1.0, None, None))


@pytest.fixture
def timed(monkeypatch):
    """Makes the job find these times instead of measuring: of a layer, of a group beside its
    layers, and how many times as fast as its source a variant is (1.7 as fast as at speed 0)."""

    def set_times(layer, group, faster):
        observe = early_exit.observe

        def compared(opened, other, batches, batch_tokens):
            return 1.7 if isinstance(other, functools.partial) else faster

        def observed_in(*arguments):
            return observe(*arguments)._replace(layer_seconds=layer, group_seconds=group)

        monkeypatch.setattr(early_exit, "observe", observed_in)
        monkeypatch.setattr(early_exit, "times_faster", compared)

    return set_times


@pytest.mark.parametrize(("group", "faster"), [(2.0, 1.5), (0.1, 0.9)])
def test_where_leaving_early_does_not_pay_nothing_is_added(
    bundle, tiny_data, timed, capsys, group, faster
):
    timed(1.0, group, faster)
    before = (bundle / "manifest.json").read_bytes()
    assert job_of_exits.add_variants(job(bundle, tiny_data, layers="auto")) == []
    output = capsys.readouterr().err
    assert "early-exit-float32 is not added: at the accuracy" in output
    assert (bundle / "manifest.json").read_bytes() == before
    assert not list(bundle.glob("early-exit*"))
    page = (bundle / "report-early-exit-float32.html").read_text(encoding="utf-8")
    assert "early-exit-float32 is not added: at the accuracy" in page


def test_where_it_pays_the_manifest_says_how_much(bundle, tiny_data, timed):
    """With heads as in the paper."""
    timed(1.0, 0.1, 1.5)
    wanted = {"head": "fastbert", "labels_weight": 0.5, "epochs": 8, "speed": 0.9}
    (result,) = job_of_exits.add_variants(job(bundle, tiny_data, layers="auto", **wanted))
    variant = result.bundle.variant("early-exit-float32")
    assert (result.variant, variant.times_faster) == (variant.name, 1.7)
    assert (variant.head, variant.speed) == ("fastbert", 0.9)
    assert variant.accuracy_by_layer[0] >= 0.9


def test_it_is_chosen_on_texts_that_no_head_learned_from(bundle, tiny_data, monkeypatch):
    """As they come, here alone."""
    learned, rows = [], []
    train, observe = exit_training.train, early_exit.observe

    def trained(training, strategy, settings, examples, *others):
        learned.append(sum(len(example.numbers) for example in examples))
        return train(training, strategy, settings, examples, *others)

    def observed_in(opened, whole, batches, *others):
        rows.append([len(batch.lengths) for _, batch in batches])
        return observe(opened, whole, batches, *others)

    monkeypatch.setattr(exit_training, "train", trained)
    monkeypatch.setattr(early_exit, "observe", observed_in)
    wanted = values(bundle, tiny_data, epochs=1, speed=0.5, batch_tokens=1)
    wanted["selection"] = {"texts": 20}
    (result,) = job_of_exits.add_variants(config.SelfDistill.model_validate(wanted))
    assert learned == [140]
    assert rows[0] == [1] * 20
    assert sum(rows[1]) == 60  # all of gate.data, which the manifest tells of, chooses nothing
    found = result.bundle.variant(result.variant)
    assert found.accuracy[0].n == 60 and found.accuracy[0].drop is not None
    page = (bundle / f"report-{result.variant}.html").read_text(encoding="utf-8")
    assert "points (95 %:" in page


def test_how_much_faster_counts_at_the_own_speed_of_the_variant(monkeypatch):
    """A clock that each batch moves on: by 6 s in the whole program, by 1 s where texts leave."""
    now = [0.0]

    def takes(seconds):
        def run(*_):
            now[0] += seconds

        return run

    class Opened:
        def run_all(self, texts, speed, batch_tokens):
            assert (speed, batch_tokens) == (None, 8)
            for _ in texts.lengths:
                yield takes(1.0)()

    monkeypatch.setattr(early_exit.time, "perf_counter", lambda: now[0])
    assert early_exit.times_faster(Opened(), takes(6.0), ragged.uniform(3, 7, 1), 8) == 6.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": [1, 3]}, r"distill.layers: \[1, 3\]; .* last of them 2"),
        ({"layers": [2]}, "at least two"),
        ({"layers": [2, 1]}, "ascending"),
    ],
)
def test_layers_that_are_not_there(bundle, tiny_data, changes, message):
    with pytest.raises(UserError, match=message):
        job_of_exits.add_variants(job(bundle, tiny_data, **changes))


def test_the_gates_texts_are_refused_before_heads_learn(bundle, tiny_data, monkeypatch):
    monkeypatch.setattr(exit_training, "train", None)
    wanted = values(bundle, tiny_data, epochs=1)
    wanted["selection"] = {"data": str(tiny_data / "dev.tsv")}
    with pytest.raises(UserError, match=r"selection\.data: .* has the texts of gate\.data"):
        job_of_exits.add_variants(config.SelfDistill.model_validate(wanted))


def test_a_source_that_cannot_be_cut(bundle, tiny_data):
    pipeline.quantize(quantizing(bundle, tiny_data, "dynamic"))
    settings = job(bundle, tiny_data).model_copy(update={"sources": ["int8-dynamic"]})
    with pytest.raises(UserError, match=r"sources: the variant int8-dynamic .* name float32"):
        job_of_exits.add_variants(settings)


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(bundle, tiny_data, tmp_path):
    """Without dropout: the same gradients but for rounding, so the same heads."""
    alone = Path(shutil.copytree(bundle, tmp_path / "alone"))
    weighted = values(bundle, tiny_data, dropout=0.0, epochs=1)
    wanted = {**weighted, "sources": ["float32"]}
    output = in_two_ranks(tmp_path, processes.ROOT / "launch" / "distill.py", wanted)
    assert "added early-exit-float32" in output
    found = exit_heads.load(bundle / "early-exit-float32")[1]
    wanted["bundle"] = str(alone)
    job_of_exits.add_variants(config.SelfDistill.model_validate(wanted))
    for name, array in exit_heads.load(alone / "early-exit-float32")[1].items():
        np.testing.assert_allclose(found[name], array, atol=1e-4, err_msg=name)


def test_ranks_share_a_batch():
    numbers = np.array([7, 3, 9, 1, 4])
    parts = [exit_training.part_of(numbers, rank, 2) for rank in range(2)]
    assert sorted(np.concatenate([rows for rows, _ in parts]).tolist()) == [0, 1, 2, 3, 4]
    assert [share for _, share in parts] == [0.2, 0.2]
    rows, share = exit_training.part_of(numbers[:1], 1, 2)
    assert (rows.tolist(), share) == ([0], 0.0)
