"""The teacher: a network with all its layers, or the logits of a bundle's program; and what a
student takes over from it before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np
from paddle import nn

from fleetbert import bundle as bundles
from fleetbert import config as schema
from fleetbert.core import charset, errors
from fleetbert.core.errors import UserError
from fleetbert.core.task_names import SHAPES
from fleetbert.data import ragged, tokenizers
from fleetbert.data.batching import plan_inference
from fleetbert.data.split import Split
from fleetbert.data.tokenizers import Spec, Tokenizer
from fleetbert.engines import engine
from fleetbert.models import sources, task_heads, weights
from fleetbert.models.network import Shape
from fleetbert.tasks import Task
from fleetbert.tasks import get as get_task
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import TextTask


class Teacher(NamedTuple):
    """What `distill.teacher` names. `source` holds a network's weights; None: it is a bundle.
    digest: of its weights and tokenizer, wherever it is."""

    path: Path
    labels: list[str]
    tokenizer: Spec
    source: sources.Source | None
    digest: str


def open_teacher(job: schema.Distill) -> Teacher:
    """Open `distill.teacher`; UserError if it is not there or does not do the job's task."""
    path = _path(str(job.distill.teacher))
    if members := _members(path):
        opened = [_open_bundle(job, member) for member in members]
        if len({tuple(each.labels) for each in opened}) > 1:
            raise UserError(
                f"distill.teacher: the bundles of {path} have different labels; name a folder that "
                "`fleetbert train --folds` wrote"
            )
        return opened[0]._replace(path=path, digest=" ".join(each.digest for each in opened))
    if not (path / "config.json").is_file():
        raise UserError(
            f"distill.teacher: {path} is neither a model (a folder with config.json, like `model` "
            "of a run, or package:NAME) nor a bundle (one with manifest.json), nor a "
            "cross-validated run (one with fold-1/bundle)"
        )
    with errors.renamed("model.init", "distill.teacher"):
        source = sources.open_source(schema.Model(init=f"{path}/"))
    if SHAPES[job.task.name].least_labels and not source.head_labels:
        raise UserError(
            f"distill.teacher: {path} is no trained classifier: its weights and the id2label of "
            "its config.json do not give each label a logit; name the `model` folder of a run"
        )
    digest = weights.digest(source.tokenizer, source.tensors)
    return Teacher(path, list(source.head_labels), source.tokenizer, source, digest)


def _path(teacher: str) -> Path:
    """The folder that `distill.teacher` names; of a package, the one with its config.json."""
    if not teacher.startswith("package:"):
        return Path(teacher)
    with errors.renamed("model.init", "distill.teacher"):
        return sources.package_folder(teacher.split(":", 1)[1])


def _members(path: Path) -> list[Path]:
    """The bundle at `path`, or those of a cross-validated run; none of anything else."""
    if (path / bundles.MANIFEST).is_file():
        return [path]
    return [manifest.parent for manifest in sorted(path.glob(f"fold-*/bundle/{bundles.MANIFEST}"))]


def _open_bundle(job: schema.Distill, path: Path) -> Teacher:
    bundle = bundles.read(path)
    get_task(bundle.task.name).check_of_texts(str(path), "fleetbert distill")
    bundles.verify(bundle, "float32")
    if bundle.task.name != job.task.name:
        raise UserError(
            f"distill.teacher: the bundle {path} does {bundle.task.name}, the job "
            f"{job.task.name} (task.name)"
        )
    shape = SHAPES[job.task.name]
    if shape.per_token or shape.pooled or shape.label == "relevance":
        raise UserError(
            f"distill.teacher: {path} is a bundle, which teaches tasks with one answer for each "
            f"text, and {shape.name} has others; name the run's `model` folder"
        )
    if job.model.init == "teacher":
        raise UserError(
            f"model.init: the student cannot start as layers of the bundle {path}, which has only "
            "a program; name the run's `model` folder as distill.teacher, or another model.init"
        )
    if job.distill.hidden_weight:
        raise UserError(
            f"distill.hidden_weight: the program of the bundle {path} gives no hidden states; set "
            "it to 0, or name the run's `model` folder as distill.teacher"
        )
    program = " ".join(file.sha256 for file in bundle.variant("float32").files)
    digest = f"{weights.digest(bundle.tokenizer)} {program}"
    return Teacher(path, list(bundle.labels), bundle.tokenizer, None, digest)


def evenly(layers: int, teacher_layers: int) -> list[int]:
    """The teacher's layer (from 1) at the same share of the depth, for each of a student's."""
    return [number * teacher_layers // layers for number in range(1, layers + 1)]


def student_source(job: schema.Distill, teacher: Teacher) -> sources.Source:
    """What the student starts from; UserError if it reads texts in another way than the teacher."""
    if job.model.init == "teacher":
        return _some_layers(job, teacher)
    source = sources.open_source(job.model)
    vocab, teacher_vocab = (next(iter(s.tokenizer.files.values())) for s in (source, teacher))
    words = [charset.read_text(path, "vocabulary").split("\n") for path in (vocab, teacher_vocab)]
    if words[0] != words[1]:
        raise UserError(
            f"distill.teacher: {teacher.path} has another vocabulary than the student, "
            f"{vocab}; take {teacher_vocab} as model.vocab, or another teacher"
        )
    for name, values in tokenizers.differing(source.tokenizer, teacher.tokenizer).items():
        value, theirs = map(schema.yaml_word, values)
        if name == "lowercase":
            raise UserError(
                f"model.lowercase: {value}, but the teacher {teacher.path} has {theirs}; set it to "
                "that"
            )
        raise UserError(
            f"model.init: the tokenizer of {source.name} has {name}: {value}, but the teacher "
            f"{teacher.path} has {theirs}; a student has to read texts as its teacher does"
        )
    if teacher.source is not None and job.distill.hidden_weight:
        _check_layers(source.shape["num_hidden_layers"], teacher)
    return source


def _some_layers(job: schema.Distill, teacher: Teacher) -> sources.Source:
    """The teacher's weights without some of its layers."""
    layers = job.model.num_hidden_layers
    total = _check_layers(layers, teacher)
    chosen = job.distill.start_layers or evenly(layers, total)
    if not all(1 <= number <= total for number in chosen):
        raise UserError(
            f"distill.start_layers: {chosen}, but the layers of the teacher {teacher.path} are 1 "
            f"to {total}"
        )
    model = schema.Model(init=f"{teacher.path}/", dropout=job.model.dropout)
    source = sources.open_source(model)
    tensors = {}
    for name, tensor in (source.tensors or {}).items():
        head, sign, rest = name.partition("encoder.layers.")
        if not sign:
            tensors[name] = tensor
            continue
        number, _, part = rest.partition(".")
        for new, old in enumerate(chosen):
            if int(number) + 1 == old:
                tensors[f"{head}{sign}{new}.{part}"] = tensor
    shape: Shape = {**source.shape, "num_hidden_layers": layers}
    return source._replace(name=str(teacher.path), shape=shape, tensors=tensors)


def _check_layers(layers: int, teacher: Teacher) -> int:
    """The number of the teacher's layers; UserError if the student's are more."""
    assert teacher.source is not None
    total = teacher.source.shape["num_hidden_layers"]
    if layers > total:
        raise UserError(
            f"model.num_hidden_layers: the student has {layers} layers, the teacher "
            f"{teacher.path} {total}; it cannot have more"
        )
    return total


def places(teacher: Teacher, labels: Sequence[str]) -> np.ndarray:
    """int64 [labels]: the teacher's logit for each label of the training texts; UserError unless
    it has the same labels, in whatever order."""
    rows = weights.match_labels(teacher.labels, labels)
    if rows is None or len(labels) != len(teacher.labels) or (rows < 0).any():
        raise UserError(
            f"distill.teacher: {teacher.path} has the labels {weights.few(teacher.labels)}, "
            f"data.train has {weights.few(labels)}; they must be the same"
        )
    return rows


class Taught(TextTask):
    """A task whose network learns from a teacher."""

    def __init__(self, teacher: Teacher, strategy: Single, *arguments: Any):
        super().__init__(*arguments)
        self.origins["distill.teacher"] = teacher.digest
        self.strategy = strategy
        self.teacher_notes = []
        named = self.labels if self.task.shape.least_labels else []  # of logits
        if named and list(places(teacher, named)) != list(range(len(named))):
            self.teacher_notes.append(
                f"{teacher.path}: the teacher's labels, {weights.few(teacher.labels)}, are put in "
                f"the order {weights.few(self.labels)}"
            )

    def notes(self) -> list[str]:
        return [*super().notes(), *self.teacher_notes]


def build(teacher: Teacher, task: Task, labels: Sequence[str]) -> nn.Layer:
    """The teacher's network, which stays as it is, with its logits in the order of `labels`;
    UserError where it has no head for the task."""
    source = teacher.source
    assert source is not None
    pad_id = tokenizers.open(source.tokenizer).pad_id
    config = weights.bert_config(source, task.outputs(labels), 0, pad_id)
    network = task_heads.build(task.name, config)
    if fresh := weights.load(network, source, labels).fresh:
        raise UserError(
            f"distill.teacher: {teacher.path} has no weights for {', '.join(fresh)}, so it does "
            f"not do {task.name}; name the `model` folder of a run"
        )
    for parameter in network.parameters():
        parameter.stop_gradient = True
    network.eval()
    return network


def bundle_logits(
    teacher: Teacher, split: Split, tokenizer: Tokenizer, strategy: Single, labels: Sequence[str]
) -> np.ndarray:
    """Outputs that the bundle's program gives, of a cross-validated run the mean of its bundles',
    shared out over the ranks: float32 [texts, labels] in the order of `labels`, or [texts, 1] of
    numbers.

    All are computed before the first step, so that a resumed run learns from the same ones.
    """
    columns = places(teacher, labels) if labels else slice(None)
    device = "gpu" if strategy.device == "gpu" else "cpu"
    members = [bundles.read(path) for path in _members(teacher.path)]
    opened = [engine.open(bundle, "float32", device, pad_id=tokenizer.pad_id) for bundle in members]
    texts, layout = ragged.rows(split.encodings)
    batches = plan_inference(texts.lengths, engine.BATCH_TOKENS)
    mine = [
        (indices, np.mean([each.run(batch) for each in opened], axis=0)[:, columns])
        for indices, batch in texts.parts(batches[strategy.rank :: strategy.world_size])
    ]
    strategy.barrier()  # `gather` does not wait for long
    logits = np.zeros((len(texts.lengths), max(1, len(labels))), np.float32)
    for rank in strategy.gather(mine):
        for indices, values in rank:
            logits[indices] = values
    return get_task(members[0].task.name).answer.pool(logits, layout)
