"""The commands that ask a bundle: `fleetbert evaluate`, `predict` and `ask`."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Iterator

from fleetbert import files, strict_json
from fleetbert.data import read
from fleetbert.errors import UserError

if TYPE_CHECKING:
    from fleetbert.engines import answer

log = logging.getLogger(__name__)

EVALUATE = """\
Measure a bundle on a labelled table: the figures of its task (accuracy, Spearman's correlation,
...), loss and speed, and of classes each one's precision, recall and F1.

  fleetbert evaluate --bundle output/quickstart/bundle --data dev.tsv

The table is TSV or CSV with a header (columns text_a, label, for pairs text_b) or JSONL with such
fields; of a model of spans JSONL, or columns of tagged tokens (CoNLL).
"""


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument(
        "--data", required=True, metavar="FILE", help="labelled .tsv, .csv, .jsonl, .conll"
    )
    parser.add_argument(
        "--on-bad-line",
        choices=("stop", "skip"),
        default="stop",
        help="a line that is malformed or has a label that the model does not know: stop with "
        "its number (default), or leave it out and count it",
    )
    _add_quoting(parser)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")


def run_evaluate(arguments: argparse.Namespace) -> None:
    from fleetbert.engines import evaluate

    model = _load(arguments)
    how = arguments.on_bad_line, arguments.quoting
    report = evaluate.evaluate(model, arguments.data, *how, skip_with="--on-bad-line skip")
    if arguments.json:
        where = {key: getattr(arguments, key) for key in ("bundle", "variant", "data")}
        ascii_only = sys.stdout.encoding.lower() != "utf-8"
        print(strict_json.dumps({**where, **report}, ensure_ascii=ascii_only))
    else:
        print(evaluate.format_report(report))


PREDICT = """\
Answer texts: one line of JSON for each line of input, in its order.

  echo "what a lovely film" | fleetbert predict --bundle output/quickstart/bundle --input -
  {"label": "positive", "scores": {"negative": 0.004, "positive": 0.996}}

Input is JSONL ({"text_a": ...} or {"text": ...}, for pairs with "text_b"; an "id" is passed on),
TSV or CSV with a header that has text_a, or one text a line (pairs: two texts with a tab between).
A file ending in .jsonl, .tsv, .csv, .conll or .txt is taken as that; otherwise the first line
tells. A line that cannot be answered becomes {"error": ...}; the others go on, and the exit code is
0. A quoted field may hold line ends: then its lines get one answer. With --abstain 0.8 the label
is null where none has that probability.
"""


def add_predict(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--input", required=True, metavar="FILE", help="texts; - is stdin")
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="where the answers go; - is stdout (default). A file appears when it is complete",
    )
    parser.add_argument(
        "--abstain",
        type=float,
        metavar="P",
        help="answer no label (null) where the likeliest has less than this probability, 0 to 1",
    )
    _add_quoting(parser)


def run_predict(arguments: argparse.Namespace) -> None:
    from fleetbert.engines import answer

    given = (arguments.input, arguments.output)
    if "-" not in given and len(set(map(os.path.realpath, given))) == 1:
        raise UserError(f"--input and --output are the same file, {arguments.output}: name another")
    least = arguments.abstain
    if least is not None and not 0 <= least <= 1:
        raise UserError(f"--abstain is {least}; it has to be from 0 to 1")
    lines = failed = cut = abstained = 0
    with _open_input(arguments.input) as stream:
        model = _load(arguments)
        if least is not None and not model.task.picks_label:
            raise UserError(
                f"--abstain: {arguments.bundle} answers the task {model.task.name}, which picks no "
                "label; leave it out"
            )
        with _open_output(arguments.output) as output, answer.progress() as bar:
            jsonl = _JSONL.get(Path(arguments.input).suffix.lower())
            form, quoting = None, arguments.quoting
            if _is_table(arguments.input):
                form = read.table_format(
                    arguments.input, pair=model.pair, labelled=False, quoting=quoting
                )
            elif Path(arguments.input).suffix.lower() in read.TAG_SUFFIXES:
                form = read.table_format(arguments.input, pair=False, labelled=False, label="spans")
            windows = answer.answer_lines(model, stream, jsonl, quoting=quoting, form=form)
            for objects, counts in windows:
                for line in objects:
                    if least is not None and max(line.get("scores", {"": 1}).values()) < least:
                        line["label"] = None
                        abstained += 1
                    output.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                output.flush()
                bar.update(counts.lines)
                lines += counts.lines
                failed += counts.errors
                cut += counts.truncated
    if failed:
        log.warning(f"{failed} of {lines} lines could not be answered: see their error")
    if least is not None:
        log.info(f"{abstained} of {lines} lines have no label of probability {least:g} or more")
    if cut:
        log.warning(f"{cut} texts were truncated to {model.max_length} tokens")


def _is_table(name: str) -> bool:
    path = Path(name)
    return path.suffix.lower() in read.COLUMN_SUFFIXES and path.is_file()  # and no pipe


# What a file's ending says; None: its first line tells.
_JSONL = {".jsonl": True, ".json": True, ".txt": False}


ASK = """\
Answer a few texts for reading: the label and its probability, the number, or the spans.

  fleetbert ask --bundle output/quickstart/bundle "Draw a histogram with a legend"
"""


def add_ask(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--file", metavar="FILE", help="more texts, one a line")
    parser.add_argument("text", nargs="*", help="texts (pairs: two texts with a tab between)")


def run_ask(arguments: argparse.Namespace) -> None:
    from fleetbert.engines import answer

    # What the system's encoding does not know came in as surrogates: these are its bytes again.
    given = [text.encode("utf-8", "surrogateescape") for text in arguments.text]
    lines = [text.replace(b"\n", b" ") + b"\n" for text in given]
    if arguments.file:
        with _open_input(arguments.file) as stream:
            lines += [line.rstrip(b"\r\n") + b"\n" for line in stream]
    if not lines:
        raise UserError("ask: give at least one text, or --file")
    texts = [line[:-1].decode("utf-8", "backslashreplace") for line in lines]
    model = _load(arguments)
    for objects, _ in answer.answer_lines(model, io.BytesIO(b"".join(lines)), False):
        for text, reply in zip(texts, objects):
            print(text)
            if "error" in reply:
                print(f"  error: {reply['error']}")
            else:
                print(f"  → {model.task.in_words(reply)}")
        if not any("error" in one for one in objects):
            for line in model.task.together_in_words(objects):
                print(line)


def _add_model(parser: argparse.ArgumentParser) -> None:
    """What every command needs that opens a bundle; `_load` reads it."""
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to open")
    parser.add_argument(
        "--variant", default="float32", metavar="NAME", help="which of its variants (float32)"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="(cpu)")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads (OMP_NUM_THREADS, or else the processors this process may use)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="tokens in a batch, padding included (2048); more is hardly faster on CPUs",
    )
    parser.add_argument(
        "--speed",
        type=float,
        metavar="S",
        help="early-exit variants: a text leaves when its uncertainty is under this, 0 to 1 (the "
        "variant's own)",
    )


def _add_quoting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quoting",
        choices=("auto", "none", "minimal"),
        default="auto",
        help="quotes around fields of a table, as RFC 4180 has them: where the file has them "
        "(auto; on stdin: where its header has them), never, or always",
    )


def _load(arguments: argparse.Namespace) -> answer.Model:
    from fleetbert.engines import answer

    return answer.load(
        arguments.bundle,
        arguments.variant,
        arguments.device,
        arguments.threads,
        arguments.batch_tokens,
        arguments.speed,
        streams=True,
    )


@contextmanager
def _open_input(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise UserError(
                f"--input {name}: {error.strerror}; name a file, or - for stdin"
            ) from None
        if _is_table(name):
            read.check_header(name)  # before the model is loaded
        yield stream


@contextmanager
def _open_output(name: str) -> Iterator[BinaryIO]:
    """A stream for answers; a regular file appears when it is complete."""
    if name == "-":
        yield sys.stdout.buffer
        return
    final = Path(os.path.realpath(name))
    special = final.exists() and not final.is_file() and not final.is_dir()  # /dev/null, a pipe
    with ExitStack() as stack:
        try:
            opened = final.open("wb") if special else files.replacing(final)
            stream = stack.enter_context(opened)
        except OSError as error:
            raise UserError(
                f"--output {name}: {error.strerror}; name a file that can be written"
            ) from None
        yield stream
