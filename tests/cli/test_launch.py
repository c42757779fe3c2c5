"""The command line of `fleetbert launch`."""

from __future__ import annotations

from pathlib import Path

import commands
import fresh
import pytest

from fleetbert.core import limits

ONE = ("--servers", "1", "--trainers", "1")


def run(folder, *words, **environ):
    return fresh.run("-m", "fleetbert.cli", "launch", *words, cwd=folder, **environ)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("x.py",), "launch: give --servers and --trainers, or for collective training --ranks"),
        ((*ONE,), "launch: name the script to run, for example launch/train.py"),
        (("--servers", "2", "x.py"), "--servers without --trainers: a job has both, so give"),
        (("--trainers", "2", "x.py"), "--trainers without --servers: a job has both, so give"),
        (("--servers", "1", "--trainers", "0", "x.py"), "--trainers 0: there has to be at least"),
        (("--servers", "-1", "--trainers", "1", "x.py"), "--servers -1: there has to be at least"),
        (("--ranks", "0", "x.py"), "--ranks 0: there has to be at least one"),
        (("--ranks", "2", *ONE, "x.py"), "--ranks with --servers or --trainers: a collective job"),
        ((*ONE, "--max_restart", "-1", "x.py"), "--max_restart -1: has to be 0 or more"),
        ((*ONE, "--hang_timeout", "-1", "x.py"), "--hang_timeout -1: has to be seconds, or 0"),
        ((*ONE, "--hang_timeout", "nan", "x.py"), "--hang_timeout nan: has to be seconds, or 0"),
        (("--ranks", "2", "--hang_timeout", "5", "x.py"), "--hang_timeout with --ranks: a coll"),
        ((*ONE, "absent.py"), "absent.py: neither a script nor a module has this name"),
        ((*ONE, "there"), "there: neither a script nor a module has this name"),
        ((*ONE, "fleetbert.absent"), "fleetbert.absent: neither a script nor a module"),
        ((*ONE, "fleetbert.train"), "fleetbert.train: neither a script nor a module"),
        (("--ranks", "2", "absent.py"), "absent.py: neither a script nor a module"),
        ((*ONE, "--log_dir", "x.py", "x.py"), "--log_dir x.py: File exists; name a folder that"),
        ((*ONE, "--log_dir", "/proc/x", "x.py"), "--log_dir /proc/x: No such file or directory;"),
    ],
)
def test_an_error_of_the_users_is_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    (tmp_path / "there").mkdir()
    code = commands.call("launch", *words)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {sentence}"), err
    assert err.count("\n") == 1


def test_help_teaches(capsys):
    assert commands.call("launch", "--help") == 0
    output = capsys.readouterr().out
    for word in ("--servers 2 --trainers 2 launch/train.py", "merged.log", "FLEETBERT_RESTARTED"):
        assert word in output


def test_a_module_is_run_as_by_python(tmp_path):
    """Found from here, and not imported by the launcher."""
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "__init__.py").write_text("print('imported')\n")
    (tmp_path / "kit" / "job.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = run(tmp_path, *ONE, "--log_dir", "log", "kit.job", "--config", "c.yaml", "--help")
    expected = "imported\n__main__ ['--config', 'c.yaml', '--help']\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        pytest.param(("--config", "job.yaml"), "of-yaml/log", marks=pytest.mark.slow),
        (("--config=job.yaml", "trainer.epochs=1", "output_dir=of-words"), "of-words/log"),
        pytest.param(("--config", "without.yaml"), "output/log", marks=pytest.mark.slow),
    ],
)
def test_logs_go_into_the_output_dir_of_the_job(tmp_path, words, folder):
    (tmp_path / "x.py").write_text("")
    (tmp_path / "job.yaml").write_text("output_dir: of-yaml\n")
    (tmp_path / "without.yaml").write_text("trainer: {epochs: 1}\n")
    before = set(tmp_path.iterdir())
    done = run(tmp_path, *ONE, "x.py", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / folder / "merged.log").exists()
    assert set(tmp_path.iterdir()) - before == {tmp_path / folder.split("/")[0]}


def test_logs_of_another_script_go_into_a_temporary_folder(tmp_path):
    (tmp_path / "x.py").write_text("")
    (tmp_path / "tmp").mkdir()
    before = set(tmp_path.iterdir())
    done = run(tmp_path, *ONE, "x.py", "--config", "absent.yaml", TMPDIR=str(tmp_path / "tmp"))
    folder = Path(done.stderr[len("logs: ") :].strip())
    assert (done.returncode, done.stderr) == (0, f"logs: {folder}\n")
    assert folder.parent == tmp_path / "tmp" and (folder / "merged.log").exists()
    assert set(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_ranks_are_started_by_paddles_launcher(tmp_path, monkeypatch):
    """With the number of restarts and the log folder asked for, and the processors shared."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "kit.py").write_text(
        "import os, sys\n"
        "import fleetbert.compat.prepared\n"
        "cpus = os.environ['OMP_NUM_THREADS']\n"
        "parent = open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))\n"
        "restarts = parent[parent.index('--max_restart') + 1]\n"
        "print('rank', os.environ['PADDLE_TRAINER_ID'], cpus, restarts, sys.argv[1:])\n"
        "sys.exit(5 if 'fail' in sys.argv else 0)\n"
    )
    cpus = max(1, limits.read().processors // 2)
    for script, words in (("kit.py", ["a=1", "--debug"]), ("kit", ["a=1", "--log_dir", "x"])):
        options = ["--ranks", "2", "--max_restart", "4", "--log_dir", f"logs-{script}"]
        done = run(tmp_path, *options, script, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        for rank in (0, 1):
            said = (tmp_path / f"logs-{script}" / f"workerlog.{rank}").read_text()
            assert f"rank {rank} {cpus} 4 {words}\n" in said
    assert run(tmp_path, "--ranks", "1", "kit.py", "fail").returncode != 0
