"""Quantization-aware training of what answers with no single label: what is trained is served."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny_bert
from compressing import EACH_TASK, rows_of

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.compression import qat, tuning
from fleetbert.engines import engine


@EACH_TASK
def test_what_is_served_is_what_was_trained(task, pooling, tiny_vocab, tmp_path, monkeypatch):
    bundle = tiny_bert.make_bundle(tmp_path / "bundle", task, tiny_vocab, pooling)
    kept = []
    prepare = qat.prepare
    monkeypatch.setattr(qat, "prepare", lambda work: kept.append(prepare(work)) or kept[0])
    made = fleetbert.quantize(
        bundle, method="qat", train=rows_of(task, numbers=False), gate=rows_of(task), max_drop=1,
        epochs=2, batch_size=8, learning_rate=1e-3, dropout=0.0, max_length=24, device="cpu",
    )  # fmt: skip
    manifest = bundles.read(bundle).variant(made.name)
    _, trained = kept[0].write.args
    assert len(trained.thresholds) == 2 * 6 + (
        not tasks.get(task).shape.per_token and task != "embedding"
    )
    ids = np.random.default_rng(5).integers(5, 150, (4, 14))
    types = np.zeros_like(ids)
    runs = {
        name: engine.open_folder(bundles.read(bundle).variant(name).kind, bundle / name)
        for name in ("float32", made.name)
    }
    before, served = (runs[name](ids, types) for name in ("float32", made.name))
    network = tuning.answers(trained.network, {"input_ids": ids, "token_type_ids": types})
    # Values that fall on the other side of a half change much in a network of random weights.
    learned, apart = (np.abs(one - network) for one in (before, served))
    assert apart.mean() < 0.4 * learned.mean()
    assert manifest.max_difference_to_network < 0.5 * learned.max()


@EACH_TASK
def test_pruned_and_taught_by_what_it_was(task, pooling, tiny_vocab, tmp_path):
    """`beside_network` compares the narrowed program with the network that learned."""
    bundle = tiny_bert.make_bundle(tmp_path / "bundle", task, tiny_vocab, pooling)
    made = fleetbert.quantize(
        bundle, method="prune", train=rows_of(task, numbers=False), gate=rows_of(task), max_drop=1,
        epochs=1, batch_size=8, learning_rate=1e-4, dropout=0.0, max_length=24, device="cpu",
        **{"distill.weight": 0.5, "prune.heads": 0.5},
    )  # fmt: skip
    manifest = bundles.read(bundle).variant(made.name)
    assert manifest.pruning.heads[1] < manifest.pruning.heads[0]
    assert manifest.max_difference_to_network < 1e-4
    sizes = [bundles.read(bundle).variant(name).bytes for name in (made.name, "float32")]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(("task", "weight"), [("classification", 1.0), ("regression", 0.0)])
def test_without_a_word_it_listens_where_labels_are_picked(task, weight, tiny_vocab, tmp_path):
    root = tiny_bert.make_bundle(tmp_path / "bundle", task, tiny_vocab)
    job = config.Quantize.model_validate(
        {"bundle": str(root), "method": "qat", "data": {"train": "a"}, "gate": {"data": "b"}}
    )
    assert tuning.training_job(job, bundles.read(root)).distill.weight == weight


@pytest.mark.parametrize(
    ("task", "pooling", "pool", "windows"),
    [
        ("regression", "", "max", "max"),
        ("token_classification", "", "mean", None),
        ("question_answering", "", "mean", None),
        ("embedding", "mean", "vectors", None),
    ],
)
def test_what_reads_windows_is_trained_on_windows(
    task, pooling, pool, windows, tiny_vocab, tmp_path
):
    root = tiny_bert.make_bundle(tmp_path / "bundle", task, tiny_vocab, pooling)
    manifest = json.loads((root / bundles.MANIFEST).read_text())
    manifest["long_texts"] = {"method": "windows", "stride": 4, "pool": pool}
    (root / bundles.MANIFEST).write_text(json.dumps(manifest))
    values = {"bundle": str(root), "method": "prune", "data": {"train": "a"}, "gate": {"data": "b"}}
    job = tuning.training_job(config.Quantize.model_validate(values), bundles.read(root))
    assert job.data.long_texts == "windows"
    assert (job.data.max_length, job.data.stride, job.task.windows) == (24, 4, windows)
