"""However a step's texts lie in arrays and are shared out, loss and gradients are the same."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_job

from fleetbert.tasks.masked_words.labels import Masked
from fleetbert.training.texts import open_task

TASKS = {
    "classification": {},
    "pair_classification": {"data.train": "pairs.tsv", "data.dev": "pairs-dev.tsv"},
    "mlm": {"data.train": "texts.txt", "data.dev": "texts-dev.txt"},
    "regression": {"data.train": "regression.jsonl", "data.dev": None},
    "multi_label_classification": {"data.train": "labels.jsonl", "data.dev": None},
    "token_classification": {"data.train": "tags.conll", "data.dev": None},
    "all pieces": {
        "task.name": "token_classification", "task.pieces": "all", "data.train": "tags.conll",
        "data.dev": None,
    },
}  # fmt: skip
STEP = np.array([3, 11, 7, 20, 1, 30, 8, 41, 5, 17, 2, 50, 33])


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """opened(task, batching) → the task without dropout; its weights are always the same."""
    known, data = {}, tiny_job.write_data(tmp_path_factory.mktemp("data"))
    tiny_job.write_rows(data / "regression.jsonl", tiny_job.number_rows(60, 1))
    tiny_job.write_rows(data / "labels.jsonl", tiny_job.label_rows(60, 1))
    tiny_job.write_tags(data / "tags.conll", 60, 1)

    def call(name: str, batching: str):
        if (name, batching) not in known:
            changes = {"task.name": name, "data.batching": batching, "model.dropout": 0.0}
            changes.update({"data.max_length": 40, **TASKS[name]})
            for key in ("data.train", "data.dev"):
                if changes.get(key):
                    changes[key] = str(data / changes[key])
            task = open_task(tiny_job.job(data, tmp_path_factory.mktemp("o"), changes))
            rng = np.random.default_rng(0)
            for parameter in task.network.parameters():  # larger than fresh ones, so that it shows
                noise = rng.normal(size=parameter.shape) * 0.1
                parameter.set_value(parameter.numpy() + noise.astype(np.float32))
            task.network.train()
            known[name, batching] = task
        return known[name, batching]

    return call


def loss_and_gradients(task, step, parts: int, epoch: int = 0):
    task.network.clear_gradients()
    total, texts = 0.0, 0
    for arrays in task.micro_batches(step, epoch, parts, slice(0, parts)):
        part = task.loss(task.network, arrays)
        part.backward()
        total += float(part)
        texts += arrays["n_texts"]
    gradients = {
        name: parameter.grad.numpy()
        for name, parameter in task.network.named_parameters()
        if parameter.grad is not None
    }
    return total, gradients, texts


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert set(found[1]) == set(expected[1])
    largest = max(np.abs(gradient).max() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        np.testing.assert_allclose(
            found[1][name], gradient, rtol=1e-3, atol=1e-5 * largest, err_msg=name
        )
    assert found[2] == expected[2]


@pytest.mark.parametrize("name", list(TASKS))
def test_rows_are_shared_only_where_asked(opened, name):
    (padded,) = opened(name, "pad").micro_batches(STEP, 0, 1, slice(0, 1))
    (packed,) = opened(name, "pack").micro_batches(STEP, 0, 1, slice(0, 1))
    assert padded["inputs"]["input_ids"].shape[0] == len(STEP)
    assert packed["inputs"]["input_ids"].shape[0] < len(STEP) / 1.5
    assert padded["n_tokens"] == packed["n_tokens"]


@pytest.mark.parametrize("name", list(TASKS))
def test_loss_and_gradients_are_those_of_the_texts_one_by_one(opened, name):
    alone = loss_and_gradients(opened(name, "pad"), STEP, len(STEP))
    for batching in ("pad", "bucket", "pack"):
        for parts in (1, 4, len(STEP) + 3):  # 4 gives uneven shares, the last leaves some over
            assert_same(loss_and_gradients(opened(name, batching), STEP, parts), alone)


def test_loss_is_the_mean_cross_entropy_of_the_texts(opened):
    task = opened("classification", "pack")
    total, _, _ = loss_and_gradients(task, STEP, 3)
    logits = logits_by_text(task)
    shifted = logits - logits.max(1, keepdims=True)
    chances = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    right = chances[np.arange(len(STEP)), task.train.labels[STEP]]
    assert total == pytest.approx(-np.log(right).mean(), rel=1e-5)


def logits_by_text(task) -> np.ndarray:
    """Logits in the order of STEP."""
    (arrays,) = task.micro_batches(STEP, 0, 1, slice(0, 1))
    answers = task.predict(task.network, arrays)
    order = {text: row for row, text in enumerate(answers["texts"])}
    return answers["logits"][[order[text] for text in STEP]]


class TestMaskedWords:
    def test_masks_differ_between_epochs_but_not_between_calls(self, opened):
        task = opened("mlm", "pad")

        def ids(epoch):
            (arrays,) = task.micro_batches(STEP, epoch, 1, slice(0, 1))
            return arrays["inputs"]["input_ids"].numpy()

        np.testing.assert_array_equal(ids(0), ids(0))
        assert (ids(0) != ids(1)).any()

    def test_whole_words_are_hidden_together(self, opened):
        task = opened("mlm", "pad")
        job = task.job.model_copy(
            update={"task": task.job.task.model_copy(update={"whole_word": True})}
        )
        collector = Masked(task.train, job, task.tokenizer)
        pieces = task.tokenizer.vocab_size - 1  # "##s"
        for text in range(20):
            _, positions, labels = collector.mask(text, 0)
            for position, label in zip(positions, labels):
                partner = position - 1 if label == pieces else position + 1
                assert partner in positions

    @pytest.mark.parametrize("batching", ["pad", "pack"])
    def test_a_part_without_a_word_to_hide_adds_nothing(self, tiny_data, tmp_path, batching):
        (tmp_path / "texts.txt").write_text("word1 word2\n???\n!!! ---\n")  # [UNK]s alone
        changes = {
            "task.name": "mlm", "data.train": str(tmp_path / "texts.txt"), "data.dev": None,
            "data.batching": batching, "model.dropout": 0.0,
        }  # fmt: skip
        task = open_task(tiny_job.job(tiny_data, tmp_path / "o", changes))
        task.network.train()
        step = np.array([0, 1, 2])
        alone = loss_and_gradients(task, step[:1], 1)
        found = loss_and_gradients(task, step, 3)
        assert found[0] == pytest.approx(alone[0], rel=1e-5)
        assert np.isfinite(found[0])
        for name, gradient in found[1].items():
            assert np.isfinite(gradient).all(), name
            np.testing.assert_allclose(gradient, alone[1][name], rtol=1e-4, atol=1e-6)
        nothing, _, _ = loss_and_gradients(task, step[1:], 1)
        assert nothing == 0
        task.dev = task.train
        answers = [task.predict(task.network, task.dev_arrays(np.array([n]))) for n in step]
        assert [len(answer["losses"]) for answer in answers] == [1, 0, 0]
        assert task.evaluate(answers)["n"] == 1


def test_a_loss_that_is_not_used_leaves_no_gradient(opened):
    """The pooler gives masked words nothing: data parallel must not wait for its gradients."""
    _, gradients, _ = loss_and_gradients(opened("mlm", "pad"), STEP, 1)
    assert not any("pooler" in name for name in gradients)
    wanted = {
        name
        for name, parameter in opened("mlm", "pad").network.named_parameters()
        if not parameter.stop_gradient
    }
    assert set(gradients) == wanted
