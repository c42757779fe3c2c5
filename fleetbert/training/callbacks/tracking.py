"""The figures of metrics.jsonl for the trackers that a job names; curves and histograms for those
that draw them."""

from __future__ import annotations

import math
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import paddle

from fleetbert.compat import program_desc
from fleetbert.config import flat
from fleetbert.core import files
from fleetbert.training import trackers
from fleetbert.training.loop import Callback, Metrics, Row, Run


class Tracking(Callback):
    """targets: what the job says of each kind of tracker: a project's name, or true."""

    def __init__(self, targets: dict[str, str | bool]):
        self.targets = targets
        self.open: dict[str, trackers.Tracker] = {}

    def on_start(self, run: Run) -> None:
        config = flat(run.job.model_dump(mode="json"))
        for kind, target in self.targets.items():
            with files.writing(run.folder / kind):
                tracker = trackers.KINDS[kind](run.folder, str(target), config, run.resumed_at)
            self.open[kind] = tracker

    def on_log(self, run: Run, row: Row) -> None:
        self._write("train", run, row)

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        self._write("dev", run, metrics)
        for label, curve in metrics.get("precision_recall", {}).items():
            tp, fp = np.array(curve["by_threshold"]).T
            fn, tn = tp[0] - tp, fp[0] - fp
            shares = {"precision": tp / np.maximum(tp + fp, 1), "recall": tp / tp[0]}
            counts = {"tp": tp, "fp": fp, "tn": tn, "fn": fn, **shares}
            for tracker in self.open.values():
                tracker.precision_recall(run.state.step, f"dev/{label}", counts)

    def close(self, run: Run) -> None:
        with ExitStack() as closing:  # one that fails does not keep the others open
            while self.open:
                kind, tracker = self.open.popitem()
                closing.callback(_close, run.folder / kind, tracker)

    def _write(self, group: str, run: Run, metrics: Metrics) -> None:
        figures = {
            f"{group}/{name}": float(value)
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value) and name != "step"
        }
        for tracker in self.open.values():
            tracker.log(run.state.step, figures)


class Histograms(Tracking):
    """And histograms of the gradients."""

    def on_gradients(self, run: Run) -> None:
        step = run.state.step + 1
        if step % run.job.trainer.log_every:
            return
        scale = run.precision.scale / run.precision.factor  # what the scaler's step will divide by
        for name, parameter in run.task.network.named_parameters():
            if parameter.grad is not None:
                values = parameter.grad.astype("float32").numpy().ravel() / np.float32(scale)
                values = values[np.isfinite(values)]
                for tracker in self.open.values() if len(values) else ():
                    tracker.histogram(step, f"gradient/{name}", values)


def draw_graph(folder: Path, network: paddle.nn.Layer) -> None:
    """Write the graph of a network on texts for VisualDL's page "Graphs". Its layers get hooks, so
    do not use it afterwards."""
    library = trackers.load("visualdl.component.graph", "callbacks.visualdl", "visualdl")
    names = ("input_ids", "token_type_ids")
    inputs = [paddle.static.InputSpec([-1, -1], "int64", name) for name in names]
    with warnings.catch_warnings(), program_desc.into_program_desc():
        warnings.simplefilter("ignore")  # of VisualDL's calls of Paddle
        graph = library.translate_graph(network, inputs, verbose=False)
    (folder / "vdlgraph.network.log").write_text(graph, encoding="utf-8")


def _close(folder: Path, tracker: trackers.Tracker) -> None:
    with files.writing(folder):
        tracker.close()
