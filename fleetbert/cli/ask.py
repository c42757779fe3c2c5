"""The command line of `fleetbert ask`."""

from __future__ import annotations

import argparse
import io

from fleetbert.cli.bundle_options import add_model, load, open_input
from fleetbert.core.errors import UserError

DESCRIPTION = """\
Print the answers to a few texts: labels with probabilities, values, or named entities.

  fleetbert ask --bundle output/quickstart/bundle "Draw a histogram with a legend"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--file", metavar="FILE", help="file with more texts, one per line")
    parser.add_argument("text", nargs="*", help="texts (pairs: two texts with a tab between them)")


def run(arguments: argparse.Namespace) -> None:
    from fleetbert.data.read import USUAL
    from fleetbert.engines import answer

    # What the system's encoding does not know came in as surrogates: these are its bytes again.
    given = [text.encode("utf-8", "surrogateescape") for text in arguments.text]
    lines = [text.replace(b"\n", b" ") + b"\n" for text in given]
    if arguments.file:
        with open_input(arguments.file, "--file") as stream:
            lines += [line.rstrip(b"\r\n") + b"\n" for line in stream]
    if not lines:
        raise UserError("ask: give at least one text, or --file")
    texts = [line[:-1].decode("utf-8", "backslashreplace") for line in lines]
    model = load(arguments)
    stream, form = io.BytesIO(b"".join(lines)), model.task.labels.input_format("-", USUAL)
    failed = 0
    for objects, counts in answer.answer_lines(model, stream, False, form=form):
        failed += counts.errors
        for text, reply in zip(texts, objects):
            print(text)
            if "error" in reply:
                print(f"  error: {reply['error']}")
            else:
                print(f"  → {model.task.answer.in_words(reply)}")
        if not any("error" in reply for reply in objects):
            for line in model.task.answer.together_in_words(objects):
                print(line)
    if failed:
        raise UserError(f"ask: {failed} of {len(lines)} texts had no answer: see their error")
