"""The files of deploy/inference that start the server, as tests read them."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Sequence

from fleetbert.deploy.inference import command, settings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "inference"


def docker_steps() -> list[tuple[str, str]]:
    """(instruction, its words) of the Dockerfile."""
    text = re.sub(r"\\\n", " ", (FOLDER / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, words) for name, words in (line.split(maxsplit=1) for line in lines)]


def settings_by(words: Sequence[str]) -> settings.Serve:
    """What a command line makes of the server, which others reach."""
    assert list(words[:3]) == ["python", "-m", "fleetbert.deploy.inference"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    arguments = parser.parse_args(words[3:])
    if arguments.config:
        arguments.config = str(ROOT / arguments.config)
    section = command.read(arguments)
    assert section.listen.host == "0.0.0.0"
    return section
