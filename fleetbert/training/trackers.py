"""Other people's books of experiments: VisualDL, TensorBoard, MLflow, Weights & Biases.

Each library is imported only when a job asks for it; VisualDL's is an extra. Where a tracker
sends to is said as its users do: MLFLOW_TRACKING_URI, WANDB_MODE, WANDB_API_KEY, ... Without the
first MLflow's files go into the run's folder, as the others' do. Nothing here needs Paddle.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable, Mapping

import numpy as np

from fleetbert.core import files
from fleetbert.core.errors import UserError

IDS = "trackers.json"  # of a run's folder: what MLflow and W&B call the run

Flat = Mapping[str, object]


class Tracker(ABC):
    @abstractmethod
    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Finite figures by name, as `train/loss`, at an optimizer step."""

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:  # noqa: B027
        """The distribution of finite values. Not every tracker draws these."""

    def precision_recall(  # noqa: B027
        self, step: int, name: str, counts: Mapping[str, np.ndarray]
    ) -> None:
        """A curve over evenly spaced thresholds from 0 to 1. counts: in this order tp, fp, tn and
        fn, int64 [thresholds], precision and recall. Not every tracker draws these."""

    @abstractmethod
    def close(self) -> None:
        """The last call."""


class TensorBoard(Tracker):
    def __init__(self, folder: Path, _: str, config: Flat, resumed_at: int):
        library = load("tensorboardX", "callbacks.tensorboard")
        # What a killed run wrote after its checkpoint is done again. Without a suffix the file is
        # named by the second, and overwrites one of the same second.
        self.writer = library.SummaryWriter(
            str(folder / "tensorboard"),
            purge_step=resumed_at + 1 if resumed_at else None,
            filename_suffix=f".{resumed_at}",
        )
        rows = (f"    {name}: {value}" for name, value in config.items())
        self.writer.add_text("config", "\n".join(rows), resumed_at)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        self.writer.add_histogram(name, values, step)

    def precision_recall(self, step: int, name: str, counts: Mapping[str, np.ndarray]) -> None:
        self.writer.add_pr_curve_raw(
            name, *counts.values(), global_step=step, num_thresholds=len(counts["tp"])
        )

    def close(self) -> None:
        self.writer.close()


class VisualDL(TensorBoard):
    """`visualdl --logdir OUTPUT_DIR/visualdl`"""

    def __init__(self, folder: Path, _target: str, _config: Flat, _resumed_at: int):
        library = load("visualdl", "callbacks.visualdl")
        self.writer = library.LogWriter(logdir=str(folder / "visualdl"))

    def precision_recall(self, step: int, name: str, counts: Mapping[str, np.ndarray]) -> None:
        # LogWriter.add_pr_curve (2.5.3) uses np.float, which NumPy removed in 1.24.
        raw = importlib.import_module("visualdl.component.base_component").pr_curve_raw
        lists = {key: values.tolist() for key, values in counts.items()}
        record = raw(name, **lists, step=step, walltime=round(time.time() * 1000))
        self.writer._get_file_writer().add_record(record)


class MLflow(Tracker):
    def __init__(self, folder: Path, target: str, config: Flat, resumed_at: int):
        library = load("mlflow", "callbacks.mlflow", "mlflow-skinny")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            # MLflow 3.7 and later want this said before they write files without a database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (folder / "mlflow").resolve().as_uri()
        self.client, self.metric = library.MlflowClient(uri), library.entities.Metric
        former = known_ids(folder).get("mlflow") if resumed_at else None
        if former is None:
            experiment = self.client.get_experiment_by_name(target)
            number = (
                experiment.experiment_id if experiment else self.client.create_experiment(target)
            )
            self.id = self.client.create_run(number, run_name=folder.name).info.run_id
            for name, value in config.items():
                self.client.log_param(self.id, name, value)
            keep_id(folder, "mlflow", self.id)
        else:
            self.id = former
            self.client.update_run(self.id, status="RUNNING")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.metric(name, value, now, step) for name, value in figures.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.id)


class WandB(Tracker):
    def __init__(self, folder: Path, target: str, config: Flat, resumed_at: int):
        library = load("wandb", "callbacks.wandb")
        former = known_ids(folder).get("wandb") if resumed_at else None
        self.run = library.init(
            project=target,
            name=folder.name,
            dir=str(folder),
            config=dict(config),
            id=former,
            resume="allow" if former else None,
        )
        keep_id(folder, "wandb", self.run.id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=step)

    def close(self) -> None:
        self.run.finish()


# By the key of `callbacks` that asks for it: folder of the run, experiment or project, flat config,
# the step that a resumed run goes on from.
KINDS: dict[str, Callable[[Path, str, Flat, int], Tracker]] = {
    "visualdl": VisualDL,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def load(module: str, key: str, package: str | None = None) -> Any:  # a library without types
    """A tracker's module; UserError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{key}: {module} cannot be imported ({error}); pip install {package or module}, or "
            "leave the key out"
        ) from error


def known_ids(folder: Path) -> dict[str, str]:
    """What the trackers that a run is resumed in call it."""
    try:
        return dict(json.loads((folder / IDS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def keep_id(folder: Path, kind: str, identity: str) -> None:
    files.write_json(folder / IDS, {**known_ids(folder), kind: identity})
