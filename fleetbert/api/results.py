"""What `fleetbert.train`, `quantize` and `load` give."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, Literal, Mapping

from fleetbert.core.errors import UserError
from fleetbert.data import in_memory
from fleetbert.data.in_memory import Table

if TYPE_CHECKING:
    from fleetbert.engines import answer

Metrics = Dict[str, Any]  # numbers by name, and tables of them by label


@dataclass(frozen=True)
class Run:
    """What a training leaves.

    folder: its `output_dir`, with metrics.jsonl, summary.json, checkpoints/ and what is below.
    bundle: for `load`, `quantize` and `fleetbert serve`.
    model: the weights in Hugging Face's format, for `init` and `distill`.
    report: an HTML page; None where the key `callbacks.report` is false.
    metrics: of the best step, on `dev`: those of the task (docs/tasks.md), of classification
        accuracy, macro_f1 (over the macro_f1_classes labels that occur, as scikit-learn's;
        macro_f1_all is over all), loss (nats), n (texts), your own, and tables by label:
        classes, confusion; above 50 labels the most frequent confusions instead.
        Empty without `dev`.
    summary: what summary.json holds: steps, texts_per_s, wall_s, versions, config, ...
    """

    folder: Path
    bundle: Path
    model: Path
    report: Path | None
    metrics: Metrics = field(repr=False)
    summary: Mapping[str, object] = field(repr=False)


@dataclass(frozen=True)
class Variant:
    """A form of the model in a bundle, measured beside float32 on the texts of `gate`.

    accuracy, float32_accuracy: 0 to 1, of n texts, or the figure of the task that `metric` names.
        drop: float32's less its own; interval: of the drop, 95 %, from a comparison text by text.
    speed_ratio: its texts/s by float32's, on this machine.
    size, float32_size: of their files, in bytes.
    report: an HTML page with the evidence.
    """

    bundle: Path
    name: str
    accuracy: float
    float32_accuracy: float
    n: int
    speed_ratio: float
    size: int
    float32_size: int
    report: Path
    interval: tuple[float, float]
    metric: str = "accuracy"

    @property
    def drop(self) -> float:
        return self.float32_accuracy - self.accuracy


class Model:
    """A variant of a bundle, ready to answer; `load` makes it. For one thread at a time."""

    def __init__(self, opened: answer.Model):
        self._opened = opened

    @property
    def labels(self) -> list[str]:
        """In the order of the logits; none of regression."""
        return list(self._opened.labels)

    @property
    def max_length(self) -> int:
        """Tokens of a text, special ones included; what is longer is cut."""
        return self._opened.max_length

    def predict(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        speed: float | None = None,
    ) -> list[Any]:
        """The answers, in the order of the texts. Of classification: label, scores (probabilities
        by label), logits float32 [labels], and exit_layer, after which the text left (None: it
        could not leave). Of regression: value. Of embedding: vector, float32 [width], of length 1.
        All have as_json(), as `fleetbert predict` prints.

        pairs: the second texts, as many as `texts`, of a model of pairs.
        speed: of early-exit variants: a text leaves when its uncertainty is under this, 0 (none
            does) to 1; None: the variant's own. Others answer as always.
        UserError at a text that is empty, blank or holds NUL, with its index.
        """
        from fleetbert.engines import answer  # loads Paddle

        model = self._opened
        texts = in_memory.texts("texts", texts)
        pairs = None if pairs is None else in_memory.texts("pairs", pairs)
        if model.pair != (pairs is not None):
            raise UserError(
                f"pairs: the model answers {'pairs of texts' if model.pair else 'single texts'}; "
                + ("give the second texts" if model.pair else "leave pairs out")
            )
        if pairs is not None and len(pairs) != len(texts):
            raise UserError(f"pairs: has {len(pairs)} texts for the {len(texts)} of texts")
        if speed is not None and not 0 <= speed <= 1:
            raise UserError(f"speed is {speed}; it has to be from 0 (none leaves early) to 1")
        if speed is not None and model.engine.early_exit:
            model = model._replace(speed=speed)
        if not texts:
            return []
        answers = answer.answer(model, texts, pairs)
        return list(answers)  # of a class of the task, which may be from outside the package

    __call__ = predict

    def evaluate(
        self,
        data: Table,
        on_bad_line: Literal["stop", "skip"] = "stop",
        quoting: Literal["auto", "none", "minimal"] = "auto",
    ) -> Metrics:
        """Metrics on a labelled table (see `train`): those of the task (docs/tasks.md; accuracy,
        macro_f1 and tables by label of classification), loss, n and texts_per_s. UserError at
        a bad line, unless `on_bad_line` is skip.
        quoting: of a file, as the key data.quoting."""
        from fleetbert.engines import evaluate  # loads Paddle

        with tempfile.TemporaryDirectory() as folder:
            path = in_memory.as_file("data", data, Path(folder))
            task = self._opened.task
            if path.parent == Path(folder) and task.table_format(path, labelled=True).pair is False:
                in_memory.refuse_pair(
                    "data", in_memory.first_pair(path), f"the model, of {task.name},"
                )
            how = on_bad_line, quoting, 'on_bad_line="skip"'
            try:
                return evaluate.evaluate(self._opened, path, *how)
            except UserError as error:
                raise UserError(in_memory.by_row(str(error), "data", path, folder)) from None
