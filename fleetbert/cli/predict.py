"""The command line of `fleetbert predict`."""

from __future__ import annotations

import argparse
import json
import logging
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbert.cli.bundle_options import (
    add_columns,
    add_model,
    columns,
    load,
    open_input,
    open_output,
)
from fleetbert.core import extras
from fleetbert.core.errors import UserError

if TYPE_CHECKING:
    from fleetbert.scoring import files as tables

log = logging.getLogger(__name__)

DESCRIPTION = """\
Answer texts: one line of JSON for each line of input, in its order.

  echo "what a lovely film" | fleetbert predict --bundle output/quickstart/bundle --input -
  {"label": "positive", "scores": {"negative": 0.004, "positive": 0.996}}

Input is JSONL ({"text_a": ...} or {"text": ...}, pairs also "text_b"; the answer repeats an "id"),
TSV or CSV with a header that names text_a (or text, or --text-column), or one text per line (pairs:
two texts with a tab between them). The file name's ending decides which, else the first line does.
The answer to an invalid line is {"error": ...}; the exit code is 2 only where no line of the input
could be answered. A record whose quoted fields hold line ends gets one answer. --abstain 0.8
answers null where no label has a probability of 0.8.

A folder, an address such as s3://bucket/texts, and a file of Parquet or Arrow are read as tables.
Each file gets a Parquet file in --output, with the answers beside the columns. A run that was
killed goes on with the files that are missing.
  fleetbert predict --bundle B --input texts/ --output answers/ --where lang=en --keep id
--on ray and --on spark give the files to a cluster's workers, each with a model of its own:
  fleetbert predict --bundle B --input texts/ --output answers/ --on spark --address spark://host:7077

A model of clicks may have its table on servers, each of which holds a share of the rows:
  fleetbert launch --servers 2 --trainers 1 fleetbert.cli predict --bundle B --input F --output O
"""

ARROW_FILES = (".parquet", ".pq", ".arrow", ".feather")
TABLES = ("keep", "where", "prefix", "shard", "on", "address")  # options
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
    tables = parser.add_argument_group("tables")
    tables.add_argument(
        "--keep",
        metavar="A,B",
        help="columns that go to the output beside the answers (default: all)",
    )
    tables.add_argument(
        "--where",
        metavar="COLUMN=VALUE",
        action="append",
        help="only rows that have this value; may be given several times",
    )
    tables.add_argument(
        "--prefix",
        metavar="NAME",
        help="of the names of the answers' columns (default: predicted_)",
    )
    tables.add_argument(
        "--shard",
        metavar="I/N",
        help="only every Nth file, from the Ith on (0 to N-1), so that N processes share the work",
    )
    tables.add_argument(
        "--on",
        choices=("ray", "spark"),
        help="give the files to the workers of a Ray or Spark cluster; each machine needs "
        "fleetbert, the bundle and the folders at the same paths",
    )
    tables.add_argument(
        "--address",
        help="of the cluster: host:port of Ray, a master of Spark such as spark://host:port or "
        "local-cluster[2,1,2048] (default: the processors of this machine)",
    )


def run(arguments: argparse.Namespace) -> None:
    if _has_tables(arguments.input):
        _score(arguments)
        return
    for name in TABLES:
        if getattr(arguments, name) is not None:
            raise UserError(
                f"--{name} is for tables; {arguments.input} is read line by line, as it is neither "
                "a folder nor Parquet"
            )
    from fleetbert import bundle as bundles
    from fleetbert import tasks
    from fleetbert.engines import answer
    from fleetbert.engines.table import TableEngine

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
        output = stack.enter_context(open_output(arguments.output, arguments.input))
        with answer.progress() as bar:
            jsonl = _JSONL.get(Path(arguments.input).suffix.lower())
            windows = answer.answer_lines(
                model, stream, jsonl, columns=names, form=form, on_done=bar.update
            )
            for objects, counts in windows:
                for line in objects:
                    if least is not None and max(line.get("scores", {"": 1}).values()) < least:
                        line["label"] = None
                        abstained += 1
                    output.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                output.flush()
                bar.update(counts.errors)
                lines += counts.lines
                failed += counts.errors
                cut += counts.truncated
    if not lines:
        log.warning(f"--input {arguments.input} has no lines to answer")
    elif failed == lines:
        raise UserError(
            f"--input {arguments.input}: none of its {lines} lines could be answered; see their "
            "error"
        )
    if failed:
        log.warning(f"{failed} of {lines} lines could not be answered: see their error")
    if least is not None:
        log.info(f"{abstained} of {lines} lines have no label of probability {least:g} or more")
    if cut:
        log.warning(f"{cut} texts were truncated to {model.reading.max_length} tokens")


def _has_tables(name: str) -> bool:
    path = Path(name).expanduser()
    return "://" in name or path.suffix.lower() in ARROW_FILES or path.is_dir()


def _score(arguments: argparse.Namespace) -> None:
    extras.need("arrow", f"--input {arguments.input}: a table")
    from fleetbert.scoring import files as tables
    from fleetbert.scoring.places import place
    from fleetbert.scoring.plan import ERRORS
    from fleetbert.scoring.scorer import PREFIX, Scorer

    if arguments.output == "-":
        raise UserError(f"--input {arguments.input} is a table: name a folder as --output")
    for name in ("abstain", "speed"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name} is not for tables; leave it out")
    where = {}
    for word in arguments.where or ():
        column, equals, value = word.partition("=")
        if not (column and equals):
            raise UserError(f"--where {word}: say COLUMN=VALUE")
        where[column] = value
    runner = _runner(arguments.on, arguments.address)
    scorer = Scorer(
        arguments.bundle,
        arguments.variant,
        text_column=arguments.text_column,
        text_pair_column=arguments.text_pair_column,
        prefix=PREFIX if arguments.prefix is None else arguments.prefix,
        device=arguments.device,
        threads=arguments.threads or (1 if arguments.on else None),
        batch_tokens=arguments.batch_tokens,
    )
    counts = tables.score(
        scorer,
        place(arguments.input),
        place(arguments.output),
        keep=None if arguments.keep is None else [n for n in arguments.keep.split(",") if n],
        where=where,
        shard=_shard(arguments.shard),
        runner=runner,
    )
    earlier = f"; {counts.earlier} files were there already" if counts.earlier else ""
    log.info(f"{counts.rows} rows of {counts.files} files answered in {arguments.output}{earlier}")
    if counts.faults:
        log.warning(f"{counts.faults} rows could not be answered: see {arguments.output}/{ERRORS}")


def _runner(engine: str | None, address: str | None) -> tables.Runner | None:
    """What answers the files; None: this process."""
    if engine is None:
        if address is not None:
            raise UserError(f"--address {address} is of a cluster: say --on ray or --on spark too")
        return None
    extras.need(engine, f"--on {engine}")
    from fleetbert.scoring import on_ray, on_spark

    run = on_ray.run if engine == "ray" else on_spark.run
    return partial(run, address=address)


def _shard(words: str | None) -> tuple[int, int]:
    number, slash, count = (words or "0/1").partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UserError(f"--shard {words}: say I/N, such as 0/4, I from 0 to N-1")
    return int(number), int(count)
