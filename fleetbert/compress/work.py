"""What every method is given: the job, its bundle, the float32 source, the gate."""

from __future__ import annotations

import fnmatch
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Mapping, Sequence

import numpy as np
import paddle

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress.gate import Gate
from fleetbert.compress.sensitivity import Layers, linear_weights
from fleetbert.errors import UserError
from fleetbert.graph import program as programs
from fleetbert.graph import weights
from fleetbert.graph.fuse import Fused, fuse
from fleetbert.graph.weights import Quantized


class Source:
    """The float32 program in a folder (model.pdmodel, model.pdiparams); each form of it is made
    once. Whoever changes one copies it first."""

    def __init__(self, folder: Path):
        self.folder = folder

    @functools.cached_property
    def program(self) -> programs.ProgramDesc:
        return programs.read(self.folder / "model.pdmodel")

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return programs.read_parameters(self.program, self.folder / "model.pdiparams")

    @functools.cached_property
    def fused(self) -> Fused:
        return fuse(self.folder)

    @functools.cached_property
    def layers(self) -> Layers:
        return Layers(self.fused)

    def float32_layers(self, skip: Sequence[str]) -> list[str]:
        """The Linear weights that stay float32: those in `skip` (* matches anything), and the last,
        which gives the logits and costs nothing. UserError where that leaves none."""
        linear = linear_weights(self.program)
        left = [*matching(skip, linear), linear[-1]]
        if set(left) == set(linear):
            raise UserError("skip: no layer is left to quantize; name fewer of them")
        return left


@dataclass(frozen=True)
class Work:
    """gate: of `job.gate`; source: of the variant `job.source`."""

    job: config.Quantize
    bundle: bundles.Bundle
    source: Source
    gate: Gate


def open_work(job: config.Quantize) -> Work:
    """Read, verify and open what the job names; UserError for what cannot be a source."""
    bundle = bundles.read(job.bundle)
    variant = bundle.variant(job.source)
    if not isinstance(variant, bundles.ProgramVariant):
        raise UserError(
            f"source: the variant {variant.name} of {bundle.root} is of kind {variant.kind}; name "
            "float32, or one that method: prune made"
        )
    if job.method in config.TRAINED and bundle.task.name == "mlm":
        raise UserError(
            f"method: {job.method}: {bundle.root} predicts masked words; it takes classifiers"
        )
    # The gate opens float32, which verifies it.
    gate = Gate(bundle, str(job.gate.data), job.gate.max_accuracy_drop, job.threads)
    if job.source != "float32":
        bundles.verify(bundle, job.source)
    return Work(job, bundle, Source(bundle.folder(job.source)), gate)


def matching(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """The names that match a pattern; UserError for a pattern that matches none."""
    known = list(names)
    chosen: list[str] = []
    for pattern in patterns:
        hits = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not hits:
            shown = ", ".join(sorted(known)[:8])
            raise UserError(f"skip: {pattern!r} matches no weight; there are {shown}, ...")
        chosen += hits
    return chosen


def versions() -> dict[str, str]:
    return {"fleetbert": fleetbert.__version__, "paddlepaddle": paddle.__version__}


def weight_errors(
    quantized: Mapping[str, Quantized], arrays: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Relative error (Frobenius norm) of each quantized weight."""
    return {
        name: float(
            np.linalg.norm(weights.widen(rounded) - arrays[name]) / np.linalg.norm(arrays[name])
        )
        for name, rounded in quantized.items()
    }
