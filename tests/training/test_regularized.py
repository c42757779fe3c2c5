"""What `loss` asks for, beside NumPy's: a network of a word table and one linear layer."""

from __future__ import annotations

import types
from typing import Callable, NamedTuple

import numpy as np
import paddle
import pytest
from paddle import nn

from fleetbert import config, tasks
from fleetbert.core.errors import UserError
from fleetbert.tasks import loss as losses
from fleetbert.training import regularized
from fleetbert.training.regularized import regularize

PLAIN = losses.of(tasks.get("classification"))
WORDS, WIDTH, CLASSES = 11, 5, 3
IDS = np.array([[1, 2, 3, 4], [5, 6, 2, 0]])
LABELS = np.array([2, 0])
WEIGHT = np.full(2, 0.5, np.float32)


class Bag(nn.Layer):
    """Logits of the mean of a text's words; what dropout does differently each time is `shift`."""

    def __init__(self, shifts=(0.0,)):
        super().__init__()
        rng = np.random.default_rng(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.words.weight.set_value(rng.normal(size=(WORDS, WIDTH)).astype(np.float32))
        self.last = nn.Linear(WIDTH, CLASSES, bias_attr=False)
        self.last.weight.set_value(rng.normal(size=(WIDTH, CLASSES)).astype(np.float32))
        bert = types.SimpleNamespace(embeddings=types.SimpleNamespace(word_embeddings=self.words))
        self.network = types.SimpleNamespace(bert=bert)
        self.shifts = list(shifts)

    def forward(self, input_ids, segments=None):
        shift = self.shifts[0] if len(self.shifts) == 1 else self.shifts.pop(0)
        hidden = self.words(input_ids)
        if segments is None:
            pooled = hidden.mean(1)
        else:  # two texts in one row
            of = [(segments == n).astype("float32").unsqueeze(-1) for n in (1, 2)]
            pooled = paddle.concat([(hidden * m).sum(1) / m.sum(1) for m in of])
        return self.last(pooled) + shift * paddle.arange(CLASSES, dtype="float32")


def arrays(**inputs):
    ids = inputs or {"input_ids": paddle.to_tensor(IDS)}
    return {
        "inputs": ids, "labels": paddle.to_tensor(LABELS).unsqueeze(1),
        "weight": paddle.to_tensor(WEIGHT),
    }  # fmt: skip


def built(bag, **settings):
    of = regularize(
        PLAIN, config.Loss(**settings), "classification",
        ["a", "b", "c"],
        np.array([6, 3, 1]),
        10,
    )  # fmt: skip
    of.prepare(bag)
    return of


def gradients(objective, bag, given):
    """Loss and gradients of one step, as `strategies.single` takes it."""
    losses = []
    for of in (objective.loss, objective.again)[: objective.passes]:
        losses.append(of(bag, given))
        losses[-1].backward()
    return float(sum(losses)), bag.words.weight.grad.numpy(), bag.last.weight.grad.numpy()


class Numpy:
    """The same in float64, with gradients worked out by hand."""

    def __init__(self, moved=0.0, target=None, weight=WEIGHT, shift=0.0):
        bag = Bag()
        self.table, self.last = (w.numpy().astype(float) for w in bag.parameters())
        self.words = self.table[IDS] + moved  # (texts, length, width)
        self.pooled = self.words.mean(1)
        z = self.pooled @ self.last + shift * np.arange(CLASSES)
        self.log = z - np.log(np.exp(z).sum(1, keepdims=True))
        self.target = np.eye(CLASSES)[LABELS] if target is None else target
        self.weight = weight[:, None]
        self.loss = -(self.weight * self.target * self.log).sum()
        self.to_logits = self.weight * (np.exp(self.log) - self.target)
        self.back()

    def back(self):
        self.to_last = self.pooled.T @ self.to_logits
        each = self.to_logits @ self.last.T / IDS.shape[1]
        self.to_words = np.repeat(each[:, None], IDS.shape[1], 1)
        self.to_table = np.zeros_like(self.table)
        np.add.at(self.to_table, IDS, self.to_words)


def check(found, loss, to_table, to_last):
    assert found[0] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(found[1], to_table, atol=1e-6)
    np.testing.assert_allclose(found[2], to_last, atol=1e-6)


def test_nothing_asked_for_is_the_objective_itself():
    assert built(Bag()) is PLAIN


def test_smoothed_labels():
    bag = Bag()
    target = 0.8 * np.eye(CLASSES)[LABELS] + 0.2 / CLASSES
    expected = Numpy(target=target)
    found = gradients(built(bag, label_smoothing=0.2), bag, arrays())
    check(found, expected.loss, expected.to_table, expected.to_last)


@pytest.mark.parametrize(
    ("wanted", "weights"),
    [("balanced", [10 / 18, 10 / 9, 10 / 3]), ({"c": 4.0, "a": 0.5}, [0.5, 1, 4])],
)
def test_weights_of_classes(wanted, weights):
    bag = Bag()
    expected = Numpy(weight=WEIGHT * np.array(weights)[LABELS])
    found = gradients(built(bag, class_weights=wanted), bag, arrays())
    check(found, expected.loss, expected.to_table, expected.to_last)


def test_r_drop():
    """Both forwards' cross entropies, and the mean of both divergences between them."""
    bag = Bag(shifts=[0.0, 0.7])
    one, other = Numpy(), Numpy(shift=0.7)
    p, q = np.exp(one.log), np.exp(other.log)
    apart = 0.5 * (p * np.log(p / q)).sum(1) + 0.5 * (q * np.log(q / p)).sum(1)
    # d/dz of sum p log(p/q) is p (log p/q - KL) to p's logits and q - p to q's.
    between, back = (
        (p * np.log(p / q)).sum(1, keepdims=True),
        (q * np.log(q / p)).sum(1, keepdims=True),
    )
    half = one.weight * 2.0 / 2
    one.to_logits = one.to_logits / 2 + half * (p * (np.log(p / q) - between) + p - q)
    other.to_logits = other.to_logits / 2 + half * (q * (np.log(q / p) - back) + q - p)
    for side in (one, other):
        side.back()
    found = gradients(built(bag, r_drop=2.0), bag, arrays())
    loss = (one.loss + other.loss) / 2 + 2.0 * (WEIGHT * apart).sum()
    check(found, loss, one.to_table + other.to_table, one.to_last + other.to_last)


def softmaxes(logits):
    powers = np.exp(logits)
    return powers / powers.sum(-1, keepdims=True)


def coins(logits):
    chances = 1 / (1 + np.exp(-logits))
    return np.stack([chances, 1 - chances], -1)


def apart(p, q):
    return ((p * np.log(p / q)).sum(-1) + (q * np.log(q / p)).sum(-1)) / 2


class Case(NamedTuple):
    """shape: of the outputs; labels; apart: of two outputs, for each of the weights."""

    task: str
    shape: tuple[int, ...]
    labels: np.ndarray
    apart: Callable[[np.ndarray, np.ndarray], np.ndarray]
    places: np.ndarray | None = None  # of documents


TAGS = Case(
    "token_classification", (2, 4, 3), np.array([[0, 1, 2, 0], [2, 0, 0, 1]]),
    lambda one, other: apart(softmaxes(one), softmaxes(other)),
)  # fmt: skip
SEVERAL = Case(
    "multi_label_classification", (2, 3), np.array([[1, 0, 1], [0, 0, 1]]),
    lambda one, other: apart(coins(one), coins(other)).mean(-1),
)  # fmt: skip


def of_case(case, outputs, **settings):
    """The loss of `settings` where the network gives these outputs one after the other, that of
    none of each of them, and the weights."""
    weight = np.random.default_rng(8).random(case.labels.shape[: 1 + (case is TAGS)])
    given = {
        "inputs": {}, "labels": paddle.to_tensor(case.labels), "places": case.places,
        "weight": paddle.to_tensor(weight.astype(np.float32)),
    }  # fmt: skip
    plain, coming = losses.of(tasks.get(case.task)), [paddle.to_tensor(one) for one in outputs]
    each = [float(plain.of_outputs(one, given)) for one in coming]
    counts = np.array([5, 2, 3])
    of = regularize(plain, config.Loss(**settings), case.task, ["a", "b", "c"], counts, 10)
    return float(of.loss(lambda: coming.pop(0), given)), each, weight


@pytest.mark.parametrize(
    "case",
    [
        TAGS,
        SEVERAL,
        Case("regression", (2, 1), np.ones(2, np.float32), lambda a, b: ((a - b) ** 2)[:, 0]),
        Case(
            "ranking", (6, 1), np.ones(2, np.float32),
            lambda a, b: apart(softmaxes(a.reshape(2, 3)), softmaxes(b.reshape(2, 3))),
            np.arange(6).reshape(2, 3),
        ),
        Case(
            "ranking", (2, 1), np.array([1, 0], np.float32),
            lambda a, b: apart(coins(a), coins(b))[:, 0], np.arange(2)[:, None],
        ),
    ],
    ids=lambda case: f"{case.task}-{case.shape[0]}",
)  # fmt: skip
def test_r_drop_of_tasks_without_one_label(case):
    outputs = np.random.default_rng(7).normal(size=(2, *case.shape)).astype(np.float32)
    found, each, weight = of_case(case, outputs, r_drop=3.0)
    expected = sum(each) / 2 + 3 * (weight * case.apart(*outputs.astype(float))).sum()
    assert found == pytest.approx(expected, rel=1e-5)


def test_smoothing_and_weights_of_tags_and_of_several_labels():
    outputs = np.random.default_rng(7).normal(size=(2, 4, 3)).astype(np.float32)
    logs = np.log(softmaxes(outputs.astype(float)))
    truth = np.eye(3)[TAGS.labels]
    found, _, weight = of_case(TAGS, [outputs], label_smoothing=0.2)
    target = 0.8 * truth + 0.2 / 3
    assert found == pytest.approx(-(weight[..., None] * target * logs).sum(), rel=1e-5)
    found, *_ = of_case(TAGS, [outputs], class_weights={"b": 4.0})
    scaled = weight * np.array([1.0, 4.0, 1.0])[TAGS.labels]
    assert found == pytest.approx(-(scaled[..., None] * truth * logs).sum(), rel=1e-5)
    found, _, weight = of_case(SEVERAL, [outputs[:, 0]], label_smoothing=0.2)
    chances = coins(outputs[:, 0].astype(float))[..., 0]
    target = 0.8 * SEVERAL.labels + 0.1
    each = -(target * np.log(chances) + (1 - target) * np.log(1 - chances)).mean(-1)
    assert found == pytest.approx((weight * each).sum(), rel=1e-5)


def test_words_are_moved_against_the_loss():
    bag = Bag()
    plain = Numpy()
    norms = np.sqrt((plain.to_words**2).sum((1, 2), keepdims=True))
    attacked = Numpy(moved=1.5 * plain.to_words / norms)
    assert attacked.loss > plain.loss
    found = gradients(built(bag, adversarial=1.5), bag, arrays())
    check(
        found,
        (plain.loss + attacked.loss) / 2,
        (plain.to_table + attacked.to_table) / 2,
        (plain.to_last + attacked.to_last) / 2,
    )


def test_packed_texts_are_moved_each_by_its_own_norm():
    """The texts in one row, told apart by segments, learn as those in two rows."""
    plain, packed = Bag(), Bag()
    expected = gradients(built(plain, adversarial=1.5), plain, arrays())
    row = {
        "input_ids": paddle.to_tensor(np.append(IDS.flatten(), [0, 0])[None]),
        "segments": paddle.to_tensor(np.array([[1] * 4 + [2] * 4 + [0] * 2])),
    }
    check(gradients(built(packed, adversarial=1.5), packed, arrays(**row)), *expected)


def test_evaluation_is_plain():
    bag = Bag()
    of = built(bag, adversarial=1.0, r_drop=1.0, label_smoothing=0.5, class_weights="balanced")
    with paddle.no_grad():
        assert float(of.loss(bag, arrays())) == pytest.approx(Numpy().loss, rel=1e-5)


# Of PyTorch 2.13: BCEWithLogitsLoss(pos_weight=[2, 0.5, 3]), and its gradient.
PYTORCH_LOSS = 0.3840491771697998
PYTORCH_GRADIENT = [
    [-0.12584688, 0.03711669, -0.05960147],
    [0.05347021, -0.03648529, 0.00790431],
]


def test_positive_weights_are_pytorchs():
    """As a table, and balanced where labels have as many texts that these are their weights."""
    given = {
        "labels": paddle.to_tensor([[1, 0, 1], [0, 1, 0]]), "inputs": {},
        "weight": paddle.to_tensor(WEIGHT),
    }  # fmt: skip
    plain = losses.of(tasks.get("multi_label_classification"))
    for wanted, counts, texts in (
        ({"a": 2.0, "b": 0.5, "c": 3.0}, [1, 1, 1], 2),
        ("balanced", [4, 8, 3], 12),
    ):
        logits = paddle.to_tensor([[0.5, -1.25, 2.0], [-0.75, 0.25, -3.0]], stop_gradient=False)
        of = regularize(
            plain, config.Loss(positive_weights=wanted), "multi_label_classification",
            ["a", "b", "c"], np.array(counts), texts,
        )  # fmt: skip
        loss = of.loss(lambda logits=logits: logits, given)
        loss.backward()
        assert float(loss) == pytest.approx(PYTORCH_LOSS, rel=1e-6)
        np.testing.assert_allclose(logits.grad.numpy(), PYTORCH_GRADIENT, atol=1e-7)
    same = regularized.positive_weights(3.0, ["a", "b"], np.array([1, 0]), 2)
    assert same.tolist() == [3, 3]
    unheard = regularized.positive_weights("balanced", ["a", "b", "c"], np.array([1, 0, 4]), 4)
    assert unheard.tolist() == [3, 1, 1]  # of a label that none or all have


@pytest.mark.parametrize(
    ("task", "settings", "sentence"),
    [
        ("embedding", {"r_drop": 1.0}, "loss.r_drop: .*: embedding does not take it; .* to 0$"),
        ("ranking", {"label_smoothing": 0.1}, "label_smoothing: task.name: ranking does not take"),
        ("mlm", {"class_weights": "balanced"}, "class_weights: .*: mlm .* set it to none"),
        ("classification", {"class_weights": {"d": 1.0}}, "d is no label of data.train"),
        ("classification", {"positive_weights": 2.0}, "positive_weights: .*: classification does"),
    ],
)
def test_what_a_task_has_not_is_refused(task, settings, sentence):
    objective = losses.of(tasks.get(task))
    counts = None if task == "mlm" else np.array([1, 1, 1])
    with pytest.raises(UserError, match=sentence):
        regularize(objective, config.Loss(**settings), task, ["a", "b", "c"], counts, 10)
