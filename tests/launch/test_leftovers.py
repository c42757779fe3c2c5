"""Variables of clusters and other launchers around a plain training."""

from __future__ import annotations

import fresh
import pytest
from processes import SCRIPT

from fleetbert.core.errors import UserError
from fleetbert.launch import leftovers


def paddles(number="", count="", endpoints=""):
    names = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS")
    return {name: value for name, value in zip(names, (number, count, endpoints)) if value}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        paddles("0", "1"),
        paddles("0", "1", "127.0.0.1:6070"),
        paddles("1", "2", "10.0.0.1:6070,10.0.0.2:6070"),
        paddles("1", "", "10.0.0.1:6070,10.0.0.2:6070"),
    ],
)
def test_a_launchers_own_are_right(environ, caplog):
    leftovers.check({**environ, "WORLD_SIZE": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    assert not caplog.records


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        (paddles("1", "4"), "PADDLE_TRAINER_ENDPOINTS is missing"),
        (paddles("0", "4"), "PADDLE_TRAINER_ENDPOINTS is missing"),
        (paddles("3"), "PADDLE_TRAINER_ENDPOINTS is missing"),
        (paddles("", "many"), "PADDLE_TRAINERS_NUM is no number"),
        (paddles("", "2", "a:1,b:2"), "PADDLE_TRAINER_ID is none of the 2 ranks"),
        (paddles("2", "2", "a:1,b:2"), "PADDLE_TRAINER_ID is none of the 2 ranks"),
        (paddles("0", "3", "a:1,b:2"), "PADDLE_TRAINERS_NUM is another number"),
        (paddles("0", "2", "a,b"), "PADDLE_TRAINER_ENDPOINTS are not addresses with ports"),
    ],
)
def test_what_is_left_over_is_named_with_the_remedy(environ, why):
    with pytest.raises(UserError) as raised:
        leftovers.check(environ)
    text = str(raised.value)
    assert f": {why}; they are left over" in text
    assert f"`unset {' '.join(environ)}`" in text
    assert all(f"{name}={value}" in text for name, value in environ.items())


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({"WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "x"}, "torchrun"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, "srun of Slurm"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, "mpirun of Open MPI"),
    ],
)
def test_other_launchers_get_a_line(environ, launcher, caplog):
    leftovers.check(environ)
    (record,) = caplog.records
    assert f": set by {launcher}, and not used: this process trains alone" in record.message
    assert all(f"{name}={value}" in record.message for name, value in environ.items())
    caplog.clear()
    leftovers.check({**environ, **paddles("0", "1", "127.0.0.1:6070")})  # below Paddle's launcher
    assert not caplog.records


@pytest.mark.parametrize("script", ["train.py", "distill.py"])
def test_training_ends_with_one_sentence(tmp_path, script):
    config = tmp_path / "job.yaml"
    config.write_text(
        "data: {train: train.tsv}\nmodel: {init: random, vocab: vocab.txt}\n"
        + ("distill: {teacher: model}\n" if script == "distill.py" else "")
    )
    words = (SCRIPT.with_name(script), "--config", config)
    done = fresh.run(*words, cwd=tmp_path, **paddles("1", "4"))
    assert done.returncode == 2, done.stderr
    assert "error: PADDLE_TRAINER_ID=1, PADDLE_TRAINERS_NUM=4: PADDLE_TRAINER_ENDP" in done.stderr
    assert "Traceback" not in done.stderr
