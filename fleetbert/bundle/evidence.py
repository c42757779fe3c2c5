# ruff: noqa: FA100  pydantic evaluates these annotations at run time, also on Python 3.8
"""What was measured of a variant and what compression did to its layers, as in manifest.json."""

from typing import ClassVar, Dict, List, Literal, Optional, Tuple

from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Brief(Strict):
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


class Drop(Strict):
    """What was lost against float32 (value), and its 95 % interval; see `compression.paired`.

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


class Accuracy(Brief):
    """A variant on `n` examples of named data, beside float32: its accuracy (0 to 1), or the figure
    of its task that `metric` names (`tasks.Evaluator.gate_metric`)."""

    younger = ("metric",)

    data: str
    data_sha256: Optional[str] = None
    n: int
    metric: str = "accuracy"
    accuracy: float
    float32_accuracy: Optional[float] = None
    drop: Optional[Drop] = None


class Comparison(Strict):
    """A variant beside float32 on the first table of `accuracy`, by turns on one machine: texts a
    second of both, the ratio of their speeds, the largest difference of a logit, and the ratio of
    their sizes in bytes."""

    texts_per_s: float
    float32_texts_per_s: float
    speed_ratio: float
    max_logit_difference: float
    size_ratio: float


class Golden(Strict):
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


class Pruning(Strict):
    """What `prune` removed. heads, feed_forward: of each layer that stays, [before, after];
    kept_heads: their numbers, by layer, none of a layer that went; importance_of_heads: [layers,
    heads]; lost_importance: by part."""

    heads: Tuple[int, int]
    feed_forward: Tuple[int, int]
    kept_heads: List[List[int]]
    importance_of_heads: List[List[float]]
    lost_importance: Dict[str, float]


class Smoothed(Strict):
    """How a layer's input was smoothed: the exponent, and the token error of the layers that read
    it, before (`former`) and after, on calibration texts; see `compression.smooth`."""

    exponent: float
    former_error: float
    error: float


class Split(Strict):
    """Units whose outputs stand in pieces, one piece more each time that a unit is named, so that
    the threshold of the layer that reads them could be lower, and its token error before
    (`former`) and after, on calibration texts; see `compression.split`."""

    former: float
    threshold: float
    units: List[int]
    former_error: float
    error: float


class SpeedPoint(Strict):
    """What another `speed` gives with a variant's groups of layers: accuracy (0 to 1), and the
    layers and operations that a text takes in the mean."""

    speed: float
    accuracy: float
    mean_layers: float
    mean_flops: Optional[float] = None


class OnnxTried(Strict):
    """A form of `OnnxInt8Variant` beside others, on texts that are not the gate's: how much more
    float32 has right (value of `Drop`), and its texts a second there."""

    drop: float
    texts_per_s: float
