"""A teacher of four layers, and the smaller models that learn from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import paddle
import processes
import pytest
import several_jobs
import tiny_job
from compressing import in_two_ranks, killed_after
from halves import needs_bfloat16
from safetensors.numpy import load_file, save_file
from scipy.special import softmax

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression.distill import job as distilling
from fleetbert.compression.distill import student, teacher
from fleetbert.compression.distill.theseus import Theseus
from fleetbert.core.errors import UserError
from fleetbert.engines import answer
from fleetbert.models import fused, layers
from fleetbert.training.job import train
from fleetbert.training.strategies.single import Single

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


@pytest.fixture(scope="module")
def taught(tiny_data, tmp_path_factory):
    """The run folder of a teacher that is right. Do not change it."""
    output = tmp_path_factory.mktemp("teacher")
    changes = {"model.num_hidden_layers": 4, "trainer.epochs": 3, "trainer.seed": 1}
    summary = train(tiny_job.job(tiny_data, output, changes)).summary
    assert summary["dev"]["accuracy"] > 0.8
    return output


@pytest.fixture(scope="module")
def values(tiny_data, taught):
    """values(output, changes) → the job as its YAML file would have it."""

    def call(output, changes=None):
        start = {"distill.teacher": str(taught / "model")}
        if (changes or {}).get("model.init") != "random":
            start.update({"model": {"init": "teacher", "num_hidden_layers": 2}})
        return tiny_job.values(tiny_data, output, {**start, **(changes or {})})

    return call


@pytest.fixture(scope="module")
def make(values):
    """make(output, changes) → the job."""
    return lambda output, changes=None: config.Distill.model_validate(values(output, changes))


def open_task(kind, job):
    return distilling._open(kind, job, Single("cpu"))


def first_step(task, parts=1):
    return task.micro_batches(task.plan(0)[0], 0, parts, slice(0, parts))


def run_one(network, ids):
    """(logits [labels], [layers] outputs [length, width]) of one text."""
    inputs = paddle.to_tensor(ids.astype(np.int64)[None])
    layers, hidden = network.network.bert.encoder.layers, []
    hooks = [
        layer.register_forward_post_hook(lambda _, __, output: hidden.append(output.numpy()[0]))
        for layer in layers
    ]
    logits = network(inputs, paddle.zeros_like(inputs))
    for hook in hooks:
        hook.remove()
    logits = logits[0] if isinstance(logits, tuple) else logits  # a student gives its layers' too
    return logits.numpy()[0], hidden


class TestLoss:
    @pytest.mark.parametrize(
        ("shape", "batching", "parts"),
        [(NARROW, "pad", 1), (NARROW, "pack", 3), ({}, "pad", 3), ({}, "pack", 1)],
        ids=["narrow-pad-1", "narrow-pack-3", "wide-pad-3", "wide-pack-1"],
    )
    def test_is_that_of_numpy(self, make, tmp_path, shape, batching, parts):
        """Of a narrower student and of one as wide as its teacher, text by text; in one part or
        three."""
        weights = {"labels_weight": 0.3, "logits_weight": 0.7, "hidden_weight": 1.1}
        weights["temperature"] = 2.5
        changes = {f"distill.{name}": value for name, value in weights.items()}
        job = make(tmp_path, {**changes, **shape, "data.batching": batching})
        task = open_task(student.Student, job)
        task.network.eval()
        found = sum(float(task.loss(task.network, part)) for part in first_step(task, parts))

        total = 0.0
        indices = task.plan(0)[0]
        for index in indices:
            logits, own = run_one(task.network, task.train.encodings.ids[index])
            wanted, known = run_one(task.teacher, task.train.encodings.ids[index])
            if shape:
                layers = zip(own, task.network.projections)
                own = [h @ p.weight.numpy() + p.bias.numpy() for h, p in layers]
            labels = -np.log(softmax(logits)[task.train.labels[index]])
            soft = -(softmax(wanted / 2.5) * np.log(softmax(logits / 2.5))).sum() * 2.5**2
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

    def test_resumes_only_with_the_same_teacher_and_loss(self, learned, make, tmp_path):
        output = shutil.copytree(learned[0], tmp_path / "output")
        job = make(output, {"trainer.epochs": 3, "distill.temperature": 3.0})
        with pytest.raises(UserError, match=r"trained with distill.temperature: 2.0, this job has"):
            distilling.distill(job)
        plain = job.model_dump(exclude={"distill"})
        plain["model"].update(init=str(output / "model"))
        with pytest.raises(UserError, match="trained with"):
            train(config.Config.model_validate(plain))

    @pytest.mark.slow
    def test_goes_on_with_the_same_teacher_at_another_path(
        self, learned, make, taught, tmp_path, caplog
    ):
        """And refuses another one there, or where its own was."""
        output = Path(shutil.copytree(learned[0], tmp_path / "output"))
        moved = Path(shutil.copytree(taught / "model", tmp_path / "moved"))
        job = make(output, {"trainer.epochs": 2, "distill.teacher": str(moved)})
        distilling.distill(job)
        assert "nothing is left to train" in caplog.text
        change_weights(moved)
        with pytest.raises(UserError, match=r"trained with distill\.teacher: .*, this job has"):
            distilling.distill(job)
        again = make(tmp_path / "again", {"distill.teacher": str(moved), "trainer.max_steps": 1})
        distilling.distill(again)
        change_weights(moved)
        with pytest.raises(UserError, match=r"the teacher has changed since; start anew with"):
            distilling.distill(again)

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

    def test_the_model_of_a_package_is_the_same_teacher(self, make, taught, tmp_path, monkeypatch):
        package = tmp_path / "a_package"
        shutil.copytree(taught / "model", package / "model")
        (package / "__init__.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
        job = make(tmp_path, {"distill.teacher": "package:a_package"})
        opened = teacher.open_teacher(job)
        assert opened.digest == teacher.open_teacher(make(tmp_path)).digest
        assert len(teacher.student_source(job, opened).tensors) > 0


@pytest.mark.slow
def test_two_ranks_have_the_losses_of_one(make, values, tmp_path):
    """A narrower student, with projections; then theseus."""
    narrower = {**NARROW, **NO_DROPOUT, "trainer.max_steps": 6}
    theseus = {"distill.kind": "theseus", "distill.replacing_rise": 1.0, "trainer.max_steps": 4}
    in_two_ranks(
        tmp_path,
        Path(several_jobs.__file__),
        values(tmp_path / "narrower", narrower),
        values(tmp_path / "theseus", theseus),
    )
    distilling.distill(make(tmp_path / "alone", narrower))
    output, expected = tmp_path / "narrower", tiny_job.losses(tmp_path / "alone")
    assert len(expected) == 6
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)
    names = load_file(output / "model" / "model.safetensors")
    assert not [name for name in names if "projections" in name]
    step = output / "checkpoints" / "step-00000006" / "model.pdparams"
    assert "projections.1.weight" in paddle.load(str(step))
    assert json.loads((tmp_path / "theseus" / "summary.json").read_text())["world_size"] == 2
    assert len(tiny_job.losses(tmp_path / "theseus" / "replacing")) == 4


def test_a_bundle_gives_the_logits_of_its_network(make, taught, tmp_path):
    changes = {**LOGITS_ONLY, "distill.teacher": str(taught / "bundle")}
    task = open_task(student.Student, make(tmp_path, changes))
    beside = open_task(student.Student, make(tmp_path, LOGITS_ONLY))
    assert len(task.logits) == 160
    for one, other in zip(first_step(task, 2), first_step(beside, 2)):
        expected = beside.teacher(**other["inputs"]).numpy()
        np.testing.assert_allclose(task._teach(one).numpy(), expected, atol=1e-4)


@pytest.mark.slow
@needs_bfloat16
def test_student_and_teacher_compute_in_bfloat16(make, tmp_path):
    distilling.distill(make(tmp_path / "float32"))
    job = make(tmp_path / "mixed", {"precision.level": "O1", "precision.dtype": "bfloat16"})
    distilling.distill(job)
    losses = [tiny_job.losses(tmp_path / name) for name in ("float32", "mixed")]
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    task = open_task(student.Student, job)
    (part,) = first_step(task)
    own = task._teach(part).numpy()
    with layers.during(fused.Functions(fused.BFLOAT16)):
        mixed = task._teach(part).numpy()
    np.testing.assert_allclose(mixed, own, atol=0.03 * np.abs(own).max())
    assert not np.array_equal(mixed, own)


class TestTheseus:
    @pytest.fixture
    def task(self, make, tmp_path):
        return open_task(Theseus, make(tmp_path, {"distill.kind": "theseus", **NO_DROPOUT}))

    def test_the_chance_rises_in_a_line(self, task):
        assert task.steps == 10
        found = [task.chance(step) for step in (0, 1, 3.5, 6, 7, 8, 100)]
        assert found == pytest.approx([0.3, 0.4, 0.65, 0.9, 1, 1, 1])
        task.steps = 0
        assert task.chance(0) == 1.0  # without a rise

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

    @pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "part"), [("student", "."), ("theseus", "replacing")])
def test_a_killed_run_goes_on_where_it_was(make, tmp_path, kind, part):
    """With dropout and, of theseus, drawing: bit for bit the losses of a run left alone."""
    changes = {"distill.kind": kind, "trainer.checkpoint_every": 4, "trainer.max_steps": 7}
    with killed_after(6):
        distilling.distill(make(tmp_path / "half", changes))
    assert max(tiny_job.losses(tmp_path / "half" / part)) == 5
    for name in ("half", "whole"):
        distilling.distill(make(tmp_path / name, changes))
    for folder in {part, "."}:
        expected = tiny_job.losses(tmp_path / "whole" / folder)
        assert len(expected) == 7
        assert tiny_job.losses(tmp_path / "half" / folder) == expected


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"distill.teacher": "{data}"}, "is neither a model .* nor a bundle"),
            (
                {"distill.teacher": "package:no_such"},
                "distill.teacher: .* no_such is not installed",
            ),
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
            ({"task.name": "mlm"}, "task.name: mlm answers nothing"),
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
    def test_of_keys_come_first(self, make, tmp_path, changes, message):
        with pytest.raises(ValueError, match=message):
            make(tmp_path / "output", changes)


@pytest.mark.parametrize("kind", ["student", "theseus"])
def test_the_configs_are_whole(kind):
    job = config.load_as(
        config.Distill, str(processes.ROOT / "configs" / "distill" / f"{kind}.yaml"), []
    )
    assert job.distill.kind == kind


OTHER_TASKS = {
    "regression": tiny_job.number_rows,
    "ranking": lambda count, seed: tiny_job.ranked_rows(count // 6, seed),
    "embedding": lambda count, seed: tiny_job.vector_rows(count, seed, numbers=True),
    "multi_label_classification": tiny_job.label_rows,
    "token_classification": None,
    "question_answering": tiny_job.question_rows,
}


@pytest.mark.slow
@pytest.mark.parametrize("task", OTHER_TASKS)
def test_students_of_other_tasks(task, tiny_vocab, tmp_path):
    """A teacher that learned a little teaches two layers: their outputs come near its own, and a
    bundle of them is there. Theseus' layers replace the teacher's."""
    tables = {}
    for name, count, seed in (("train", 120, 1), ("dev", 36, 2)):
        if OTHER_TASKS[task] is None:
            tables[name] = tmp_path / f"{name}.conll"
            tiny_job.write_tags(tables[name], count, seed)
        else:
            tables[name] = tmp_path / f"{name}.jsonl"
            rows = map(json.dumps, OTHER_TASKS[task](count, seed))
            tables[name].write_text("\n".join(rows), encoding="utf-8")
    common = {
        "task.name": task, "data.train": str(tables["train"]), "data.dev": str(tables["dev"]),
        "trainer.epochs": 2, "optimizer.learning_rate": 1e-3,
    }  # fmt: skip
    run = tmp_path / "teacher"
    train(tiny_job.job(tmp_path, run, {**common, "model.vocab": str(tiny_vocab)}))
    changes = {
        "distill.teacher": str(run / "model"), "distill.labels_weight": 0.5,
        "model": {"init": "teacher", "num_hidden_layers": 2, "dropout": 0.0},
    }  # fmt: skip
    jobs = {
        kind: config.Distill.model_validate(
            tiny_job.values(tmp_path, tmp_path / kind, {**common, **changes, "distill.kind": kind})
        )
        for kind in ("student", "theseus")
    }
    opened = open_task(student.Student, jobs["student"])
    loss = opened.loss(opened.network, first_step(opened)[0])
    assert np.isfinite(float(loss)) and float(loss) > 0
    for kind, job in jobs.items():
        distilling.distill(job)
        assert bundles.read(tmp_path / kind / "bundle").task.name == task
        steps = (tmp_path / kind / "metrics.jsonl").read_text().splitlines()
        assert len(steps) > 1
