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
from fleetbert.launch.manifest import KINDS, manifest
from fleetbert.launch.manifest import Job as Submitted
from fleetbert.launch.output import Output
from fleetbert.launch.servers import Job

log = logging.getLogger(__name__)

IMAGE = "fleetbert-trainer"  # as in deploy/inference/compose.yaml
HANG_TIMEOUT = 3600.0  # seconds: reading a large table, too, may take long without a word

DESCRIPTION = """\
Start and watch the processes of a job on this machine. The exit code is non-zero if any process
failed.

  fleetbert launch --servers 2 --trainers 2 launch/train.py --config configs/ps/bert_async.yaml
  fleetbert launch --ranks 2 launch/train.py --config configs/sst2.yaml

--servers and --trainers start a parameter-server job. Each process gets the environment that
`python -m paddle.distributed.launch --run_mode ps --with_gloo 0` would set, with free ports.
  - The terminal shows trainer 0. LOG_DIR/merged.log has the lines of all processes, with their
    names; server.0.log, trainer.1.log and so on have those of one process each.
  - If a trainer is killed or fails, it alone restarts. If a server ends, all processes restart
    (with trainer.resume: auto, from the newest checkpoint). After --max_restart restarts the job
    ends and shows the last lines of the process that failed.
  - The job ends at once after exit codes 2 and 3, which stand for errors in config or data and for
    a rejected variant. After 75 (no connection) it is tried again five times.
  - A job hangs when for --hang_timeout seconds no process writes a line or a file in FLEETBERT_RUN.
    Then all processes are killed, and restart if --max_restart allows.
  - After Ctrl-C or SIGTERM the trainers have 60 s to save a checkpoint. No process is left behind,
    even if this one is killed.
--ranks starts collective training, by paddle.distributed.launch. --print shows, in place of
starting it, the file that submits the job of --nodes machines to a cluster:

  fleetbert launch --print slurm --nodes 2 --ranks 1 launch/train.py --config configs/sst2.yaml

The script is a file, or a module as after `python -m`. All words after it are its arguments. Other
scripts than launch/train.py may use FLEETBERT_RUN, a folder that the processes of one start share
and that is removed at their end. FLEETBERT_RESTARTED counts the restarts of a trainer. If that
folder holds a file `together`, all processes restart instead of one trainer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fleetbert launch (--servers S --trainers T | --ranks N) [options] script ..."
    parser.add_argument(
        "--servers", type=int, metavar="S", help="number of servers, which hold the weights"
    )
    parser.add_argument("--trainers", type=int, metavar="T", help="number of trainers")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="number of ranks of a collective job"
    )
    parser.add_argument(
        "--max_restart", type=int, default=0, metavar="N", help="limit of restarts (default: 0)"
    )
    parser.add_argument(
        "--hang_timeout",
        type=float,
        metavar="SECONDS",
        help=f"end a job without progress for this time (default: {HANG_TIMEOUT:.0f}; 0: never)",
    )
    parser.add_argument(
        "--log_dir",
        metavar="DIR",
        help="folder of the logs (default: OUTPUT_DIR/log of --config, else a temporary folder)",
    )
    parser.add_argument(
        "--print",
        choices=sorted(KINDS),
        metavar="MANAGER",
        help=f"show a file for a cluster manager: {', '.join(sorted(KINDS))} (docs/clusters.md)",
    )
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="with --print: machines (default: 2)"
    )
    parser.add_argument(
        "--image",
        metavar="NAME",
        help=f"with --print: the image of the pods (default: {IMAGE})",
    )
    parser.add_argument("script", nargs="?", help="script that each process runs")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    script = _script(arguments)
    if arguments.print is not None:
        _print(arguments, script)
        return 0
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
    output_dir = _output_dir(words)
    if output_dir:
        return str(Path(output_dir) / "log")
    folder = tempfile.mkdtemp(prefix="fleetbert-log-")
    log.info(f"logs: {folder}")
    return folder


def _output_dir(words: list[str]) -> str:
    """The output_dir of the job with these arguments; "" where the script is not fleetbert's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    job_options.add_config(parser)
    known, others = parser.parse_known_args(words)
    if known.config == os.devnull:
        return ""
    overrides = [word for word in others if "=" in word and not word.startswith("-")]
    with contextlib.suppress(UserError):  # which the job itself says
        return loading.output_dir(known.config, overrides)
    return ""


def _print(arguments: argparse.Namespace, script: list[str]) -> None:
    words = _words(arguments)
    print(
        manifest(
            arguments.print,
            Submitted(
                nodes=2 if arguments.nodes is None else arguments.nodes,
                ranks=arguments.ranks,
                restarts=arguments.max_restart,
                image=arguments.image or IMAGE,
                command=["python", "-u", *script] if script[0] == "-m" else script,
                output_dir=_output_dir(words),
            ),
        ),
        end="",
    )


def _fill_standard_streams() -> None:
    """Of those that were closed when we were started, so that no pipe gets one of their numbers."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < 3:
        descriptor = os.dup(descriptor)
    os.close(descriptor)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.print is None:
        for name in ("nodes", "image"):
            if getattr(arguments, name) is not None:
                raise UserError(f"--{name} without --print: it is for the file that --print shows")
    elif arguments.ranks is None:
        raise UserError(f"--print {arguments.print}: give --ranks, the processes of each machine")
    for name in ("servers", "trainers", "ranks", "nodes"):
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
        raise UserError(f"{script}: neither a script nor a module has this name")
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
