"""What every method is given: the job, its bundle, the float32 source, the gate."""

from __future__ import annotations

import fnmatch
import functools
import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.compression import selection, smooth
from fleetbert.compression.gate import Gate, Sample
from fleetbert.compression.observed import Observed, observe
from fleetbert.compression.sensitivity import Layers, groups, linear_weights
from fleetbert.compression.texts import Feeds, read_batches
from fleetbert.core.errors import UserError
from fleetbert.graph import program as programs
from fleetbert.graph import weights
from fleetbert.graph.fuse import Fused, fuse
from fleetbert.graph.smooth import smooth as smooth_inputs
from fleetbert.graph.weights import Quantized

log = logging.getLogger(__name__)


class Source:
    """The float32 program in a folder (model.pdmodel, model.pdiparams); each form of it is made
    once. Whoever changes one copies it first."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def of(cls, program: programs.ProgramDesc, arrays: Mapping[str, np.ndarray]) -> Source:
        """A program that is not on disk, in a folder that goes with the last use of it."""
        temporary = tempfile.TemporaryDirectory(prefix="fleetbert-source-")
        source = cls(Path(temporary.name))
        source._temporary = temporary
        programs.write_model(source.folder, program, dict(arrays))
        return source

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
        """The Linear weights that stay float32: those in `skip` (* matches anything), those without
        a bias, which imported programs may have and Paddle fuses to no `fc`, and the last of the
        head, which gives the logits and costs nothing. UserError where that leaves none."""
        linear = linear_weights(self.program)
        no_fc = [name for name in linear if name not in self.layers.inputs]
        left = [*matching(skip, linear), *no_fc, *groups(self.program)["head"][-1:]]
        if set(left) == set(linear):
            raise UserError("skip: no layer is left to quantize; name fewer of them")
        return left


class Ready(NamedTuple):
    """What a method has done. source: the float32 program that errors of layers are told against,
    which training makes anew; write: writes a variant's files into a folder, and says what is known
    of it before it is measured."""

    source: Source
    write: Callable[[Path], bundles.Variant]


class Result(NamedTuple):
    """A variant that was added (by method: vocabulary, float32 of a new bundle), and its report if
    there is one; on ranks that only helped to train the bundle has no such variant yet."""

    bundle: bundles.Bundle
    variant: str
    report: Path | None = None


@dataclass
class Work:
    """gate: of `job.gate`; source: of the variant `job.source`, smoothed where the job wants it,
    or what the method trained of it; smoothed: how, by weight."""

    job: config.Quantize
    bundle: bundles.Bundle
    source: Source
    gate: Gate
    smoothed: Mapping[str, bundles.Smoothed] = field(default_factory=dict)

    @functools.cached_property
    def selection(self) -> Sample:
        """The texts to choose on, opened where a method asks for them."""
        calibration = self.job.calibration
        return selection.open_sample(
            self.gate, self.job.selection, calibration.data, calibration.seed, "calibration.data"
        )

    @functools.cached_property
    def calibration_batches(self) -> list[Feeds]:
        """Texts of `calibration.data`, but those that are held out for `selection`."""
        return read_batches(self.job.calibration, self.bundle, self.job.selection, self.job.data)

    @functools.cached_property
    def observed(self) -> Observed:
        """What these texts put into the layers of the source."""
        batches = self.calibration_batches
        log.info(f"calibrating: float32 runs {sum(len(b['input_ids']) for b in batches)} texts")
        return observe(self.source.layers, batches)


def open_work(job: config.Quantize) -> Work:
    """Read, verify and open what the job names; UserError for what cannot be a source."""
    bundle = bundles.read(job.bundle)
    tasks.get(bundle.task.name).check_of_texts(str(bundle.root), "fleetbert quantize")
    variant = bundle.variant(job.source)
    if not isinstance(variant, bundles.ProgramVariant):
        raise UserError(
            f"source: the variant {variant.name} of {bundle.root} is of kind {variant.kind}; name "
            "float32, or one that method: prune made"
        )
    if job.method in (*config.TRAINED, "vocabulary"):
        _check_trained(job, bundle)
    # The gate opens float32, which verifies it.
    gate = Gate(bundle, job.gate, job.threads, columns=job.data)
    if job.source != "float32":
        bundles.verify(bundle, job.source)
    work = Work(job, bundle, Source(bundle.folder(job.source)), gate)
    if job.method in config.CALIBRATED and job.calibration.smooth == "auto":
        smoothen(work)
    return work


def _check_trained(job: config.Quantize, bundle: bundles.Bundle) -> None:
    """UserError for a task that a method which needs the network does not take."""
    where, task = f"method: {job.method}: {bundle.root}", tasks.get(bundle.task.name)
    if not task.shape.answers:
        counts = task.shape.counts
        raise UserError(f"{where} predicts {counts}; choose a bundle that answers (docs/tasks.md)")


def smoothen(work: Work) -> None:
    """Smooth the work's source, as the calibration texts advise."""
    source, observed = work.source, work.observed
    left = source.float32_layers(work.job.skip)
    log.info("smooth: trying scales of layers' inputs")
    scales = smooth.choose(source.program, source.layers, observed, left)
    for name, entry in scales.smoothed.items():
        log.info(
            f"smooth: {name}: exponent {entry.exponent}, token error {entry.error:.2%} instead of "
            f"{entry.former_error:.2%}"
        )
    log.info(f"smooth: the inputs of {len(scales.smoothed)} layers")
    if scales.smoothed:
        work.source = Source.of(*smooth_inputs(source.program, source.arrays, scales.by_input))
        work.smoothed, work.observed = scales.smoothed, observed.divided(scales.by_weight)


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


def weight_errors(
    quantized: Mapping[str, Quantized], arrays: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Relative error (Frobenius norm) of each quantized weight; 0 of one of zeros, as the types of
    tokens are that an imported DistilBERT gets."""
    return {
        name: float(
            np.linalg.norm(weights.widen(rounded) - arrays[name])
            / (np.linalg.norm(arrays[name]) or 1.0)
        )
        for name, rounded in quantized.items()
    }
