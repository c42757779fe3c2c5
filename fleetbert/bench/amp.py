"""`fleetbert bench amp`: float32, O1 and O2 by batch size and length, as Paddle's guide to AMP has
it: time and memory on a GPU, and the loss wherever half works."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from fleetbert import config as schema
from fleetbert.bench import measure
from fleetbert.compat import environment
from fleetbert.engines.engine import default_threads
from fleetbert.errors import UserError

# Steps that are not timed: memory is taken, kernels are chosen, the loss scale settles.
WARM_UP = 5
LEVELS = {"O0": "float32", "O1": "O1", "O2": "O2"}


def bench(
    config: str,
    overrides: list[str],
    *,
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
    steps: int,
    device: str,
    losses: bool,
) -> dict[str, Any]:
    """Train `steps` steps in every precision, batch size and length; returns the report.

    Every text has exactly `length` tokens, special ones included. Without a GPU only `losses` can
    be had: of all precisions on a custom device, of float32 alone on a CPU.
    """
    for name, values in (("batch-sizes", batch_sizes), ("lengths", lengths), ("steps", [steps])):
        if not values or min(values) < 1:
            raise UserError(f"--{name}: give whole numbers from 1 on")
    job = schema.load(config, overrides)
    from fleetbert.train.strategies import set_device

    device = set_device(device)
    if device != "gpu" and not losses:
        raise UserError(
            f"bench amp measures speed and memory, which need a GPU, and here it would run on "
            f"{device}; --losses compares the losses alone"
        )
    levels = ["O0"] if device == "cpu" else list(LEVELS)
    rows: list[dict[str, Any]] = []
    said: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as name:
        for length in lengths:
            for batch in batch_sizes:
                table = Path(name) / f"{batch}x{length}.tsv"
                write_texts(table, job, batch * (WARM_UP + steps + 1), length)
                for level in levels:
                    measure.say(f"{LEVELS[level]}, {batch} texts of {length} tokens")
                    cell = {"level": level, "batch_size": batch, "length": length}
                    folder = Path(name) / f"{level}-{batch}x{length}"
                    reply, hello = _train(folder, config, overrides, table, cell, steps, device)
                    said = hello or said
                    rows.append({**cell, **_figures(reply, batch, device == "gpu")})
    return {
        "bench": "amp",
        "config": config,
        "overrides": overrides,
        "device": device,
        "device_name": said.get("device_name", device),
        "machine": environment.machine(default_threads()),
        "versions": said.get("versions", {}),
        "steps": steps,
        "speeds": device == "gpu",
        "rows": compare(rows),
    }


def write_texts(path: Path, job: schema.Config, texts: int, length: int) -> None:
    """A table of texts that fill `length` tokens, of two classes with words of their own."""
    from fleetbert.models import weights

    vocabulary = weights.open_source(job.model).tokenizer.files["vocab.txt"]
    words = np.array(
        [w for w in Path(vocabulary).read_text(encoding="utf-8").split() if w.isalnum()]
    )
    rng = np.random.default_rng(0)
    kinds = np.arange(texts) % 2
    rng.shuffle(kinds)
    half = len(words) // 2
    with path.open("w", encoding="utf-8") as file:
        file.write("label\ttext_a\n")
        for kind in kinds:
            own = rng.integers(0, half, length) + half * kind
            drawn = np.where(rng.random(length) < 0.2, own, rng.integers(0, len(words), length))
            file.write(f"{'ab'[kind]}\t{' '.join(words[drawn])}\n")


def _train(
    folder: Path,
    config: str,
    overrides: list[str],
    table: Path,
    cell: dict[str, Any],
    steps: int,
    device: str,
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What a process reports of one cell, and its hello; (None, None) if memory runs out."""
    folder.mkdir()
    words = {
        "task.name": "classification",
        "data.train": str(table),
        "data.dev": None,
        "data.builtin": None,
        "data.max_length": cell["length"],
        "data.batching": "pad",
        "data.batch_size": cell["batch_size"],
        "data.batch_tokens": None,
        "precision.level": cell["level"],
        "strategy.name": "single",
        "trainer.device": device,
        "trainer.resume": "none",
        "trainer.epochs": 1,
        "trainer.max_steps": WARM_UP + steps + 1,  # the last one is never begun
        "trainer.log_every": 1,
        "callbacks.progress": False,
        "callbacks.visualdl": False,
        "callbacks.profiler.enabled": False,
        "output_dir": str(folder / "output"),
    }
    job = {
        "config": config,
        "overrides": [*overrides, *(f"{key}={json.dumps(value)}" for key, value in words.items())],
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    try:
        with measure.our_worker("ours_amp", path, default_threads()) as worker:
            reply = worker.ask(steps=WARM_UP + steps, untimed=WARM_UP)
            return reply, worker.hello
    except UserError as error:
        if "ResourceExhausted" not in str(error) and "Out of memory" not in str(error):
            raise
        return None, None


def _figures(reply: dict[str, Any] | None, batch: int, timed: bool) -> dict[str, Any]:
    if reply is None:
        return {"out_of_memory": True}
    figures = {"loss": reply["losses"][-1], "losses": reply["losses"], "skipped": reply["skipped"]}
    if timed:
        step = reply["seconds"] / reply["steps"]
        figures.update(
            ms_per_step=1000 * step, texts_per_s=batch / step, peak_mb=reply["device_mb"]
        )
    return figures


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with what they are beside float32's of the same size: `speed_up`, and the largest
    difference of a step's loss, `loss_difference`."""
    plain = {(r["batch_size"], r["length"]): r for r in rows if r["level"] == "O0"}
    compared = []
    for row in rows:
        beside, found = plain[row["batch_size"], row["length"]], dict(row)
        if "losses" in row and "losses" in beside:
            pairs = zip(row["losses"], beside["losses"])
            found["loss_difference"] = max(abs(mine - other) for mine, other in pairs)
        if "texts_per_s" in row and "texts_per_s" in beside:
            found["speed_up"] = row["texts_per_s"] / beside["texts_per_s"]
        compared.append(found)
    return compared


COLUMNS = {
    "ms_per_step": ("ms/step", "{:.1f}"),
    "texts_per_s": ("texts/s", "{:.1f}"),
    "speed_up": ("speed-up", "{:.2f}"),
    "peak_mb": ("peak MB", "{:.0f}"),
    "loss": ("last loss", "{:.4f}"),
    "loss_difference": ("furthest from float32's", "{:.4f}"),
    "skipped": ("skipped steps", "{}"),
}
SPEEDS = ("ms_per_step", "texts_per_s", "speed_up", "peak_mb")


def format_report(report: dict[str, Any], markdown: bool = False) -> str:
    """The table and what it means."""
    shown = [name for name in COLUMNS if report["speeds"] or name not in SPEEDS]
    table = [["", "batch", "length", *(COLUMNS[name][0] for name in shown)]]
    for row in report["rows"]:
        cells = [COLUMNS[n][1].format(row[n]) if row.get(n) is not None else "-" for n in shown]
        if "out_of_memory" in row:
            cells[0] = "out of memory"
        table.append([LEVELS[row["level"]], str(row["batch_size"]), str(row["length"]), *cells])
    lines = [
        f"Training on {report['device_name']}, {report['steps']} steps after {WARM_UP} of warm-up",
        "",
        measure.table(table, markdown),
    ]
    if not report["speeds"]:
        lines += ["", f"Speeds and memory need a GPU; this ran on {report['device']}."]
    if report["device"] == "cpu":
        lines += ["O1 and O2 were left out: on a CPU Paddle's AMP does nothing."]
    return "\n".join(lines)


def plot(report: dict[str, Any], path: str) -> None:
    """The figures as a picture: texts/s and memory where they were measured, and the losses."""
    from matplotlib.figure import Figure

    rows = report["rows"]
    sizes = list(dict.fromkeys((row["batch_size"], row["length"]) for row in rows))
    levels = list(dict.fromkeys(row["level"] for row in rows))
    bars = {"texts_per_s": "texts/s", "peak_mb": "peak memory, MB"} if report["speeds"] else {}
    figure = Figure(figsize=(6 * (len(bars) + 1), 4), layout="constrained")
    axes = figure.subplots(1, len(bars) + 1, squeeze=False)
    for axis, (name, title) in zip(axes[0], bars.items()):
        for number, level in enumerate(levels):
            heights = [
                next((r.get(name) or 0 for r in rows if _is(r, level, size)), 0) for size in sizes
            ]
            places = np.arange(len(sizes)) + (number - (len(levels) - 1) / 2) * 0.8 / len(levels)
            axis.bar(places, heights, 0.8 / len(levels), label=LEVELS[level])
        axis.set_xticks(range(len(sizes)), [f"{batch} x {length}" for batch, length in sizes])
        axis.set(title=title, xlabel="batch x length")
    curves = axes[0][-1]
    for level in levels:
        row = next((r for r in rows if _is(r, level, sizes[0]) and "losses" in r), None)
        if row is not None:
            curves.plot(range(1, len(row["losses"]) + 1), row["losses"], label=LEVELS[level])
    curves.set(title=f"loss, {sizes[0][0]} texts of {sizes[0][1]} tokens", xlabel="step")
    curves.legend()  # the bars have the same colours
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"--plot {path}: {reason}; name a .png or .svg file") from None


def _is(row: dict[str, Any], level: str, size: tuple[int, int]) -> bool:
    return row["level"] == level and (row["batch_size"], row["length"]) == size
