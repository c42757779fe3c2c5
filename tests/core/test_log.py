"""The lines of fleetbert's loggers: who sees them, and what they look like."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
from fresh import python

from fleetbert.core import log
from fleetbert.core.errors import Stopped


def stderr(code: str, **variables: str) -> str:
    """What a new interpreter writes there."""
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_signal_that_comes_while_a_line_is_written_is_not_lost(monkeypatch):
    coming = [Stopped("SIGTERM")]

    def write(_: str) -> None:
        if coming:
            raise coming.pop()

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=lambda: None))
    record = logging.LogRecord("fleetbert", logging.INFO, "", 0, "a line", None, None)
    with pytest.raises(Stopped):
        log._Stderr().emit(record)


def test_importing_configures_nothing():
    assert not stderr(
        "import logging, fleetbert.cli\n"
        "loggers = [logging.getLogger(), logging.getLogger('fleetbert')]\n"
        "assert not any(each.handlers for each in loggers)\n"
        "assert loggers[0].level == logging.WARNING and loggers[1].level == logging.NOTSET\n"
        "logging.getLogger('fleetbert.training').info('not shown')\n"
    )


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({}, "plain\n"),
        ({"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "1"}, "plain\n"),
        ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, "rank 1: plain\n"),
        ({"PADDLE_TRAINERS_NUM": "2"}, "plain\n"),  # a parameter server
    ],
)
def test_a_command_speaks_once_and_names_its_rank(environ, sentence):
    script = (
        "import logging\n"
        "from fleetbert.core import errors, log\n"
        "log.start()\n"
        "errors.run(lambda argv: logging.getLogger('fleetbert.x').info('plain'), [])\n"
    )
    assert stderr(script, **environ) == sentence


def test_a_line_is_written_once_though_paddle_gives_the_root_logger_a_handler():
    output = stderr(
        "import logging\n"
        "from fleetbert.core import log\n"
        "log.start()\n"
        "import paddle\n"
        "logging.getLogger('fleetbert.x').info('plain')\n"
    )
    assert output.count("plain") == 1


def test_start_and_stop_leave_handlers_of_others(capsys):
    other = logging.NullHandler()
    log.ROOT.addHandler(other)
    try:
        log.stop()
        assert log.ROOT.handlers == [other]
        logging.getLogger("fleetbert.x").info("not shown")
        log.start()
        log.start(logging.WARNING)
        logging.getLogger("fleetbert.x").info("not shown")
        logging.getLogger("fleetbert.x").warning("shown")
        assert capsys.readouterr().err == "shown\n"
    finally:
        log.ROOT.removeHandler(other)
        log.start()


def test_evaluate_says_nothing_of_paddles_threads(tiny_bundle, tmp_path):
    """Paddle warns of every OMP_NUM_THREADS but 1, where it is imported."""
    table = tmp_path / "dev.tsv"
    table.write_text("label\ttext_a\nbad\tword1\n好\tword2 word3\n", encoding="utf-8")
    words = ["evaluate", "--bundle", tiny_bundle, "--variant", "float32", "--data", table]
    code = "from fleetbert.cli.main import main; main()"
    done = python(code, *map(str, words), OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    for words in ("OMP_NUM_THREADS", "WARNING", "PLEASE USE"):
        assert words not in done.stdout + done.stderr
