"""What `fleetbert serve` prepares before it serves."""

from __future__ import annotations

import argparse
import os

import pytest
import uvloop

from fleetbert.deploy.inference import command

NAME = "TOKENIZERS_PARALLELISM"


@pytest.mark.parametrize(("set_to", "expected"), [(None, "false"), ("true", "true")])
def test_texts_are_tokenized_without_threads_unless_the_user_wants_them(
    set_to, expected, monkeypatch, tmp_path
):
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "1" / "manifest.json").touch()
    monkeypatch.setenv(NAME, set_to or "")  # is taken back afterwards
    if set_to is None:
        del os.environ[NAME]
    found = []

    def run(main):
        main.close()
        found.append(os.environ[NAME])

    monkeypatch.setattr(uvloop, "run", run)
    monkeypatch.setattr(command.process, "start_early", lambda _: None)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(["--repository", str(tmp_path)]))
    assert found == [expected]
