"""What an engine is, and which kinds there are: token ids of texts in, arrays out.

A kind of variant is a row in OPENERS: its name in the manifest and what opens its folder. Rows of
this package are in `engines/__init__.py`; `register` adds one from outside.
"""

from __future__ import annotations

import abc
import logging
import os
import platform
import threading
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compat import processor
from fleetbert.core import device as devices
from fleetbert.core.device import CPU, Device
from fleetbert.core.errors import UserError
from fleetbert.data import ragged, tokenizers
from fleetbert.data.batching import SAFE_LENGTHS, plan_inference, round_up
from fleetbert.data.ragged import Texts
from fleetbert.engines.exits import Settings
from fleetbert.tasks.answer import by_text

log = logging.getLogger(__name__)

# Kinds of variants, as manifests name them.
FLOAT32 = "paddle-inference"
WEIGHT_ONLY = "paddle-inference-weight-only"
INT8 = "paddle-inference-int8"
BFLOAT16 = "paddle-inference-bfloat16"
EARLY_EXIT = "paddle-inference-early-exit"
ONNX = "onnx"
ONNX_INT8 = "onnx-int8"
TABLE = "paddle-inference-table"
LITE = "paddle-lite"
LITE_EARLY_EXIT = "paddle-lite-early-exit"

# For batches whose answers nobody needs: every vocabulary has it, and no family pads with it.
ANY_TOKEN = 2

INPUTS = ("input_ids", "token_type_ids")
# Tokens of a batch, padding included. BERT-base in float32 on 2 threads takes the same processor
# time with 512 to 2,048, and 4 % more with 4,096, whose batches hold more padding. MiniLM in int8
# takes a tenth less with 2,048 than with 1,024: what a call costs counts more there.
BATCH_TOKENS = 2048
# Rows and their length, of each call of a program.
Shapes = List[Tuple[int, int]]


class Result(NamedTuple):
    """Texts that are answered: their numbers int64 [texts], outputs as `Engine.run` gives them, and
    the layer that they left after; 0 where texts go through all layers."""

    numbers: np.ndarray
    outputs: np.ndarray
    layer: int


class Options(NamedTuple):
    """How to open a variant. threads: of a CPU; streams: for many batches, where the time of one
    does not matter (`engines.streams`); kinds without streams ignore it. pad_id: the token that
    rows are padded with, for programs that tell padding by it. shapes: batches (texts, length)
    that will come, for what is compiled for them."""

    device: Device = CPU
    threads: int = 1
    streams: bool = False
    pad_id: int = 0
    shapes: Sequence[tuple[int, int]] = ()


class Engine(abc.ABC):
    """An opened variant, which answers texts, a batch of them at a time.

    Outputs are float32 and their first axis counts texts; of classifiers they are logits
    [texts, labels]. Of networks that answer each token they are an array of objects [texts], of
    each text [own tokens, outputs]. `run` and `run_all` are safe to call from several threads,
    which then wait.

    early_exit: how texts may leave early; None where all go through all layers. batch_tokens: of a
    batch, where a kind is fastest with other than BATCH_TOKENS.
    """

    early_exit: Settings | None = None
    batch_tokens: int | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @abc.abstractmethod
    def compute(self, texts: Texts, speed: float | None = None) -> np.ndarray:
        """Outputs of one batch, in the order of its texts.

        speed: of early exit, 0 (no text leaves early) to 1; None is the variant's own. Without
        meaning for other kinds.
        """

    def __call__(
        self,
        input_ids: np.ndarray,
        token_type_ids: np.ndarray,
        attention_mask: np.ndarray | None = None,
        *,
        pad_id: int = 0,
        speed: float | None = None,
    ) -> np.ndarray:
        """The same of arrays int64 [texts, length] that a network or a program answers too, to
        compare both. attention_mask: as `ragged.pad` gives it; None: a row ends with its last token
        that is not `pad_id`. Outputs of tokens are [texts, length, outputs], 0 at padding."""
        if attention_mask is None:
            attention_mask = ragged.mask_of(input_ids, pad_id)
        texts = ragged.unpad(input_ids, token_type_ids, attention_mask)
        outputs = self.compute(texts, speed)
        if outputs.dtype != object:
            return outputs
        together = np.zeros((*input_ids.shape, outputs[0].shape[1]), np.float32)
        for row, tokens in zip(together, outputs):
            row[: len(tokens)] = tokens
        return together

    def run(self, texts: Texts, speed: float | None = None) -> np.ndarray:
        """Outputs of one batch, in the order of its texts; speed: see `compute`."""
        if not len(texts.lengths):
            raise ValueError("an empty batch")
        with self._lock:
            return self.compute(texts, speed)

    def run_all(
        self,
        texts: Texts,
        speed: float | None = None,
        batch_tokens: int = 0,
        shapes: Shapes | None = None,
    ) -> Iterator[Result]:
        """Results of texts in batches (`in_batches`), each with the numbers of its texts, as they
        are ready.

        speed: see `compute`. batch_tokens: of a batch, padding included; 0: all are one. shapes:
        the rows that texts are laid out in are added to it.
        """
        for numbers, batch in in_batches(texts, batch_tokens):
            if shapes is not None:
                shapes.append((len(numbers), round_up(int(batch.lengths.max()), SAFE_LENGTHS)))
            yield Result(numbers, self.run(batch, speed), 0)

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Run a batch of each shape (texts, length) once through all layers."""
        for texts, length in shapes:
            self.run(ragged.uniform(texts, length, ANY_TOKEN), speed=0.0)


# input_ids, token_type_ids, attention_mask → outputs.
Run = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class ProgramEngine(Engine):
    """A whole program, opened, whose texts are a row each."""

    def __init__(self, run: Run, pad_id: int = 0):
        """run: a function of the arrays that `ragged.pad` makes; of each token it may give
        [texts, length, outputs], with anything for padding."""
        super().__init__()
        self._run, self._pad_id = run, pad_id

    def compute(self, texts: Texts, speed: float | None = None) -> np.ndarray:
        input_ids, types, mask = ragged.pad(texts, self._pad_id)
        outputs = self._run(input_ids, types, mask)
        return outputs if outputs.ndim == 2 else by_text(outputs[mask > 0], texts.lengths)


class OneByOne(Engine):
    """The texts of another engine, which computes each in a batch of its own."""

    def __init__(self, engine: Engine):
        super().__init__()
        self._engine, self.early_exit = engine, engine.early_exit

    def compute(self, texts: Texts, speed: float | None = None) -> np.ndarray:
        parts = texts.parts(np.arange(len(texts.lengths))[:, None])
        return np.concatenate([self._engine.compute(text, speed) for _, text in parts])


def in_batches(texts: Texts, batch_tokens: int) -> Iterator[tuple[np.ndarray, Texts]]:
    """Texts of like length together (`plan_inference`), with their numbers [texts]; all of them
    where batch_tokens is 0. The longest come first: streams are done at about the same time when
    what comes last is short."""
    if not batch_tokens:
        return iter([(np.arange(len(texts.lengths)), texts)])
    return texts.parts(reversed(plan_inference(texts.lengths, batch_tokens)))


# Opens the files in a variant's folder.
Opener = Callable[[Path, Options], Engine]
OPENERS: dict[str, Opener] = {}


def register(kind: str, opener: Opener) -> None:
    """Let variants of this kind be opened with `opener`."""
    OPENERS[kind] = opener


def open(  # noqa: A001  always written engines.open or engine.open
    bundle: bundles.Bundle,
    variant: str = "float32",
    device: Device | str = CPU,
    threads: int | None = None,
    verify: bool = True,
    streams: bool = False,
    pad_id: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Engine:
    """Open a variant; UserError if its files are not those that were exported.

    streams: see `Options`. pad_id: by default the tokenizer's, which is opened for it. threads: by
    default OMP_NUM_THREADS, which is the number of processors that this process may use unless the
    user has set it. batch_tokens: of the largest batches that will come.
    """
    described = bundle.variant(variant)
    if described.kind not in OPENERS:
        raise UserError(
            f"variant {variant} of bundle {bundle.root} is of kind {described.kind!r}, which this "
            f"command does not open; it opens {', '.join(OPENERS)}"
        )
    _check_processor(described)
    if verify:
        bundles.verify(bundle, variant)
    if pad_id is None:
        pad_id = tokenizers.open(bundle).pad_id
    shapes = largest_shapes(bundle.max_length, batch_tokens)
    folder = bundle.folder(variant)
    opened = open_folder(described.kind, folder, device, threads, streams, pad_id, shapes)
    return OneByOne(opened) if described.one_by_one else opened


def warn_if_one_by_one(bundle: bundles.Bundle, variant: str) -> None:
    """Say in the log that a variant's texts are computed one by one, and what helps."""
    if bundle.variant(variant).one_by_one:
        log.warning(
            f"variant {variant} of {bundle.root} has int8 scales for each batch, by which a text's "
            "answer would depend on the texts beside it: its texts are computed one by one. "
            "fleetbert quantize method=onnx name=NEW makes a variant with a scale for each token"
        )


def open_folder(
    kind: str,
    folder: Path,
    device: Device | str = CPU,
    threads: int | None = None,
    streams: bool = False,
    pad_id: int = 0,
    shapes: Sequence[tuple[int, int]] = (),
) -> Engine:
    """Open the files of a variant that may be in no bundle yet; see `open`."""
    threads = default_threads() if threads is None else threads
    if isinstance(device, str):
        device = devices.of(device)
    options = Options(device, threads, streams and threads > 1, pad_id, shapes)
    return OPENERS[kind](folder, options)


def largest_shapes(max_length: int, batch_tokens: int) -> Shapes:
    """Batches (texts, length) between which all lie: one short text, and full ones of each
    length."""
    longest = round_up(max_length, SAFE_LENGTHS)
    lengths = [length for length in SAFE_LENGTHS if length <= longest]
    return [(1, lengths[0]), *((max(1, batch_tokens // length), length) for length in lengths)]


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
