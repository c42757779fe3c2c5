"""`bench amp`: its arguments, the table and the plot of made-up figures, and real tiny runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tiny_job

from fleetbert import cli, config
from fleetbert.bench import amp
from fleetbert.data.tokenizers.wordpiece import WordPiece
from fleetbert.errors import UserError

PNG = b"\x89PNG"
SMALL = ("--batch-sizes", "4", "--lengths", "16,24", "--steps", "4")


@pytest.fixture
def bench(tiny_data, tmp_path, capsys):
    """bench(*words) → (exit code, report or None, what was printed) of a run in this process."""

    def call(*words):
        job = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output")
        path = tmp_path / "report.json"
        command = ["bench", "amp", "--config", str(job), "--json", str(path), *map(str, words)]
        with pytest.raises(SystemExit) as caught:
            cli.main(command)
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return caught.value.code, report, "".join(capsys.readouterr())

    return call


def test_without_a_gpu_speeds_are_refused(bench):
    code, report, said = bench(*SMALL, "--device", "cpu")
    assert (code, report) == (2, None)
    assert "error: bench amp measures speed and memory, which need a GPU" in said
    assert "--losses compares the losses alone" in said


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--lengths", "0"), "--lengths: give whole numbers from 1 on"),
        (("--lengths", "128,x"), "argument --lengths"),
        (("--steps", "0"), "--steps: give whole numbers from 1 on"),
        (("--plot", "none/amp.png"), "--plot none/amp.png: cannot be written there"),
        (("--device", "abacus", "--losses"), "trainer.device: abacus is not one of"),
        (
            ("--losses", "--device", "cpu", "--lengths", "1000"),
            "data.max_length: 1000 is more than",
        ),
    ],
)
def test_what_is_wrong_is_said(bench, words, part):
    code, _, said = bench(*words)
    assert code == 2
    assert part in said


@pytest.mark.slow
def test_losses_on_a_cpu(bench, tmp_path):
    code, report, said = bench(*SMALL, "--losses", "--device", "cpu", "--plot", tmp_path / "a.png")
    assert code == 0, said
    assert [(row["level"], row["length"]) for row in report["rows"]] == [("O0", 16), ("O0", 24)]
    for row in report["rows"]:
        assert len(row["losses"]) == amp.WARM_UP + 4
        assert "ms_per_step" not in row and "peak_mb" not in row
    assert "Speeds and memory need a GPU; this ran on cpu" in said
    assert "O1 and O2 were left out: on a CPU Paddle's AMP does nothing" in said
    assert "ms/step" not in said
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_losses_of_all_levels_where_half_works(fp16sim, tiny_data, tmp_path):
    job = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output")
    command = [sys.executable, "-m", "fleetbert.cli", "bench", "amp", "--config", str(job)]
    words = ["--losses", "--device", "fp16sim", "--batch-sizes", "4", "--lengths", "16"]
    more = ["--steps", "3", "--json", str(tmp_path / "report.json"), "model.dropout=0"]
    done = subprocess.run(
        [*command, *words, *more], env=fp16sim, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["rows"]
    assert [row["level"] for row in rows] == ["O0", "O1", "O2"]
    assert rows[0]["loss_difference"] == 0
    assert 0 < rows[1]["loss_difference"] < 0.01  # half was really used, and is close
    assert 0 < rows[2]["loss_difference"] < 0.05
    assert "furthest from float32's" in done.stdout and "left out" not in done.stdout


def test_texts_fill_the_length_and_nothing_more(tiny_data, tmp_path):
    job = config.Config.model_validate(tiny_job.values(tiny_data, tmp_path))
    amp.write_texts(tmp_path / "texts.tsv", job, 6, 20)
    header, *lines = (tmp_path / "texts.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "label\ttext_a" and sorted(line[0] for line in lines) == list("aaabbb")
    texts = [line.split("\t")[1] for line in lines]
    encodings = WordPiece(tiny_data / "vocab.txt", True).encode(texts, None, 20)
    assert encodings.lengths.tolist() == [20] * 6


@pytest.fixture
def made_up():
    """A report as of a GPU, in which O2 of the larger size did not fit."""
    rows = []
    for length, slower in ((128, 1.0), (512, 4.0)):
        for level, seconds, apart in (("O0", 0.1, 0.0), ("O1", 0.05, 0.01), ("O2", 0.04, 0.02)):
            losses = [0.7, 0.6 + apart, 0.5]
            row = {"level": level, "batch_size": 32, "length": length, "losses": losses,
                   "loss": 0.5, "skipped": 1, "ms_per_step": 1000 * seconds * slower,
                   "texts_per_s": 32 / (seconds * slower), "peak_mb": 2000.0}  # fmt: skip
            rows.append(row)
    rows[-1] = {"level": "O2", "batch_size": 32, "length": 512, "out_of_memory": True}
    return {
        "device": "gpu", "device_name": "Some GPU", "steps": 20, "speeds": True,
        "rows": amp.compare(rows),
    }  # fmt: skip


def test_the_table_compares_with_float32_of_the_same_size(made_up):
    assert [row.get("speed_up") for row in made_up["rows"]] == pytest.approx(
        [1, 2, 2.5, 1, 2, None]
    )
    text = amp.format_report(made_up, markdown=True)
    assert "| O1 | 32 | 128 | 50.0 | 640.0 | 2.00 | 2000 | 0.5000 | 0.0100 | 1 |" in text
    assert "| O2 | 32 | 512 | out of memory | - | - | - | - | - | - |" in text
    assert "Some GPU" in text and "need a GPU" not in text


@pytest.mark.parametrize("speeds", [True, False])
def test_the_plot_is_a_picture(made_up, tmp_path, speeds):
    path = tmp_path / "amp.png"
    amp.plot({**made_up, "speeds": speeds}, str(path))
    assert path.read_bytes().startswith(PNG)


def test_float32_that_does_not_fit_leaves_the_others(made_up):
    rows = [{"level": "O0", "batch_size": 8, "length": 9, "out_of_memory": True}]
    rows.append({**made_up["rows"][1], "batch_size": 8, "length": 9})
    rows[1].pop("speed_up")
    found = amp.compare(rows)
    assert "speed_up" not in found[1]
    assert "O1" in amp.format_report({**made_up, "rows": found})


def test_figures_of_a_cell(monkeypatch, tmp_path):
    reply = {"losses": [0.7, 0.5], "skipped": 1, "seconds": 2.0, "steps": 20, "device_mb": 900.0}
    timed = amp._figures(reply, 32, timed=True)
    assert (timed["ms_per_step"], timed["texts_per_s"], timed["peak_mb"]) == (100, 320, 900)
    assert (timed["loss"], timed["skipped"]) == (0.5, 1)

    def full(*_):
        raise UserError(
            "a measured process ended with exit code 1: ResourceExhaustedError: Out of memory"
        )

    monkeypatch.setattr(amp.measure, "our_worker", full)
    cell = {"level": "O0", "batch_size": 4, "length": 16}
    found, _ = amp._train(tmp_path / "cell", "job.yaml", [], tmp_path / "t.tsv", cell, 2, "gpu")
    assert amp._figures(found, 4, timed=True) == {"out_of_memory": True}
