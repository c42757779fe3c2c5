"""A job that adds a smaller and faster variant to a bundle."""

from __future__ import annotations

from typing import Dict, List, Literal, Mapping, Optional

from pydantic import model_validator

from fleetbert.config.callbacks import Callbacks
from fleetbert.config.inputs import Data, Vocabulary, check_data
from fleetbert.config.section import Section, key
from fleetbert.config.training import Config, Optimizer, Precision, Strategy, Trainer

# Methods that train, in one process or in ranks, and those that need texts to calibrate with.
TRAINED = ("qat", "prune")
CALIBRATED = ("static", "onnx")
NEED_TEXTS = (*CALIBRATED, "paddleslim")

# What keys are where a job with such a method leaves them out: the recipes of configs/quantize/,
# whose figures are measured, whatever suits training from the start.
RECIPES: Mapping[str, Mapping[str, object]] = {
    "qat": {
        "dropout": 0.0,
        "optimizer": {"learning_rate": 3e-6},
        "trainer": {"epochs": 1, "eval_every": 30, "best_metric": "loss"},
    },
}
# The share of the loss that the answers of the model as it was make up, where labels are compared.
SOFT = {"qat": 1.0, "prune": 0.5}


# The commands whose --help shows a key.
QUANTIZE, GATED = ("quantize",), ("quantize", "distill self", "compress")


class Calibration(Section):
    data: Optional[str] = key(
        None,
        "static, onnx, paddleslim: calibration texts, like those to come, without labels: .tsv, "
        ".csv, .jsonl, or one a line",
        common_for=QUANTIZE,
    )
    texts: int = key(512, "number of calibration texts, a random sample", ge=1)
    algorithm: Literal["abs_max", "avg"] = key(
        "avg",
        "range of an activation: the mean of the batches' largest magnitudes (avg), or the largest "
        "of all (abs_max)",
    )
    smooth: Literal["none", "auto"] = key(
        "auto",
        "auto: smoothing scales (SmoothQuant), which move outliers of a layer's input into its "
        "weights, where that changes the layer's outputs less (static: on calibration texts; qat: "
        "on texts of data.train)",
    )
    split: Literal["none", "auto"] = key(
        "auto",
        "static, qat: auto: split feed-forward channels that are far larger than the others, where "
        "that changes the outputs less",
    )
    correct_bias: bool = key(
        True,
        "static: bias correction: subtract the mean change of each output on calibration texts "
        "from its bias",
    )
    seed: int = key(0, "seed of the random sample of calibration texts", ge=0)


class Gate(Section):
    data: Optional[str] = key(
        None,
        "labelled table that every variant is evaluated on; nothing is chosen on it",
        common_for=GATED,
    )
    max_accuracy_drop: float = key(
        0.005,
        "largest drop of accuracy (0 to 1) below float32 that is accepted",
        common_for=GATED,
        ge=-1,
        le=1,
    )
    decide: Literal["point", "confident"] = key(
        "point",
        "figure that must not exceed max_accuracy_drop: point: the drop on gate.data; confident: "
        "the upper end of its 95 % interval",
        common_for=QUANTIZE,
    )


def check_gate(gate: Gate) -> None:
    if gate.data is None:
        raise ValueError(
            "gate.data: name a labelled table; a variant is added only after it was measured"
        )


class Selection(Section):
    data: Optional[str] = key(
        None,
        "labelled table on which onnx and early exit choose, never gate.data (null: texts "
        "held out of calibration.data, or of data.train for early exit, with their labels, or "
        "float32's answers where they have none)",
        common_for=QUANTIZE,
    )
    texts: int = key(
        1000, "limit of these texts, a random sample; at most a fifth is held out", ge=1
    )


class Onnx(Section):
    activations: Literal["auto", "dynamic", "static"] = key(
        "auto",
        "quantization of activations: dynamic: a scale for each token; static: scales from "
        "calibration texts; auto: the faster of both that keeps gate.max_accuracy_drop on texts "
        "held out",
    )


class PaddleSlim(Section):
    strategy: Literal[
        "quant_post", "qat", "dygraph_qat", "asp", "unstructured", "transformer_prune"
    ] = key(
        "quant_post",
        "PaddleSlim's strategy, with settings for an encoder: quant_post: int8 by calibration; "
        "qat: int8 by training the program; dygraph_qat: by paddleslim.QAT, which trains the "
        "network; asp: 2:4 sparse weights; unstructured: half of the weights 0; "
        "transformer_prune: a quarter of the heads and feed-forward units removed",
    )
    config: Optional[str] = key(
        None, "YAML file of PaddleSlim's AutoCompression, instead of strategy"
    )


class SoftLabels(Section):
    weight: Optional[float] = key(
        None,
        "qat, prune: weight in the loss of the soft labels, which are the answers of the model "
        "before (null: 1 for qat, 0.5 for prune; 0 for tasks whose answer is not one label)",
        ge=0,
        le=1,
    )
    temperature: float = key(2.0, "qat, prune: temperature that divides both models' logits", gt=0)


class Prune(Section):
    layers: float = key(
        0.0,
        "fraction of the encoder's layers to remove, from the top; at least one stays",
        ge=0,
        lt=1,
    )
    heads: float = key(
        0.33, "fraction of each layer's attention heads to remove; at least one stays", ge=0, lt=1
    )
    feed_forward: float = key(
        0.5,
        "fraction of each layer's feed-forward units to remove; a multiple of 16 stays",
        ge=0,
        lt=1,
    )
    texts: int = key(
        1024,
        "texts of data.train, a random sample, that show which heads and units matter least",
        ge=1,
    )


class Trimming(Vocabulary):
    data: Optional[str] = key(
        None,
        "vocabulary: keep only the tokens of these texts (.tsv, .csv, .jsonl, or one a line), "
        "special tokens and single characters",
        common_for=QUANTIZE,
    )
    into: Optional[str] = key(
        None,
        "vocabulary: folder of the new bundle, because ids change (null: the bundle's folder with "
        "-vocabulary behind its name)",
    )


class Quantize(Section):
    """A job that adds a smaller and faster variant to a bundle."""

    bundle: str = key("output/bundle", "bundle to add the variant to", common_for=QUANTIZE)
    method: Literal[
        "dynamic", "static", "qat", "prune", "onnx", "bfloat16", "paddleslim", "vocabulary"
    ] = key(
        "static",
        "method of compression: dynamic: integer weights, needs no data; static: int8 weights and "
        "activations, needs calibration.data; qat: quantization-aware training, needs data.train "
        "(other keys default to configs/quantize/qat.yaml); prune: fewer layers, attention "
        "heads and feed-forward units in float32, needs data.train; onnx: int8 by ONNX Runtime, "
        "needs calibration.data; bfloat16: needs a processor with AVX512-BF16 or AMX; paddleslim: "
        "PaddleSlim's AutoCompression, needs calibration.data; vocabulary: a new bundle with fewer "
        "tokens, from which other methods start, needs vocabulary.data",
        common_for=QUANTIZE,
    )
    source: str = key(
        "float32",
        "variant to start from: float32, or a pruned one; the gate compares with float32 in either "
        "case",
        common_for=QUANTIZE,
    )
    name: Optional[str] = key(
        None,
        "name of the new variant (null: int8-dynamic, int8-static, pruned-float32, "
        "pruned-int8-static, ...)",
        common_for=QUANTIZE,
        pattern=r"^[a-z0-9][a-z0-9-]*$",
    )
    bits: Literal[8, 16] = key(8, "dynamic: bits of a weight")
    skip: List[str] = key(
        [], "names of weights to leave in float32; * matches anything", common_for=QUANTIZE
    )
    calibration: Calibration = Calibration()
    gate: Gate = Gate()
    selection: Selection = Selection()
    onnx: Onnx = Onnx()
    paddleslim: PaddleSlim = PaddleSlim()
    report: Optional[str] = key(
        None,
        "HTML report, also of a variant that is rejected (null: quantize-report.html in the "
        "bundle's folder, which is no part of the bundle)",
    )
    threads: Optional[int] = key(
        None, "threads of the engines that are measured (null: all processors)", ge=1
    )
    prune: Prune = Prune()
    vocabulary: Trimming = Trimming()
    distill: SoftLabels = SoftLabels()
    dropout: float = key(0.1, "prune: dropout rate (qat: 0)", ge=0, lt=1)
    held_out: float = key(
        0.1,
        "qat, prune: fraction of data.train held out to choose the best step, if data.dev is left "
        "out or is gate.data, on which nothing is chosen",
        gt=0,
        lt=1,
    )
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    strategy: Strategy = Strategy()
    trainer: Trainer = Trainer()
    callbacks: Callbacks = Callbacks()
    output_dir: str = key("output", "qat, prune: folder for checkpoints and metrics")

    @model_validator(mode="before")
    @classmethod
    def _take_the_recipe(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        return _below(RECIPES.get(str(values.get("method")), {}), values)

    @model_validator(mode="after")
    def _keys_agree(self) -> Quantize:
        if self.method in TRAINED:
            check_data(self.data)
            if self.trainer.compile:
                raise ValueError(
                    f"trainer.compile: does not go together with method: {self.method}"
                )
        if self.method == "prune":
            if self.skip:
                raise ValueError("skip: method: prune takes as much from every layer; leave it out")
            if not (self.prune.layers or self.prune.heads or self.prune.feed_forward):
                raise ValueError(
                    "prune.heads: is 0, and so are prune.layers and prune.feed_forward: nothing to "
                    "do"
                )
        if self.method == "paddleslim" and self.skip:
            raise ValueError(
                "skip: PaddleSlim's own file says what stays in float32; leave it out, or choose "
                "method: static"
            )
        if self.method == "vocabulary":
            if self.vocabulary.data is None:
                raise ValueError(
                    "vocabulary.data: name a file of texts like those to come; the others of "
                    "the model's tokens are removed"
                )
            if self.source != "float32" or self.name is not None:
                raise ValueError(
                    "source: method: vocabulary makes a new bundle from float32, before any other "
                    "method; leave source and name out"
                )
        if self.name in ("float32", self.source):
            raise ValueError(
                f"name: {self.name} is the variant that the new one is measured against or made "
                "from; choose another"
            )
        check_gate(self.gate)
        if self.method in NEED_TEXTS and self.calibration.data is None:
            raise ValueError(
                f"calibration.data: method: {self.method} needs texts to see how large activations "
                "get; name a file, labels are not needed"
            )
        if self.method != "dynamic" and self.bits != 8:
            arithmetic = {
                "prune": "float32",
                "vocabulary": "float32",
                "bfloat16": "bfloat16",
            }.get(self.method, "int8")
            raise ValueError(
                f"bits: method: {self.method} computes in {arithmetic}; 16 is for method: dynamic"
            )
        return self


def _below(defaults: Mapping[str, object], values: Dict[str, object]) -> Dict[str, object]:
    """The values, with those of `defaults` that they leave out, in sections too."""
    merged = {**defaults, **values}
    for name, value in defaults.items():
        given = merged[name]
        if isinstance(value, Mapping) and isinstance(given, dict):
            merged[name] = _below(value, given)
    return merged


class Tuning(Config):
    """The training job of a method in TRAINED, as its checkpoints keep it."""

    method: str
    distill: SoftLabels = SoftLabels()
    skip: List[str] = key([], "as in Quantize")
    prune: Prune = Prune()
    # Where it matters, other texts are trained on, which is noticed.
    held_out: float = key(0.1, "as in Quantize", on_resume="free")

    @model_validator(mode="after")
    def _is_calibrated_before(self) -> Tuning:
        if self.trainer.calibrate:
            raise ValueError(
                "trainer.calibrate: probabilities are fitted in training; leave it out"
            )
        return self
