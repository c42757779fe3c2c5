"""Looks at the machine, then starts what tries it: `smoke`, jobs of several processes, servers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator, Sequence

from fleetbert.client import Client, unpack
from fleetbert.compat import versions
from fleetbert.core.errors import UserError
from fleetbert.doctor import card, machine, smoke
from fleetbert.doctor.findings import Finding, broken, not_here, ok, skipped
from fleetbert.launch.cluster import Cluster

DEADLINE = 300  # seconds that a part may take on a slow machine


def examine(trying: bool = True, everything: bool = False) -> Iterator[Finding]:
    """Look at the machine and try it. everything: what takes long too."""
    has_card = False
    for finding in machine.look():
        has_card = has_card or (finding.check, finding.state) == ("GPU", "ok")
        yield finding
    if not trying:
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="fleetbert-doctor-"))
    except OSError as error:
        raise UserError(f"doctor: no temporary folder: {error}; set TMPDIR") from error
    try:
        yield from reported("try", "smoke", str(folder), *(["--all"] if everything else []))
        if (folder / "run" / "bundle").exists():
            yield two_ranks(folder)
            yield parameter_servers(folder, everything)
            yield served(folder, "serve")
            yield from on_card(folder, has_card)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """Of the processes that are started: of no cluster, and of this very fleetbert."""
    root = str(Path(__file__).parents[2])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_")}
    paths = [root, *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def reported(check: str, module: str, folder: str, *words: str) -> Iterator[Finding]:
    """What `python -m fleetbert.doctor.MODULE FOLDER ...` finds, as it finds it. check: of what
    ended without a word."""
    output = Path(folder, f"{module}.txt")
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", f"fleetbert.doctor.{module}", folder, *words],
            stdout=subprocess.PIPE, stderr=file, cwd=folder, env=environment(),
        )  # fmt: skip
    assert process.stdout is not None
    last = "before its first step"
    for line in process.stdout:
        if line.startswith(b'{"check"'):
            finding = Finding(**json.loads(line))
            last = f"after: {finding.check}"
            yield finding
    if code := process.wait():
        what = f"the process ended with exit code {code}, {last}: {_last_line(output)}"
        yield broken(check, what, smoke.REPORT)


def on_card(folder: Path, has_card: bool) -> Iterator[Finding]:
    """Each engine for GPUs, in a process of its own, which may end as it likes; then a server."""
    if not has_card:
        yield not_here("engines on a GPU", "there is no GPU that Paddle can use")
        return
    for engine in card.ENGINES:
        yield from reported(card.name(*engine), "card", str(folder), *engine)
    yield served(folder, "serve on a GPU", "engine.device=gpu", "engine.precision=float16")


def two_ranks(folder: Path) -> Finding:
    """A job of two processes through Paddle's launcher, as users start it."""
    launcher = ["paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir"]
    log = folder / "log"
    words = [*launcher, str(log), str(_script(folder)), "--config"]
    config = smoke.write_job(folder, "ranks")
    return _trained("train two ranks", [*words, str(config)], log / "workerlog.0", 2)


def parameter_servers(folder: Path, everything: bool) -> Finding:
    """A job of a server and two trainers."""
    check = "parameter servers"
    try:
        versions.need_paddle_2(check)
    except UserError as error:
        return not_here(check, str(error))
    if not everything:
        return skipped(check, "its three processes take a while", smoke.ALL)
    config = smoke.write_job(folder, "servers", strategy={"name": "parameter_server"})
    words = ["fleetbert.cli", "launch", "--servers", "1", "--trainers", "2", str(_script(folder))]
    return _trained(check, [*words, "--config", str(config)], folder / "servers.txt", 2)


def _script(folder: Path) -> Path:
    script = folder / "train.py"
    script.write_text(
        "from fleetbert.core import errors\nfrom fleetbert.cli import train\n"
        'if __name__ == "__main__":\n    errors.run(train.main)\n'
    )
    return script


def _trained(check: str, words: list[str], log: Path, count: int) -> Finding:
    """What a job of `python -m WORDS` learned in so many processes. log: where it says why not; its
    output_dir is the job's name."""
    output = Path(words[-1]).with_suffix("")
    began = time.perf_counter()
    with _started([sys.executable, "-m", *words], output.with_suffix(".txt")) as process:
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(DEADLINE)
    summary = output / "summary.json"
    if code or not summary.exists():
        last = _last_line(log if log.exists() else output.with_suffix(".txt"))
        ended = f"no end within {DEADLINE} s" if code is None else f"exit code {code}"
        return broken(check, f"{ended}: {last}", smoke.REPORT)
    result = json.loads(summary.read_text(encoding="utf-8"))
    accuracy, processes = result["dev"]["accuracy"], result["world_size"]
    seconds = time.perf_counter() - began
    text = f"{processes} processes, accuracy {accuracy:.3f} ({seconds:.0f} s)"
    if processes != count or accuracy < smoke.LEAST_ACCURACY:
        return broken(check, text, smoke.REPORT)
    return ok(check, text)


def served(folder: Path, check: str, *words: str) -> Finding:
    """A server of the bundle, asked over HTTP and gRPC, ended by SIGTERM. words: its settings."""
    repository = folder / "models"
    if not repository.exists():
        shutil.copytree(folder / "run" / "bundle", repository / "tiny" / "1")
    ports = Cluster(0, 2)
    ports.close()
    http, grpc = ports.ports
    command = [
        sys.executable, "-m", "fleetbert.cli", "serve", "--repository", str(repository),
        "--http-port", str(http), "--grpc-port", str(grpc), *words,
    ]  # fmt: skip
    output = folder / "serve.txt"
    began = time.perf_counter()
    try:
        with _started(command, output) as process, Client(f"http://127.0.0.1:{http}") as client:
            while not client.ready():
                if process.poll() is not None:
                    text = output.read_text(errors="replace")
                    if "No module named" in text:
                        return not_here(check, _last_line(output), "pip install 'fleetbert[serve]'")
                    return broken(check, f"it ended: {_last_line(output)}", smoke.REPORT)
                if time.perf_counter() - began > DEADLINE:
                    return broken(check, f"not ready after {DEADLINE} s", smoke.REPORT)
                time.sleep(0.2)
            texts = ["word1 word2 word3", "word60 word61 word62"]
            labels = [answer.label for answer in client.infer("tiny", texts)]
            labels += _over_grpc(grpc, texts)
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    except Exception as error:  # whatever it is, it is to be told
        return broken(check, f"{type(error).__name__}: {error}", smoke.REPORT)
    took = time.perf_counter() - began
    if labels != ["bad", "good"] * 2 or code:
        return broken(check, f"answered {labels}, exit code {code}", smoke.REPORT)
    return ok(check, f"answered over HTTP and gRPC, left with exit code 0 ({took:.0f} s)")


def _over_grpc(port: int, texts: Sequence[str]) -> list[str]:
    """The labels of texts, asked over gRPC."""
    import grpc  # only where a server runs, which needs it too

    from fleetbert.deploy.inference.protocol import inference_pb2 as messages

    request = messages.ModelInferRequest(model_name="tiny")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    request.outputs.add(name="label")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            messages.ModelInferRequest.SerializeToString,
            messages.ModelInferResponse.FromString,
        )
        (labels,) = call(request, timeout=DEADLINE).raw_output_contents
    return list(unpack("BYTES", labels))


@contextlib.contextmanager
def _started(command: list[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, of which all processes end with the block."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=output.parent, env=environment(),
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
