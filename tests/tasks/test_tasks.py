"""What tasks declare, answer and tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from fresh import python

from fleetbert import tasks
from fleetbert.core.errors import UserError
from fleetbert.data import written
from fleetbert.data.records import Example
from fleetbert.tasks.embedding.metrics import similarities

NUMBERS, CLASSES = tasks.get("regression"), tasks.get("classification")
VECTORS = tasks.get("embedding").of_width(3)
LABELS = ["bad", "好"]
SEVERAL = ["joy", "love", "怒"]
EARLY = np.array([3, 6])  # the layers after which two texts leave


class Case(NamedTuple):
    """Outputs of two texts, and what is made of them. tensors: but `exit_layer`; told: of the first
    tensor, and words, of each text."""

    labels: list[str]
    outputs: list[list[float]]
    tensors: list[tuple]
    answers: list[dict[str, object]]
    told: list[object]
    words: list[str]


CLASS = Case(
    LABELS,
    [[0.0, 2.0], [1.0, 1.0]],  # of equal ones the first
    [("label", "BYTES", (-1,)), ("scores", "FP32", (-1, 2)), ("logits", "FP32", (-1, 2))],
    [
        {"label": "好", "scores": {"bad": 0.119203, "好": 0.880797}},
        {"label": "bad", "scores": {"bad": 0.5, "好": 0.5}},
    ],
    ["好", "bad"],
    ["好 (88.1%)", "bad (50.0%)"],
)
NUMBER = Case(
    [],
    [[0.25], [-3.0]],
    [("values", "FP32", (-1,))],
    [{"value": 0.25}, {"value": -3.0}],
    [0.25, -3.0],
    ["0.2500", "-3.0000"],
)
CASES = {
    "classification": CLASS,
    "pair_classification": CLASS,
    "regression": NUMBER,
    "pair_regression": NUMBER,
    "ranking": NUMBER,
    "multi_label_classification": Case(
        SEVERAL,
        [[0.1, -1.0, 2.0], [-1.0, -0.5, -3.0]],
        [("labels", "BYTES", (-1,)), ("scores", "FP32", (-1, 3)), ("logits", "FP32", (-1, 3))],
        [
            {"labels": ["怒", "joy"], "scores": dict(zip(SEVERAL, (0.524979, 0.268941, 0.880797)))},
            {"labels": [], "scores": dict(zip(SEVERAL, (0.268941, 0.377541, 0.047426)))},
        ],
        ['["怒", "joy"]', "[]"],
        ["怒 (88.1%), joy (52.5%)", "no label (the likeliest: love, 37.8%)"],
    ),
    "embedding": Case(
        [],
        [[0.6, 0.8, 0.0], [0.0, 1.0, 0.0]],
        [("embedding", "FP32", (-1, 3))],
        [{"vector": [0.6, 0.8, 0.0]}, {"vector": [0.0, 1.0, 0.0]}],
        [[0.6, 0.8, 0.0], [0.0, 1.0, 0.0]],
        ["[0.6000, 0.8000, 0.0000, ...], 3 numbers", "[0.0000, 1.0000, 0.0000, ...], 3 numbers"],
    ),
    "ctr": Case(
        [],
        [[0.0], [-2.0]],
        [("probability", "FP32", (-1,))],
        [{"probability": 0.5}, {"probability": 0.119203}],
        [0.5, 0.11920292],
        ["50.00%", "11.92%"],
    ),
}


def test_every_task_that_answers_has_a_case():
    """What answers of tokens has its own, in test_token_classification.py and
    test_question_answering.py."""
    shapes = [task.shape for task in tasks.BUILT_IN if task.shape.answers]
    assert {shape.name for shape in shapes if not shape.per_token} == {*CASES}


@pytest.mark.parametrize("name", CASES)
def test_answers_tensors_and_words(name):
    case, task = CASES[name], tasks.get(name).of_width(3)
    outputs = np.array(case.outputs, np.float32)
    assert task.outputs(case.labels) == outputs.shape[1]
    tensors = task.answer.tensors(case.labels, outputs.shape[1])
    layers = [("exit_layer", "INT32", (-1,))] if task.shape.of_texts else []
    assert tensors == [*case.tensors, *layers]
    answered = task.answer.tell(case.labels, outputs)
    for tensor, values in zip(tensors, answered):
        if tensor.datatype == "BYTES":
            assert all(isinstance(value, str) for value in values) and len(values) == 2
        else:
            assert values.dtype == np.float32 and values.shape == (2, *tensor.shape[1:])
    assert (
        np.array(answered[0]).tolist() == np.array(case.told, np.array(answered[0]).dtype).tolist()
    )
    answers = task.answer.to_answers(case.labels, outputs, None)
    assert [one.exit_layer for one in answers] == [None, None]
    for one, wanted, words in zip(answers, case.answers, case.words):
        actual = one.as_json()
        assert list(actual) == list(wanted)
        for field, value in wanted.items():
            assert actual[field] == (value if field[:5] == "label" else pytest.approx(value))
        assert task.answer.in_words(actual) == words
    if task.answer.doubt:  # texts may leave early
        left = task.answer.to_answers(case.labels, outputs, EARLY)
        assert [one.as_json()["exit_layer"] for one in left] == EARLY.tolist()


def test_targets_of_several_labels():
    labels = tasks.get("multi_label_classification").labels
    assert labels.labels_of(['["joy", "怒"]', '["joy"]', '["love"]']) == SEVERAL
    targets = labels.targets(['["joy", "怒"]', '["love"]', written.names([])], SEVERAL)
    assert targets.tolist() == [[True, False, True], [False, True, False], [False] * 3]
    assert labels.unknown('["joy", "hate"]', set(SEVERAL)) == "hate"
    assert labels.counts(targets, SEVERAL).tolist() == [1, 1, 1]


def test_numbers_that_are_all_equal_are_doubted():
    assert NUMBERS.labels.targets(["0.5", "2.0"], []).dtype == np.float32
    assert NUMBERS.labels.doubts(np.array([2.5, 2.5], np.float32), []) == [
        "all texts have the number 2.5: nothing can be learned"
    ]
    assert not NUMBERS.labels.doubts(np.array([2.5, 1], np.float32), [])


def test_every_task_is_in_the_table():
    code = (  # in a process in which nobody has registered more
        "from fleetbert.core import task_names\n"
        "declared = set(task_names.SHAPES)\n"
        "from fleetbert import tasks\n"
        "print(declared == {task.name for task in tasks.BUILT_IN} == set(tasks._tasks))\n"
    )
    done = python(code)
    assert done.stdout == "True\n", done.stderr


def test_boards_know_the_kinds_of_answers_and_the_tasks_of_older_bundles():
    source = Path(__file__).parents[2] / "deploy" / "lite" / "src" / "bundle.cc"
    kinds = re.findall(r'\{"(\w+)", Kind::k\w+\}', source.read_text())
    older = dict(re.findall(r'\{"(\w+)", "(\w+)"\}', source.read_text()))
    shapes = [task.shape for task in tasks.BUILT_IN if task.shape.answers]
    answers = {shape.name: shape.answer for shape in shapes}
    assert older and older.items() <= answers.items()
    assert {*kinds} == {*answers.values()}


def test_answers_of_all_ranks_are_put_in_order():
    truth = np.array([0, 1, 1])
    parts = [
        {"texts": np.array([2]), "logits": np.array([[3.0, 0.0]], np.float32)},
        {"texts": np.array([1, 0]), "logits": np.array([[0.0, 3.0], [3.0, 0.0]], np.float32)},
    ]
    actual = CLASSES.metrics.evaluate_parts(parts, truth, LABELS, CLASSES.room(3, LABELS))
    assert actual["accuracy"] == pytest.approx(2 / 3)


def test_the_best_step_is_told_by_what_there_is():
    of = CLASSES.metrics.criterion
    criterion = of("accuracy", {"loss": 1.0})
    assert criterion == ("loss", True)
    assert of("loss", {"loss": 1, "accuracy": 1}) == ("loss", True)
    assert of("accuracy", {"accuracy": 1}) == ("accuracy", False)
    masked = tasks.get("mlm").metrics
    assert masked.criterion("accuracy", {"loss": 1, "accuracy": 1})[0] == "loss"
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
    assert VECTORS.labels.texts(examples) == (["a", "b", "c", "d"], None)
    assert VECTORS.labels.texts([Example("a", None, None, 1)]) == (["a"], None)
    vectors = unit(np.random.default_rng(0), 4, 8)
    actual = VECTORS.metrics.per_example(vectors)
    assert actual.shape == (2, 1)
    np.testing.assert_allclose(actual[1, 0], vectors[2] @ vectors[3], rtol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_similarities_are_counted_by_hand(spread):
    """Of near pairs, and of texts with the pair before; however near all texts are."""
    random = np.random.default_rng(2)
    middle = random.normal(size=8)
    first = middle + spread * random.normal(size=(50, 8))
    second = first + 0.1 * spread * random.normal(size=(50, 8))
    first, second = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (first, second))
    actual = similarities(first, second)
    pairs = {
        "own": [one @ other for one, other in zip(first, second)],
        "others": [one @ other for one, other in zip(first, [second[-1], *second[:-1]])],
    }
    bounds = actual["bounds"]
    assert (len(bounds), bounds[0]) == (21, pytest.approx(min(map(min, pairs.values()))))
    for kind, cosines in pairs.items():
        assert sum(actual[kind]) == 50
        for low, high, count in zip(bounds[1:-2], bounds[2:-1], actual[kind][1:-1]):
            assert count == sum(low <= one < high for one in cosines)


def test_vectors_say_how_similar_they_are():
    vectors = unit(np.random.default_rng(1), 3, 8)
    answered = [answer.as_json() for answer in VECTORS.answer.to_answers([], vectors, None)]
    lines = VECTORS.answer.together_in_words(answered)
    assert lines[1] == f"similarity of 1 and 3: {vectors[0] @ vectors[2]:.4f}"
    assert VECTORS.answer.together_in_words(answered[:1]) == []
    with pytest.raises(UserError, match="no width"):
        tasks.get("embedding").of_width(None)
