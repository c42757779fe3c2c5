"""Train with a slow reader and with a fast one, and draw both timelines: see reader.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from matplotlib import pyplot, rcParams

SCRIPT = Path(__file__).with_name("resnet.py")
# A small network and large images; as `words`, these can be others.
SMALL = ["--network", "resnet18", "--size", "32", "--digits", "300", "--pixels", "768"]
SMALL += ["data.batch_size=8"]
COLOURS = {"reader": "#d1242f", "the rest of a step": "#1f6feb"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="processes that read ahead")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output-dir", default="output/reader")
    given, words = parser.parse_known_args()  # the rest is for resnet.py

    record = min(5, given.steps // 4)
    profile = [f"callbacks.profiler.start_step={given.steps - record - 1}"]
    profile += [f"callbacks.profiler.record_steps={record}", "callbacks.profiler.timer_only=false"]
    # A processor for the training, so that reading has another one.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    recorded = {}
    print(f"{'workers':>7} {'reader ms':>9} {'batch ms':>9} {'reader ratio':>12} {'images/s':>9}")
    for workers in (0, given.workers):
        folder = Path(given.output_dir) / f"workers-{workers}"
        keys = [f"data.num_workers={workers}", f"trainer.max_steps={given.steps}"]
        keys += [f"output_dir={folder}", "trainer.epochs=1000", *profile]
        command = [sys.executable, str(SCRIPT), *SMALL, *words]
        subprocess.run([*command, *keys], check=True, env=environment, stdout=subprocess.DEVNULL)
        figures = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
        rank = figures["together"]
        reader, batch = 1000 * rank["reader_cost"], 1000 * rank["batch_cost"]
        speed = rank["texts_per_s"]
        ratio = rank["reader_ratio"]
        print(f"{workers:>7} {reader:>9.1f} {batch:>9.1f} {ratio:>12.1%} {speed:>9.1f}")
        recorded[f"{workers} workers"] = read(folder / figures["traces"][0])
    path = Path(given.output_dir) / "timeline.svg"
    draw(recorded, path)
    print(f"timeline: {path}; each workers-N/profile/ has one for chrome://tracing")


def read(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Begin and length (ms) of what the training did, from the first whole step of a timeline."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    reading = [event for event in events if event.get("name", "").startswith("reader")]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in reading)
    if not spans:
        raise SystemExit(f"{path}: has no event called reader")
    start = spans[0][0]
    last = max(event["ts"] + event["dur"] for event in events if "dur" in event)
    ends = [begin for begin, _ in spans[1:]] + [last]
    return {
        "reader": [((a - start) / 1000, (b - a) / 1000) for a, b in spans],
        "the rest of a step": [
            ((b - start) / 1000, (end - b) / 1000) for (_, b), end in zip(spans, ends)
        ],
    }


def draw(recorded: dict[str, dict[str, list[tuple[float, float]]]], path: Path) -> None:
    rcParams["svg.fonttype"] = "none"  # text, not outlines
    figure, axes = pyplot.subplots(figsize=(8, 2))
    for height, spans in enumerate(recorded.values()):
        for name, colour in COLOURS.items():
            axes.broken_barh(spans[name], (height - 0.35, 0.7), color=colour, label=name)
    axes.set_yticks(range(len(recorded)), list(recorded))
    axes.invert_yaxis()
    axes.set_xlabel("ms since the first recorded step began")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:2], labels[:2], loc="lower center", bbox_to_anchor=(0.5, 1), ncol=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
