"""A run that is cut and goes on, written to every tracker; prints what they then hold, as JSON.

python tests/track.py FOLDER, in the environment of `make venv-clients`: it has no Paddle.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["WANDB_MODE"] = "offline"

import mlflow  # noqa: E402
import numpy as np  # noqa: E402
from tensorboardX.proto.event_pb2 import Event  # noqa: E402

from fleetbert.training import trackers  # noqa: E402


def write(kind: str, resumed_at: int, steps: range) -> None:
    config = {"optimizer.learning_rate": 5e-5}
    tracker = trackers.KINDS[kind](FOLDER, "films", config, resumed_at)
    for step in steps:
        tracker.log(step, {"train/loss": 1 / step})
    counts = np.array([2, 1])
    tracker.histogram(step, "gradient/weight", np.arange(3))
    names = ("tp", "fp", "tn", "fn", "precision", "recall")
    tracker.precision_recall(step, "dev/good", dict.fromkeys(names, counts))
    tracker.close()


def events() -> list[Event]:
    """TFRecord: length (8 bytes), its checksum (4), an event, its checksum (4)."""
    found = []
    for path in sorted((FOLDER / "tensorboard").iterdir(), key=lambda path: path.name):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


for kind in set(trackers.KINDS) - {"visualdl"}:  # which is in the other environment, with Paddle
    write(kind, 0, range(1, 4))
    write(kind, 2, range(3, 5))  # within the second, as far as TensorBoard goes
client = mlflow.MlflowClient((FOLDER / "mlflow").resolve().as_uri())
experiment = client.get_experiment_by_name("films").experiment_id
runs = client.search_runs([experiment])
history = client.get_metric_history(runs[0].info.run_id, "train/loss")
values = [(event.step, value) for event in events() for value in event.summary.value]
scalars = [
    (step, value.tag, round(value.simple_value, 4))
    for step, value in values
    if value.tag == "train/loss"
]
print(
    json.dumps(
        {
            "mlflow": [[metric.step, metric.value] for metric in history],
            "mlflow_runs": [(run.info.status, run.data.params) for run in runs],
            "tensorboard": scalars,
            "tags": sorted({value.tag for _, value in values}),
            "wandb": [
                b"train/loss" in path.read_bytes()
                for path in sorted(FOLDER.glob("wandb/offline-run-*/run-*.wandb"))
            ],
            "ids": json.loads((FOLDER / trackers.IDS).read_text()),
        }
    )
)
