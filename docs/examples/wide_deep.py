"""Train wide and deep in one process and on servers, and compare: see wide_deep.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from fleetbert.tasks.ctr import criteo_made

ROOT = Path(__file__).resolve().parents[2]
TRAIN = [str(ROOT / "launch" / "train.py"), "--config", str(ROOT / "configs/ps/wide_deep.yaml")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", help="rows in Criteo's format or PaddleRec's (made up)")
    parser.add_argument("--dev", help="other rows, to measure on")
    parser.add_argument("--rows", type=int, default=100_000, help="to make up")
    parser.add_argument("--modes", nargs="+", default=["async", "sync"], help="of the servers")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--output-dir", default="output/wide_deep")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="of all jobs")
    given = parser.parse_args()

    if given.train is None:
        clicks = Path(given.output_dir, "clicks")
        truth = criteo_made.make(clicks, given.rows, given.rows // 4, ids=2_600, seed=0)
        given.train, given.dev = str(clicks / "train.tsv"), str(clicks / "dev.tsv")
        print(f"the true chances of a click: AUC {truth['dev']['best_auc']:.4f}")
    elif given.dev is None:
        parser.error("--train needs --dev: AUC is measured on rows that were not trained on")
    data = [f"data.train={given.train}", f"data.dev={given.dev}", *given.set]

    servers = ["--servers", str(given.servers), "--trainers", str(given.trainers)]
    many = [sys.executable, "-m", "fleetbert.cli", "launch", *servers, *TRAIN]
    jobs = {"one process": [sys.executable, *TRAIN, "strategy.name=single"]}
    for mode in given.modes:
        name = f"{given.servers} servers, {given.trainers} trainers, {mode}"
        jobs[name] = [*many, f"strategy.mode={mode}"]
    print(f"{'':<32} {'AUC':>8} {'log loss':>8} {'rows/s':>8}")
    for name, command in jobs.items():
        folder = Path(given.output_dir, name.replace(", ", "-").replace(" ", "-"))
        words = [f"output_dir={folder}", "trainer.resume=none", *data]
        log = folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            code = subprocess.run([*command, *words], stdout=output, stderr=output).returncode
        if code:
            raise SystemExit(f"{name}: failed, see {log}")
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        dev = summary["dev"]
        print(f"{name:<32} {dev['auc']:>8.4f} {dev['loss']:>8.4f} {summary['texts_per_s']:>8.0f}")


if __name__ == "__main__":
    main()
