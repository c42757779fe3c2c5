# ruff: noqa: FA100  pydantic evaluates these annotations at run time, also on Python 3.8
"""What manifest.json says: the schema of format 2, and how format 1 is read as it.

Variants are those of `variants`; format 1 had their fields in a dict, `extra`.
"""

import json
import re
from pathlib import Path
from typing import Dict, List, Literal, NamedTuple, Optional, Union

from pydantic import Field, ValidationError, field_validator, model_validator
from typing_extensions import Annotated

from fleetbert.bundle.evidence import Brief, Comparison, Pruning, Strict
from fleetbert.bundle.variants import KINDS, ProgramVariant, Variant
from fleetbert.core import task_names
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading

FORMAT_VERSION = 2
READABLE = (1, 2)
MANIFEST = "manifest.json"
VOCAB: Literal["vocab.txt"] = "vocab.txt"


class TaskShape(Strict):
    """What those ask who do not know the task by its name, as boards do: see `core.task_names`."""

    answer: Literal["label", "labels", "number", "vector", "spans", "answer"]
    pair: bool


class Task(Brief):
    """What the model answers. shape: None if it answers nothing. `labels` are in the order of the
    logits; none where it answers with none, as `mlm` and numbers do. thresholds: the probability
    above which a text has a label, where it is not one half. width: how many numbers its vectors
    have, where it answers with vectors; pooling: how a text's tokens become one.
    integer_labels: answers in Python and JSON have labels as integers."""

    younger = ("thresholds", "integer_labels")

    name: str
    shape: Optional[TaskShape] = None
    labels: List[str] = Field(default_factory=list)
    thresholds: Dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    width: Optional[int] = Field(None, ge=1)
    pooling: Optional[str] = None
    integer_labels: bool = False

    @property
    def answered_labels(self) -> List[Union[str, int]]:
        """The labels as answers have them."""
        return [int(label) if self.integer_labels else label for label in self.labels]

    @property
    def pair(self) -> bool:
        return task_names.SHAPES[self.name].pair

    _is_known = field_validator("name")(task_names.check)

    @model_validator(mode="after")
    def _labels_fit(self) -> "Task":
        shape = task_names.SHAPES[self.name]
        if shape.answer:
            self.shape = TaskShape.model_validate({"answer": shape.answer, "pair": shape.pair})
        least = shape.least_labels
        if len(self.labels) < least:
            number = {1: "a label", 2: "two labels"}.get(least, f"{least} labels")
            raise ValueError(f"task {self.name} needs {number} or more, got {self.labels}")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels appear twice in {self.labels}")
        if self.integer_labels and not all(map(is_integer, self.labels)):
            raise ValueError(f"integer_labels: not all are integers: {self.labels}")
        for label in self.thresholds:
            if label not in self.labels:
                raise ValueError(f"thresholds: {label!r} is not among the labels")
        return self


def is_integer(label: str) -> bool:
    """Whether a label is an integer of 64 bits as Python writes it."""
    is_written = re.fullmatch("0|-?[1-9][0-9]{0,18}", label) is not None
    return is_written and -(2**63) <= int(label) < 2**63


Setting = Union[bool, int, float, str]


class TokenizerSpec(NamedTuple):
    """What a tokenizer is opened from: its kind, its files by the names that they have in a
    bundle, and its settings. Nothing is read yet."""

    kind: str
    files: Dict[str, Path]
    settings: Dict[str, Setting]


class TokenizerInfo(Brief):
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


class LongTexts(Strict):
    """What becomes of texts with more than max_length tokens; see `core.reading.Reading`."""

    method: Literal["windows", "head_tail"]
    stride: int = Field(0, ge=0)
    pool: Literal["mean", "max", "vectors"] = "mean"

    @classmethod
    def of(cls, reading: Reading) -> Optional["LongTexts"]:
        if reading.long_texts == "cut":
            return None
        _, method, stride, pool = reading
        return cls.model_validate({"method": method, "stride": stride, "pool": pool})


class Manifest(Strict):
    """long_texts: None: they are cut."""

    format_version: Literal[2] = 2
    task: Task
    max_length: int = Field(ge=3)
    long_texts: Optional[LongTexts] = None
    tokenizer: TokenizerInfo
    variants: List[Variant] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> "Manifest":
        names = [variant.name for variant in self.variants]
        if len(set(names)) != len(names):
            raise ValueError(f"two variants have the same name: {names}")
        if self.long_texts and self.long_texts.stride > self.max_length // 2:
            raise ValueError("long_texts: a stride above half of max_length")
        per_token = task_names.SHAPES[self.task.name].per_token
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
