"""A job that tries several methods of compression and keeps the first that meets its budgets."""

from __future__ import annotations

from typing import List, Literal, Optional, get_args

from pydantic import model_validator

from fleetbert.config.compression import Gate, Selection, check_gate
from fleetbert.config.inputs import Data, check_data
from fleetbert.config.section import Section, key

COMPRESS = ("compress",)
# Steps one after the other; those that cost least first.
Candidate = Literal[
    "int8",
    "vocabulary",
    "vocabulary+int8",
    "int8+exit",
    "vocabulary+int8+exit",
    "prune+int8",
    "vocabulary+prune+int8",
    "layers+int8",
    "vocabulary+layers+int8",
    "student+int8",
    "vocabulary+student+int8",
    "student+int8+exit",
]
LADDER: List[Candidate] = list(get_args(Candidate))


class Budget(Section):
    ms: Optional[float] = key(
        None, "largest time of one text alone, in milliseconds", common_for=COMPRESS, gt=0
    )
    mb: Optional[float] = key(
        None, "largest size of the model and its tokenizer, in megabytes", common_for=COMPRESS, gt=0
    )


class LargerDrop(Gate):
    max_accuracy_drop: float = key(
        0.01,
        "largest drop of accuracy (0 to 1) below float32, on selection.data and on gate.data",
        common_for=COMPRESS,
        ge=-1,
        le=1,
    )


class Choice(Selection):
    data: Optional[str] = key(
        None,
        "labelled table that candidates are compared on, neither gate.data nor data.train",
        common_for=COMPRESS,
    )


class Compress(Section):
    """A job that makes the smaller and faster model that meets its budgets."""

    bundle: str = key(
        "output/bundle", "bundle to make smaller; it stays as it is", common_for=COMPRESS
    )
    budget: Budget = Budget()
    candidates: List[Candidate] = key(
        LADDER,
        "what is tried, in this order, some or all of these: steps joined by +; int8: static; "
        "vocabulary: the tokens of data.train alone; prune: without a quarter of the heads and "
        "feed-forward units; layers: without a third of the layers; student: half of the layers; "
        "exit: early exit",
        common_for=COMPRESS,
    )
    epochs: int = key(2, "epochs of prune and student", common_for=COMPRESS, ge=1)
    data: Data = Data()
    selection: Choice = Choice()
    gate: LargerDrop = LargerDrop()
    threads: Optional[int] = key(
        None, "threads of the engines that are measured (null: all processors)", ge=1
    )
    output_dir: str = key(
        "output/compress",
        "folder of the new bundle, the report and all candidates; an unfinished search resumes",
        common_for=COMPRESS,
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> Compress:
        if self.data.train is None:
            raise ValueError("data.train: name a labelled table to calibrate and train with")
        check_data(self.data)
        check_gate(self.gate)
        if self.selection.data is None:
            raise ValueError(
                "selection.data: name a labelled table to choose on, neither gate.data nor "
                "data.train"
            )
        if not self.candidates:
            raise ValueError("candidates: is empty; name one or more, or leave it out")
        return self
