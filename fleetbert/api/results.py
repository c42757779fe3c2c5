"""The results of `fleetbert.train` and `quantize`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping

from fleetbert.api import notebook

Metrics = Dict[str, Any]  # numbers by name, and tables of them by label


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
    metrics: Metrics
    summary: Mapping[str, object]

    def __repr__(self) -> str:
        return f"Run(folder={str(self.folder)!r}, metrics={self._numbers()})"

    def _repr_html_(self) -> str:
        files = {"bundle": self.bundle, "model": self.model, "report": self.report}
        return notebook.table({**self._numbers(), **files}.items())

    def _numbers(self) -> dict[str, float]:
        """The metrics without the tables by label."""
        return {
            name: round(value, 6)
            for name, value in self.metrics.items()
            if isinstance(value, (int, float))
        }


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
