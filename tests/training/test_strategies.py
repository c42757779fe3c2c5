"""A strategy trains what it has never heard of: images. ResNet in two real ranks, beside Paddle's
own static graph, is in examples/test_images.py."""

from __future__ import annotations

import json

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
import tiny_job
from paddle import nn

from fleetbert.core.errors import UserError
from fleetbert.tasks import Criterion
from fleetbert.training.job import train_with
from fleetbert.training.strategies import connect, fleet_keys
from fleetbert.training.trainable import Trainable

CLASSES, IMAGES, DEV, BATCH = 3, 64, 12, 8


class Images(Trainable):
    """Noise, with more of the colour of its class. A `Trainable`."""

    fingerprint = "made of noise"  # a class's own value is as good as a property

    def __init__(self):
        paddle.seed(1)
        self.network = nn.Sequential(
            nn.Conv2D(CLASSES, 8, 3), nn.BatchNorm2D(8), nn.ReLU(),
            nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(8, CLASSES),
        )  # fmt: skip
        rng = np.random.default_rng(2)
        self.truth = rng.integers(0, CLASSES, IMAGES + DEV)
        self.images = rng.normal(size=(IMAGES + DEV, CLASSES, 8, 8)).astype(np.float32)
        self.images[np.arange(IMAGES + DEV), self.truth] += 1

    def plan(self, epoch):
        order = np.random.default_rng([3, epoch]).permutation(IMAGES)
        return np.split(order, IMAGES // BATCH)

    def micro_batches(self, indices, epoch, parts, shard):
        return [self.arrays(part, len(indices)) for part in np.array_split(indices, parts)[shard]]

    def arrays(self, part, step):
        return {
            "images": paddle.to_tensor(self.images[part]),
            "labels": paddle.to_tensor(self.truth[part]),
            "step": step,
            "n_texts": len(part),
            "n_tokens": 0,
        }

    def loss(self, model, arrays):
        losses = F.cross_entropy(model(arrays["images"]), arrays["labels"], reduction="sum")
        return losses / arrays["step"]

    def dev_batches(self):
        return np.split(np.arange(IMAGES, IMAGES + DEV), 4)

    def dev_arrays(self, part):
        return self.arrays(part, len(part))

    def predict(self, network, arrays):
        logits = network(arrays["images"])
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
        right = logits.argmax(-1) == arrays["labels"]
        return {"losses": losses.numpy(), "right": right.numpy()}

    def evaluate(self, parts):
        means = {n: float(np.mean([part[n] for part in parts])) for n in ("losses", "right")}
        return {"n": DEV, "loss": means["losses"], "accuracy": means["right"]}

    def criterion(self, metrics):
        return Criterion("accuracy", False)

    def locate(self, indices):
        return [{"image": int(index)} for index in indices]

    def describe(self):
        return {"data": {"train": {"images": IMAGES}, "dev": {"images": DEV}}}


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    """{"plain" or "compiled": (output folder, summary)}."""
    found = {}
    for name in ("plain", "compiled"):
        output = tmp_path_factory.mktemp(name)
        changes = {
            "optimizer.learning_rate": 1e-2, "trainer.max_steps": 6, "trainer.eval_every": 3,
            "trainer.compile": name == "compiled", "callbacks.profiler.enabled": True,
            "callbacks.visualdl": True,
        }  # fmt: skip
        job = tiny_job.job(tiny_data, output, changes)
        summary = train_with(connect(job), job, lambda *_: Images(), lambda *_: None)
        found[name] = output, summary
    return found


def test_compiled_images_have_the_same_losses(trained):
    losses, compiled = (tiny_job.losses(trained[name][0]) for name in ("plain", "compiled"))
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    assert compiled == pytest.approx(losses, rel=1e-4)
    assert losses[6] < losses[1]


@pytest.mark.parametrize("name", ["plain", "compiled"])
def test_the_callbacks_knew_what_to_do(trained, name):
    folder, summary = trained[name]
    assert summary["dev"]["n"] == 12
    assert summary["data"]["train"] == {"images": 64}
    assert {row["step"] for row in tiny_job.rows(folder) if "dev.loss" in row} == {3, 6}
    assert (folder / "checkpoints" / "step-00000006" / "manifest.json").is_file()
    assert len(json.loads((folder / "profile.json").read_text())["ranks"]) == 1
    assert list((folder / "visualdl").glob("*.log"))


class TestFleetKeys:
    def test_what_fleet_executes_is_passed_on(self):
        passed = fleet_keys.read(
            {"find_unused_parameters": True, "fuse_grad_size_in_MB": 8,
             "hybrid_configs": {"sharding_degree": 4, "mp_degree": 1}}, 4
        )  # fmt: skip
        assert passed.find_unused_parameters
        assert passed.fuse_grad_size_in_MB == 8
        degrees = passed.hybrid_configs
        assert (degrees["sharding_degree"], degrees["dp_degree"]) == (4, 1)
        assert fleet_keys.read({}, 2).hybrid_configs["sharding_degree"] == 1

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            (
                {"find_unused_parameter": True},
                "no key 'find_unused_parameter'; did you mean find_un",
            ),
            ({"fuse_grad_size_in_MB": "big"}, "fuse_grad_size_in_MB: Failed to parse"),
            ({"hybrid_configs": {"sharding_degre": 2}}, "has no field named"),
            ({"dgc": True}, "dgc: Fleet ignores it in dynamic graphs, .*; leave it out"),
            ({"localsgd_configs": {"k_steps": 2}}, "localsgd_configs: Fleet ignores it"),
            ({"gradient_merge_configs": {"k_steps": 2}}, r"; set optimizer\.accumulate_steps"),
            ({"lars": True}, "; set optimizer.name=lars"),
            ({"sharding": True, "sharding_configs": {"stage": 2}}, "stages 2 and 3 need GPUs"),
            ({"hybrid_configs": {"mp_degree": 2}}, "mp_degree: the networks of fleetbert have no"),
            (
                {"hybrid_configs": {"sharding_degree": 3}},
                "must be the number of ranks, 2, or 1, an",
            ),
            ({"hybrid_configs": {"sharding_degree": 2, "dp_degree": 2}}, "leave dp_degree out"),
        ],
    )
    def test_all_else_is_refused(self, keys, said):
        with pytest.raises(UserError, match=rf"strategy\.fleet: .*{said}"):
            fleet_keys.read(keys, 2)

    def test_what_does_not_go_together(self, tiny_data, tmp_path):
        sharded = {"strategy.fleet": {"hybrid_configs": {"sharding_degree": 2}}}
        for more, said in (
            ({"strategy.name": "parameter_server"}, "is for strategy.name: collective"),
            ({"strategy.name": "single"}, "is for strategy.name: collective"),
            ({"optimizer.name": "momentum"}, "takes no L2 decay; with optimizer.name: momentum"),
        ):
            with pytest.raises(ValueError, match=said):
                tiny_job.job(tiny_data, tmp_path, {**sharded, **more})

    @pytest.mark.parametrize("keys", [{}, {"hybrid_configs": {"sharding_degree": 2}}])
    def test_one_process_says_that_it_does_not_use_them(self, keys, tiny_data, tmp_path, caplog):
        connect(tiny_job.job(tiny_data, tmp_path, {"strategy.fleet": keys}))
        assert ("so its keys are not used" in caplog.text) == bool(keys)

    def test_one_process_refuses_keys_that_fleet_has_not(self, tiny_data, tmp_path):
        job = tiny_job.job(tiny_data, tmp_path, {"strategy.fleet": {"find_unused_parameter": True}})
        with pytest.raises(UserError, match="did you mean find_unused_parameters"):
            connect(job)
