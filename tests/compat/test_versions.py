"""Which Paddle is taken, and what Paddle 3 refuses before any work."""

from __future__ import annotations

import re
from pathlib import Path

import commands
import pytest
import tiny_job

from fleetbert import config
from fleetbert.compat import environment, versions
from fleetbert.core.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch):
    """installed(version): let that Paddle be the installed one, as its package tells."""

    def install(version: str) -> None:
        monkeypatch.setattr(versions, "paddle_version", lambda: version)

    return install


@pytest.mark.parametrize("version", ["2.6.2", "2.6.3", "3.3.1", "3.3.2.post1", ""])
def test_versions_that_are_taken(installed, version):
    installed(version)
    versions.check()


@pytest.mark.parametrize(
    "version", ["2.5.2", "2.7.0", "3.0.0b1", "3.1.1", "3.3.0", "3.4.0", "4.0.0"]
)
def test_others_are_refused_before_they_are_imported(installed, version):
    installed(version)
    with pytest.raises(UserError, match=rf"^PaddlePaddle {version} .* 2\.6\.2 and 3\.3\.1: pip"):
        environment.import_paddle()


@pytest.mark.parametrize(
    "words",
    [
        "launch --servers 1 --trainers 1 no_such_script.py",
        "export --bundle no_such_bundle --format lite --target x86",
    ],
)
def test_commands_of_paddle_2(installed, capsys, words):
    installed("3.3.1")
    assert commands.call(*words.split()) == 2
    output = capsys.readouterr().err
    assert "needs PaddlePaddle 2.6.2, and 3.3.1 is installed here" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    "changes", [{"strategy": {"name": "parameter_server"}}, {"task": {"name": "ctr"}}]
)
def test_jobs_of_paddle_2(installed, tmp_path, changes):
    from fleetbert.training import job as jobs

    given = {**tiny_job.values(tmp_path, tmp_path / "output"), **changes}
    if changes.get("task"):
        given["model"] = {}
    job = config.Config(**given)
    installed("3.3.1")
    for run in (jobs.train, jobs.run):
        with pytest.raises(UserError, match=r"needs PaddlePaddle 2\.6\.2"):
            run(job)
    assert not (tmp_path / "output").exists()


VERSION = re.compile(r"\b2\.6\b|\b3\.3\.1\b|is_paddle_3")


def test_versions_are_named_in_compat_only():
    files = [
        path
        for folder in ("fleetbert", "deploy", "launch")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent != ROOT / "fleetbert" / "compat"
    ]
    assert len(files) > 200
    named = [str(path) for path in files if VERSION.search(path.read_text(encoding="utf-8"))]
    assert named == []
