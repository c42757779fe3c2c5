"""What a kind of task says of itself."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert import task_names, tasks
from fleetbert.errors import UserError
from fleetbert.tasks.classification import LabelAnswer

NUMBERS = tasks.get("regression")
LABELS = ["bad", "好"]


def test_a_classifier_tells_labels_scores_logits_and_layers():
    task = tasks.get("pair_classification")
    assert task.pair
    assert [tuple(tensor) for tensor in task.tensors(LABELS)] == [
        ("label", "BYTES", (-1,)),
        ("scores", "FP32", (-1, 2)),
        ("logits", "FP32", (-1, 2)),
        ("exit_layer", "INT32", (-1,)),
    ]
    outputs = np.array([[0.0, 2.0], [1.0, 1.0]], np.float32)
    one, other = task.to_answers(LABELS, outputs, np.array([3, 6]))
    assert (one.label, other.label) == ("好", "bad")  # of equal ones the first
    assert one.scores["好"] == pytest.approx(1 / (1 + np.exp(-2)))
    assert one.as_json() == {"label": "好", "scores": {"bad": 0.119203, "好": 0.880797},
                             "exit_layer": 3}  # fmt: skip
    (whole,) = task.to_answers(LABELS, outputs[1:], None)
    assert whole.exit_layer is None
    assert whole.as_json() == {"label": "bad", "scores": {"bad": 0.5, "好": 0.5}}
    assert isinstance(whole, LabelAnswer)


def test_a_regression_tells_numbers():
    assert tasks.get("pair_regression").pair and not NUMBERS.pair
    assert [tuple(tensor) for tensor in NUMBERS.tensors([])] == [
        ("values", "FP32", (-1,)),
        ("exit_layer", "INT32", (-1,)),
    ]
    outputs = np.array([[0.25], [-3.0]], np.float32)
    (values,) = NUMBERS.tell([], outputs)
    assert values.tolist() == [0.25, -3.0]
    one, other = NUMBERS.to_answers([], outputs, None)
    assert (one.value, other.value) == (0.25, -3.0)
    assert NUMBERS.in_words(other.as_json()) == "-3.0000"
    assert NUMBERS.targets(["0.5", "2.0"], []).dtype == np.float32


def test_several_labels_are_told_by_their_thresholds():
    task, labels = tasks.get("multi_label_classification"), ["joy", "love", "怒"]
    assert task.labels_of(['["joy", "怒"]', '["joy"]', '["love"]']) == labels
    targets = task.targets(['["joy", "怒"]', '["love"]'], labels)
    assert targets.tolist() == [[True, False, True], [False, True, False]]
    assert task.unknown('["joy", "hate"]', set(labels)) == "hate"
    assert task.counts(targets, labels).tolist() == [1, 1, 1]
    outputs = np.array([[0.1, -1.0, 2.0], [-1.0, -0.5, -3.0]], np.float32)
    one, other = task.to_answers(labels, outputs, None)
    assert one.labels == ["怒", "joy"] and other.labels == []
    assert one.scores["joy"] == pytest.approx(1 / (1 + np.exp(-0.1)))
    assert task.in_words(one.as_json()) == "怒 (88.1%), joy (52.5%)"
    assert task.in_words(other.as_json()) == "no label (the likeliest: love, 37.8%)"
    told, scores, logits = task.tell(labels, outputs)
    assert told == ['["怒", "joy"]', "[]"]
    assert scores[0].tolist() == pytest.approx(list(one.scores.values()))
    assert logits is outputs


def test_numbers_that_are_all_equal_are_doubted():
    assert NUMBERS.doubts(np.array([2.5, 2.5], np.float32), []) == [
        "all texts have the number 2.5: nothing can be learned"
    ]
    assert not NUMBERS.doubts(np.array([2.5, 1], np.float32), [])


@pytest.mark.parametrize("name", [task.name for task in tasks.BUILT_IN])
def test_schemas_know_what_a_task_says(name):
    task = tasks.get(name)
    said = (task.pair, task.label, task.least_labels, task.tells, task.per_token)
    assert task_names.KINDS[name] == said


@pytest.mark.parametrize("name", [task.name for task in tasks.BUILT_IN if task.answers])
def test_what_a_task_tells_has_the_shapes_of_its_tensors(name):
    task = tasks.get(name).of_width(5)
    labels = LABELS[: task.least_labels]
    outputs = np.random.default_rng(0).normal(size=(3, task.outputs(labels))).astype(np.float32)
    if task.per_token:
        words = np.array([[1, 0, 1], [2, 2, 4]])
        outputs = task.of_texts(np.stack([outputs] * 3), [words] * 3, ["a bc"] * 3)
    *tensors, last = task.tensors(labels)
    assert last == ("exit_layer", "INT32", (-1,))
    for tensor, values in zip(tensors, task.tell(labels, outputs)):
        if tensor.datatype == "BYTES":
            assert all(isinstance(value, str) for value in values) and len(values) == 3
        else:
            assert values.dtype == np.float32 and values.shape == (3, *tensor.shape[1:])


def test_answers_of_all_ranks_are_put_in_order():
    task, truth = tasks.get("classification"), np.array([0, 1, 1])
    parts = [
        {"texts": np.array([2]), "logits": np.array([[3.0, 0.0]], np.float32)},
        {"texts": np.array([1, 0]), "logits": np.array([[0.0, 3.0], [3.0, 0.0]], np.float32)},
    ]
    assert task.evaluate_parts(parts, truth, LABELS)["accuracy"] == pytest.approx(2 / 3)


def test_one_label_teaches_nothing():
    with pytest.raises(UserError, match="has the label 'bad' only; at least two are needed"):
        tasks.get("classification").check_labels(["bad"])
    tasks.get("mlm").check_labels([])


def test_a_pretrained_encoder_answers_nothing():
    tasks.get("classification").check_answers("here")
    with pytest.raises(UserError, match="bundle here is a pretrained encoder"):
        tasks.get("mlm").check_answers("here")


def test_the_best_step_is_told_by_what_there_is():
    criterion = tasks.get("classification").criterion("accuracy", {"loss": 1.0})
    assert criterion == ("loss", True)
    assert criterion.is_better({"loss": 1.0}, {})
    assert criterion.is_better({"loss": 1.0}, {"loss": 2.0})
    assert not criterion.is_better({"loss": 2.0}, {"loss": 2.0})


@pytest.mark.parametrize(("loss", "better"), [(0.4, True), (0.5, False), (0.6, False)])
def test_of_equal_ones_the_lower_loss_is_better(loss, better):
    criterion = tasks.Criterion("accuracy", False)
    former = {"accuracy": 1.0, "loss": 0.5}
    assert criterion.is_better({"accuracy": 1.0, "loss": loss}, former) is better
    assert not criterion.is_better({"accuracy": 0.9, "loss": 0.1}, former)
    assert not criterion.is_better({"accuracy": 1.0}, former)
