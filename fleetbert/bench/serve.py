"""`fleetbert bench serve`: this server, the same engine offline and a plain server, by turns."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np
import psutil

from fleetbert import bundle as bundles
from fleetbert import environment
from fleetbert.bench import infer, measure, models
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.serve_client import MODEL
from fleetbert.data.tokenizer import Tokenizer
from fleetbert.errors import UserError
from fleetbert.metrics import softmax

SIZES = (1, 8, 32)  # texts of a request
OFFLINE = "offline, sorted"
PEER = "FastAPI + ONNX Runtime dynamic int8"
START_SECONDS = 300.0


class Way(NamedTuple):
    """A server, how it is spoken to, and how many texts a request has."""

    server: str  # "fleetbert" or PEER
    protocol: str  # of serve_client.SPEECHES
    size: int

    @property
    def name(self) -> str:
        words = {"http": "HTTP", "grpc": "gRPC", "json": "HTTP, JSON"}[self.protocol]
        return f"{self.server}, {words}, {self.size} text{'s' * (self.size > 1)} a request"


class Server(NamedTuple):
    """A running server: where each protocol listens, and its main process."""

    addresses: dict[str, str]
    pid: int

    def processes(self) -> list[psutil.Process]:
        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]

    def cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return sum(found.user + found.system for found in times)

    def megabytes(self) -> float:
        return sum(process.memory_info().rss for process in self.processes()) / 1e6


def bench(
    bundle: str,
    data: str,
    *,
    variant: str,
    texts: int,
    connections: int,
    seconds: float,
    warm: float,
    rounds: int,
    threads: int,
    peer_python: str,
) -> dict[str, Any]:
    """Answer the first `texts` texts of `data` by turns, and return the report, ready for JSON.

    Each round, for `seconds` each: the engine alone on token ids (as `bench infer`), then, through
    `connections` connections, this server and the peer with every number of texts a request, as
    fast as answers come and then at half of that rate. Before the first round every server gets
    requests of every size for `warm` seconds each: oneDNN compiles every new shape of a batch (5 to
    20 ms), and with one text a request there are hundreds of shapes.
    """
    for name, value in (
        ("texts", texts),
        ("connections", connections),
        ("seconds", seconds),
        ("warm", warm),
        ("rounds", rounds),
        ("threads", threads),
    ):
        if value < 1:
            raise UserError(f"--{name} is {value}; it has to be at least 1")
    needed = ("onnxruntime", "fastapi", "uvicorn", "tokenizers", "numpy")
    measure.check_peer(peer_python, "bench serve", needed)
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        opened = bundles.read(bundle)
        if not opened.labels or opened.task.pair:
            raise UserError(f"bundle {bundle} does not answer single texts; name one that does")
        examples = infer.read_texts(data, False)[:texts]
        opened = models.with_onnx(opened, folder / "bundle")
        encodings = infer.tokenize(opened, examples, folder / "texts.npz")
        words = [example.text_a for example in examples]
        servers = {"fleetbert": stack.enter_context(_ours(folder, opened, variant, threads))}
        chosen = _chosen_variant(servers["fleetbert"])
        peer = _peer(folder, opened, threads, peer_python)
        servers[PEER] = Server({"json": stack.enter_context(peer).hello["address"]}, peer.pid)
        job = folder / "clients.json"
        job.write_text(json.dumps({"texts": words}), encoding="utf-8")
        clients = stack.enter_context(measure.our_worker("serve_client", job, 1))
        offline = stack.enter_context(_offline(folder, opened, encodings, chosen, threads))

        ways = {way.name: way for way in _ways()}
        first = _first_answers(folder, servers, clients, offline)
        measure.say("requests of all sizes to all servers, not counted")
        for way in ways.values():
            if way.protocol != "grpc":  # what is behind it is warm then
                _ask(clients, servers, way, connections, warm)
        alone = _ask(clients, servers, Way("fleetbert", "http", 1), 1, seconds)
        tokens = int(encodings.lengths.sum())
        details: list[dict[str, Any]] = []

        def run(number: int, name: str) -> Segment:
            load = measure.load()
            if name == OFFLINE:
                replies = [offline.ask(plan="sorted", save=None)]
                while (took := sum(reply["seconds"] for reply in replies)) < seconds:
                    replies.append(offline.ask(plan="sorted", save=None))
                cpu = sum(reply["cpu_seconds"] for reply in replies)
                passes, peak = len(replies), replies[-1]["peak_mb"]
                return Segment(
                    number, name, load, passes * len(words), passes * tokens, took, cpu, peak
                )
            server = servers[ways[name].server]
            before = server.cpu_seconds()
            full = _ask(clients, servers, ways[name], connections, seconds)
            cpu = server.cpu_seconds() - before
            rate = full["requests"] / full["seconds"] / 2
            half = _ask(clients, servers, ways[name], connections, seconds, rate)
            details.append({"round": number, "name": name, "full": full, "half": half})
            share = full["texts"] / len(words)
            return Segment(
                number,
                name,
                load,
                full["texts"],
                round(tokens * share),
                full["seconds"],
                cpu,
                server.megabytes(),
            )

        segments = measure.take_turns(rounds, [OFFLINE, *ways], run)
        versions = {"fleetbert": offline.hello["versions"], PEER: peer.hello["versions"]}
    right = infer.accuracies(first, examples, opened.labels)
    engines = {}
    for name in (OFFLINE, *ways):
        mine = [found for found in details if found["name"] == name]
        engines[name] = {
            **measure.summarize(segments, name),
            "of_offline": measure.ratio(segments, name, OFFLINE),
            **_latencies(mine, threads),
        }
    return {
        "bench": "serve",
        "bundle": bundle,
        "variant": chosen,
        "texts_from": data,
        "machine": environment.machine(threads),
        "versions": versions,
        "data": {"texts": len(words), "mean_tokens": tokens / len(words)},
        "connections": connections,
        "seconds": seconds,
        "warm_seconds": warm,
        "alone_p50_ms": alone["p50_ms"],
        "engines": engines,
        "beside_peer": [
            measure.ratio(segments, way.name, Way(PEER, "json", way.size).name)
            for way in ways.values()
            if way.server != PEER
        ],
        "answers": {
            name: {
                "accuracy": right.get(name),
                "difference": float(np.abs(found - first[OFFLINE]).max()),
            }
            for name, found in first.items()
        },
        "busy": measure.busy_note(segments, threads + 1),  # the clients are a load as well
        "segments": [segment._asdict() for segment in segments],
        "details": details,
    }


def _ways() -> list[Way]:
    ours = [Way("fleetbert", protocol, size) for protocol in ("http", "grpc") for size in SIZES]
    return ours + [Way(PEER, "json", size) for size in SIZES]


def _ask(
    clients: Worker,
    servers: dict[str, Server],
    way: Way,
    connections: int,
    seconds: float,
    rate: float | None = None,
) -> dict[str, Any]:
    found = clients.ask(
        protocol=way.protocol,
        address=servers[way.server].addresses[way.protocol],
        texts_per_request=way.size,
        connections=connections,
        seconds=seconds,
        rate=rate,
    )
    if not found["requests"]:
        raise UserError(f"{way.name}: all {found['failed']} requests failed: {found['failure']}")
    return found


def _first_answers(
    folder: Path, servers: dict[str, Server], clients: Worker, offline: Worker
) -> dict[str, np.ndarray]:
    """The probabilities of all texts from everyone."""
    path = str(folder / "answers.npy")
    measure.say("first pass, not counted: all of them")
    offline.ask(plan="sorted", save=path)
    found = {OFFLINE: softmax(np.load(path)).astype(np.float32)}
    for way in (Way("fleetbert", "http", 8), Way("fleetbert", "grpc", 8), Way(PEER, "json", 8)):
        clients.ask(
            protocol=way.protocol,
            address=servers[way.server].addresses[way.protocol],
            texts_per_request=way.size,
            connections=1,
            save=path,
        )
        found[f"{way.server}, {way.protocol}"] = np.load(path)
    return found


def _latencies(details: Sequence[dict[str, Any]], threads: int) -> dict[str, Any]:
    """Medians over the rounds, of latencies (ms) and of the clients' processors."""
    if not details:
        return {}
    found: dict[str, Any] = {}
    for load in ("full", "half"):
        for name in ("p50_ms", "p99_ms"):
            found[f"{load}_{name}"] = statistics.median(d[load][name] for d in details)
    shares = [d["full"]["cpu_seconds"] / d["full"]["seconds"] for d in details]
    found["client_processors"] = statistics.median(shares)
    # What the server would do with the processors to itself, as far as they are what it lacks.
    found["without_clients"] = threads / max(1e-9, threads - found["client_processors"])
    found["failed"] = sum(d[load]["failed"] for d in details for load in ("full", "half"))
    return found


@contextlib.contextmanager
def _ours(folder: Path, bundle: bundles.Bundle, variant: str, threads: int) -> Iterator[Server]:
    """`fleetbert serve` with the bundle as its only model."""
    repository = folder / "models"
    (repository / MODEL).mkdir(parents=True)
    (repository / MODEL / "1").symlink_to(bundle.root.resolve())
    command = [
        *(sys.executable, "-m", "fleetbert.deploy.inference", "--repository", str(repository)),
        *("--http-port", "0", "--grpc-port", "0", "listen.host=127.0.0.1"),
        *(f"repository.default.variant={variant}", "repository.poll_seconds=0"),
        *(f"engine.workers={threads}", "engine.threads=1"),
    ]
    log = folder / "server.log"
    with log.open("wb") as stderr, (folder / "server.out").open("wb+") as stdout:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environ)
        try:
            measure.say("starting the server")
            addresses = _wait_for_addresses(process, folder / "server.out", log)
            yield Server(addresses, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_addresses(process: Any, out: Path, log: Path) -> dict[str, str]:
    """From the one line that the server prints when it is ready."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        line = out.read_text(encoding="utf-8")
        if line.endswith("\n"):
            urls = [word.rstrip(",") for word in line.split() if "://" in word]
            return dict(url.strip().split("://") for url in urls)
        time.sleep(0.05)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise UserError("the server did not become ready: " + ("\n".join(said[-5:]) or "it was silent"))


def _chosen_variant(server: Server) -> str:
    import requests

    reply = requests.get(f"http://{server.addresses['http']}/v2/models/{MODEL}", timeout=60)
    return str(reply.json()["parameters"]["variant"])


def _peer(folder: Path, bundle: bundles.Bundle, threads: int, python: str) -> Worker:
    (folder / "peer").mkdir()
    measure.say("quantizing with ONNX Runtime")
    model = models.quantize_onnx(
        bundle.folder("onnx") / "model.onnx", folder / "peer" / "model.onnx"
    )
    lowercase = bundle.manifest.tokenizer.lowercase
    job = {
        "model": str(model),
        "vocab": str(bundle.vocab_path),
        "lowercase": lowercase,
        "pad_id": Tokenizer(bundle.vocab_path, lowercase).pad_id,
        "max_length": bundle.max_length,
        "labels": bundle.labels,
        "threads": threads,
    }
    path = folder / "peer.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return measure.peer_worker(python, "peer_serve.py", path, threads)


def _offline(
    folder: Path, bundle: bundles.Bundle, encodings: Any, variant: str, threads: int
) -> Worker:
    plans = {"sorted": infer.plan(encodings)["sorted"]}
    path = folder / "offline.json"
    job = infer.write_job(path, bundle, plans, threads, variant=variant)
    return measure.our_worker("ours_infer", job, threads)


def format_report(report: dict[str, Any], markdown: bool = False) -> str:
    """The table and what it means."""
    head = ["", "texts/s", "of offline", "clients out", "p50 ms", "p99 ms", "half: p50"]
    rows = [[*head, "half: p99", "clients' CPU", "CPU ms/text", "MB", "failed"]]
    for name, found in report["engines"].items():
        ratio = found["of_offline"]["median"]
        row = [name, f"{found['texts_per_s']:.0f}", f"{ratio:.2f}"]
        if name == OFFLINE:
            row += ["-"] * 6
        else:
            row.append(f"{ratio * found['without_clients']:.2f}")
            row += [f"{found[f'full_{share}_ms']:.1f}" for share in ("p50", "p99")]
            row += [f"{found[f'half_{share}_ms']:.1f}" for share in ("p50", "p99")]
            row.append(f"{found['client_processors']:.2f}")
        row += [f"{found['cpu_ms_per_text']:.2f}", f"{found['peak_mb']:.0f}"]
        rows.append([*row, str(found.get("failed", "-"))])
    data, on = report["data"], report["machine"]
    lines = [
        f"Serving variant {report['variant']} on {on['processor']}, {on['threads']} processors; "
        f"{report['connections']} connections, {data['texts']} texts of {data['mean_tokens']:.1f} "
        f"tokens from {report['texts_from']}",
        "",
        measure.table(rows, markdown),
        "",
        *map(measure.ratio_line, report["beside_peer"]),
        "Closed loop: every connection asks again as soon as it has its answer. Half: the same "
        "connections at half of that rate, latency from when a request was due. Before the turns, "
        f"every server had requests of each size for {report['warm_seconds']:g} s. The clients ran "
        "on the same processors: `clients' CPU` is how many of them they took, `clients out` is "
        "`of offline` times processors / (processors - that).",
        f"Offline: token ids to logits in sorted batches, without tokenizing. One client alone, "
        f"one text: p50 {report['alone_p50_ms']:.1f} ms.",
    ]
    for name, found in report["answers"].items():
        accuracy = "" if found["accuracy"] is None else f"accuracy {found['accuracy']:.4f}, "
        lines.append(
            f"{name}: {accuracy}probabilities within {found['difference']:.1e} of offline's"
        )
    return "\n".join([*lines, *([report["busy"]] if report["busy"] else [])])
