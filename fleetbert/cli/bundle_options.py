"""The options of the commands that open a bundle, and the opening of texts."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Iterator, get_args

from fleetbert import config
from fleetbert.core import device as devices
from fleetbert.core import files
from fleetbert.core.charset import utf8_word
from fleetbert.core.errors import UserError

if TYPE_CHECKING:
    from fleetbert.engines import answer


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that `load` reads."""
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to open")
    parser.add_argument(
        "--variant", default="float32", metavar="NAME", help="variant to open (default: float32)"
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="device that computes: cpu, gpu or gpu:N (default: cpu)",
    )
    parser.add_argument(
        "--precision",
        choices=get_args(devices.Precision),
        default="float32",
        help="GPUs: precision of matrix products; int8 needs TensorRT and the variant int8-static "
        "(default: float32)",
    )
    parser.add_argument(
        "--tensorrt",
        choices=get_args(devices.TensorRT),
        default="off",
        help="GPUs: auto compiles the program with TensorRT where it is installed (default: off)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads (default: OMP_NUM_THREADS, else all processors of this process)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="tokens of a batch with padding (default: 2048); more is hardly faster on CPUs",
    )
    parser.add_argument(
        "--speed",
        type=float,
        metavar="S",
        help="early-exit variants: exit early when the uncertainty is below this, 0 to 1 (default: "
        "the variant's)",
    )


class Columns(config.Columns):
    """Those that options name."""

    spelling: ClassVar[str] = "{option} {word}"


def add_columns(parser: argparse.ArgumentParser, labelled: bool = False) -> None:
    """Add the options that `columns` reads."""
    parser.add_argument(
        "--text-column",
        type=utf8_word,
        metavar="NAME",
        help="column of the text (text_a, text or sentence)",
    )
    parser.add_argument(
        "--text-pair-column",
        type=utf8_word,
        metavar="NAME",
        help="pairs: column of the second text (text_b)",
    )
    if labelled:
        parser.add_argument(
            "--label-column",
            type=utf8_word,
            metavar="NAME",
            help="column of the label (label)",
        )
    parser.add_argument(
        "--quoting",
        choices=("auto", "none", "minimal"),
        default="auto",
        help="quoting of fields (RFC 4180): auto: as the file looks (stdin: as its header looks); "
        "none: quotes are characters; minimal: fields may be quoted",
    )


def columns(arguments: argparse.Namespace) -> Columns:
    given = vars(arguments)
    return Columns(**{name: given[name] for name in Columns.model_fields if name in given})


def load(arguments: argparse.Namespace) -> answer.Model:
    from fleetbert.engines import answer

    return answer.load(
        arguments.bundle,
        arguments.variant,
        devices.of(arguments.device, arguments.precision, arguments.tensorrt),
        arguments.threads,
        arguments.batch_tokens,
        arguments.speed,
        streams=True,
    )


@contextmanager
def open_input(name: str, option: str = "--input") -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise UserError(
                f"{option} {name}: {error.strerror}; name a file, or - for stdin"
            ) from None
        yield stream


@contextmanager
def open_output(name: str, source: str) -> Iterator[BinaryIO]:
    """A stream for the answers to the file `source`; a regular file appears when it is complete."""
    if "-" not in (name, source) and os.path.realpath(name) == os.path.realpath(source):
        raise UserError(f"--output {name} and the input are the same file: name another")
    if name == "-":
        yield sys.stdout.buffer
        return
    final = Path(os.path.realpath(name))
    special = final.exists() and not final.is_file() and not final.is_dir()  # /dev/null, a pipe
    try:
        with ExitStack() as stack:
            try:
                opened = final.open("wb") if special else files.replacing(final)
                stream = stack.enter_context(opened)
            except OSError as error:
                raise UserError(
                    f"--output {name}: {error.strerror}; name a file that can be written"
                ) from None
            yield stream
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.filename is not None:
            raise
        with files.writing(final):  # a full disk
            raise
