# ruff: noqa: FA100  pydantic evaluates these annotations at run time, also on Python 3.8
"""What manifest.json says: the schema of format 2, and how format 1 is read as it.

A variant is one of a union that its `kind` tells apart; each kind has its own fields. A kind that
is not known here (of a newer fleetbert, or of an engine of the user's own) keeps its fields as
they are. Format 1 had them all in a dict, `extra`.
"""

import json
from pathlib import Path, PurePosixPath
from typing import ClassVar, Dict, List, Literal, NamedTuple, Optional, Tuple, Type, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from typing_extensions import Annotated, get_args

from fleetbert.core import task_names
from fleetbert.core.errors import UserError

FORMAT_VERSION = 2
READABLE = (1, 2)
MANIFEST = "manifest.json"
VOCAB: Literal["vocab.txt"] = "vocab.txt"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Brief(_Strict):
    """A section whose `younger` fields are written where they are not as usual: manifests of before
    did not have them."""

    younger: ClassVar[Tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _briefly(self, dump: SerializerFunctionWrapHandler) -> Dict[str, object]:
        usual = {
            name: self.model_fields[name].get_default(call_default_factory=True)
            for name in self.younger
        }
        return {n: value for n, value in dump(self).items() if n not in usual or value != usual[n]}


class Task(_Brief):
    """What the model answers. `labels` are in the order of the logits; none where it answers with
    none, as `mlm` and numbers do. thresholds: the probability above which a text has a label, where
    it is not one half. width: how many numbers its vectors have, where it answers with vectors;
    pooling: how a text's tokens become one."""

    younger = ("thresholds",)

    name: str
    labels: List[str] = Field(default_factory=list)
    thresholds: Dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    width: Optional[int] = Field(None, ge=1)
    pooling: Optional[str] = None

    @property
    def pair(self) -> bool:
        return task_names.KINDS[self.name].pair

    _is_known = field_validator("name")(task_names.check)

    @model_validator(mode="after")
    def _labels_fit(self) -> "Task":
        least = task_names.KINDS[self.name].least_labels
        if len(self.labels) < least:
            number = {1: "a label", 2: "two labels"}.get(least, f"{least} labels")
            raise ValueError(f"task {self.name} needs {number} or more, got {self.labels}")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels appear twice in {self.labels}")
        for label in self.thresholds:
            if label not in self.labels:
                raise ValueError(f"thresholds: {label!r} is not among the labels")
        return self


Setting = Union[bool, int, float, str]


class TokenizerSpec(NamedTuple):
    """What a tokenizer is opened from: its kind, its files by the names that they have in a
    bundle, and its settings. Nothing is read yet."""

    kind: str
    files: Dict[str, Path]
    settings: Dict[str, Setting]


class TokenizerInfo(_Brief):
    """How texts become token ids; `sha256` is that of the vocabulary file.

    more_files: hashes of a kind's other files, by name. settings: WordPiece's `lowercase` stands
    apart; its others, where they are not the usual ones: strip_accents, tokenize_chinese_chars,
    clean_text, truncation_side and the spelling of special tokens (pad_token, ...).
    """

    younger = ("lowercase", "more_files", "settings")

    kind: str = "wordpiece"
    vocab: str = Field(VOCAB, pattern=r"^[^/\\]+$")
    lowercase: Optional[bool] = None
    sha256: str
    more_files: Dict[str, str] = Field(default_factory=dict)
    settings: Dict[str, Setting] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_settings(self) -> "TokenizerInfo":
        if self.kind == "wordpiece" and (self.lowercase is None or self.vocab != VOCAB):
            raise ValueError(f"wordpiece needs lowercase, and {VOCAB} as vocab")
        return self

    @property
    def hashes(self) -> Dict[str, str]:
        """Of all files, by name."""
        return {self.vocab: self.sha256, **self.more_files}


class File(_Strict):
    """A file of a variant: `path` from the bundle's root with forward slashes, `size` in bytes."""

    path: str
    sha256: str
    size: int

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if len(parts) < 2 or ".." in parts or path.startswith("/") or "\\" in path:
            raise ValueError(f"{path!r} is not a path of the form variant/file inside the bundle")
        return path


class Drop(_Strict):
    """What was lost against float32 (value), and its 95 % interval; see `compress.paired`.

    lost, gained: texts that only float32, or only the variant, answers right; p_value: of McNemar's
    exact test. Only where the metric counts right answers.
    """

    value: float
    low: float
    high: float
    test: Literal["mcnemar", "bootstrap"]
    lost: Optional[int] = None
    gained: Optional[int] = None
    p_value: Optional[float] = None


class Accuracy(_Brief):
    """A variant on `n` examples of named data, beside float32: its accuracy (0 to 1), or the figure
    of its task that `metric` names (`tasks.Task.gate_metric`)."""

    younger = ("metric",)

    data: str
    data_sha256: Optional[str] = None
    n: int
    metric: str = "accuracy"
    accuracy: float
    float32_accuracy: Optional[float] = None
    drop: Optional[Drop] = None


class Comparison(_Strict):
    """A variant beside float32 on the first table of `accuracy`, by turns on one machine: texts a
    second of both, the ratio of their speeds, the largest difference of a logit, and the ratio of
    their sizes in bytes."""

    texts_per_s: float
    float32_texts_per_s: float
    speed_ratio: float
    max_logit_difference: float
    size_ratio: float


class Golden(_Strict):
    """What a variant answered where it was made, to be asked again where it is served.

    ids: token ids of each text; logits: [texts, labels], or [tokens, labels] of all texts where
    each token has them; bound: the largest difference of a logit that is not another model's.
    """

    ids: List[List[int]]
    logits: List[List[FiniteFloat]]
    bound: FiniteFloat

    @model_validator(mode="after")
    def _whole(self) -> "Golden":
        if len({len(row) for row in self.logits}) != 1 or not all(self.ids):
            raise ValueError("golden is no list of texts and their logits")
        return self

    def is_whole(self, per_token: bool) -> bool:
        """Whether there are logits for each text, or token."""
        return len(self.logits) == (sum(map(len, self.ids)) if per_token else len(self.ids))


class Pruning(_Strict):
    """What `prune` removed. heads, feed_forward: of each layer, [before, after]; kept_heads: their
    numbers, by layer; importance_of_heads: [layers, heads]; lost_importance: by part."""

    heads: Tuple[int, int]
    feed_forward: Tuple[int, int]
    kept_heads: List[List[int]]
    importance_of_heads: List[List[float]]
    lost_importance: Dict[str, float]


class Clipped(_Strict):
    """The threshold of a layer's input and the token error of the layers that read it, before it
    was lowered (`former`) and after; see `compress.clip`."""

    former: float
    threshold: float
    former_error: float
    error: float


class Smoothed(_Strict):
    """How a layer's input was smoothed: the exponent, and the token error of the layers that read
    it, before (`former`) and after, on calibration texts; see `compress.smooth`."""

    exponent: float
    former_error: float
    error: float


class Split(_Strict):
    """Units whose outputs stand in pieces, one piece more each time that a unit is named, so that
    the threshold of the layer that reads them could be lower, and its token error before
    (`former`) and after, on calibration texts; see `compress.split`."""

    former: float
    threshold: float
    units: List[int]
    former_error: float
    error: float


class SpeedPoint(_Strict):
    """What another `speed` gives with a variant's groups of layers: accuracy (0 to 1), and the
    layers and operations that a text takes in the mean."""

    speed: float
    accuracy: float
    mean_layers: float
    mean_flops: Optional[float] = None


# By a variant's kind, where it is the same for all.
COMPRESSED_BY = {
    "onnx-int8": "onnx",
    "paddle-inference-weight-only": "dynamic",
    "paddle-inference-bfloat16": "bfloat16",
    "paddle-inference-early-exit": "early exit",
    "paddle-lite-early-exit": "early exit",
}


class _Variant(_Strict):
    """The model in one form. `files` is filled in by the writer.

    made_from names the variant or the run that it was made from, versions the packages that made
    it.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    kind: str
    files: List[File] = Field(default_factory=list)
    made_from: Optional[str] = None
    accuracy: List[Accuracy] = Field(default_factory=list)
    runs_on: List[Literal["x86", "gpu", "armv8", "armv7"]] = Field(default_factory=list)
    versions: Dict[str, str] = Field(default_factory=dict)
    comparison: Optional[Comparison] = None
    golden: Optional[Golden] = None

    @property
    def compressed_by(self) -> str:
        """The method of compression; "" if the model is as it was trained."""
        return COMPRESSED_BY.get(self.kind, "")

    @property
    def compared(self) -> bool:
        """Whether its accuracy was measured beside float32's, or its answers found the same."""
        if self.name == "float32" or getattr(self, "max_difference_to_float32", None) is not None:
            return True
        return any(accuracy.float32_accuracy is not None for accuracy in self.accuracy)

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(file.size for file in self.files)


class ProgramVariant(_Variant):
    """float32, as trained or pruned, for Paddle Inference. max_difference_to_network: of logits,
    between the program and the trained network."""

    kind: Literal["paddle-inference"] = "paddle-inference"
    max_difference_to_network: Optional[float] = None
    pruning: Optional[Pruning] = None

    @property
    def compressed_by(self) -> str:
        return "prune" if self.pruning else ""


class OnnxVariant(_Variant):
    """For ONNX Runtime; max_difference_to_float32: of logits, as Paddle Inference gives them."""

    kind: Literal["onnx"] = "onnx"
    opset: Optional[int] = None
    max_difference_to_float32: Optional[float] = None


class OnnxTried(_Strict):
    """A form of `OnnxInt8Variant` beside others, on texts that are not the gate's: how much more
    float32 has right (value of `Drop`), and its texts a second there."""

    drop: float
    texts_per_s: float


class OnnxInt8Variant(_Variant):
    """In int8, for ONNX Runtime, quantized by its own tool.

    activations: dynamic (a scale for each batch) or static (from texts); weight_bits: of products.
    tried: the forms that were measured, of which this is the one taken; tried_on: which texts.
    smoothed, float32_layers: as of `Int8Variant`.
    """

    kind: Literal["onnx-int8"] = "onnx-int8"
    opset: Optional[int] = None
    activations: Literal["dynamic", "static"] = "dynamic"
    weight_bits: int = 7
    float32_layers: List[str] = Field(default_factory=list)
    smoothed: Dict[str, Smoothed] = Field(default_factory=dict)
    tried: Dict[str, OnnxTried] = Field(default_factory=dict)
    tried_on: Optional[str] = None


class WeightOnlyVariant(_Variant):
    """Integers on disk, float32 in arithmetic. weight_errors: relative error (Frobenius
    norm) of each weight; output_errors: token error of its layer (`compress.sensitivity`)."""

    kind: Literal["paddle-inference-weight-only"] = "paddle-inference-weight-only"
    bits: int = 8
    weight_errors: Dict[str, float] = Field(default_factory=dict)
    output_errors: Dict[str, float] = Field(default_factory=dict)


class Int8Variant(_Variant):
    """Whole layers in int8, through oneDNN.

    algorithm: of calibration; rounding: of weights. float32_layers: weights of the layers that are
    not int8. thresholds: by weight, the magnitude of its layer's input that becomes 127.
    weight_errors, output_errors: as of `WeightOnlyVariant`. max_difference_to_network: of logits,
    between what is served and the network that was trained with the rounding in it.

    fleetbert up to 2026-11 also wrote method "search", with what it measured in `search`, and
    rounding "adaround".
    """

    kind: Literal["paddle-inference-int8"] = "paddle-inference-int8"
    method: Literal["static", "search", "qat"] = "static"
    algorithm: Optional[str] = None
    rounding: Optional[str] = None
    float32_layers: List[str] = Field(default_factory=list)
    thresholds: Dict[str, float] = Field(default_factory=dict)
    clipped: Dict[str, Clipped] = Field(default_factory=dict)
    smoothed: Dict[str, Smoothed] = Field(default_factory=dict)
    split: Dict[str, Split] = Field(default_factory=dict)
    bias_corrected: bool = False
    weight_errors: Dict[str, float] = Field(default_factory=dict)
    output_errors: Dict[str, float] = Field(default_factory=dict)
    search: Optional[Dict[str, object]] = None
    max_difference_to_network: Optional[float] = None

    @property
    def compressed_by(self) -> str:
        return self.method


class BFloat16Variant(_Variant):
    """The products of Linear layers and of attention in bfloat16, through oneDNN.

    needs: what the processor must have one of, by Linux's names. float32_layers: weights of the
    layers that are not in bfloat16.
    """

    kind: Literal["paddle-inference-bfloat16"] = "paddle-inference-bfloat16"
    needs: List[str] = Field(default_factory=list)
    float32_layers: List[str] = Field(default_factory=list)


class _EarlyExit(_Variant):
    """ends: the last layer of each group; head: what decides after it; speed: a text leaves whose
    uncertainty is under it, 0 to 1; pad_id: the token that is padding; doubt, spread: how the
    uncertainty is told, see `engines.exits`."""

    ends: List[int]
    head: str = "pooled"
    speed: float
    pad_id: int = 0
    doubt: str = "entropy"
    spread: float = 1.0


class EarlyExitVariant(_EarlyExit):
    """Texts leave after inner layers. accuracy_by_layer: if all left there; times_faster: than at
    speed 0."""

    kind: Literal["paddle-inference-early-exit"] = "paddle-inference-early-exit"
    accuracy_by_layer: List[float] = Field(default_factory=list)
    by_speed: List[SpeedPoint] = Field(default_factory=list)
    times_faster: float = 1.0


class _Lite(_Variant):
    """precision: of weights and arithmetic; kernels: what the model needs of an engine; checked_on:
    where it was run, if it was; the differences are of logits."""

    precision: str
    kernels: List[str] = Field(default_factory=list)
    rewrites_change_answers: Optional[bool] = None
    checked_on: Optional[str] = None
    max_difference_to_paddle: Optional[float] = None
    max_difference_to_float32: Optional[float] = None
    rounding_changes_logits_by: Optional[float] = None


class LiteVariant(_Lite):
    """model.nb, for Paddle Lite."""

    kind: Literal["paddle-lite"] = "paddle-lite"


class LiteEarlyExitVariant(_Lite, _EarlyExit):
    """Groups of layers for Paddle Lite, with the heads of an `EarlyExitVariant`."""

    kind: Literal["paddle-lite-early-exit"] = "paddle-lite-early-exit"


class OtherVariant(_Variant):
    """A kind that this fleetbert does not know; what else it says is in `model_extra`."""

    model_config = ConfigDict(extra="allow")


def _kind(variant: object) -> str:
    kind = variant.get("kind") if isinstance(variant, dict) else getattr(variant, "kind", None)
    return kind if kind in KINDS else "other"


Variant = Annotated[
    Union[
        Annotated[ProgramVariant, Tag("paddle-inference")],
        Annotated[OnnxVariant, Tag("onnx")],
        Annotated[OnnxInt8Variant, Tag("onnx-int8")],
        Annotated[WeightOnlyVariant, Tag("paddle-inference-weight-only")],
        Annotated[Int8Variant, Tag("paddle-inference-int8")],
        Annotated[BFloat16Variant, Tag("paddle-inference-bfloat16")],
        Annotated[EarlyExitVariant, Tag("paddle-inference-early-exit")],
        Annotated[LiteVariant, Tag("paddle-lite")],
        Annotated[LiteEarlyExitVariant, Tag("paddle-lite-early-exit")],
        Annotated[OtherVariant, Tag("other")],
    ],
    Discriminator(_kind),
]
KINDS: Dict[str, Type[_Variant]] = {
    tag.tag: cls for cls, tag in map(get_args, get_args(get_args(Variant)[0])[:-1])
}


class Manifest(_Strict):
    format_version: Literal[2] = 2
    task: Task
    max_length: int = Field(ge=3)
    tokenizer: TokenizerInfo
    variants: List[Variant] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> "Manifest":
        names = [variant.name for variant in self.variants]
        if len(set(names)) != len(names):
            raise ValueError(f"two variants have the same name: {names}")
        per_token = task_names.KINDS[self.task.name].per_token
        for variant in self.variants:
            golden, where = variant.golden, f"golden of variant {variant.name}"
            if golden and max(map(len, golden.ids)) > self.max_length:
                raise ValueError(f"{where} has more than max_length tokens")
            if golden and not golden.is_whole(per_token):
                raise ValueError(f"{where} is no list of texts and their logits")
        return self


def parse(path: Path, text: bytes) -> Manifest:
    """The manifest that the file at `path` holds; UserError says what is wrong and where."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): copy the bundle again") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version not in READABLE:
        raise UserError(
            f"{path} has format_version {version!r} and this fleetbert reads "
            f"{', '.join(map(str, READABLE))}: install the fleetbert that wrote it or export again"
        )
    try:
        return Manifest.model_validate(_from_format_1(raw) if version == 1 else raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in (*KINDS, "other"))
        raise UserError(
            f"{path}: {where or 'manifest'}: {first['msg']}; restore the file or export again"
        ) from None


def to_json(manifest: Manifest) -> str:
    """What the file holds; fields that say nothing are left out."""
    fields = manifest.model_dump(exclude_none=True)
    return json.dumps(fields, ensure_ascii=False, indent=2) + "\n"


def _from_format_1(raw: Dict[str, object]) -> Dict[str, object]:
    variants = raw.get("variants")
    if isinstance(variants, list):
        variants = [_variant_from_format_1(v) if isinstance(v, dict) else v for v in variants]
    return {**raw, "format_version": FORMAT_VERSION, "variants": variants}


def _variant_from_format_1(variant: Dict[str, object]) -> Dict[str, object]:
    """The fields of `extra` where format 2 has them; what a known kind never had is left out."""
    extra = variant.get("extra", {})
    fields = {name: value for name, value in variant.items() if name != "extra"}
    if not isinstance(extra, dict):
        return variant
    comparison = {name: extra.pop(name) for name in Comparison.model_fields if name in extra}
    if len(comparison) == len(Comparison.model_fields):
        fields["comparison"] = comparison
    cls = KINDS.get(str(variant.get("kind")))
    if cls is ProgramVariant and "lost_importance" in extra:
        fields["pruning"] = {name: extra[name] for name in Pruning.model_fields if name in extra}
    known = extra if cls is None else cls.model_fields
    return {**fields, **{name: value for name, value in extra.items() if name in known}}
