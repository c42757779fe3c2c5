"""`fleetbert launch`: what follows from how a process of a job ends, or hangs, with real kills."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import launched
import psutil
import pytest

from fleetbert.launch.servers import Job

KILLS = int(os.environ.get("FLEETBERT_KILLS", "50"))
TWO = ("--servers", "2", "--trainers", "2")

# Every process says that it runs, and goes on until `go`.
RUN = """
touch(run / name)
wait_for(here / "go")
"""
# As Paddle's servers, which go on until they are told to stop.
SERVE = """
touch(run / name)
if is_server:
    forever()
"""


def test_a_job_that_ends_well(launch):
    """Servers that nobody tells to stop are no failure, and leave no trace. The launcher stays
    small: it imports no Paddle, whose libraries take 200 MB and seconds."""
    job = launch(SERVE + "wait_for(here / 'go')", *TWO)
    job.wait_until_all_run()
    maps = open(f"/proc/{job.popen.pid}/maps").read()  # noqa: PTH123, SIM115
    assert "paddle" not in maps
    (job.folder / "go").touch()
    assert job.ended() == 0, job.stderr
    assert (job.stdout, job.stderr) == ("", "")
    assert job.is_clean()


def test_a_server_that_crashes_after_all_trainers_ended_fails_the_job(launch):
    """Where tables may have been written wrongly; no restart helps, since the trainers are done."""
    body = """
touch(run / name)
if name == "server.1":
    wait_for(here / "trainer.0.starts", here / "trainer.1.starts")
    for number in (0, 1):
        while os.path.exists(f"/proc/{(here / f'trainer.{number}.starts').read_text().split()[0]}"):
            pass
    sys.exit(5)
elif is_server:
    forever()
"""
    job = launch(body, *TWO, "--max_restart", "1")
    assert job.ended() == 5
    said = "launch: server 1 failed with exit code 5, after all trainers had ended well; the job"
    assert said in job.stderr
    assert job.is_clean()


@pytest.mark.slow
def test_servers_end_by_themselves_or_are_killed(launch):
    """One is told to stop, the other ignores everything."""
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
touch(run / name)
if name == "server.0":
    wait_for(here / "stop")
    print("told to stop")
elif name == "server.1":
    forever()
else:
    wait_for(run / "server.0", run / "server.1", run / "trainer.0", run / "trainer.1")
    touch(here / "stop")
"""
    job = launch(body, *TWO)
    assert job.ended() == 0, job.stderr
    assert [line for line in job.merged if b"told" in line] == [b"[server 0] told to stop"]
    assert job.is_clean()


@pytest.mark.parametrize("victim", ["trainer.0", "server.1"])
def test_a_kill_ends_the_job(launch, victim):
    """With the name, the signal and the last lines of the killed process, and no other's."""
    body = "print(f'last words of {name}', flush=True)\n" + RUN
    job = launch(body, *TWO)
    job.wait_until_all_run()
    job.kill(victim)
    assert job.ended() == 137
    name = victim.replace(".", " ")
    assert re.search(
        rf"^launch: {name} was killed \(SIGKILL, .*\); .*: the job ends with exit code 137$",
        job.stderr,
        re.MULTILINE,
    ), job.stderr
    if victim == "trainer.0":  # has been shown
        assert "last words" not in job.stderr
        assert job.stdout == "last words of trainer.0\n"
    else:
        assert re.findall(".*last words.*", job.stderr) == [f"[{name}] last words of {victim}"]
    assert job.is_clean()


def test_a_failure_ends_the_job(launch):
    body = "if name == 'trainer.1':\n    raise ValueError('a bug')\nforever()"
    job = launch(SERVE + body, *TWO)
    assert job.ended() == 1
    assert "[trainer 1] ValueError: a bug" in job.stderr
    assert "launch: trainer 1 failed with exit code 1; --max_restart 0 allows no more" in job.stderr
    assert job.is_clean()


def test_an_error_of_the_users_is_not_tried_again(launch):
    body = """
print("error: no such key", name)
if name == "server.0":
    sys.exit(3)
forever()
"""
    job = launch(body, *TWO, "--max_restart", "3")
    assert job.ended() == 3
    assert "[server 0] error: no such key server.0" in job.stderr
    assert "restart" not in job.stderr
    assert len(job.starts("server.0")) == 1


def test_the_real_cause_is_named_not_its_echo(launch):
    """Trainers fail when their server is killed; and a user's error comes before all."""
    body = """
touch(run / name)
if name == "server.1":
    wait_for(run / "trainer.0", run / "trainer.1")
    os.kill(os.getpid(), signal.SIGKILL)
elif is_server:
    forever()
else:
    while os.path.exists(f"/proc/{(here / 'server.1.starts').read_text().split()[0]}"):
        pass
    sys.exit(1)
"""
    job = launch(body, *TWO)
    assert job.ended() == 137
    assert "launch: server 1 was killed" in job.stderr

    job = launch("sys.exit(2 if name == 'trainer.1' else 75)", *TWO, "--max_restart", "3")
    assert job.ended() == 2
    assert "launch: trainer 1 ended with an error (exit code 2)" in job.stderr


def test_a_killed_trainer_is_started_again_alone(launch):
    """Until no restart is left."""
    job = launch(RUN, *TWO, "--max_restart", "2")
    job.wait_until_all_run()
    for victim, starts in (("trainer.1", 2), ("trainer.0", 2)):
        job.kill(victim)
        job.wait_for(lambda victim=victim, starts=starts: len(job.starts(victim)) == starts)
    job.kill("trainer.1")
    assert job.ended() == 137
    for number in (0, 1):
        assert [row[1:] for row in job.starts(f"trainer.{number}")] == [["0", "1"], ["1", "1"]]
        assert len(job.starts(f"server.{number}")) == 1
    assert re.findall(r"it alone again, restart \d of \d", job.stderr) == [
        f"it alone again, restart {number} of 2" for number in (1, 2)
    ]
    assert "--max_restart 2 allows no more: the job ends with exit code 137" in job.stderr
    assert job.is_clean()


@pytest.mark.parametrize(
    ("victim", "more"),
    [
        ("server.1", ""),
        pytest.param("trainer.0", "touch(run / 'together')", marks=pytest.mark.slow),
    ],
)
def test_after_a_servers_end_all_are_started_again(launch, victim, more):
    """In a fresh folder, on other ports, as nobody who was there before. Also after a trainer's
    that cannot come back alone."""
    body = f"(run / f'{{name}}.port').write_text(environ['PADDLE_PORT'])\n{more}\n{RUN}"
    job = launch(body, *TWO, "--max_restart", "2")
    job.wait_until_all_run()
    ports = {path.read_text() for path in job.folder.glob("tmp/*/1/*.port")}
    job.kill(victim)
    job.wait_for(lambda: all(list(job.folder.glob(f"tmp/*/2/trainer.{n}")) for n in (0, 1)))
    assert not list(job.folder.glob("tmp/*/1"))
    assert len(ports) == 4
    assert not ports & {path.read_text() for path in job.folder.glob("tmp/*/2/*.port")}
    (job.folder / "go").touch()
    assert job.ended() == 0, job.stderr
    for name in ("server.0", "server.1", "trainer.0", "trainer.1"):
        assert [row[1:] for row in job.starts(name)] == [["0", "1"], ["0", "2"]]
    assert f"{victim.replace('.', ' ')} was killed" in job.stderr
    assert "starting all again, restart 1 of 2" in job.stderr
    assert job.stderr.endswith("launch: done after restarts: 1\n")
    assert job.is_clean()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server.1", "trainer.1"])
def test_no_connection_is_tried_again_without_a_restart(launch, who):
    body = f"""
if name == {who!r} and times < 3:
    sys.exit(75)
touch(run / name)
wait_for(run / {who!r})
"""
    job = launch(body, *TWO)
    assert job.ended() == 0, job.stderr
    assert len(job.starts(who)) == 3
    assert job.stderr.count("trying all again, which is no restart") == 2


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_lets_the_trainers_save(launch, signum, code):
    """While the servers still serve; each trainer hears it once."""
    body = f"""
heard = []
def hear(number, _):
    heard.append(number)
if not is_server:
    signal.signal({int(signum)}, hear)
touch(run / name)
while is_server or not heard:
    time.sleep(0.01)
time.sleep(0.2)
os.kill(int((here / "server.0.starts").read_text().split()[0]), 0)
print("saved", len(heard), flush=True)
sys.exit({code})
"""
    job = launch(body, *TWO)
    job.wait_until_all_run()
    job.popen.send_signal(signum)
    job.popen.send_signal(signum)  # a key pressed twice
    assert job.ended() == code, job.stderr
    assert sorted(line for line in job.merged if b"saved" in line) == [
        b"[trainer 0] saved 1",
        b"[trainer 1] saved 1",
    ]
    assert f"stopped by {signum.name}" in job.stderr
    assert job.is_clean()


def test_a_trainer_that_fails_to_save_is_not_said_to_have_stopped(launch):
    body = """
def hear(*_):
    print("disk full", file=sys.stderr)
    os._exit(9 if name == "trainer.1" else 143)
signal.signal(signal.SIGTERM, hear)
"""
    job = launch(body + RUN, *TWO)
    job.wait_until_all_run()
    job.popen.send_signal(signal.SIGTERM)
    assert job.ended() == 9
    assert "[trainer 1] disk full" in job.stderr
    assert "launch: stopped by SIGTERM, when trainer 1 failed with exit code 9" in job.stderr


def test_ctrl_c_again_does_not_wait(launch):
    body = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + RUN
    job = launch(body, *TWO)
    job.wait_until_all_run()
    job.popen.send_signal(signal.SIGINT)
    job.wait_for(lambda: "Ctrl-C again ends them now" in job.stderr)
    while job.popen.poll() is None:
        job.popen.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert job.ended() == 130
    assert "trainer 0 and trainer 1 did not end: killed" in job.stderr
    assert job.is_clean()


def test_a_trainer_that_is_asked_to_stop_stops_the_job(launch):
    job = launch(RUN, *TWO, "--max_restart", "3")
    job.wait_until_all_run()
    job.kill("trainer.1", signal.SIGTERM)
    assert job.ended() == 143
    assert "trainer 1 was stopped (SIGTERM): asking the other trainers to stop" in job.stderr
    assert job.is_clean()


GRANDCHILDREN = """
for more in ({}, {"start_new_session": True}):  # in the child's group, and on its own
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(child, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
"""


@pytest.mark.parametrize(
    "whole_group", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["group", "alone"]
)
def test_no_process_outlives_the_launcher(launch, whole_group):
    job = launch(GRANDCHILDREN + RUN, *TWO)
    job.wait_until_all_run()
    assert len(job.left()) == 2 + 4 * 3  # the launcher and its orphan reaper; four with two each
    if whole_group:
        os.killpg(job.popen.pid, signal.SIGKILL)
    else:
        job.popen.kill()
    assert job.ended() == -signal.SIGKILL
    job.wait_until_clean()


def kill_reaper(job):
    """The fork of the launcher that cleans up after it."""
    names = ("server.0", "server.1", "trainer.0", "trainer.1")
    known = {job.popen.pid, *(int(job.starts(name)[0][0]) for name in names)}
    own = [process for process in job.left() if process.ppid() == job.popen.pid]
    (reaper,) = (process for process in own if process.pid not in known)
    reaper.kill()


def test_the_launcher_cleans_up_when_its_reaper_is_killed(launch):
    job = launch(GRANDCHILDREN + RUN, *TWO)
    job.wait_until_all_run()
    kill_reaper(job)
    (job.folder / "go").touch()
    assert job.ended() == 0, job.stderr
    assert job.is_clean()


@pytest.mark.slow
def test_servers_and_trainers_die_even_without_launcher_and_reaper(launch):
    job = launch(RUN, *TWO)
    job.wait_until_all_run()
    kill_reaper(job)
    job.popen.kill()
    until = time.monotonic() + launched.DEADLINE
    while job.left():
        assert time.monotonic() < until, job.left()
        time.sleep(0.01)


def test_what_a_killed_trainer_started_is_gone_before_it_starts_again(launch):
    hide = """
hidden = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
(here / f"{name}.hidden").write_text(str(hidden.pid))
"""
    job = launch(GRANDCHILDREN + hide + RUN, *TWO, "--max_restart", "1")
    job.wait_until_all_run()
    children = psutil.Process(int(job.starts("trainer.1")[0][0])).children()
    assert len(children) == 3
    number = int((job.folder / "trainer.1.hidden").read_text())
    (hidden,) = (child for child in children if child.pid == number)
    job.kill("trainer.1")
    job.wait_for(lambda: len(job.starts("trainer.1")) == 2)
    assert not psutil.wait_procs([hidden], timeout=launched.DEADLINE)[1]
    assert not {child.pid for child in children} & {process.pid for process in job.left()}
    (job.folder / "go").touch()
    assert job.ended() == 0, job.stderr
    assert job.is_clean()


@pytest.mark.slow
def test_a_job_that_hangs_is_ended(launch):
    """And says which process someone has stopped. What follows, with restarts left, is decided
    where it is for one that was killed. 8 s are enough for all processes to have started."""
    job = launch("touch(run / name)\nforever()", *TWO, "--hang_timeout", "8")
    job.wait_until_all_run()
    job.kill("trainer.1", signal.SIGSTOP)
    assert job.ended() == 124, job.stderr
    assert re.search(
        r"launch: no process has written a line or done a step for 8 s \(--hang_timeout\): the job "
        r"hangs; trainer 1 is stopped \(SIGSTOP\); --max_restart 0 allows no more: the job ends "
        r"with exit code 124\n",
        job.stderr,
    )
    assert job.is_clean()


@pytest.mark.parametrize(
    "sign", ["line", "new file", "same file", "file gone", "folder gone", "none"]
)
def test_signs_of_progress(tmp_path, sign):
    job = Job([], 1, 1, 0, 60.0, tmp_path, SimpleNamespace(heard=0, say=None))
    job.run_folder = tmp_path / "run"
    job.run_folder.mkdir()
    (job.run_folder / "standing.0").write_text("1")
    if sign == "folder gone":  # no error
        shutil.rmtree(job.run_folder)
    before = job._progress()
    if sign == "line":
        job.output.heard += 1
    elif sign == "new file":
        (job.run_folder / "barrier-00000001.0").touch()
    elif sign == "same file":  # even by a clock that was set back
        os.utime(job.run_folder / "standing.0", (1, 1))
    elif sign == "file gone":
        (job.run_folder / "standing.0").unlink()
    assert (job._progress() == before) == (sign in ("none", "folder gone"))


LITTLE_JOB = """
others = [run / f"trainer.{n}.done" for n in range(int(environ["PADDLE_TRAINERS_NUM"]))]
if is_server:
    wait_for(run / "stop")
else:
    for step in range(40):
        print("step", step, flush=True)
        time.sleep(0.005)
    touch(run / f"{name}.done")
    wait_for(*others)
    (here / f"{name}.result").write_text(run.name)
    touch(run / "stop")
"""


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(5, marks=pytest.mark.slow),
        pytest.param(KILLS, marks=pytest.mark.endurance),
    ],
)
def test_random_kills(launch, jobs):
    """Jobs of random sizes whose processes are killed at random: each ends well or says what
    happened, with a code that tells the truth, and nothing is left."""

    def disturb(number: int) -> None:
        rng = random.Random(number)
        counts = {"server": rng.randint(1, 2), "trainer": rng.randint(1, 3)}
        restarts = rng.randint(0, 3)
        options = [word for role, n in counts.items() for word in (f"--{role}s", str(n))]
        job = launch(LITTLE_JOB, *options, "--max_restart", str(restarts))
        names = [f"{role}.{n}" for role, count in counts.items() for n in range(count)]
        killed = []
        for _ in range(rng.randint(0, 3)):
            time.sleep(rng.random() * 0.7)
            name = rng.choice(names)
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(int(job.starts(name)[-1][0]), signal.SIGKILL)
                killed.append(name.replace(".", " "))
        code = job.ended()
        assert job.is_clean(), number
        used = [int(n) for n in re.findall(r"restart (\d) of", job.stderr)]
        assert used == list(range(1, len(used) + 1)), job.stderr
        assert len(used) <= restarts, job.stderr
        if code == 0:
            results = {(job.folder / f"trainer.{n}.result") for n in range(counts["trainer"])}
            last = str(max(int(row[2]) for row in job.starts("server.0")))
            assert {path.read_text() for path in results} == {last}, number
        else:
            assert code == 137, (killed, job.stderr)
            assert any(f"{name} was killed" in job.stderr for name in killed), job.stderr

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(disturb, range(jobs)))
