"""Anonymous memory of a run over a made table.

  python measure_memory.py LINES FOLDER [key=value ...]

Makes a table of short lines, tokenizes it into FOLDER/cache, trains a few steps of a tiny model,
plans an epoch and looks at each of its steps. Prints the peak of this process in MiB, which is
what cannot be given back to the disk (RssAnon), and how much of it is above that before the table
was opened.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tiny_job

from fleetbert import config
from fleetbert.compat import environment


def write_lines(path: Path, lines: int) -> None:
    """Sentences of 3 to 8 words, 100,000 at a time."""
    words = np.array([f"word{n}" for n in range(150)], object)
    with path.open("w", encoding="utf-8") as file:
        file.write("label\ttext_a\n")
        for start in range(0, lines, 100_000):
            rng = np.random.default_rng(start)
            count = min(100_000, lines - start)
            texts = words[rng.integers(0, 150, (count, 8))]
            ends = rng.integers(3, 9, count)
            labels = rng.integers(0, 2, count)
            file.writelines(
                f"{'bad' if label else 'good'}\t{' '.join(text[:end])}\n"
                for text, end, label in zip(texts, ends, labels)
            )


def anonymous() -> float:
    """MiB."""
    text = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) / 1024 for x in text.splitlines() if x.startswith("RssAnon"))


class Peak(threading.Thread):
    """Looks two hundred times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found = 0.0
        self.over = False

    def run(self) -> None:
        while not self.over:
            self.found = max(self.found, anonymous())
            time.sleep(0.005)


def main(lines: int, folder: Path, overrides: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / f"{lines}.tsv"
    if not table.exists():
        write_lines(table, lines)
    (folder / "vocab.txt").write_text("\n".join(tiny_job.VOCAB) + "\n", encoding="utf-8")
    changes = {
        "data.train": str(table), "data.dev": None, "data.cache": str(folder / "cache"),
        "trainer.max_steps": 8, "trainer.resume": "none",
    }  # fmt: skip
    path = folder / "job.yaml"
    values = tiny_job.values(folder, folder / f"output-{lines}", changes)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    job = config.load_as(config.Config, str(path), overrides)

    environment.import_paddle()
    from fleetbert.training import job as training
    from fleetbert.training.loop import Run

    training._write_results = lambda run, summary: None
    kept: list[Run] = []
    restore = training._resume
    training._resume = lambda run: (kept.append(run), restore(run))[1]
    before = anonymous()
    peak = Peak()
    peak.start()
    training.train(job)
    texts = sum(len(indices) for indices in kept[0].task.plan(0))
    peak.over = True
    peak.join()
    assert texts == lines
    above = round(peak.found - before, 1)
    print(json.dumps({"lines": lines, "peak": round(peak.found, 1), "above_start": above}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
