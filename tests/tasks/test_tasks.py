"""What a kind of task says of itself."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert import tasks
from fleetbert.core import task_names
from fleetbert.core.errors import UserError
from fleetbert.data.records import Example
from fleetbert.tasks.classification import LabelAnswer
from fleetbert.tasks.embedding import similarities

NUMBERS = tasks.get("regression")
VECTORS = tasks.get("embedding").of_width(8)
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


def test_the_best_step_is_told_by_what_there_is():
    criterion = tasks.get("classification").criterion("accuracy", {"loss": 1.0})
    assert criterion == ("loss", True)
    of = tasks.get("classification").criterion
    assert of("loss", {"loss": 1, "accuracy": 1}) == ("loss", True)
    assert of("accuracy", {"accuracy": 1}) == ("accuracy", False)
    assert tasks.get("mlm").criterion("accuracy", {"loss": 1, "accuracy": 1})[0] == "loss"
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


def unit(random, *shape):
    vectors = random.normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_a_labelled_pair_is_two_texts_and_one_cosine():
    examples = [Example("a", "b", "1.0", 1), Example("c", "d", "2.5", 2)]
    assert VECTORS.texts(examples) == (["a", "b", "c", "d"], None)
    assert VECTORS.texts([Example("a", None, None, 1)]) == (["a"], None)
    vectors = unit(np.random.default_rng(0), 4, 8)
    found = VECTORS.per_example(vectors)
    assert found.shape == (2, 1)
    np.testing.assert_allclose(found[1, 0], vectors[2] @ vectors[3], rtol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_similarities_are_counted_by_hand(spread):
    """Of near pairs, and of texts with the pair before; however near all texts are."""
    random = np.random.default_rng(2)
    middle = random.normal(size=8)
    first = middle + spread * random.normal(size=(50, 8))
    second = first + 0.1 * spread * random.normal(size=(50, 8))
    first, second = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (first, second))
    found = similarities(first, second)
    pairs = {
        "own": [one @ other for one, other in zip(first, second)],
        "others": [one @ other for one, other in zip(first, [second[-1], *second[:-1]])],
    }
    bounds = found["bounds"]
    assert (len(bounds), bounds[0]) == (21, pytest.approx(min(map(min, pairs.values()))))
    for kind, cosines in pairs.items():
        assert sum(found[kind]) == 50
        for low, high, count in zip(bounds[1:-2], bounds[2:-1], found[kind][1:-1]):
            assert count == sum(low <= one < high for one in cosines)


def test_vectors_are_told_and_how_similar_they_are():
    vectors = unit(np.random.default_rng(1), 3, 8)
    assert [tuple(tensor) for tensor in VECTORS.tensors([])] == [
        ("embedding", "FP32", (-1, 8)),
        ("exit_layer", "INT32", (-1,)),
    ]
    assert VECTORS.tell([], vectors)[0] is vectors
    told = [answer.as_json() for answer in VECTORS.to_answers([], vectors, None)]
    np.testing.assert_allclose(told[1]["vector"], vectors[1], atol=1e-6)
    lines = VECTORS.together_in_words(told)
    assert lines[1] == f"similarity of 1 and 3: {vectors[0] @ vectors[2]:.4f}"
    assert VECTORS.together_in_words(told[:1]) == []
    with pytest.raises(UserError, match="no width"):
        tasks.get("embedding").of_width(None)
