# ruff: noqa: FA100  pydantic evaluates these annotations at run time, also on Python 3.8
"""What manifest.json says of a variant: the model in one form, with what was measured of it.

A variant is one of a union that its `kind` tells apart; each kind has its own fields. A kind that
is not known here (of a newer fleetbert, or of an engine of the user's own) keeps its fields as
they are.
"""

from pathlib import PurePosixPath
from typing import Dict, List, Literal, Optional, Type, Union

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
)
from typing_extensions import Annotated, get_args

from fleetbert.bundle.evidence import (
    Accuracy,
    Comparison,
    Golden,
    OnnxTried,
    Pruning,
    Smoothed,
    SpeedPoint,
    Split,
    Strict,
)


class File(Strict):
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


class _Variant(Strict):
    """The model in one form. `files` is filled in by the writer.

    made_from names the variant or the run that it was made from, versions the packages that made
    it. alone_difference: the largest difference of a score between texts by themselves and among
    others in a batch, as the gate measured it.
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
    alone_difference: Optional[float] = None

    @property
    def compared(self) -> bool:
        """Whether its accuracy was measured beside float32's, or its answers found the same."""
        if self.name == "float32" or getattr(self, "max_difference_to_float32", None) is not None:
            return True
        return any(accuracy.float32_accuracy is not None for accuracy in self.accuracy)

    @property
    def one_by_one(self) -> bool:
        """Whether its texts have to be computed one by one, as scales are those of a batch."""
        return False

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


class TableVariant(_Variant):
    """A program for Paddle Inference, beside it a table with a row for each id of a category: ids
    in ids.npy, ascending, and rows in rows.npy. rows: how many; width: numbers of each."""

    kind: Literal["paddle-inference-table"] = "paddle-inference-table"
    rows: int = 0
    width: int = 0
    max_difference_to_network: Optional[float] = None


class OnnxVariant(_Variant):
    """For ONNX Runtime; max_difference_to_float32: of logits, as Paddle Inference gives them."""

    kind: Literal["onnx"] = "onnx"
    opset: Optional[int] = None
    max_difference_to_float32: Optional[float] = None


class OnnxInt8Variant(_Variant):
    """In int8, for ONNX Runtime (`compression.onnx_layers`).

    activations: dynamic (a scale for each token) or static (from texts); weight_bits: of products.
    fleetbert up to 2026-11 had a dynamic scale for each batch, and no `alone_difference`.
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

    @property
    def one_by_one(self) -> bool:
        return self.activations == "dynamic" and self.alone_difference is None


class WeightOnlyVariant(_Variant):
    """Integers on disk, float32 in arithmetic. weight_errors: relative error (Frobenius
    norm) of each weight; output_errors: token error of its layer (`compression.sensitivity`)."""

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
    rounding "adaround", and thresholds that it had lowered as `clipped`.
    """

    kind: Literal["paddle-inference-int8"] = "paddle-inference-int8"
    method: Literal["static", "search", "qat"] = "static"
    algorithm: Optional[str] = None
    rounding: Optional[str] = None
    float32_layers: List[str] = Field(default_factory=list)
    thresholds: Dict[str, float] = Field(default_factory=dict)
    clipped: Dict[str, Dict[str, float]] = Field(default_factory=dict)
    smoothed: Dict[str, Smoothed] = Field(default_factory=dict)
    split: Dict[str, Split] = Field(default_factory=dict)
    bias_corrected: bool = False
    weight_errors: Dict[str, float] = Field(default_factory=dict)
    output_errors: Dict[str, float] = Field(default_factory=dict)
    search: Optional[Dict[str, object]] = None
    max_difference_to_network: Optional[float] = None


class BFloat16Variant(_Variant):
    """The products of Linear layers in bfloat16, through oneDNN.

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
        Annotated[TableVariant, Tag("paddle-inference-table")],
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
