"""The YAML files of configs/ by name, and commands that take one in place of a file, or none."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from fleetbert import config
from fleetbert.cli import job_options, recipes
from fleetbert.config import recipes as files
from fleetbert.core.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"


def parsed(*words: str) -> argparse.Namespace:
    def add(parser: argparse.ArgumentParser) -> None:
        job_options.add_job(parser, {"train": config.Config})

    return job_options.parse(list(words), "", add)


def test_each_config_is_a_recipe_that_is_listed_with_a_summary(capsys):
    expected = {path.relative_to(CONFIGS).as_posix()[:-5] for path in CONFIGS.rglob("*.yaml")}
    assert set(files.all_paths()) == expected
    recipes.run(argparse.Namespace(name=None))
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(listed) == expected
    assert listed["mlm"] == "Masked-language modelling on plain text"
    assert listed["douban"].endswith("does the reader like the book?")
    assert all(len(summary) > 20 for summary in listed.values())


def test_one_is_printed_as_it_is(capsys):
    recipes.run(argparse.Namespace(name="quantize/static"))
    expected = (CONFIGS / "quantize" / "static.yaml").read_text(encoding="utf-8")
    assert capsys.readouterr().out == expected


def test_a_recipe_stands_in_place_of_a_file():
    assert parsed("--recipe", "sst2", "trainer.epochs=7").config == str(CONFIGS / "sst2.yaml")
    assert parsed("--recipe", "static").config == str(CONFIGS / "quantize" / "static.yaml")
    with pytest.raises(UserError, match="recipe sst3: unknown; did you mean sst2"):
        parsed("--recipe", "sst3")
    with pytest.raises(SystemExit):
        parsed("--recipe", "sst2", "--config", "mine.yaml")


def test_a_job_needs_no_file():
    arguments = parsed("data.train=train.tsv", "model.init=model")
    assert arguments.config == os.devnull
    job = config.load_as(config.Config, arguments.config, arguments.overrides)
    assert (job.data.train, job.model.init) == ("train.tsv", "model")
    with pytest.raises(UserError, match=r"^command line: data\.train: "):
        config.load_as(config.Config, os.devnull, [])
