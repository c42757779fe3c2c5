"""The `fleetbert` command: parses, calls the room that does the work, prints what it says.

Rooms are imported by the commands that need them, so that `fleetbert --help` takes no time.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Callable, Iterator, NamedTuple

from fleetbert import __version__, errors, files
from fleetbert import bundle as bundles
from fleetbert.bench import command as bench_command
from fleetbert.compat import environment
from fleetbert.compress import command as quantize_command
from fleetbert.compress.distill import command as distill_command
from fleetbert.deploy.inference import command as serve_command
from fleetbert.errors import UserError
from fleetbert.launch import command as launch_command
from fleetbert.train import checkpoint_command
from fleetbert.train import command as train_command

if TYPE_CHECKING:
    from fleetbert.engines import answer

log = logging.getLogger(__name__)

EPILOG = """\
A bundle is the folder that training writes: the model, its vocabulary, its labels, and variants
of it (float32, onnx, ...). `fleetbert <command> --help` says more, with an example.
--debug with any command shows the whole stack of an error.
"""


class Command(NamedTuple):
    """A subcommand: one line for the list, its --help text, its arguments, what it runs."""

    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


def main(argv: list[str] | None = None) -> None:
    """Entry point; exits with 0, 2 (user error), 130 (Ctrl-C) or 141 (the reader went away)."""
    errors.run(_dispatch, argv)


def _dispatch(argv: list[str]) -> int | None:
    parser = argparse.ArgumentParser(
        "fleetbert",
        description="Train BERT with PaddlePaddle on one machine or many, compress it, serve it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fleetbert {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.summary,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


EVALUATE = """\
Measure a bundle on a labelled table: accuracy, loss, speed, and each class's precision, recall
and F1.

  fleetbert evaluate --bundle output/quickstart/bundle --data dev.tsv

The table is TSV with a header (columns text_a, label, for pairs text_b) or JSONL with such fields.
"""


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--data", required=True, metavar="FILE", help="labelled .tsv or .jsonl")
    parser.add_argument(
        "--on-bad-line",
        choices=("stop", "skip"),
        default="stop",
        help="a line that is malformed or has a label that the model does not know: stop with "
        "its number (default), or leave it out and count it",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")


def _evaluate(arguments: argparse.Namespace) -> None:
    from fleetbert.engines import evaluate

    model = _load(arguments)
    report = evaluate.evaluate(model, arguments.data, arguments.on_bad_line)
    if arguments.json:
        where = {key: getattr(arguments, key) for key in ("bundle", "variant", "data")}
        print(json.dumps({**where, **report}, ensure_ascii=False))
    else:
        print(evaluate.format_report(report))


PREDICT = """\
Answer texts: one line of JSON for each line of input, in its order.

  echo "what a lovely film" | fleetbert predict --bundle output/quickstart/bundle --input -
  {"label": "positive", "scores": {"negative": 0.004, "positive": 0.996}}

Input is JSONL ({"text_a": ...} or {"text": ...}, for pairs with "text_b"; an "id" is passed on),
TSV with a header that has text_a, or one text a line (pairs: two texts with a tab between). A file
ending in .jsonl, .tsv or .txt is taken as that; otherwise the first line tells. A line that cannot
be answered becomes {"error": ...}; the others go on, and the exit code is 0.
"""


def _add_predict(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--input", required=True, metavar="FILE", help="texts; - is stdin")
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="where the answers go; - is stdout (default). A file appears when it is complete",
    )


def _predict(arguments: argparse.Namespace) -> None:
    from fleetbert.engines import answer

    if arguments.output != "-" and _same_file(arguments.input, arguments.output):
        raise UserError(f"--input and --output are the same file, {arguments.output}: name another")
    lines = failed = cut = 0
    with _open_input(arguments.input) as stream:
        model = _load(arguments)
        with _open_output(arguments.output) as output, answer.progress() as bar:
            jsonl = _JSONL.get(Path(arguments.input).suffix.lower())
            for objects, counts in answer.answer_lines(model, stream, jsonl):
                for line in objects:
                    output.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                output.flush()
                bar.update(counts.lines)
                lines, failed, cut = (
                    lines + counts.lines,
                    failed + counts.errors,
                    cut + counts.truncated,
                )
    if failed:
        log.warning(f"{failed} of {lines} lines could not be answered: see their error")
    if cut:
        log.warning(f"{cut} texts were truncated to {model.max_length} tokens")


# What a file's ending says; None: its first line tells.
_JSONL = {".jsonl": True, ".json": True, ".txt": False}


EXPORT = """\
Add another form of the model to a bundle; the bundle's other variants stay as they are.

  fleetbert export --bundle output/quickstart/bundle --format onnx
  fleetbert export --bundle output/quickstart/bundle --format lite --target armv8 --precision int8

onnx: for ONNX Runtime and others, made from float32 and compared with it before it is added.
lite: for Paddle Lite on phones and ARM boards. int16 and int8 make the file a half and a quarter
as large and keep float32's arithmetic; float16 needs ARMv8.2; static-int8 computes in int8 and is
made from the variant int8-static. With --early-exit texts may leave after inner layers, as they do
in the variant early-exit-float32, whose heads are taken. See docs/edge.md.
"""


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to add to")
    parser.add_argument("--format", required=True, choices=("onnx", "lite"))
    parser.add_argument("--opset", type=int, metavar="N", help="onnx: operator set (17)")
    parser.add_argument("--target", help="lite: armv8, armv7 or x86")
    parser.add_argument(
        "--precision", help="lite: float32, float16, int16, int8 or static-int8 (float32)"
    )
    parser.add_argument(
        "--early-exit",
        action="store_true",
        default=None,
        help="lite: groups of layers and the heads of early-exit-float32; not float16, static-int8",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="lite: labelled .tsv or .jsonl; the accuracy on it, measured on x86, is kept",
    )
    parser.add_argument(
        "--max-accuracy-drop",
        type=float,
        metavar="D",
        help="lite: with --data, how much accuracy may be lost, 0 to 1 (0.01); exit status 3",
    )


# The options that only one format has.
_OF_FORMAT = {
    "onnx": ("opset",),
    "lite": ("target", "precision", "early_exit", "data", "max_accuracy_drop"),
}


def _export(arguments: argparse.Namespace) -> None:
    for other, names in _OF_FORMAT.items():
        given = [name for name in names if getattr(arguments, name) is not None]
        if given and other != arguments.format:
            option = given[0].replace("_", "-")
            raise UserError(f"--{option} is for --format {other}; leave it out")
    environment.import_paddle()
    (_export_onnx if arguments.format == "onnx" else _export_lite)(arguments)


def _export_onnx(arguments: argparse.Namespace) -> None:
    from fleetbert.export import onnx

    opset = onnx.OPSET if arguments.opset is None else arguments.opset
    bundle = onnx.export_onnx(arguments.bundle, opset)
    variant = bundle.variant("onnx")
    assert isinstance(variant, bundles.OnnxVariant)
    megabytes = variant.bytes / 1e6
    print(
        f"added variant onnx to {arguments.bundle}: {megabytes:.1f} MB, opset "
        f"{variant.opset}, logits within "
        f"{variant.max_difference_to_float32:.1e} of float32's"
    )


def _export_lite(arguments: argparse.Namespace) -> None:
    from fleetbert.export import lite

    if arguments.target is None:
        raise UserError("--format lite needs --target: armv8, armv7 or x86")
    if arguments.max_accuracy_drop is not None and arguments.data is None:
        raise UserError("--max-accuracy-drop needs --data, a labelled table to measure on")
    drop = 0.01 if arguments.max_accuracy_drop is None else arguments.max_accuracy_drop
    gate = None if arguments.data is None else lite.Gate(arguments.data, drop)
    precision = arguments.precision or "float32"
    early_exit = bool(arguments.early_exit)
    bundle = lite.export_lite(arguments.bundle, arguments.target, precision, gate, early_exit)
    variant = bundle.variant(lite.variant_name(arguments.target, precision, early_exit))
    assert isinstance(variant, (bundles.LiteVariant, bundles.LiteEarlyExitVariant))
    megabytes = variant.bytes / 1e6
    told = [f"added variant {variant.name} to {arguments.bundle}: {megabytes:.1f} MB"]
    if variant.checked_on:
        difference = variant.max_difference_to_paddle
        same = "" if precision == "float32" else f" with the same {precision} weights"
        told.append(f"on x86 its logits are within {difference:.1e} of Paddle's{same}")
    else:
        told.append("which was not run: it runs on ARM only")
    if variant.accuracy:
        found = variant.accuracy[0]
        told.append(f"accuracy {found.accuracy:.4f} (float32 {found.float32_accuracy:.4f})")
    print(", ".join(told))


ASK = """\
Answer a few texts for reading: the label and its probability.

  fleetbert ask --bundle output/quickstart/bundle "Draw a histogram with a legend"
"""


def _add_ask(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--file", metavar="FILE", help="more texts, one a line")
    parser.add_argument("text", nargs="*", help="texts (pairs: two texts with a tab between)")


def _ask(arguments: argparse.Namespace) -> None:
    from fleetbert.engines import answer

    texts = list(arguments.text)
    if arguments.file:
        with _open_input(arguments.file) as stream:
            texts += stream.read().decode("utf-8", "replace").splitlines()
    if not texts:
        raise UserError("ask: give at least one text, or --file")
    lines = [text.replace("\n", " ").encode() + b"\n" for text in texts]
    for objects, _ in answer.answer_lines(_load(arguments), io.BytesIO(b"".join(lines)), False):
        for text, found in zip(texts, objects):
            print(text)
            if "error" in found:
                print(f"  error: {found['error']}")
            else:
                print(f"  → {found['label']} ({found['scores'][found['label']]:.1%})")


COMMANDS: dict[str, Command] = {
    "train": Command(
        "train BERT", train_command.DESCRIPTION, train_command.add_arguments, train_command.run
    ),
    "launch": Command(
        "start and watch the processes of a job on this machine",
        launch_command.DESCRIPTION,
        launch_command.add_arguments,
        launch_command.run,
    ),
    "ask": Command("answer a few texts for reading", ASK, _add_ask, _ask),
    "evaluate": Command("measure a bundle on a labelled table", EVALUATE, _add_evaluate, _evaluate),
    "predict": Command("answer texts with a bundle", PREDICT, _add_predict, _predict),
    "export": Command("add another form of the model to a bundle", EXPORT, _add_export, _export),
    "quantize": Command(
        "add a smaller, faster variant to a bundle",
        quantize_command.DESCRIPTION,
        quantize_command.add_arguments,
        quantize_command.run,
    ),
    "checkpoint": Command(
        "list, check and remove the checkpoints of a run",
        checkpoint_command.DESCRIPTION,
        checkpoint_command.add_arguments,
        checkpoint_command.run,
    ),
    "distill": Command(
        "teach a smaller model what a trained one knows",
        distill_command.DESCRIPTION,
        distill_command.add_arguments,
        distill_command.run,
    ),
    "serve": Command(
        "answer over HTTP and gRPC",
        serve_command.DESCRIPTION,
        serve_command.add_arguments,
        serve_command.run,
    ),
    "bench": Command(
        "measure your own bundle, server or training",
        bench_command.DESCRIPTION,
        bench_command.add_arguments,
        bench_command.run,
    ),
}


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


def _same_file(first: str, second: str) -> bool:
    return first != "-" and os.path.realpath(first) == os.path.realpath(second)


@contextmanager
def _open_input(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(name).open("rb"))
            header = stream.readline() if Path(name).suffix.lower() == ".tsv" else None
            if header is not None:
                stream.seek(0)
        except OSError as error:
            raise UserError(
                f"--input {name}: {error.strerror}; name a file, or - for stdin"
            ) from None
        if header is not None and not re.search(rb"(^|\t|\xbf) *text_a *[\t\r\n]", header):
            raise UserError(
                f"{name}:1: the header has no column 'text_a'; name the tab-separated columns "
                "in the first line, or give one text a line in a file that ends in .txt"
            )
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


if __name__ == "__main__":
    main()
