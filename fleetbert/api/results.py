"""The results of `fleetbert.train`, `quantize` and `load`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, Literal, Mapping

from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.data import in_memory
from fleetbert.data.in_memory import Table

if TYPE_CHECKING:
    from fleetbert.engines import answer

Metrics = Dict[str, Any]  # numbers by name, and tables of them by label


class Columns(config.Columns):
    """Those that arguments name."""

    spelling: ClassVar[str] = "{name}={column!r}"


@dataclass(frozen=True)
class Run:
    """The files and metrics of a training run.

    folder: the run's `output_dir`. It also has metrics.jsonl, summary.json and checkpoints/.
    bundle: the bundle for `load`, `quantize` and `fleetbert serve`.
    model: the weights in Hugging Face format, for `init` and `distill`.
    report: an HTML page; None if the key `callbacks.report` is false.
    metrics: the metrics of the best step on `dev`; empty without `dev`. All tasks have loss (nats),
        n (texts) and custom metrics; docs/tasks.md lists the others. Classification has accuracy,
        macro_f1 over the labels that occur, as in scikit-learn (macro_f1_classes is their number),
        and macro_f1_all over all labels. It also has the tables classes and confusion (the most
        frequent confusions, if there are more than 50 labels).
    summary: the content of summary.json: steps, texts_per_s, wall_s, versions, config, ...
    """

    folder: Path
    bundle: Path
    model: Path
    report: Path | None
    metrics: Metrics = field(repr=False)
    summary: Mapping[str, object] = field(repr=False)


@dataclass(frozen=True)
class Variant:
    """A variant of a bundle, compared with float32 on the `n` texts of `gate`.

    accuracy, float32_accuracy: the main metric of both, which `metric` names; accuracy is 0 to 1.
    drop: float32_accuracy - accuracy.
    interval: the 95 % interval of the drop, from answers to the same texts.
    speed_ratio: the variant's texts/s, divided by float32's on this machine.
    size, float32_size: the size of the files of both, in bytes.
    report: an HTML page with the measurements.
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
    """An opened variant of a bundle; `load` returns it. Use it in one thread at a time."""

    def __init__(self, opened: answer.Model):
        self._opened = opened

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the logits; empty for regression."""
        return list(self._opened.labels)

    @property
    def max_length(self) -> int:
        """Tokens per text, special tokens included; longer texts are truncated."""
        return self._opened.max_length

    def predict(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        speed: float | None = None,
    ) -> list[Any]:
        """Return one answer per text, in the order of the texts.

        An answer of classification has label, scores (probability by label), logits float32
        [labels], and exit_layer, after which the text left the model (None without early exit).
        An answer of regression has value; an embedding has vector, float32 [width], of length 1.
        docs/tasks.md lists the others. as_json() returns what `fleetbert predict` prints.

        pairs: the second texts, as many as `texts`, if the model takes pairs.
        speed: for early-exit variants: a text exits early when its uncertainty is below `speed`,
            from 0 (never) to 1. Default: the variant's. Other variants ignore it.

        Raises UserError, with the index, if a text is empty, blank or contains NUL.
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
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
    ) -> Metrics:
        """Return the task's metrics on a labelled table (see `Run.metrics`), and texts_per_s.

        data: as in `train`; of a `datasets.DatasetDict` the split test, or else validation.
        on_bad_line: stop raises UserError at an invalid row; skip leaves the row out.
        quoting: how fields of a file are quoted, as the key data.quoting.
        text_column, text_pair_column, label_column: the columns of the texts and of the label.
        """
        from fleetbert.engines import evaluate  # loads Paddle

        with tempfile.TemporaryDirectory() as folder:
            columns = Columns(
                text_column=text_column,
                text_pair_column=text_pair_column,
                label_column=label_column,
                quoting=quoting,
            )
            table = in_memory.of_splits({"data": data})["data"]
            assert table is not None
            path = in_memory.as_file("data", table, Path(folder), columns=columns)
            task = self._opened.task
            form = task.labels.table_format(path, columns, labelled=True)
            if path.parent == Path(folder) and form.pair is False:
                in_memory.refuse_pair(
                    "data", in_memory.first_pair(path, columns), f"the model, of {task.name},"
                )
            how = on_bad_line, columns, 'on_bad_line="skip"'
            try:
                return evaluate.evaluate(self._opened, path, *how)
            except UserError as error:
                raise UserError(in_memory.by_row(str(error), "data", path, folder)) from None
