"""A program that calls `fleetbert.train`, and is asked to stop or fails before the first step."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import fresh
import pytest
import tiny_job

import fleetbert

PROGRAM = """
import os, signal, sys
import fleetbert

class Stop(fleetbert.Callback):
    def on_step(self, run):
        if run.state.step == 3:
            os.kill(os.getpid(), int(sys.argv[3]))

arguments = dict(init="random", model={"vocab": sys.argv[1], **SHAPE}, device="cpu", max_length=16,
                 batch_size=16, **{"callbacks.progress": False, "trainer.max_steps": 5})
try:
    fleetbert.train(sys.argv[2], callbacks=[Stop()], **arguments)
except fleetbert.Stopped as error:
    print(error)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    run = fleetbert.train(sys.argv[2], output_dir="output/train-1", **arguments)
    print(run.summary["resumed_at"], run.summary["steps"])
    sys.exit(error.code)
"""


@pytest.mark.parametrize(
    ("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)]
)
def test_a_signal_saves_the_run_and_the_sentence_resumes_it(
    tmp_path, tiny_data, number, name, code
):
    program = PROGRAM.replace("SHAPE", repr(tiny_job.SHAPE))
    words = [tiny_data / "vocab.txt", tiny_data / "train.tsv", str(int(number))]
    ended = fresh.python(program, *words, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    output, resumed = ended.stdout.splitlines()
    step = re.fullmatch(
        name + ": saved step ([34]) of 5; call fleetbert.train with output_dir='output/train-1' "
        "again to go on from there",
        output,
    )
    assert step, output
    assert resumed == f"{step[1]} 5"


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("train", {"train": [("a", None), ("b", "c")], "init": "random"}, "train, row 0: has no"),
        ("train", {"train": "none.tsv", "init": "random"}, r"none\.tsv"),
        ("train", {"train": "t.tsv", "init": "package:of_nobody"}, "of_nobody"),
        ("distill", {"teacher": "nowhere", "train": [("a", "b"), ("c", "d")]}, "nowhere"),
        ("import_model", {"source": "nowhere"}, "nowhere"),
        ("import_model", {"source": "nowhere", "bundle": "a/b"}, "nowhere"),
        ("train", {"train": "none.tsv", "init": "random", "output_dir": "a/b"}, r"none\.tsv"),
    ],
)
def test_what_fails_before_its_first_step_leaves_no_folder(
    tmp_path, monkeypatch, tiny_vocab, function, arguments, message
):
    monkeypatch.chdir(tmp_path)
    Path("t.tsv").write_text("text_a\tlabel\na\tb\nc\td\n")
    if arguments.get("init") == "random":
        arguments = {**arguments, "model.vocab": str(tiny_vocab)}
    with pytest.raises(fleetbert.UserError, match=message):
        getattr(fleetbert, function)(**arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["t.tsv"]
