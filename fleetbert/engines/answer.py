"""Texts → answers: tokenize, sort into batches by tokens, run, and put back into order."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.config import Columns
from fleetbert.core.device import CPU, Device
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import ragged, tokenizers
from fleetbert.data.ragged import Rows
from fleetbert.data.read import USUAL, Example, Format, check_texts, iter_lines
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.engines import engine
from fleetbert.engines.engine import BATCH_TOKENS
from fleetbert.tasks import Answer
from fleetbert.tasks.answer import are_finite

if TYPE_CHECKING:
    from tqdm.std import tqdm

# Lines that are read, sorted by length and answered together.
WINDOW = 4096
# A progress bar for less is only noise.
MANY_TEXTS = 500

Line = tasks.Metrics  # what is printed, as JSON

log = logging.getLogger(__name__)


class Model(NamedTuple):
    """An opened variant with its tokenizer: what it takes to answer texts.

    answered_labels: `labels` as answers have them, see `bundle.manifest.Task`.
    speed: of early exit, 0 to 1; None: the variant's own.
    """

    engine: engine.Engine
    tokenizer: Tokenizer
    task: tasks.Task
    labels: Sequence[str]
    reading: Reading
    batch_tokens: int
    speed: float | None = None
    answered_labels: Sequence[str | int] = ()

    @property
    def pair(self) -> bool:
        """Whether it answers pairs of texts."""
        return self.task.shape.pair


class Logits(NamedTuple):
    """Outputs as the task takes them, how many texts were cut to the maximum length, and, of
    variants with early exit, int64 [texts] the layers after which they left."""

    values: np.ndarray
    truncated: int
    exit_layers: np.ndarray | None = None


def load(
    path: str | Path,
    variant: str = "float32",
    device: Device | str = CPU,
    threads: int | None = None,
    batch_tokens: int | None = None,
    speed: float | None = None,
    streams: bool = False,
) -> Model:
    """Open a bundle's variant for questions; UserError if it has no labels to answer with.

    streams: for many texts, see `engine.open`.
    """
    bundle = bundles.read(path)
    task = tasks.of(bundle.task)
    task.check_answers(str(path))
    if batch_tokens is not None and batch_tokens < 1:
        raise UserError(f"batch_tokens is {batch_tokens}; it has to be at least 1")
    tokenizer = tokenizers.open(bundle)
    pad_id = tokenizer.pad_id
    opened = engine.open(
        bundle,
        variant,
        device,
        threads,
        streams=streams,
        pad_id=pad_id,
        batch_tokens=batch_tokens or BATCH_TOKENS,
    )
    engine.warn_if_one_by_one(bundle, variant)
    if speed is not None:
        if opened.early_exit is None:
            raise UserError(
                f"speed is {speed}, but no text leaves the variant {variant} of {path} early; name "
                "an early-exit variant, or leave speed out"
            )
        if not 0 <= speed <= 1:
            raise UserError(f"speed is {speed}; it has to be from 0 (none leaves early) to 1")
    return Model(
        opened,
        tokenizer,
        task,
        bundle.labels,
        bundle.reading,
        batch_tokens or opened.batch_tokens or BATCH_TOKENS,
        speed,
        bundle.task.answered_labels,
    )


def compute_logits(
    model: Model,
    texts_a: list[str],
    texts_b: list[str] | None,
    on_done: Callable[[int], object] | None = None,
) -> Logits:
    """Outputs of texts (or pairs) in their order; `on_done(n)` is called after n more texts, whose
    windows count as parts of them."""
    encodings = model.task.answer.encode(model.tokenizer, texts_a, texts_b, model.reading)
    values, layers = run_all(model, ragged.rows(encodings), on_done)
    values = model.task.answer.of_texts(values, encodings.words, texts_b or texts_a)
    return Logits(values, encodings.truncated, layers if model.engine.early_exit else None)


def run_all(
    model: Model, rows: Rows, on_done: Callable[[int], object] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of texts in the task's `room` and the layers [texts] after which the last of their
    windows left; UserError where they are not finite."""
    count, layout = len(rows.texts.lengths), rows.layout
    values = model.task.room(count, model.labels)
    layers = np.zeros(count, np.int64)
    texts, done = count if layout is None else len(layout.lengths), 0
    for part in model.engine.run_all(rows.texts, model.speed, model.batch_tokens):
        values[part.numbers], layers[part.numbers] = part.outputs, part.layer
        before, done = done, done + len(part.numbers)
        if on_done is not None:
            on_done(done * texts // count - before * texts // count)
    values = model.task.answer.pool(values, layout)
    if layout is not None:
        layers = np.maximum.reduceat(layers, layout.starts)
    if not are_finite(values).all():
        raise UserError(
            "the model answers NaN or infinity: its weights were damaged in training or "
            "compression; export an earlier checkpoint"
        )
    return values, layers


def answer(model: Model, texts_a: list[str], texts_b: list[str] | None = None) -> Sequence[Answer]:
    """The answers to texts (or pairs), in their order; UserError at one that is empty or no text
    (`read.check_texts`)."""
    logits = outputs(model, texts_a, texts_b)
    return model.task.answer.to_answers(model.answered_labels, logits.values, logits.exit_layers)


def outputs(model: Model, texts_a: list[str], texts_b: list[str] | None = None) -> Logits:
    """`compute_logits` of texts that nobody has checked; UserError as `answer` has it."""
    check_texts("texts", texts_a)
    check_texts("pairs", texts_b or ())
    return compute_logits(model, texts_a, texts_b)


class Counts(NamedTuple):
    """Lines of a window: all, those answered with an error, texts cut to the maximum length."""

    lines: int
    errors: int
    truncated: int


def answer_lines(
    model: Model,
    stream: Iterable[bytes],
    jsonl: bool | None = None,
    window: int = WINDOW,
    columns: Columns = USUAL,
    form: Format | None = None,
    on_done: Callable[[int], object] | None = None,
) -> Iterator[tuple[list[Line], Counts]]:
    """One object for each line of `stream`, in its order, a window of lines at a time.

    An object is what `Answer.as_json` says, or {"error"} where the line could not be answered; the
    `id` of a JSONL line comes first in it. How lines are read: see `data.read.iter_lines`. on_done:
    see `compute_logits`. Memory is bounded by the window, whatever the length of the stream.
    """
    lines = iter_lines(stream, pair=model.pair, jsonl=jsonl, columns=columns, form=form)
    second = columns.names()["text_b"][0]
    has_second = form is not None and form.column("text_b", form.columns or ()) is not None
    rows = ((_json_of(record), line) for _, record, line in lines)
    is_told = model.pair
    while True:
        taken = []
        for row, line in itertools.islice(rows, window):
            if not is_told and (has_second or row.get(second)):
                log.warning(f"{second} is not read, as the model answers single texts")
                is_told = True
            taken.append((_id_of(row), line))
        if not taken:
            return
        yield _answer_window(model, taken, on_done)


def progress(total: int | None = None, title: str = "") -> tqdm[Any]:
    """A progress bar; silent unless somebody watches and there are many texts."""
    from fleetbert.core.progress import bar, watched  # with asyncio, which takes a while

    silent = not watched() or (total is not None and total < MANY_TEXTS)
    return bar(total=total, unit=" texts", desc=title or None, disable=silent)


def _json_of(line: bytes) -> Line:
    """The object of a JSONL line, {} of any other."""
    if not line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{"):
        return {}
    try:
        row: Line = json.loads(line)
        return row
    except (ValueError, RecursionError):
        return {}


def _id_of(row: Line) -> Line:
    """{"id": ...} of a JSONL line's object that has one which JSON can hold, else {}."""
    try:
        json.dumps(row.get("id"), allow_nan=False)
    except (ValueError, RecursionError):
        return {}
    return {"id": row["id"]} if "id" in row else {}


def _answer_window(
    model: Model,
    taken: list[tuple[Line, Example | UserError]],
    on_done: Callable[[int], object] | None,
) -> tuple[list[Line], Counts]:
    examples = [line for _, line in taken if isinstance(line, Example)]
    texts_b = [example.text_b or "" for example in examples] if model.pair else None
    texts_a = [example.text_a for example in examples]
    logits = compute_logits(model, texts_a, texts_b, on_done)
    answers = iter(
        model.task.answer.to_answers(model.answered_labels, logits.values, logits.exit_layers)
    )
    results = (
        next(answers).as_json() if isinstance(line, Example) else {"error": str(line)}
        for _, line in taken
    )
    objects = [{**line_id, **result} for (line_id, _), result in zip(taken, results)]
    return objects, Counts(len(taken), len(taken) - len(examples), logits.truncated)
