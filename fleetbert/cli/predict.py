"""The command line of `fleetbert predict`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator

from fleetbert.cli.bundle_options import (
    add_columns,
    add_model,
    columns,
    load,
    open_input,
)
from fleetbert.core import files
from fleetbert.core.errors import UserError

log = logging.getLogger(__name__)

DESCRIPTION = """\
Answer texts: one line of JSON for each line of input, in its order.

  echo "what a lovely film" | fleetbert predict --bundle output/quickstart/bundle --input -
  {"label": "positive", "scores": {"negative": 0.004, "positive": 0.996}}

Input is JSONL ({"text_a": ...} or {"text": ...}, pairs also "text_b"; the answer repeats an "id"),
TSV or CSV with a header that names text_a (or text, or --text-column), or one text per line (pairs:
two texts with a tab between them). The file name's ending decides which, else the first line does.
The answer to an invalid line is {"error": ...}; the exit code is then 0 too. A record whose quoted
fields hold line ends gets one answer. --abstain 0.8 answers null where no label has a probability
of 0.8.

A model of clicks may have its table on servers, each of which holds a share of the rows:
  fleetbert launch --servers 2 --trainers 1 fleetbert.cli predict --bundle B --input F --output O
"""

# What a file's ending says; None: its first line tells.
_JSONL = {".jsonl": True, ".json": True, ".txt": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--input", required=True, metavar="FILE", help="file of the texts; -: stdin"
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="file of the answers, which appears when it is complete; -: stdout (default)",
    )
    parser.add_argument(
        "--abstain",
        type=float,
        metavar="P",
        help="answer null where no label has this probability, 0 to 1",
    )
    add_columns(parser)


def run(arguments: argparse.Namespace) -> None:
    from fleetbert import bundle as bundles
    from fleetbert import tasks
    from fleetbert.engines import answer
    from fleetbert.engines.table import TableEngine

    given = (arguments.input, arguments.output)
    if "-" not in given and len(set(map(os.path.realpath, given))) == 1:
        raise UserError(f"--input and --output are the same file, {arguments.output}: name another")
    least = arguments.abstain
    if least is not None and not 0 <= least <= 1:
        raise UserError(f"--abstain is {least}; it has to be from 0 to 1")
    lines = failed = cut = abstained = 0
    names = columns(arguments)
    bundle = bundles.read(arguments.bundle)
    form = tasks.of(bundle.task).labels.input_format(arguments.input, names)
    with ExitStack() as stack:
        stream = stack.enter_context(open_input(arguments.input))
        table = None
        if "PADDLE_PSERVERS_IP_PORT_LIST" in os.environ:  # of `fleetbert launch --servers`
            from fleetbert.training.strategies.parameter_server import answering

            if os.environ.get("TRAINING_ROLE") == "PSERVER":
                answering.serve(bundle, arguments.variant)
                return
            table = stack.enter_context(answering.asking(bundle, arguments.variant))
        model = load(arguments)
        if table is not None:
            assert isinstance(model.engine, TableEngine)
            model.engine.look_up = table
        if least is not None and not model.task.shape.picks_label:
            raise UserError(
                f"--abstain: {arguments.bundle} answers the task {model.task.name}, which picks no "
                "label; leave it out"
            )
        with _open_output(arguments.output) as output, answer.progress() as bar:
            jsonl = _JSONL.get(Path(arguments.input).suffix.lower())
            windows = answer.answer_lines(model, stream, jsonl, columns=names, form=form)
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
        log.warning(f"{cut} texts were truncated to {model.reading.max_length} tokens")


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
