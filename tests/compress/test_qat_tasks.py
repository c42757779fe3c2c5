"""Quantization-aware training of what answers with no single label: what is trained is served."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_bert

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import qat, tuning
from fleetbert.engines import engine
from fleetbert.errors import UserError

QUERIES = 20


def text(rng: np.random.Generator) -> str:
    return " ".join(f"word{n}" for n in rng.integers(0, 150, rng.integers(3, 12)))


def rows_of(task: str, numbers: bool = True) -> list[dict]:
    """Forty texts or pairs; numbers: pairs of vectors have one."""
    rng = np.random.default_rng(3)
    rows = []
    for number in range(2 * QUERIES):
        row: dict = {"text_a": text(rng)}
        if task == "regression":
            row["label"] = float(rng.normal())
        elif task == "multi_label_classification":
            names = tiny_bert.LABELS_OF[task]
            row["label"] = [names[n] for n in rng.choice(3, rng.integers(1, 3), replace=False)]
        elif task == "token_classification":
            row = {"text": row["text_a"], "spans": [{"start": 0, "end": 5, "kind": "loc"}]}
        else:
            row["text_b"] = text(rng)
            if task == "ranking":
                row.update(text_a=f"word{number // 2} word7", label=number % 2)
            elif numbers:
                row["label"] = float(rng.random())
        rows.append(row)
    return rows


@pytest.mark.parametrize(("task", "pooling"), tiny_bert.OTHER_TASKS)
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
    assert len(trained.thresholds) == 2 * 6 + (task not in ("embedding", "token_classification"))
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


def test_answers_without_labels_take_no_soft_ones(tiny_vocab, tmp_path):
    bundle = tiny_bert.make_bundle(tmp_path / "bundle", "regression", tiny_vocab)
    rows = rows_of("regression")
    with pytest.raises(UserError, match=r"distill\.weight: .* only probabilities of labels"):
        fleetbert.quantize(bundle, method="qat", train=rows, gate=rows, **{"distill.weight": 0.5})


@pytest.mark.parametrize(("task", "weight"), [("classification", 1.0), ("regression", 0.0)])
def test_without_a_word_it_listens_where_labels_are_picked(task, weight, tiny_vocab, tmp_path):
    root = tiny_bert.make_bundle(tmp_path / "bundle", task, tiny_vocab)
    job = config.Quantize.model_validate(
        {"bundle": str(root), "method": "qat", "data": {"train": "a"}, "gate": {"data": "b"}}
    )
    assert tuning.training_job(job, bundles.read(root)).distill.weight == weight
