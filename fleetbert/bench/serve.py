"""`fleetbert bench serve`: this server, the same engine offline and plain servers, by turns."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import psutil

from fleetbert import bundle as bundles
from fleetbert.bench import infer, measure, models
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.serve_client import MODEL
from fleetbert.compat import environment
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import Encodings
from fleetbert.errors import UserError
from fleetbert.tasks.metrics import softmax

SIZES = (1, 8, 32)  # texts of a request
OFFLINE = "offline, sorted"
OURS = "fleetbert"
# What a plain server's Python needs beside its engine.
NEEDED = ("fastapi", "uvicorn", "tokenizers", "numpy")
START_SECONDS = 300.0
# How many times as many connections may be opened to bring p99 to a peer's, and how often to try.
MOST_CONNECTIONS = 4
TRIES = 2


class Way(NamedTuple):
    """A server, how it is spoken to, and how many texts a request has."""

    server: str  # OURS or a peer's
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
    peers: Sequence[str],
) -> dict[str, Any]:
    """Answer the first `texts` texts of `data` by turns, and return the report, ready for JSON.

    Each round, for `seconds` each: the engine alone on token ids (as `bench infer`), then, through
    `connections` connections, this server and the peers (of infer.PEERS) with every number of texts
    a request, as fast as answers come and then at half of that rate. Before the first round every
    server gets requests of every size for `warm` seconds each: oneDNN compiles every new shape of a
    batch (5 to 20 ms), and with one text a request there are hundreds of shapes. After the last,
    this server is asked through as many connections as bring its p99 to that of each peer.
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
    peers, missing = _choose(peers, peer_python)
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        opened = bundles.read(bundle)
        if not opened.labels or opened.task.pair:
            raise UserError(f"bundle {bundle} does not answer single texts; name one that does")
        examples = infer.read_texts(data, False)[:texts]
        opened = models.with_onnx(opened, folder / "bundle")
        encodings = infer.tokenize(opened, examples, folder / "texts.npz")
        words = [example.text_a for example in examples]
        servers = {OURS: stack.enter_context(_ours(folder, opened, variant, threads))}
        chosen = _chosen_variant(servers[OURS])
        engines = {}
        for name in peers:
            peer = stack.enter_context(_peer(name, opened, encodings, folder, threads, peer_python))
            servers[_peer_name(name)] = Server({"json": peer.hello["address"]}, peer.pid)
            engines[_peer_name(name)] = peer.hello["engine"]
        job = folder / "clients.json"
        job.write_text(json.dumps({"texts": words}), encoding="utf-8")
        clients = stack.enter_context(measure.our_worker("serve_client", job, 1))
        offline = stack.enter_context(_offline(folder, opened, encodings, chosen, threads))

        ways = {way.name: way for way in _ways(servers)}
        first = _first_answers(folder, servers, clients, offline)
        measure.say("requests of all sizes to all servers, not counted")
        for way in ways.values():
            if way.protocol != "grpc":  # what is behind it is warm then
                _ask(clients, servers, way, connections, warm)
        alone = _ask(clients, servers, Way(OURS, "http", 1), 1, seconds)
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
        measure.say("this server at the peers' p99")
        equal = _at_equal_p99(
            lambda way, count: _ask(clients, servers, way, count, seconds), ways, connections
        )
    right = infer.accuracies(first, examples, opened.labels)
    rows = {}
    for name in (OFFLINE, *ways):
        mine = [found for found in details if found["name"] == name]
        rows[name] = {
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
        "versions": {OFFLINE: offline.hello["engine"], **engines},
        "missing": missing,
        "data": {"texts": len(words), "mean_tokens": tokens / len(words)},
        "connections": connections,
        "seconds": seconds,
        "warm_seconds": warm,
        "alone_p50_ms": alone["p50_ms"],
        "engines": rows,
        "beside_peer": [
            measure.ratio(segments, ours.name, peers.name) for ours, peers in _pairs(ways)
        ],
        "at_equal_p99": equal,
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


def _choose(peers: Sequence[str], peer_python: str) -> tuple[list[str], list[str]]:
    """The peers that are measured, and what is not there, in words."""
    for name in peers:
        if name not in infer.PEERS:
            raise UserError(f"--peers: {name} is none of {', '.join(infer.PEERS)}")
    measure.check_peer(peer_python, "bench serve", NEEDED)
    missing = {name: infer.lacks(name, peer_python) for name in peers}
    found = [name for name in peers if missing[name] is None]
    if not found:
        raise UserError(f"there is no peer to measure: {'; '.join(filter(None, missing.values()))}")
    return found, [words for words in missing.values() if words is not None]


def _peer_name(engine: str) -> str:
    return f"FastAPI + {infer.PEERS[engine]}"


def _ways(servers: Iterable[str]) -> list[Way]:
    return [
        Way(server, protocol, size)
        for server in servers
        for protocol in (("http", "grpc") if server == OURS else ("json",))
        for size in SIZES
    ]


def _pairs(ways: Mapping[str, Way]) -> Iterator[tuple[Way, Way]]:
    """Each of ours with each of the peers' that has as many texts a request."""
    ours = [way for way in ways.values() if way.server == OURS]
    for way in ours:
        for other in ways.values():
            if other.server != OURS and other.size == way.size:
                yield way, other


def _at_equal_p99(
    ask: Callable[[Way, int], dict[str, Any]], ways: Mapping[str, Way], connections: int
) -> list[dict[str, Any]]:
    """Texts/s of each of ours beside each peer's through `connections` connections, with as many as
    keep p99 within the peer's: in a closed loop, latency grows with them."""
    ask = functools.lru_cache(None)(ask)
    found = []
    for ours, other in _pairs(ways):
        peer = ask(other, connections)
        limit = peer["p99_ms"]
        counts = [connections]
        for _ in range(TRIES):
            count = round(counts[-1] * limit / ask(ours, counts[-1])["p99_ms"])
            counts.append(max(1, min(count, MOST_CONNECTIONS * connections)))
        tried = {count: ask(ours, count) for count in counts}
        within = [n for n, one in tried.items() if one["p99_ms"] <= limit and not one["failed"]]
        best = max(within or [connections], key=lambda count: _rate(tried[count]))
        found.append(
            {
                "engine": ours.name,
                "reference": other.name,
                "times": _rate(tried[best]) / _rate(peer),
                "connections": best,
                "p99_ms": tried[best]["p99_ms"],
                "reference_p99_ms": limit,
            }
        )
    return found


def _rate(reply: dict[str, Any]) -> float:
    return reply["texts"] / reply["seconds"]


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
    for way in _ways(servers):
        if way.size != SIZES[1]:
            continue
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


def _peer(
    name: str,
    bundle: bundles.Bundle,
    encodings: Encodings,
    folder: Path,
    threads: int,
    python: str,
) -> Worker:
    measure.say(f"starting {_peer_name(name)}")
    lowercase = bundle.manifest.tokenizer.lowercase
    job = {
        **infer.peer_model(name, bundle, encodings, folder),
        "vocab": str(bundle.vocab_path),
        "lowercase": lowercase,
        "pad_id": tokenizers.open(bundle).pad_id,
        "max_length": bundle.max_length,
        "labels": bundle.labels,
        "threads": threads,
        "streams": threads,
    }
    path = folder / f"{name}.json"
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
        measure.table(_peer_rows(report), markdown),
        "",
        "Beside peers: how many times their texts/s, through as many connections, and through as "
        "many as keep p99 within theirs (both asked once more).",
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
    lines += [f"{name}: {engine}" for name, engine in report["versions"].items()]
    lines += [f"Not measured: {words}" for words in report["missing"]]
    return "\n".join([*lines, *([report["busy"]] if report["busy"] else [])])


def _peer_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = [["", "beside", "times texts/s", "at its p99", "connections", "p99 ms", "its p99 ms"]]
    for same, equal in zip(report["beside_peer"], report["at_equal_p99"]):
        peer = same["reference"].partition(",")[0]
        row = [same["engine"], peer, f"{same['median']:.2f}", f"{equal['times']:.2f}"]
        row += [str(equal["connections"]), f"{equal['p99_ms']:.0f}"]
        rows.append([*row, f"{equal['reference_p99_ms']:.0f}"])
    return rows
