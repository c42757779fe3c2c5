"""The command line of `fleetbert recipes`."""

from __future__ import annotations

import argparse

from fleetbert.config import recipes

DESCRIPTION = """\
List the jobs that come with fleetbert, or print one of them with comments.

  fleetbert recipes
  fleetbert train --recipe sst2 data.train=train.tsv data.dev=dev.tsv
  fleetbert recipes sst2 > mine.yaml      # a copy to edit, for --config

You may leave folders out: `--recipe static` means quantize/static.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the recipe to print")


def run(arguments: argparse.Namespace) -> None:
    if arguments.name is not None:
        print(recipes.path(arguments.name).read_text(encoding="utf-8"), end="")
        return
    known = recipes.all_paths()
    width = max(map(len, known), default=0)
    for name, path in known.items():
        print(f"{name:{width}}  {recipes.summary(path)}")
