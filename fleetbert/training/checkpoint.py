"""Checkpoints: written aside, synced, hashed, renamed; read only when whole.

checkpoints/step-00000120/
  model.pdparams, optimizer.pdopt   tensors, Paddle's format
  rows.bin                          `sparse_table.py`, of what has one
  state.json                        where the run stands: step, epoch, position, scaler, best
  manifest.json                     sha256 and size of the others, written last

Paddle is imported where tensors are: `fleetbert checkpoint` is to answer at once.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple

from fleetbert.compat import environment
from fleetbert.core import files, strict_json
from fleetbert.core.errors import UserError

FORMAT = 1
NAME = re.compile("step-[0-9]+")
TENSORS = {"model": "model.pdparams", "optimizer": "optimizer.pdopt"}

WRITING, REMOVING = ".writing-", ".removing-"  # begin the names of what is not yet, or no more


State = Dict[str, Any]  # JSON
Named = Dict[str, Any]
Tensors = Dict[str, Named]  # of a network and its optimizer, by name


class Checkpoint(NamedTuple):
    folder: Path
    state: State
    tensors: Tensors


def save(
    folder: Path,
    state: State,
    tensors: Tensors,
    write_more: Callable[[Path], object] | None = None,
) -> Path:
    """Write the checkpoint of `state["step"]` into `folder` (…/checkpoints); returns its path.
    `write_more` may write other files into the folder that it is given.

    A failure (full disk, unwritable folder) raises UserError and leaves what was there alone.
    """
    paddle = environment.import_paddle()
    target = of_step(folder, state["step"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.temporary_folder(folder, WRITING) as aside:
            for part, name in TENSORS.items():
                paddle.save(tensors[part], str(aside / name))
            if write_more is not None:
                write_more(aside)
            (aside / "state.json").write_text(strict_json.dumps(state, indent=1), encoding="utf-8")
            described = {path.name: _describe(path) for path in sorted(aside.iterdir())}
            manifest = {"format": FORMAT, "files": described}
            (aside / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            files.sync_tree(aside)
            files.put_in_place(aside, target)  # of a run that went on from an earlier step, too
    except (OSError, RuntimeError) as error:  # Paddle wraps some write errors in RuntimeError
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UserError(
            f"checkpoint of step {state['step']}: cannot be written to {folder}: {reason}; "
            "earlier checkpoints are untouched"
        ) from error
    return target


def state_to_resume(folder: Path, resume: str) -> State | None:
    """Return the state of the run that `trainer.resume` resumes; `folder` is …/checkpoints.

    It is that of the newest checkpoint whose state can be read, even if its tensors are broken.
    """
    if resume == "none":
        return None
    paths = listed(folder)[::-1] if resume == "auto" else [Path(resume)]
    return next((state for state in map(read_state, paths) if state is not None), None)


def read_state(path: Path) -> State | None:
    """Return the state of a checkpoint that may be broken; None if it cannot be read."""
    try:
        return dict(json.loads((path / "state.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def prune(folder: Path, keep: int, best_step: int | None) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and what kills left over."""
    remove_leftovers(folder)
    paths = listed(folder)
    for path in paths[: max(0, len(paths) - keep)]:
        if step_of(path) != best_step:
            with contextlib.suppress(OSError):
                remove(path)


def set_aside(folder: Path) -> Path:
    """Put all checkpoints out of the way, in the place of those that were before; returns it."""
    is_mount = files.is_mount_point(folder)  # it cannot be renamed itself
    former = folder / "former" if is_mount else folder.with_name(f"{folder.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    if is_mount:
        former.mkdir()
        for path in listed(folder):
            path.rename(former / path.name)
    else:
        folder.rename(former)
    return former


def remove(path: Path) -> None:
    """Remove a checkpoint; killed meanwhile, it leaves no half one. OSError if it may not."""
    aside = path.with_name(REMOVING + path.name)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what killed writers left, and nothing that one alive is writing; returns what."""
    # What is being removed nobody holds.
    return [path for path in leftovers(folder) if files.remove_if_abandoned(path)]


def leftovers(folder: Path) -> list[Path]:
    """What is being written or removed, or was when its process was killed."""
    return [path for begin in (WRITING, REMOVING) for path in folder.glob(begin + "*")]


def listed(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first. Other names that a user gave are left alone."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if NAME.fullmatch(path.name)), key=step_of)


def of_step(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def broken(path: Path, quick: bool = False) -> str | None:
    """What is wrong with the checkpoint, or None when every byte is as it was written.

    `quick` looks at the sizes of its files, not at their bytes.
    """
    if not path.is_dir():
        return "does not exist"
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"has format {manifest['format']}, this version reads {FORMAT}"
        described = {name: (d["size"], d["sha256"]) for name, d in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json cannot be read ({error})"
    for name in (*TENSORS.values(), "state.json"):
        if name not in described:
            return f"manifest.json does not list {name}"
    for name, (size, sha256) in described.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        try:
            if file.stat().st_size != size or not (quick or files.sha256(file) == sha256):
                return f"{name} is not what was written (size or sha256 differ)"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises UserError when anything in it is not as it was written."""
    problem = broken(path)
    if problem:
        raise UserError(f"checkpoint {path}: {problem}; choose another with trainer.resume")
    paddle = environment.import_paddle()
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return Checkpoint(path, state, {p: paddle.load(str(path / n)) for p, n in TENSORS.items()})


def float32_weights(tensors: Tensors) -> Named:
    """A checkpoint's weights in float32; of half ones the optimizer's float32 master weights."""
    weights = {name: tensor.astype("float32") for name, tensor in tensors["model"].items()}
    return {**weights, **tensors["optimizer"].get("master_weights", {})}


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones."""
    passed_over: list[str] = []
    for path in reversed(listed(folder)):
        problem = broken(path)
        if problem is None:
            return path, passed_over
        passed_over.append(f"{path}: {problem}")
    return None, passed_over


def _describe(path: Path) -> dict[str, object]:
    return {"sha256": files.sha256(path), "size": path.stat().st_size}
