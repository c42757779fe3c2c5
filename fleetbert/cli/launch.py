"""The command line of `fleetbert launch`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import logging
import os
import sys
import tempfile
from pathlib import Path

from fleetbert.cli import job_options
from fleetbert.compat import environment, versions
from fleetbert.config import loading
from fleetbert.core.errors import UserError
from fleetbert.launch import reaper
from fleetbert.launch.output import Output
from fleetbert.launch.servers import Job

log = logging.getLogger(__name__)

HANG_TIMEOUT = 3600.0  # seconds: reading a large table, too, may take long without a word

DESCRIPTION = """\
Start the processes of a job on this machine, watch them, and end with an exit code that tells
the truth.

  fleetbert launch --servers 2 --trainers 2 launch/train.py --config configs/ps/bert_async.yaml
  fleetbert launch --ranks 2 launch/train.py --config configs/sst2.yaml

With --servers and --trainers: a parameter-server job. Each process gets what
`python -m paddle.distributed.launch --run_mode ps --with_gloo 0` would give it, on free ports.
  - The terminal shows trainer 0. Everything is in LOG_DIR/merged.log, line by line after the name
    of its process, and in server.0.log, trainer.1.log and so on.
  - A trainer that is killed or fails is started again alone, a server's end starts all again, both
    up to --max_restart times (with trainer.resume: auto, from the newest checkpoint). Without any
    left the job ends, with the last lines of the process that failed.
  - An error of the user's (exit code 2 or 3) ends the job at once; 75, no connection, is tried
    again five times.
  - A job hangs when no process writes a line, nor a file in FLEETBERT_RUN, for --hang_timeout
    seconds: all are killed, and started again if --max_restart allows.
  - Ctrl-C and SIGTERM reach the trainers, which have 60 s to save a checkpoint. No process is
    left behind, even when this one is killed.
With --ranks: collective training, by paddle.distributed.launch.

The script is a file, or a module as after `python -m`; all that follows it is its own. A script
other than launch/train.py may know: FLEETBERT_RUN names a folder that the processes of one start
share, removed at their end. A trainer that dies is started again alone, with the number of times
in FLEETBERT_RESTARTED, unless a file `together` is in that folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fleetbert launch (--servers S --trainers T | --ranks N) [options] script ..."
    parser.add_argument("--servers", type=int, metavar="S", help="processes that hold the tables")
    parser.add_argument("--trainers", type=int, metavar="T", help="processes that train with them")
    parser.add_argument("--ranks", type=int, metavar="N", help="processes of a collective job")
    parser.add_argument(
        "--max_restart", type=int, default=0, metavar="N", help="restarts in all (0)"
    )
    parser.add_argument(
        "--hang_timeout",
        type=float,
        metavar="SECONDS",
        help=f"end a job that shows no progress for so long ({HANG_TIMEOUT:.0f}; 0: never)",
    )
    parser.add_argument(
        "--log_dir",
        metavar="DIR",
        help="for the logs (OUTPUT_DIR/log of the job's --config; without one a temporary folder)",
    )
    parser.add_argument("script", nargs="?", help="what each process runs")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    script = _script(arguments)
    if arguments.log_dir is None:
        arguments.log_dir = _log_dir(_words(arguments))
    if arguments.ranks is not None:
        _become_paddles_launcher(arguments, script)
    command = [sys.executable, "-u", *script]
    _fill_standard_streams()
    output = Output(Path(arguments.log_dir))
    try:
        with reaper.reaping() as folder:
            return Job(
                command,
                arguments.servers,
                arguments.trainers,
                arguments.max_restart,
                HANG_TIMEOUT if arguments.hang_timeout is None else arguments.hang_timeout,
                folder,
                output,
            ).run()
    finally:
        output.close()


def _log_dir(words: list[str]) -> str:
    """Where the logs of a script with these arguments go: into the output_dir of its job, or, where
    the script is not one of fleetbert's, into a temporary folder that a line names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    job_options.add_config(parser)
    known, others = parser.parse_known_args(words)
    if known.config != os.devnull:
        overrides = [word for word in others if "=" in word and not word.startswith("-")]
        with contextlib.suppress(UserError):  # which the job itself says
            return str(Path(loading.output_dir(known.config, overrides)) / "log")
    folder = tempfile.mkdtemp(prefix="fleetbert-log-")
    log.info(f"logs: {folder}")
    return folder


def _fill_standard_streams() -> None:
    """Of those that were closed when we were started, so that no pipe gets one of their numbers."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < 3:
        descriptor = os.dup(descriptor)
    os.close(descriptor)


def _check(arguments: argparse.Namespace) -> None:
    for name in ("servers", "trainers", "ranks"):
        count = getattr(arguments, name)
        if count is not None and count < 1:
            raise UserError(f"--{name} {count}: there has to be at least one")
    if arguments.max_restart < 0:
        raise UserError(f"--max_restart {arguments.max_restart}: has to be 0 or more")
    if arguments.hang_timeout is not None:
        if not 0 <= arguments.hang_timeout < float("inf"):
            raise UserError(
                f"--hang_timeout {arguments.hang_timeout:g}: has to be seconds, or 0 for no limit"
            )
        if arguments.ranks is not None:
            raise UserError(
                "--hang_timeout with --ranks: a collective job has strategy.hang_timeout in its "
                "config; set that instead"
            )
    if arguments.ranks is None:
        if arguments.servers is None and arguments.trainers is None:
            raise UserError(
                "launch: give --servers and --trainers, or for collective training --ranks"
            )
        for name, other in (("servers", "trainers"), ("trainers", "servers")):
            if getattr(arguments, name) is None:
                raise UserError(f"--{other} without --{name}: a job has both, so give --{name} too")
    elif arguments.servers is not None or arguments.trainers is not None:
        raise UserError(
            "--ranks with --servers or --trainers: a collective job has ranks only; leave one out"
        )
    if arguments.servers is not None:
        versions.need_paddle_2("launch --servers")
    if arguments.script is None:
        raise UserError("launch: name the script to run, for example launch/train.py")


def _script(arguments: argparse.Namespace) -> list[str]:
    """The script and its arguments, as Python takes them."""
    script = arguments.script
    if Path(script).is_file():
        if not os.access(script, os.R_OK):
            raise UserError(f"{script}: cannot be read; name a script that can")
        return [script, *_words(arguments)]
    if script.endswith(".py") or os.sep in script or not _is_module(script):
        raise UserError(f"{script}: there is no such script, nor a module of that name")
    return ["-m", script, *_words(arguments)]


def _is_module(name: str) -> bool:
    """Whether Python finds a module to run, from here; nothing is imported for it."""
    places = [str(Path.cwd()), *sys.path]
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:end]), places)
        if spec is None:
            return False
        places = list(spec.submodule_search_locations or [])
    is_package = bool(places)
    return not is_package or _is_module(f"{name}.__main__")


def _words(arguments: argparse.Namespace) -> list[str]:
    """What follows the script. `--debug` is taken off every command line of fleetbert's, wherever
    it stands; behind a script it is the script's."""
    for start in range(len(sys.argv)):
        rest = sys.argv[start:]
        if [word for word in rest if word != "--debug"] == arguments.words:
            return rest
    return list(arguments.words)


def _become_paddles_launcher(arguments: argparse.Namespace, script: list[str]) -> None:
    environ = dict(os.environ)
    if not environment.started_with("OMP_NUM_THREADS", os.getpid()):
        environ.pop("OMP_NUM_THREADS", None)  # which is for one process: ranks share it out
    if script[0] == "-m":  # what does not end in .py, Paddle's launcher runs as a program
        script = [sys.executable, "-u", *script]
    options = ["--nproc_per_node", str(arguments.ranks), "--log_dir", arguments.log_dir]
    options += ["--max_restart", str(arguments.max_restart)]
    command = [sys.executable, "-m", "paddle.distributed.launch", *options, *script]
    sys.stdout.flush()
    os.execve(sys.executable, command, environ)
