"""What a job learns to answer."""

from __future__ import annotations

from typing import Literal, Optional

from pydantic import field_validator

from fleetbert.config.section import Section, key
from fleetbert.core import task_names


class Task(Section):
    name: str = key(
        "classification",
        f"task to learn (docs/tasks.md): {task_names.in_words()}, or a registered task",
        common_for=("train",),
    )
    pieces: Literal["first", "all"] = key(
        "first",
        "token_classification: tokens of a word that learn its tag: the first one, or all of them",
    )
    mask_probability: float = key(0.15, "mlm: fraction of the words to predict", gt=0, lt=1)
    whole_word: bool = key(False, "mlm: mask all tokens of a word together")
    pooling: Optional[Literal["mean", "cls"]] = key(
        None,
        "embedding: pooling of a text's token vectors (null: as the model's 1_Pooling says, else "
        "mean)",
    )
    windows: Optional[Literal["mean", "max"]] = key(
        None,
        "data.long_texts: windows: how the logits or numbers of a text's windows become its own "
        "(null: max for multi_label_classification, else mean)",
    )
    temperature: float = key(
        0.05,
        "embedding, few_shot: temperature that divides cosines in the contrastive loss",
        gt=0,
    )
    few_shot: bool = key(
        False,
        "classification: learn from 2 to 64 texts of each label, beginning with an encoder of "
        "sentences (docs/few_labels.md)",
    )
    negatives: int = key(
        1,
        "ranking: negative documents drawn for each positive one (1: RankNet; more: cross entropy "
        "among them; 0: binary cross entropy of each pair by itself)",
        ge=0,
    )

    _is_known = field_validator("name")(task_names.check)
