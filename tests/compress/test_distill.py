"""A teacher of four layers, and the smaller models that learn from it."""

from __future__ import annotations

import json
import random as python_random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import processes
import pytest
import several_jobs
import tiny_job
from halves import needs_bfloat16
from safetensors.numpy import load_file, save_file

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import pipeline
from fleetbert.compress.distill import job as distilling
from fleetbert.compress.distill import student, teacher
from fleetbert.compress.distill.theseus import Theseus
from fleetbert.engines import answer
from fleetbert.errors import UserError
from fleetbert.models import bfloat16, cpu
from fleetbert.train.job import train
from fleetbert.train.random import start_step
from fleetbert.train.strategies.single import Single

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "launch" / "distill.py"
SEVERAL = Path(several_jobs.__file__)
NO_DROPOUT = {"model.dropout": 0.0}
NARROW = {
    "model.init": "random", "model.num_hidden_layers": 2, "model.hidden_size": 32,
    "model.num_attention_heads": 2, "model.intermediate_size": 64,
}  # fmt: skip
LOGITS_ONLY = {**NARROW, "distill.hidden_weight": 0.0}


def change_weights(folder):
    """Make another model of the one in this folder."""
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = tensors["classifier.bias"] + 1
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(autouse=True)
def generators_as_before():
    states = np.random.get_state(), python_random.getstate()
    yield
    np.random.set_state(states[0])
    python_random.setstate(states[1])


@pytest.fixture(scope="session")
def taught(tiny_data, tmp_path_factory):
    """The run folder of a teacher that is right. Do not change it."""
    output = tmp_path_factory.mktemp("teacher")
    changes = {"model.num_hidden_layers": 4, "trainer.epochs": 3, "trainer.seed": 1}
    job = config.Config.model_validate(tiny_job.values(tiny_data, output, changes))
    summary = train(job).summary
    assert summary["dev"]["accuracy"] > 0.8
    return output


@pytest.fixture(scope="session")
def values(tiny_data, taught):
    """values(output, changes) → the job as its YAML file would have it."""

    def call(output, changes=None):
        start = {"model": {"init": "teacher", "num_hidden_layers": 2}}
        job = {**tiny_job.values(tiny_data, output), **start}
        job["distill"] = {"teacher": str(taught / "model")}
        if (changes or {}).get("model.init") == "random":
            job["model"]["vocab"] = str(tiny_data / "vocab.txt")
        for name, value in (changes or {}).items():
            section, _, key = name.partition(".")
            job.setdefault(section, {})[key] = value
        return job

    return call


@pytest.fixture(scope="session")
def make(values):
    """make(output, changes) → the job."""
    return lambda output, changes=None: config.Distill.model_validate(values(output, changes))


def open_task(kind, job):
    return distilling._open(kind, job, Single("cpu"))


def first_step(task, parts=1):
    return task.micro_batches(task.plan(0)[0], 0, parts, slice(0, parts))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def run_one(network, ids):
    """(logits [labels], [layers] outputs [length, width]) of one text, in PaddleNLP's own way."""
    inputs = paddle.to_tensor(ids.astype(np.int64)[None])
    inner = network.network
    _, pooled, hidden = inner.bert(
        inputs, output_hidden_states=True, token_type_ids=paddle.zeros_like(inputs)
    )
    return inner.classifier(pooled).numpy()[0], [h.numpy()[0] for h in hidden[1:]]


class TestLoss:
    @pytest.mark.parametrize("batching", ["pad", "pack"])
    @pytest.mark.parametrize("parts", [1, 3])
    def test_is_that_of_numpy(self, make, tmp_path, batching, parts):
        """A narrower student, text by text; in one part or three."""
        weights = {"labels_weight": 0.3, "logits_weight": 0.7, "hidden_weight": 1.1}
        changes = {f"distill.{name}": value for name, value in weights.items()}
        job = make(tmp_path, {**changes, **NARROW, "data.batching": batching})
        task = open_task(student.Student, job)
        task.network.eval()
        found = sum(float(task.loss(task.network, part)) for part in first_step(task, parts))

        total = 0.0
        indices = task.plan(0)[0]
        for index in indices:
            logits, hidden = run_one(task.network, task.train.encodings.ids[index])
            wanted, known = run_one(task.teacher, task.train.encodings.ids[index])
            own = [
                h @ p.weight.numpy() + p.bias.numpy()
                for h, p in zip(hidden, task.network.projections)
            ]
            labels = -np.log(softmax(logits)[task.train.labels[index]])
            soft = -(softmax(wanted / 2) * np.log(softmax(logits / 2))).sum() * 4
            errors = [np.square(o - known[n]).mean() for o, n in zip(own, (1, 3))]
            total += 0.3 * labels + 0.7 * soft + 1.1 * np.mean(errors)
        assert found == pytest.approx(total / len(indices), rel=1e-4)

    def test_a_text_that_fills_a_part_counts_nothing(self, make, tmp_path):
        """More parts than texts: the parts left over have gradients, and no loss."""
        job = make(tmp_path, {**NARROW, "data.batch_size": 2})
        task = open_task(student.Student, job)
        task.network.eval()
        parts = first_step(task, 4)
        losses = [float(task.loss(task.network, part)) for part in parts]
        assert [loss > 0 for loss in losses] == [part["n_texts"] > 0 for part in parts]
        assert 0.0 in losses


@pytest.mark.parametrize(
    ("layers", "teacher_layers", "expected"),
    [(3, 6, [2, 4, 6]), (1, 6, [6]), (6, 6, [1, 2, 3, 4, 5, 6]), (4, 6, [1, 3, 4, 6])],
)
def test_layers_are_mapped_evenly(layers, teacher_layers, expected):
    assert teacher.evenly(layers, teacher_layers) == expected


@pytest.mark.parametrize(
    ("chosen", "expected"), [(None, [2, 4]), ([1, 3], [1, 3]), ([4, 4], [4, 4])]
)
def test_a_student_starts_as_layers_of_its_teacher(make, tmp_path, chosen, expected):
    task = open_task(student.Student, make(tmp_path, {"distill.start_layers": chosen}))
    own = task.network.network.state_dict()
    known = task.teacher.network.state_dict()
    for name, value in own.items():
        number, sign, part = name.partition("encoder.layers.")[2].partition(".")
        if sign:
            name = f"bert.encoder.layers.{expected[int(number)] - 1}.{part}"
        np.testing.assert_array_equal(value.numpy(), known[name].numpy())


def test_a_student_of_a_whole_teacher_starts_at_its_entropy(make, tmp_path):
    """As many layers, no dropout: the hidden states and the logits are the teacher's."""
    job = make(tmp_path, {"model.num_hidden_layers": 4, "distill.labels_weight": 0.0, **NO_DROPOUT})
    task = open_task(student.Student, job)
    task.network.train()
    (arrays,) = first_step(task)
    logits = task.teacher(**arrays["inputs"]).numpy()
    chances = softmax(logits / 2)
    expected = 0.5 * 4 * -(chances * np.log(chances)).sum(1).mean()
    assert float(task.loss(task.network, arrays)) == pytest.approx(expected, rel=1e-5)


class TestTeachersWithLabelsInAnotherOrder:
    @pytest.fixture
    def turned(self, taught, tmp_path):
        """The teacher's `model`, whose labels and their rows of the head are turned round."""
        folder = shutil.copytree(taught / "model", tmp_path / "turned")
        tensors = load_file(folder / "model.safetensors")
        for name in ("classifier.weight", "classifier.bias"):
            tensors[name] = np.ascontiguousarray(tensors[name][::-1])
        save_file(tensors, folder / "model.safetensors")
        fields = json.loads((folder / "config.json").read_text())
        assert fields["id2label"] == {"0": "bad", "1": "good"}
        fields.update(id2label={"0": "good", "1": "bad"}, label2id={"good": 0, "bad": 1})
        (folder / "config.json").write_text(json.dumps(fields))
        return folder

    @pytest.mark.parametrize("kind", [student.Student, Theseus])
    def test_a_network_is_that_with_the_labels_in_order(
        self, make, taught, turned, tmp_path, kind, monkeypatch
    ):
        networks, build = [], teacher.build
        monkeypatch.setattr(
            teacher, "build", lambda *given: networks.append(build(*given)) or networks[-1]
        )
        for path in (taught / "model", turned):
            changes = {"distill.teacher": str(path), "model.num_hidden_layers": 4}
            task = open_task(kind, make(tmp_path, changes))
            assert task.labels == ["bad", "good"]
            told = [note for note in task.notes() if "the teacher's labels, good, bad" in note]
            assert len(told) == (path == turned)
            networks.append(task.network)
        for one, other in (networks[::2], networks[1::2]):
            for name in ("classifier.weight", "classifier.bias"):
                np.testing.assert_array_equal(
                    one.network.state_dict()[name].numpy(), other.network.state_dict()[name].numpy()
                )

    def test_a_bundles_logits_are_those_of_the_labels(self, make, taught, tmp_path):
        changes = {**LOGITS_ONLY, "distill.teacher": str(taught / "bundle")}
        job = make(tmp_path, changes)
        task, opened = open_task(student.Student, job), teacher.open_teacher(job)
        found = teacher.bundle_logits(
            opened, task.train, task.tokenizer, Single("cpu"), ["good", "bad"]
        )
        np.testing.assert_array_equal(found, task.logits[:, ::-1])


class TestStudent:
    @pytest.fixture(scope="class")
    def learned(self, make, tmp_path_factory):
        output = tmp_path_factory.mktemp("student")
        return output, distilling.distill(make(output, {"trainer.epochs": 2})).summary

    def test_learns_and_leaves_a_run_folder(self, learned, taught):
        output, summary = learned
        assert summary["dev"]["accuracy"] > 0.8
        assert summary["config"]["distill"]["teacher"] == str(taught / "model")
        shape = json.loads((output / "model" / "config.json").read_text())
        assert shape["num_hidden_layers"] == 2
        (variant,) = bundles.read(output / "bundle").manifest.variants
        assert variant.made_from == str(taught / "model")
        model = answer.load(output / "bundle", "float32", "cpu", None, None)
        assert model.labels == ["bad", "good"]

    def test_can_be_quantized(self, learned, tiny_data, tmp_path):
        bundle = shutil.copytree(learned[0] / "bundle", tmp_path / "bundle")
        values = {
            "bundle": str(bundle), "method": "dynamic",
            "gate": {"data": str(tiny_data / "dev.tsv"), "max_accuracy_drop": 0.1},
        }  # fmt: skip
        pipeline.quantize(config.Quantize.model_validate(values))
        assert bundles.read(bundle).variant("int8-dynamic")

    def test_resumes_only_with_the_same_teacher_and_loss(self, learned, make, tmp_path):
        output = shutil.copytree(learned[0], tmp_path / "output")
        job = make(output, {"trainer.epochs": 3, "distill.temperature": 3.0})
        with pytest.raises(UserError, match=r"trained with distill.temperature: 2.0, this job has"):
            distilling.distill(job)
        plain = job.model_dump(exclude={"distill"})
        plain["model"].update(init=str(output / "model"))
        with pytest.raises(UserError, match="trained with"):
            train(config.Config.model_validate(plain))

    def test_goes_on_with_the_same_teacher_at_another_path(
        self, learned, make, taught, tmp_path, caplog
    ):
        output = Path(shutil.copytree(learned[0], tmp_path / "output"))
        moved = Path(shutil.copytree(taught / "model", tmp_path / "moved"))
        job = make(output, {"trainer.epochs": 2, "distill.teacher": str(moved)})
        distilling.distill(job)
        assert "nothing is left to train" in caplog.text
        change_weights(moved)
        with pytest.raises(UserError, match=r"trained with distill\.teacher: .*, this job has"):
            distilling.distill(job)

    def test_refuses_another_teacher_at_the_same_path(self, make, taught, tmp_path):
        teacher = Path(shutil.copytree(taught / "model", tmp_path / "teacher"))
        changes = {"distill.teacher": str(teacher), "trainer.max_steps": 2}
        job = make(tmp_path / "output", changes)
        distilling.distill(job)
        distilling.distill(job)
        change_weights(teacher)
        with pytest.raises(UserError, match=r"the teacher has changed since; start anew with"):
            distilling.distill(job)

    def test_a_bundle_at_another_path_is_the_same_teacher(self, make, taught, tmp_path):
        opened = [tmp_path / "one", tmp_path / "other"]
        for path in opened:
            shutil.copytree(taught / "bundle", path)
        digests = {
            teacher.open_teacher(
                make(tmp_path, {**LOGITS_ONLY, "distill.teacher": str(path)})
            ).digest
            for path in opened
        }
        assert len(digests) == 1


IN_TWO_RANKS = {
    "narrower": {**NARROW, **NO_DROPOUT, "trainer.max_steps": 6},
    "theseus": {"distill.kind": "theseus", "distill.replacing_rise": 1.0},
}


class TestTwoRanks:
    @pytest.fixture(scope="class")
    def outputs(self, start, write):
        """{name: output folder}."""
        jobs = {name: write(changes) for name, changes in IN_TWO_RANKS.items()}
        first, *more = (path for path, _ in jobs.values())
        processes.ended(start(first, *map(str, more), ranks=2))
        return {name: output for name, (_, output) in jobs.items()}

    def test_a_narrower_student_has_the_losses_of_one(self, make, outputs, tmp_path):
        """With projections."""
        distilling.distill(make(tmp_path, IN_TWO_RANKS["narrower"]))
        expected, output = tiny_job.losses(tmp_path), outputs["narrower"]
        assert len(expected) == 6
        assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)
        names = load_file(output / "model" / "model.safetensors")
        assert not [name for name in names if "projections" in name]
        step = output / "checkpoints" / "step-00000006" / "model.pdparams"
        assert "projections.1.weight" in paddle.load(str(step))

    def test_theseus(self, outputs):
        output = outputs["theseus"]
        assert json.loads((output / "summary.json").read_text())["world_size"] == 2
        assert len(tiny_job.losses(output / "replacing")) == 10


class TestBundle:
    """A teacher of which only the program is there."""

    def test_gives_the_logits_of_its_network(self, make, taught, tmp_path):
        changes = {**LOGITS_ONLY, "distill.teacher": str(taught / "bundle")}
        task = open_task(student.Student, make(tmp_path, changes))
        beside = open_task(student.Student, make(tmp_path, LOGITS_ONLY))
        assert len(task.logits) == 160
        for one, other in zip(first_step(task, 2), first_step(beside, 2)):
            expected = beside.teacher(**other["inputs"]).numpy()
            np.testing.assert_allclose(task._teach(one).numpy(), expected, atol=1e-4)

    def test_teaches(self, make, taught, tmp_path):
        changes = {"distill.teacher": str(taught / "bundle"), "trainer.epochs": 3}
        summary = distilling.distill(make(tmp_path, {**LOGITS_ONLY, **changes})).summary
        assert summary["dev"]["accuracy"] > 0.75


@needs_bfloat16
def test_student_and_teacher_compute_in_bfloat16(make, tmp_path):
    exact = distilling.distill(make(tmp_path / "float32")).summary
    mixed = {"precision.level": "O1", "precision.dtype": "bfloat16"}
    changes = {**mixed, "trainer.log_every": 1}
    job = make(tmp_path / "mixed", changes)
    found = distilling.distill(job).summary
    assert found["dev"]["accuracy"] == pytest.approx(exact["dev"]["accuracy"], abs=0.05)
    losses = [tiny_job.losses(tmp_path / name) for name in ("float32", "mixed")]
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    task = open_task(student.Student, job)
    (part,) = first_step(task)
    own = task._teach(part).numpy()
    bfloat16.accelerate(task.teachers[0], cpu.Random(), evaluating=True)
    np.testing.assert_allclose(task._teach(part).numpy(), own, atol=0.03 * np.abs(own).max())
    assert not np.array_equal(task._teach(part).numpy(), own)


class TestTheseus:
    @pytest.fixture
    def task(self, make, tmp_path):
        return open_task(Theseus, make(tmp_path, {"distill.kind": "theseus", **NO_DROPOUT}))

    def test_the_chance_rises_in_a_line(self, task):
        assert task.steps == 10
        found = [task.chance(step) for step in (0, 1, 3.5, 6, 7, 8, 100)]
        assert found == pytest.approx([0.3, 0.4, 0.65, 0.9, 1, 1, 1])

    def test_the_chance_without_a_rise_is_one(self, make, tmp_path):
        changes = {"distill.kind": "theseus", "distill.replacing_rise": 0.0}
        assert open_task(Theseus, make(tmp_path, changes)).chance(0) == 1.0

    def test_what_is_drawn_is_what_computes(self, task, taught, tiny_data):
        """Neither layer there: the teacher's logits; both: the student's; one: a mixture."""
        (arrays,) = first_step(task)
        inputs = arrays["inputs"]
        task.network.train()
        with paddle.no_grad():
            logits = {}
            for drawn in ((False, False), (True, False), (False, True), (True, True)):
                task.drawn[:] = drawn
                logits[drawn] = task.network(**inputs).numpy()
            task.drawn[:] = (False, False)
            task.network.eval()
            alone = task.network(**inputs).numpy()
        model = answer.load(taught / "bundle", "float32", "cpu", None, None)
        lines = (tiny_data / "train.tsv").read_text().splitlines()[1:]
        texts = [lines[n].split("\t")[1] for n in arrays["texts"]]
        expected = answer.compute_logits(model, texts, None).values
        np.testing.assert_allclose(logits[False, False], expected, atol=1e-4)
        np.testing.assert_allclose(logits[True, True], alone, atol=1e-6)
        both = [logits[True, False], logits[False, True], logits[True, True], expected]
        assert min(np.abs(a - b).max() for n, a in enumerate(both) for b in both[:n]) > 1e-3

    def test_only_its_layers_learn_and_each_has_a_gradient(self, task):
        (arrays,) = first_step(task)
        task.network.train()
        task.drawn[:] = (True, False)
        super(Theseus, task).loss(task.network, arrays).backward()
        for name, parameter in task.network.named_parameters():
            number = name.partition("encoder.layers.")[2].partition(".")[0]
            if not number:
                assert parameter.stop_gradient
                assert parameter.grad is None
            elif "k_proj.bias" not in name:  # softmax does not see it
                assert (float(parameter.grad.abs().sum()) > 0) == (number == "0"), name

    def test_drawing_is_a_function_of_seed_rank_and_step(self, task):
        class Schedule:
            last_epoch = 4

        task.strategy.schedule = Schedule()
        task.network.train()
        (arrays,) = first_step(task)
        found = {}
        for step in [*range(12), *range(12)]:
            start_step(0, 1, step)
            task.loss(task.network, arrays)
            assert found.setdefault(step, list(task.drawn)) == task.drawn
        assert len({tuple(drawn) for drawn in found.values()}) > 2

    def test_two_trainings_one_after_the_other(self, make, taught, tmp_path):
        changes = {
            "distill.kind": "theseus", "distill.replacing_epochs": 2, "trainer.epochs": 1,
            "model.num_hidden_layers": 1,
        }  # fmt: skip
        summary = distilling.distill(make(tmp_path, changes)).summary
        assert summary["dev"]["accuracy"] > 0.8
        assert max(tiny_job.losses(tmp_path / "replacing")) == 20
        assert max(tiny_job.losses(tmp_path)) == 10
        names = "bert.embeddings.word_embeddings.weight", "classifier.weight"
        folders = [taught / "model", tmp_path / "replacing" / "model", tmp_path / "model"]
        weights = [load_file(folder / "model.safetensors") for folder in folders]
        for name in names:
            np.testing.assert_array_equal(weights[0][name], weights[1][name])
            assert (weights[1][name] != weights[2][name]).any()
        assert len(weights[2]) < len(weights[0])


class TestKilled:
    @pytest.mark.parametrize("kind", ["student", "theseus"])
    def test_goes_on_where_it_was(self, make, tmp_path, monkeypatch, kind):
        """With dropout and, of theseus, drawing: bit for bit the losses of a run left alone."""
        changes = {"distill.kind": kind, "trainer.checkpoint_every": 4}
        part = {"student": ".", "theseus": "replacing"}[kind]
        step, done = Single.step, []

        def killed(strategy, arrays):
            done.append(step(strategy, arrays))
            if len(done) == 6:
                raise RuntimeError("killed")
            return done[-1]

        with monkeypatch.context() as patch:
            patch.setattr(Single, "step", killed)
            with pytest.raises(RuntimeError, match="killed"):
                distilling.distill(make(tmp_path / "half", changes))
        assert max(tiny_job.losses(tmp_path / "half" / part)) == 5
        for name in ("half", "whole"):
            distilling.distill(make(tmp_path / name, changes))
        for folder in {part, "."}:
            expected = tiny_job.losses(tmp_path / "whole" / folder)
            assert len(expected) == 10
            assert tiny_job.losses(tmp_path / "half" / folder) == expected

    @pytest.mark.endurance
    @pytest.mark.parametrize("kind", ["student", "theseus"])
    def test_goes_on_in_another_process(self, start, write, kind):
        changes = {"distill.kind": kind, "trainer.checkpoint_every": 4, "trainer.epochs": 2}
        folder = {"student": ".", "theseus": "replacing"}[kind]
        path, output = write(changes)
        process = start(path)
        processes.wait_for_loss(process, output / folder, 6)
        processes.kill(process)
        processes.ended(start(path))
        whole_path, whole = write(changes)
        processes.ended(start(whole_path))
        for part in {folder, "."}:
            assert len(tiny_job.losses(whole / part)) == 20
            assert tiny_job.losses(output / part) == tiny_job.losses(whole / part)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(config, ...) → Popen of launch/distill.py, or of several jobs in two ranks; none
    outlives the tests."""
    started = []

    def call(path, *words, ranks=1):
        launcher = ["--nproc_per_node", str(ranks)] if ranks > 1 else None
        folder, script = tmp_path_factory.mktemp("started"), SEVERAL if ranks > 1 else SCRIPT
        started.append(processes.start(folder, path, *words, launcher=launcher, script=script))
        return started[-1]

    yield call
    for process in started:
        processes.kill(process)


@pytest.fixture(scope="module")
def write(values, tmp_path_factory):
    """write(changes) → (config file, its output folder)."""

    def call(changes):
        folder = tmp_path_factory.mktemp("job")
        path = folder / "job.yaml"
        path.write_text(json.dumps(values(folder / "output", changes)))  # JSON is YAML
        return path, folder / "output"

    return call


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"distill.teacher": "{data}"}, "is neither a model .* nor a bundle"),
            ({"distill.teacher": "{taught}/bundle"}, "model.init: the student cannot start as"),
            (
                {**NARROW, "distill.teacher": "{taught}/bundle"},
                "distill.hidden_weight: .* gives no hidden states; set it to 0",
            ),
            (
                {
                    **NARROW,
                    "distill.teacher": "{taught}/bundle",
                    "task.name": "pair_classification",
                },
                "does classification, the job pair_classification",
            ),
            ({"model.num_hidden_layers": 5}, "the student has 5 layers, the teacher .* 4"),
            ({**NARROW, "model.num_hidden_layers": 5}, "the student has 5 layers, the teacher"),
            ({"distill.start_layers": [1, 5]}, r"distill.start_layers: \[1, 5\], but .* 1 to 4"),
            ({**NARROW, "model.vocab": "{tmp}/vocab.txt"}, "has another vocabulary"),
            ({**NARROW, "model.lowercase": False}, "model.lowercase: false, but the teacher"),
            (
                {"data.train": "{tmp}/train.tsv"},
                "has the labels bad, good, data.train has best, go",
            ),
        ],
    )
    def test_are_sentences(self, make, taught, tiny_data, tmp_path, changes, message):
        table = (tiny_data / "train.tsv").read_text().replace("bad\t", "best\t")
        (tmp_path / "train.tsv").write_text(table)
        words = (tiny_data / "vocab.txt").read_text().split("\n")
        (tmp_path / "vocab.txt").write_text("\n".join([*words[:5], *words[:4:-1]]).strip() + "\n")
        places = {"taught": taught, "data": tiny_data, "tmp": tmp_path}
        changes = {
            name: value.format(**places) if isinstance(value, str) else value
            for name, value in changes.items()
        }
        if "data.train" in changes:
            changes["data.dev"] = None
        with pytest.raises(UserError, match=message):
            distilling.distill(make(tmp_path / "output", changes))

    def test_a_teacher_that_is_no_classifier(self, make, taught, tmp_path):
        folder = shutil.copytree(taught / "model", tmp_path / "model")
        shape = json.loads((folder / "config.json").read_text())
        shape["id2label"]["2"] = "third"
        (folder / "config.json").write_text(json.dumps(shape))
        with pytest.raises(UserError, match=r"distill.teacher: .* is no trained classifier"):
            distilling.distill(make(tmp_path, {"distill.teacher": str(folder)}))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"distill.teacher": None}, "distill.teacher: name the `model` folder"),
            ({"task.name": "mlm"}, "task.name: only classifiers"),
            ({"trainer.compile": True}, "trainer.compile: distillation runs"),
            ({"distill.start_layers": [1]}, "distill.start_layers: needs"),
            ({"model.vocab": "vocab.txt"}, "model.vocab: with init: teacher"),
            ({**NARROW, "distill.kind": "theseus"}, "model.init: theseus needs"),
            ({"distill.kind": "theseus", "trainer.resume": "x"}, "trainer.resume: theseus"),
            (
                {f"distill.{name}_weight": 0 for name in ("labels", "logits", "hidden")},
                "all three weights of the loss are 0",
            ),
        ],
    )
    def test_of_keys_come_first(self, values, tmp_path, changes, message):
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(values(tmp_path / "output", changes)))
        with pytest.raises(UserError, match=message):
            config.load_as(config.Distill, str(path), [])

    def test_leave_with_2(self, tmp_path):
        words = [sys.executable, SCRIPT, "--config", ROOT / "configs" / "distill" / "student.yaml"]
        done = subprocess.run(
            [*words, "distill.teacher=none"], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 2
        assert done.stderr.strip().split("\n")[-1].startswith("error: distill.teacher: none is")


@pytest.mark.parametrize("kind", ["student", "theseus"])
def test_the_configs_are_whole(kind):
    job = config.load_as(config.Distill, str(ROOT / "configs" / "distill" / f"{kind}.yaml"), [])
    assert job.distill.kind == kind


def test_help_has_the_keys():
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True)
    assert "distill.temperature" in done.stdout
    assert "paddle.distributed.launch" in done.stdout
