"""Jobs that distill: a student from a teacher, or early exits from the model itself."""

from __future__ import annotations

from typing import List, Literal, Optional, Union

from pydantic import model_validator

from fleetbert.config.columns import Columns
from fleetbert.config.compression import Gate, Selection, check_gate
from fleetbert.config.inputs import Model
from fleetbert.config.section import Section, key
from fleetbert.config.training import Config, Loss
from fleetbert.core.task_names import SHAPES


class Student(Model):
    init: str = key(
        "teacher",
        "source of the student's weights: teacher (some of its layers, its embeddings and its "
        "head), or as in training, with the teacher's vocabulary",
        common_for=("distill",),
    )
    num_hidden_layers: int = key(
        3, "init teacher, random: the student's number of layers", common_for=("distill",), ge=1
    )


class Distillation(Section):
    kind: Literal["student", "theseus"] = key(
        "student",
        "student: learns the teacher's logits and hidden states; theseus (Xu et al. 2020): its "
        "layers replace the teacher's at random, ever more of them, and then learn alone; self: "
        "early exits of the model itself",
        common_for=("distill",),
    )
    teacher: Optional[str] = key(
        None,
        "the teacher: a run's folder `model`, or package:NAME, a package's model; or, for its "
        "logits only, a bundle, or a cross-validated run's folder, whose bundles teach by their "
        "mean logits",
        common_for=("distill",),
    )
    start_layers: Optional[List[int]] = key(
        None,
        "init teacher: the teacher's layers, from 1, that the student starts as (null: evenly "
        "spaced)",
    )
    labels_weight: float = key(0.5, "student: weight of the task's own loss, by labels", ge=0)
    logits_weight: float = key(
        0.5, "student: weight of the loss against the teacher's outputs", ge=0
    )
    hidden_weight: float = key(
        1.0,
        "student: weight of the mean squared error of hidden states in the loss; layers are mapped "
        "evenly",
        ge=0,
    )
    temperature: float = key(
        2.0, "student: temperature that divides both models' logits before they are compared", gt=0
    )
    replacing_epochs: Optional[int] = key(
        None,
        "theseus: epochs of replacing layers, before trainer.epochs alone (null: as many)",
        ge=1,
    )
    replacing_rate: float = key(
        0.3, "theseus: probability of a student's layer to replace at the first step", ge=0, le=1
    )
    replacing_rise: float = key(
        0.7,
        "theseus: fraction of the replacing steps over which that probability rises to 1",
        ge=0,
        le=1,
    )


class Distill(Config):
    """A distillation job: a training job with a teacher."""

    model: Student = Student()
    distill: Distillation = Distillation()

    @model_validator(mode="after")
    def _teacher_fits(self) -> Distill:
        distill, model = self.distill, self.model
        if distill.teacher is None:
            raise ValueError("distill.teacher: name the `model` folder of a run, or a bundle")
        if not SHAPES[self.task.name].answers:
            raise ValueError(
                f"task.name: {self.task.name} answers nothing that a student could learn; name a "
                "task that answers"
            )
        if self.loss != Loss():
            raise ValueError("loss: distillation has a loss of its own; leave the section out")
        if self.trainer.compile:
            raise ValueError("trainer.compile: distillation runs as Python only; set it to false")
        if model.vocabulary.data is not None:
            raise ValueError(
                "model.vocabulary: a student reads texts as its teacher does; train the teacher "
                "with model.vocabulary and leave it out here"
            )
        for name in ("vocab", "lowercase"):
            if model.init == "teacher" and getattr(model, name) is not None:
                raise ValueError(f"model.{name}: with init: teacher it is the teacher's; leave out")
        if distill.start_layers is not None and (
            model.init != "teacher" or len(distill.start_layers) != model.num_hidden_layers
        ):
            raise ValueError(
                "distill.start_layers: needs model.init: teacher and as many entries as "
                f"model.num_hidden_layers ({model.num_hidden_layers})"
            )
        if distill.kind == "theseus":
            if model.init != "teacher":
                raise ValueError(
                    "model.init: theseus needs layers like the teacher's; set it to teacher"
                )
            if self.trainer.resume not in ("auto", "none"):
                raise ValueError("trainer.resume: theseus trains twice; choose auto or none")
        elif not distill.labels_weight + distill.logits_weight + distill.hidden_weight:
            raise ValueError("distill.logits_weight: all three weights of the loss are 0")
        return self


SELF = ("distill self",)  # the part of `fleetbert distill --help` for early exits


class Exits(Section):
    kind: Literal["self"] = key(
        "self", "self: heads after inner layers, for early exit", common_for=SELF
    )
    head: Literal["pooled", "fastbert"] = key(
        "pooled",
        "architecture of the exit heads: pooled: two linear layers on [CLS] and the mean of all "
        "tokens (of spans on each token, of vectors one layer); fastbert: with attention, as in "
        "the paper (Liu et al. 2020), and slower, for labels and numbers",
    )
    width: Optional[int] = key(
        None,
        "inner width of a head (null: a sixth of the model's, as in the paper, 128 of 768)",
        ge=2,
        multiple_of=2,
    )
    labels_weight: float = key(
        0.0,
        "weight of the labels of data.train in the loss, from 0 (no labels are needed) to 1",
        common_for=SELF,
        ge=0,
        le=1,
    )
    epochs: int = key(10, "passes over the hidden states", common_for=SELF, ge=1)
    learning_rate: float = key(1e-3, "peak learning rate of AdamW", gt=0)
    weight_decay: float = key(0.1, "weight decay of AdamW", ge=0)
    dropout: float = key(0.3, "dropout rate of the heads' input", ge=0, lt=1)
    texts: int = key(20_000, "limit of training texts, drawn at random from data.train", ge=1)
    layers: Union[Literal["auto"], List[int]] = key(
        "auto",
        "layers after which texts may exit (auto: the fastest choice on selection.data)",
        common_for=SELF,
    )
    speed: Optional[float] = key(
        None,
        "exit early when the uncertainty is below this, from 0 to 1 (null: the fastest threshold "
        "on selection.data that loses no more than the gate allows)",
        common_for=SELF,
        gt=0,
        le=1,
    )
    batch_tokens: int = key(
        2048,
        "tokens of the batches that layers and speed are chosen for (1: one text at a time)",
        ge=1,
    )


class Texts(Columns):
    train: Optional[str] = key(
        None,
        "texts like those to come: .tsv, .csv, .jsonl, or one a line",
        common_for=SELF,
    )


class SelfDistill(Section):
    """A job that adds early-exit variants to a bundle."""

    bundle: str = key("output/bundle", "bundle to add the variants to", common_for=SELF)
    sources: Optional[List[str]] = key(
        None,
        "variants to divide into groups of layers (null: float32, and int8-static if it is there)",
    )
    distill: Exits = Exits()
    data: Texts = Texts()
    gate: Gate = Gate()
    selection: Selection = Selection()
    threads: Optional[int] = key(
        None,
        "number of threads (null: all processors); groups of layers are chosen with one thread",
        ge=1,
    )
    seed: int = key(0, "seed of the heads' weights and of the random sample of texts", ge=0)

    @model_validator(mode="after")
    def _keys_agree(self) -> SelfDistill:
        if self.data.train is None:
            raise ValueError("data.train: name a file of texts; labels are not needed")
        check_gate(self.gate)
        return self
