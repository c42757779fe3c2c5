"""A process of the other Paddle: `PYTHON tests/other_paddle.py make|use FOLDER`.

make: a tiny job's run, the same one killed at its seventh step, and variants of its bundle.
use: the variants of that bundle answer, and the killed run goes on. Both leave what they found in
FOLDER/made.json or used.json: losses by step, and each variant's logits.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = ("float32", "int8-static", "int8-dynamic", "early-exit-float32", "early-exit-int8")


def python(is_paddle_3: bool) -> Path:
    """The Python of the other Paddle's environment, as `make venv` makes it."""
    return ROOT / (".venv" if is_paddle_3 else ".venv-paddle3") / "bin" / "python"


def run(interpreter: str | Path, what: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [interpreter, __file__, what, folder], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / f"{what}.json").read_text(encoding="utf-8"))
    return found


def train(folder: Path, output: str, **stop: int) -> dict[int, float]:
    """Train; the losses by step. stop_at: the step at which it is killed."""
    import tiny_job

    import fleetbert
    from fleetbert import config
    from fleetbert.training import job as training

    class Killed(fleetbert.Callback):
        def on_step(self, run: Any) -> None:
            if run.state.step == stop.get("stop_at"):
                raise RuntimeError("killed")

    changes = {"trainer.checkpoint_every": 5, "trainer.epochs": 6, "trainer.seed": 1}
    job = config.Config.model_validate(tiny_job.values(folder, folder / output, changes))
    with contextlib.suppress(RuntimeError):
        training.train(job, [Killed()])
    return tiny_job.losses(folder / output)


def logits(folder: Path) -> dict[str, list[list[float]]]:
    from fleetbert.engines import answer

    texts = [line.split("\t")[1] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    found = {}
    for name in VARIANTS:
        speed = 0.0 if name.startswith("early") else None
        model = answer.load(folder / "whole" / "bundle", name, threads=1, speed=speed)
        found[name] = answer.compute_logits(model, texts, None).values.tolist()
    return found


def make(folder: Path) -> dict[str, Any]:
    import tiny_job

    import fleetbert

    tiny_job.write_data(folder)
    losses = train(folder, "whole")
    train(folder, "half", stop_at=7)
    bundle, tables = folder / "whole" / "bundle", {"gate": folder / "dev.tsv", "max_drop": 0.1}
    fleetbert.quantize(bundle, method="static", calibration=folder / "train.tsv", **tables)
    fleetbert.quantize(bundle, method="dynamic", **tables)
    fleetbert.early_exit(
        bundle, folder / "train.tsv", sources=["float32", "int8-static"],
        distill={"layers": [1, 2], "epochs": 1, "speed": 0.5}, **tables,
    )  # fmt: skip
    return {"losses": losses, "logits": logits(folder)}


def use(folder: Path) -> dict[str, Any]:
    return {"losses": train(folder, "half"), "logits": logits(folder)}


if __name__ == "__main__":
    found = {"make": make, "use": use}[sys.argv[1]](Path(sys.argv[2]))
    Path(sys.argv[2], f"{sys.argv[1]}.json").write_text(json.dumps(found), encoding="utf-8")
