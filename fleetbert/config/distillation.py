"""Jobs that distill: a student from a teacher, or early exits from the model itself."""

from __future__ import annotations

from typing import List, Literal, Optional, Union

from pydantic import model_validator

from fleetbert.config.compression import Gate, Selection
from fleetbert.config.section import Section, key
from fleetbert.config.training import Config, Loss, Model
from fleetbert.core.task_names import KINDS


class Student(Model):
    init: str = key(
        "teacher",
        "where the student starts: teacher (some of its layers, and its embeddings and head), or "
        "as in training, with the teacher's vocabulary",
    )
    num_hidden_layers: int = key(3, "teacher, random: layers", ge=1)


class Distillation(Section):
    kind: Literal["student", "theseus"] = key(
        "student",
        "student: learns the teacher's logits and hidden states; theseus: its layers take the "
        "places of the teacher's by chance, ever more of them, and then learn on alone",
    )
    teacher: Optional[str] = key(
        None, "a run's folder `model`, or, for its logits only, a bundle with the variant float32"
    )
    start_layers: Optional[List[int]] = key(
        None, "init teacher: its layers, from 1, that the student's start as (null: evenly)"
    )
    labels_weight: float = key(0.5, "student: of the labels' cross entropy in the loss", ge=0)
    logits_weight: float = key(0.5, "student: of the soft cross entropy", ge=0)
    hidden_weight: float = key(
        1.0, "student: of the mean squared error of its layers' outputs, mapped evenly", ge=0
    )
    temperature: float = key(2.0, "student: that soft cross entropy divides logits by", gt=0)
    replacing_epochs: Optional[int] = key(
        None, "theseus: epochs of replacing, before trainer.epochs alone (null: as many)", ge=1
    )
    replacing_rate: float = key(
        0.3, "theseus: chance of a student's layer to be there at the first step", ge=0, le=1
    )
    replacing_rise: float = key(
        0.7, "theseus: share of the replacing steps over which it rises to 1", ge=0, le=1
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
        if self.task.name in ("mlm", "ctr") or KINDS[self.task.name].label != "name":
            raise ValueError("task.name: only classifiers of texts and pairs can be distilled")
        if self.loss != Loss():
            raise ValueError("loss: distillation has a loss of its own; leave the section out")
        if self.trainer.compile:
            raise ValueError("trainer.compile: distillation runs as Python only; set it to false")
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


class Exits(Section):
    kind: Literal["self"] = key("self", "self: heads after inner layers, for early exit")
    head: Literal["pooled", "fastbert"] = key(
        "pooled",
        "pooled: two linear layers on [CLS] and the mean of all tokens; fastbert: as in the paper, "
        "with attention of its own, and slower",
    )
    width: Optional[int] = key(
        None,
        "inner width of a head (null: a sixth of the model's, as in the paper, 128 of 768)",
        ge=2,
        multiple_of=2,
    )
    labels_weight: float = key(
        0.0, "share of the loss that the labels of data.train make up; 0 needs none", ge=0, le=1
    )
    weighting: Literal["none", "uncertainty"] = key(
        "none",
        "uncertainty: the surer an earlier head is of a text, the less it counts for the later "
        "ones, which it would not reach; a fifth of the texts, drawn anew each epoch, counts whole",
    )
    epochs: int = key(10, "passes over the hidden states", ge=1)
    learning_rate: float = key(1e-3, "AdamW's, at its highest", gt=0)
    weight_decay: float = key(0.1, "AdamW's", ge=0)
    dropout: float = key(0.3, "of what a head reads", ge=0, lt=1)
    texts: int = key(20_000, "how many of data.train at most, drawn by chance", ge=1)
    layers: Union[Literal["auto"], List[int]] = key(
        "auto", "the last layer of each group (auto: what is fastest on selection.data)"
    )
    speed: Optional[float] = key(
        None,
        "exit early when the uncertainty is below this, 0 to 1 (null: what is fastest on "
        "selection.data and loses no more than the gate allows)",
        gt=0,
        le=1,
    )
    batch_tokens: int = key(
        2048,
        "tokens of the batches that layers and speed are chosen for; 1: texts come alone",
        ge=1,
    )


class Texts(Section):
    train: Optional[str] = key(None, "texts like those to come: .tsv, .csv, .jsonl, or one a line")


class SelfDistill(Section):
    """A job that adds early-exit variants to a bundle."""

    bundle: str = key("output/bundle", "the bundle to add variants to")
    sources: Optional[List[str]] = key(
        None,
        "variants to cut into groups of layers (null: float32, and int8-static where it is)",
    )
    distill: Exits = Exits()
    data: Texts = Texts()
    gate: Gate = Gate()
    selection: Selection = Selection()
    threads: Optional[int] = key(
        None, "for all but the choice of groups, which takes one (null: all processors)", ge=1
    )
    seed: int = key(0, "of the heads and of drawing texts", ge=0)

    @model_validator(mode="after")
    def _keys_agree(self) -> SelfDistill:
        if self.data.train is None:
            raise ValueError("data.train: name a file of texts; labels are not needed")
        if self.gate.data is None:
            raise ValueError(
                "gate.data: name a labelled table; a variant is added only after it was measured"
            )
        return self
