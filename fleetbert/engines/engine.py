"""What an engine is, and which kinds there are: batches of token ids in, arrays out.

A kind of variant is a row in OPENERS: its name in the manifest and what opens its folder. Rows of
this package are in `engines/__init__.py`; `register` adds one from outside.
"""

from __future__ import annotations

import abc
import os
import platform
import threading
from pathlib import Path
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Tuple

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compat import paddle_inference, processor
from fleetbert.core.errors import UserError
from fleetbert.data.batching import Batch
from fleetbert.engines.exits import Settings
from fleetbert.tasks.answer import own_tokens

# Kinds of variants, as manifests name them.
FLOAT32 = "paddle-inference"
WEIGHT_ONLY = "paddle-inference-weight-only"
INT8 = "paddle-inference-int8"
BFLOAT16 = "paddle-inference-bfloat16"
EARLY_EXIT = "paddle-inference-early-exit"
ONNX = "onnx"
ONNX_INT8 = "onnx-int8"
LITE = "paddle-lite"
LITE_EARLY_EXIT = "paddle-lite-early-exit"

# Kinds whose texts share rows (`engines.packed`).
PACKED = (INT8, BFLOAT16, EARLY_EXIT)

# For batches whose answers nobody needs: every vocabulary has it, and no family pads with it.
ANY_TOKEN = 2

INPUTS = ("input_ids", "token_type_ids")
# Arrays [texts, length] by name; an encoder's are INPUTS.
Inputs = Mapping[str, np.ndarray]
Batches = Iterable[Tuple[np.ndarray, Batch]]


class Result(NamedTuple):
    """Texts that are answered: their numbers int64 [texts], outputs as `Engine.run` gives them, and
    the layer that they left after; 0 where texts go through all layers."""

    numbers: np.ndarray
    outputs: np.ndarray
    layer: int


class Options(NamedTuple):
    """How to open a variant. device: cpu or gpu; threads: of a CPU; streams: for many batches,
    where the time of one does not matter (`engines.streams`); kinds without streams ignore it."""

    device: str = "cpu"
    threads: int = 1
    streams: bool = False


class Engine(abc.ABC):
    """An opened variant, which answers batches one at a time.

    Outputs are float32 and their first axis counts texts; of classifiers they are logits
    [texts, labels]. Of networks that answer each token `compute` gives [texts, length, outputs],
    with anything for padding, and `run` and `run_all` an array of objects [texts], of each text
    [own tokens, outputs]. `run` and `run_all` are safe to call from several threads, which then
    wait.

    early_exit: how texts may leave early; None where all go through all layers.
    """

    early_exit: Settings | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @abc.abstractmethod
    def compute(self, inputs: Inputs, speed: float | None = None) -> np.ndarray:
        """Outputs of one batch, whose lengths nobody has checked.

        inputs: int64 [texts, length] by the names INPUTS. speed: of early exit, 0 (no text leaves
        early) to 1; None is the variant's own. Without meaning for other kinds.
        """

    def __call__(
        self, input_ids: np.ndarray, token_type_ids: np.ndarray, *, speed: float | None = None
    ) -> np.ndarray:
        """The same of arrays."""
        return self.compute({"input_ids": input_ids, "token_type_ids": token_type_ids}, speed)

    def run(self, batch: Batch, speed: float | None = None) -> np.ndarray:
        """Outputs of an unpacked batch, in the batch's order; speed: see `compute`.

        Rows must have one of SAFE_LENGTHS tokens (ValueError otherwise).
        """
        if batch.segments is not None:
            raise ValueError("this engine takes unpacked batches: collate(..., packed=False)")
        if not batch.input_ids.size:
            raise ValueError("an empty batch")
        paddle_inference.check_length(batch.input_ids.shape[1])
        with self._lock:
            return of_own(self(batch.input_ids, batch.token_type_ids, speed=speed), batch)

    def run_all(
        self, batches: Batches, speed: float | None = None, batch_tokens: int = 0
    ) -> Iterator[Result]:
        """Results of many batches, each with the numbers of its texts, as they are ready.

        speed: see `compute`. batch_tokens: of the batches that early exit puts together.
        """
        for numbers, batch in batches:
            yield Result(numbers, self.run(batch, speed), 0)

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Run a batch of each shape (texts, length) once through all layers."""
        for texts, length in shapes:
            ids = np.full((texts, length), ANY_TOKEN, np.int64)
            with self._lock:
                self(ids, np.zeros_like(ids), speed=0.0)


class ProgramEngine(Engine):
    """A whole program, opened: a function of the arrays INPUTS."""

    def __init__(self, run: Callable[[np.ndarray, np.ndarray], np.ndarray]):
        super().__init__()
        self._run = run

    def compute(self, inputs: Inputs, speed: float | None = None) -> np.ndarray:
        return self._run(*(inputs[name] for name in INPUTS))


def of_own(outputs: np.ndarray, batch: Batch) -> np.ndarray:
    """Outputs of an unpacked batch as `Engine.run` gives them."""
    if outputs.ndim == 2:
        return outputs
    if batch.lengths is None:
        raise ValueError("outputs of tokens need a batch with lengths: collate makes them")
    return own_tokens(outputs, batch.lengths)


# Opens the files in a variant's folder.
Opener = Callable[[Path, Options], Engine]
OPENERS: dict[str, Opener] = {}


def register(kind: str, opener: Opener) -> None:
    """Let variants of this kind be opened with `opener`."""
    OPENERS[kind] = opener


def open(  # noqa: A001  always written engines.open or engine.open
    bundle: bundles.Bundle,
    variant: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    verify: bool = True,
    streams: bool = False,
) -> Engine:
    """Open a variant; UserError if its files are not those that were exported.

    device, streams: see `Options`. threads: by default OMP_NUM_THREADS, which is the number of
    processors that this process may use unless the user has set it.
    """
    described = bundle.variant(variant)
    if described.kind not in OPENERS:
        raise UserError(
            f"variant {variant} of bundle {bundle.root} is of kind {described.kind!r}, which this "
            f"command does not open; it opens {', '.join(OPENERS)}"
        )
    if device not in ("cpu", "gpu"):
        raise UserError(f"device is {device!r}; choose cpu or gpu")
    _check_processor(described)
    if verify:
        bundles.verify(bundle, variant)
    return open_folder(described.kind, bundle.folder(variant), device, threads, streams)


def open_folder(
    kind: str,
    folder: Path,
    device: str = "cpu",
    threads: int | None = None,
    streams: bool = False,
) -> Engine:
    """Open the files of a variant that may be in no bundle yet; see `open`."""
    threads = default_threads() if threads is None else threads
    return OPENERS[kind](folder, Options(device, threads, streams and threads > 1))


# What `runs_on` calls a processor, by its names in Python's `platform`.
PROCESSORS = {
    "x86_64": "x86",
    "amd64": "x86",
    "aarch64": "armv8",
    "arm64": "armv8",
    "armv7l": "armv7",
}


def _check_processor(variant: bundles.Variant) -> None:
    """UserError for a variant of another processor, whose program might answer nonsense here, or of
    one that has more than this."""
    if isinstance(variant, bundles.BFloat16Variant):
        processor.check(variant.needs, f"variant {variant.name}")
    here = PROCESSORS.get(platform.machine().lower())
    if here is not None and variant.runs_on and here not in variant.runs_on:
        raise UserError(
            f"variant {variant.name} is for {' and '.join(variant.runs_on)} and this machine is "
            f"{here}: run it there, or export the variant for {here}"
        )


def default_threads() -> int:
    """OMP_NUM_THREADS; `fleetbert.compat.environment` sets it where the user has not."""
    value = os.environ.get("OMP_NUM_THREADS", "1")
    try:
        return max(1, int(value.split(",")[0]))  # "4,2" has a number per nesting level
    except ValueError:
        raise UserError(f"OMP_NUM_THREADS is {value!r}; set it to a number of threads") from None
