"""What a student learns of a teacher's outputs, beside NumPy's."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from scipy import special

from fleetbert import tasks
from fleetbert.tasks import loss as losses

TEMPERATURE = 2.0
SHAPES = {
    "classification": (6, 3),
    "multi_label_classification": (6, 3),
    "token_classification": (2, 5, 3),
    "regression": (6, 1),
    "ranking": (6, 1),
    "embedding": (6, 4),
}


def expected(task: str, student: np.ndarray, teacher: np.ndarray, arrays: dict) -> float:
    weight = arrays["weight"].numpy()
    if task in ("classification", "token_classification"):
        known = special.softmax(teacher / TEMPERATURE, -1)
        each = -(known * special.log_softmax(student / TEMPERATURE, -1)).sum(-1) * TEMPERATURE**2
    elif task == "multi_label_classification":
        known, x = special.expit(teacher / TEMPERATURE), student / TEMPERATURE
        each = -(known * special.log_expit(x) + (1 - known) * special.log_expit(-x)).mean(-1)
        each = each * TEMPERATURE**2
    elif task == "regression":
        each = ((student - teacher) ** 2)[:, 0]
    elif task == "ranking":
        ours, theirs = (values[arrays["places"], 0] for values in (student, teacher))
        lead = (ours[:, :1] - ours[:, 1:]) - (theirs[:, :1] - theirs[:, 1:])
        each = (lead**2).mean(-1)
    else:
        apart = student @ student.T - teacher @ teacher.T
        return (apart**2).sum() / (len(student) * (len(student) - 1)) * weight.sum()
    return (each * weight).sum()


@pytest.mark.parametrize("task", SHAPES)
def test_the_loss_against_a_teacher(task):
    random = np.random.default_rng(3)
    student, teacher = random.normal(size=(2, *SHAPES[task])).astype(np.float32)
    if task == "embedding":
        student, teacher = (
            v / np.linalg.norm(v, axis=1, keepdims=True) for v in (student, teacher)
        )
    places = np.array([[4, 0, 1], [2, 5, 3]])
    shape = places.shape[:1] if task in ("ranking", "embedding") else SHAPES[task][:-1]
    arrays = {
        "weight": paddle.to_tensor(random.uniform(0.1, 0.3, shape).astype(np.float32)),
        "places": places,
    }
    objective = losses.of(tasks.get(task))
    outputs = [paddle.to_tensor(values) for values in (student, teacher)]
    loss = float(objective.of_teacher(*outputs, arrays, TEMPERATURE))
    assert loss == pytest.approx(expected(task, student, teacher, arrays), rel=1e-5)
    same = outputs[0].clone()
    same.stop_gradient = False
    (gradient,) = paddle.grad(objective.of_teacher(same, outputs[0], arrays, TEMPERATURE), [same])
    assert np.abs(gradient.numpy()).max() < 1e-6  # nothing pulls where both agree


def test_a_single_pair_of_ranking_learns_its_score():
    arrays = {"weight": paddle.ones([2]) / 2, "places": np.array([[1], [0]])}
    values = [paddle.to_tensor(np.array([[a], [b]], np.float32)) for a, b in ((1, 2), (3, 2.5))]
    loss = losses.of(tasks.get("ranking")).of_teacher(*values, arrays, TEMPERATURE)
    assert float(loss) == pytest.approx((2**2 + 0.5**2) / 2)
