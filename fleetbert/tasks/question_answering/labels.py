"""Questions and where their contexts answer them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Collection, NamedTuple, Sequence

import numpy as np

from fleetbert import config as schema
from fleetbert.data import read
from fleetbert.tasks.labels import Labels
from fleetbert.tasks.question_answering import scoring
from fleetbert.tasks.question_answering.collect import Windows
from fleetbert.tasks.question_answering.decoding import NO_ANSWER


class Expected(NamedTuple):
    """What answers a question: texts, and the characters of the context where the first that stands
    in it begins and ends, None where the context has no answer."""

    context: str
    answers: list[str]
    place: tuple[int, int] | None
    is_chinese: bool


class Questions(Labels):
    collects = Windows

    def input_format(self, path: str | Path, columns: schema.Columns) -> read.Format | None:
        """Of files of SQuAD's layout too; the answers in a file are not read."""
        if Path(path).suffix.lower() in read.JSON_SUFFIXES and Path(path).is_file():
            return self.table_format(path, columns, labelled=False)._replace(label="")
        return super().input_format(path, columns)

    def labels_of(self, written: Sequence[str]) -> list[str]:
        """NO_ANSWER where some questions have none: the model may then say so."""
        return [NO_ANSWER] if any(not json.loads(label)[1] for label in written) else []

    def unknown(self, written: str, labels: Collection[str]) -> str | None:
        return None

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """An object array [written] of `Expected`."""
        targets = np.empty(len(written), object)
        for number, label in enumerate(written):
            context, answers = json.loads(label)
            places = [(begin, begin + len(text)) for begin, text in answers if begin >= 0]
            texts = [text for _, text in answers]
            place = places[0] if places else None
            targets[number] = Expected(context, texts, place, scoring.is_chinese(context))
        return targets

    def alike(self, truth: np.ndarray) -> str:
        return "" if any(expected.answers for expected in truth) else "no question has an answer"

    def counts(self, targets: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Questions without an answer, int64 [labels]."""
        lacking = sum(not expected.answers for expected in targets)
        return np.full(len(labels), lacking, np.int64)

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str:
        lacking = sum(not expected.answers for expected in targets)
        return f"{len(targets)} questions, {lacking} without an answer"

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        return []
