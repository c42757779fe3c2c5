"""The command line of `fleetbert checkpoint`. It imports no Paddle, so that it starts fast."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Dict

from fleetbert.core.errors import UserError
from fleetbert.training import checkpoint

DESCRIPTION = """\
List, check or remove the checkpoints of a training run.

  fleetbert checkpoint ls OUTPUT_DIR            list them; checks their sizes, not their bytes
  fleetbert checkpoint verify OUTPUT_DIR        read every byte; exits with 2 if one is broken
  fleetbert checkpoint rm OUTPUT_DIR 400 500    remove those of steps 400 and 500
  fleetbert checkpoint rm OUTPUT_DIR --keep 2   remove all but the newest two and the best

OUTPUT_DIR is the job's output_dir. A run resumes from the newest complete checkpoint, and the best
one becomes model/ and bundle/, so `rm` keeps these two unless you add --force. `rm` also removes
unfinished files of killed runs, but no file that a run is writing.
"""

Row = Dict[str, float]  # of metrics.jsonl


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ls|verify|rm", required=True)
    for name, help_text in (
        ("ls", "list the checkpoints"),
        ("verify", "check every byte of them"),
        ("rm", "remove some"),
    ):
        action = actions.add_parser(
            name,
            help=help_text,
            description=DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        action.add_argument("output_dir", metavar="OUTPUT_DIR", help="output_dir of the job")
    action.add_argument(
        "steps", metavar="STEP", nargs="*", type=int, help="steps of the checkpoints to remove"
    )
    action.add_argument(
        "--keep", type=int, metavar="N", help="remove all but the newest N and the best"
    )
    action.add_argument(
        "--force", action="store_true", help="even the best and the newest whole one"
    )


def run(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.output_dir) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the output_dir of a training job")
    if arguments.action == "ls":
        return _list(folder)
    if arguments.action == "verify":
        return _verify(folder)
    return _remove(folder, arguments.steps, arguments.keep, arguments.force)


def _list(folder: Path) -> int:
    problems = {path: checkpoint.broken(path, quick=True) for path in checkpoint.listed(folder)}
    newest, best = _marked(problems)
    evaluated = _evaluations(folder.parent / "metrics.jsonl")
    figure = _best(best).get("metric", "accuracy")
    rows = [["step", "epoch", "saved", "size", f"dev {figure}", "dev loss", ""]]
    for path, problem in problems.items():
        step = checkpoint.step_of(path)
        marks = [name for name, it in (("newest", newest), ("best", best)) if it == path]
        metrics = evaluated.get(step, {})
        figures = [metrics.get(f"dev.{name}") for name in (figure, "loss")]
        rows.append(
            [
                str(step),
                str((checkpoint.read_state(path) or {}).get("epoch", "")),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime)),
                _megabytes(path),
                *("" if value is None else f"{value:.4f}" for value in figures),
                f"BROKEN: {problem}" if problem else ", ".join(marks),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths)]
        print("  ".join([*cells, row[-1]]).rstrip())
    if not problems:
        print("no checkpoint yet")
    left = checkpoint.leftovers(folder)
    if left:
        print(
            f"{len(left)} unfinished, being written or left by a killed run: rm removes the latter"
        )
    return 0


def _verify(folder: Path) -> int:
    broken = 0
    for path in checkpoint.listed(folder):
        problem = checkpoint.broken(path)
        broken += problem is not None
        print(f"{path.name}: {problem or 'whole'}", flush=True)
    if broken:
        print(f"error: {broken} broken; `fleetbert checkpoint rm` removes them", file=sys.stderr)
    return 2 if broken else 0


def _remove(folder: Path, steps: list[int], keep: int | None, force: bool) -> int:
    paths = checkpoint.listed(folder)
    if bool(steps) == (keep is not None):
        raise UserError("checkpoint rm: give either steps to remove or --keep N")
    if keep is not None and keep < 1:
        raise UserError(f"checkpoint rm: --keep is {keep}; it has to be at least 1")
    newest, best = _marked({path: checkpoint.broken(path, quick=True) for path in paths})
    if keep is not None:
        doomed = [path for path in paths[:-keep] if force or path not in (newest, best)]
    else:
        by_step = {checkpoint.step_of(path): path for path in paths}
        for step in steps:
            if step not in by_step:
                known = ", ".join(map(str, by_step)) or "none"
                raise UserError(f"checkpoint rm: no checkpoint of step {step}; there are: {known}")
            if not force and by_step[step] in (newest, best):
                kind = "newest whole" if by_step[step] == newest else "best"
                raise UserError(
                    f"checkpoint rm: step {step} is the {kind} checkpoint; nothing was removed, "
                    "--force removes it too"
                )
        doomed = [by_step[step] for step in dict.fromkeys(steps)]
    for path in doomed:
        size = _megabytes(path)
        try:
            checkpoint.remove(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be removed: {error.strerror}") from error
        print(f"removed {path.name}, {size}")
    for path in checkpoint.remove_leftovers(folder):
        print(f"removed {path.name}, left by a killed run")
    return 0


def _marked(problems: dict[Path, str | None]) -> tuple[Path | None, Path | None]:
    """Return the newest checkpoint that looks whole, and that of the best step it knows of."""
    newest = next((path for path in reversed(list(problems)) if problems[path] is None), None)
    best = _best(newest).get("step")
    return newest, next((path for path in problems if checkpoint.step_of(path) == best), None)


def _best(path: Path | None) -> checkpoint.State:
    """Return the metrics of the best step that the checkpoint knows of."""
    state = None if path is None else checkpoint.read_state(path)
    return {} if state is None else dict(state.get("best", {}))


def _evaluations(path: Path) -> dict[int, Row]:
    """Return the rows of evaluations, by step."""
    rows = {}
    with contextlib.suppress(OSError, ValueError):  # the last row may be half written
        for line in path.read_text(encoding="utf-8").split("\n"):
            if '"dev.loss"' in line:
                row = json.loads(line)
                rows[row["step"]] = row
    return rows


def _megabytes(path: Path) -> str:
    return f"{sum(file.stat().st_size for file in path.iterdir()) / 1e6:.1f} MB"
