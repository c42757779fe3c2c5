"""A gate whose table cannot tell a good variant from a bad one says so."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.compression import texts
from fleetbert.compression.gate import Gate, in_turns
from fleetbert.core.errors import UserError


@pytest.mark.parametrize(
    ("task", "written", "labels", "alike"),
    [
        ("classification", ["a", "a"], ["a", "b"], "the same label"),
        ("classification", ["a", "b"], ["a", "b"], ""),
        ("regression", ["3.0", "3.0"], [], "the same number"),
        ("regression", ["3.0", "3.5"], [], ""),
        ("embedding", ["0.5", "0.5"], [], "the same number"),
        ("multi_label_classification", ['["a"]', '["a"]'], ["a", "b"], "the same labels"),
        ("multi_label_classification", ['["a"]', '["a", "b"]'], ["a", "b"], ""),
        ("token_classification", ["[]", "[]"], ["O", "B-x", "I-x"], "no text has a span"),
        ("token_classification", ["[]", '[[0, 1, "x"]]'], ["O", "B-x", "I-x"], ""),
        ("ranking", ['[1, "q"]', '[1, "q"]'], [], ""),
    ],
)
def test_what_all_texts_have_in_common(task, written, labels, alike):
    kind = tasks.get(task).labels
    assert alike in kind.alike(kind.targets(written, labels))
    assert bool(kind.alike(kind.targets(written, labels))) == bool(alike)


def test_a_gate_that_any_variant_would_pass_is_refused():
    """Spearman's correlation with equal numbers is 0, of every model."""
    gate = Gate.__new__(Gate)
    gate.data, gate.truth = "dev.tsv", np.array([3.0, 3.0], np.float32)
    gate.model, gate.float32_accuracy = SimpleNamespace(task=tasks.get("regression")), 0.0
    with pytest.raises(UserError, match=r"dev\.tsv: float32's spearman on it is 0 \(all texts"):
        gate._check_tells()


def test_rounds_that_warm_up_are_not_timed():
    calls: list[str] = []
    runs = [lambda name=name: calls.append(name) or name for name in "ab"]
    given, times = in_turns(runs, rounds=3, warm_up=2)
    assert (given, calls) == (["a", "b"], ["a", "b"] * 5)
    assert [len(seconds) for seconds in times] == [3, 3]


@pytest.mark.parametrize(
    ("after", "alone_difference", "sentence"),
    [
        (0.9, 1e-3, None),
        (0.9, 2e-3, "differs by 0.0020 between the text alone and in a batch"),
        (0.9, float("nan"), "differs by nan between the text alone and in a batch"),
        (0.89, None, None),  # just what is allowed
        (
            0.88,
            None,
            "falls from 0.9000 to 0.8800, by 0.0200; the key allows 0.01: the",
        ),
        (float("nan"), None, "falls from 0.9000 to nan"),
    ],
)
def test_what_a_gate_refuses(after, alone_difference, sentence):
    gate = Gate.__new__(Gate)
    gate.key, gate.max_drop, gate.decide = "the key", 0.01, "point"
    accuracy = bundles.Accuracy(
        data="dev.tsv", n=9, metric="accuracy", accuracy=after, float32_accuracy=0.9
    )
    refused = gate.refusal("int8", accuracy, "hint", alone_difference)
    assert refused is None if sentence is None else sentence in refused


def test_a_gate_of_one_label_is_told(trained, tiny_data, tmp_path, caplog):
    rows = (tiny_data / "dev.tsv").read_text().splitlines()
    path = tmp_path / "one.tsv"
    path.write_text("\n".join([rows[0], *(row for row in rows if row.startswith("good\t"))]) + "\n")
    Gate(bundles.read(trained), config.Gate(data=str(path)), 1)
    assert "all texts have the same label: a variant that always answers so" in caplog.text


def test_bad_lines_of_every_table_are_skipped_as_the_job_says(trained, tiny_data, tmp_path, caplog):
    """Those of the gate, and of calibration texts."""
    bundle, table = bundles.read(trained), tmp_path / "dev.tsv"
    dev = (tiny_data / "dev.tsv").read_text()
    table.write_text(dev + "good\n" + "superb\tword1 word2\n")
    gate, calibration = (kind(data=str(table)) for kind in (config.Gate, config.Calibration))
    skip = config.Data(on_bad_line="skip")
    with pytest.raises(UserError, match=r"dev\.tsv:\d+: "):
        Gate(bundle, gate, 1, columns=config.Data())
    opened = Gate(bundle, gate, 1, columns=skip)
    assert len(opened.truth) == dev.count("\n") - 1
    assert f"{table}: 2 bad lines were skipped" in caplog.text
    with pytest.raises(UserError, match=r"dev\.tsv:\d+: "):
        texts.read_batches(calibration, bundle, columns=config.Data())
    assert texts.read_batches(calibration, bundle, columns=skip)
