"""`fleetbert bench serve`: a bundle behind `fleetbert serve`, beside the same engine offline."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import psutil
import requests

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.bench import infer, infer_texts, measure
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.serve_client import MODEL
from fleetbert.bench.worker import Json
from fleetbert.compat import environment
from fleetbert.core.errors import UserError
from fleetbert.tasks.metrics import softmax

DESCRIPTION = """\
Measure `fleetbert serve` with a bundle under load, by turns with the same engine offline.

  fleetbert bench serve --bundle output/sst2/bundle --data dev.tsv
  fleetbert bench serve --bundle output/sst2/bundle --data dev.tsv --variant int8-static --rounds 5

Requests of 1, 8 and 32 texts go through HTTP (binary tensors) and gRPC, first as fast as answers
come, then at half of that rate. The clients are one process on the same processors; the report has
their processor time, so that you can subtract it.
"""
OFFLINE = "offline, sorted"
OURS = "fleetbert"
START_SECONDS = 300.0
# The rest is JSON over HTTP.
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC"}


class Way(NamedTuple):
    """A server, how it is spoken to, and how many texts a request has."""

    server: str
    protocol: str  # of serve_client.SPEECHES
    size: int

    @property
    def server_and_protocol(self) -> str:
        return f"{self.server}, {PROTOCOLS.get(self.protocol, 'JSON')}"

    @property
    def name(self) -> str:
        return f"{self.server_and_protocol}, {self.size} text{'s' * (self.size > 1)} a request"


class Server(NamedTuple):
    """A running server: where each protocol listens, and its main process."""

    addresses: dict[str, str]
    pid: int

    def processes(self) -> list[psutil.Process]:
        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]

    def cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return sum(spent.user + spent.system for spent in times)

    def megabytes(self) -> float:
        return sum(process.memory_info().rss for process in self.processes()) / 1e6


class Bench(NamedTuple):
    """Everything that runs: the servers by name, their clients, and perhaps the engine offline, for
    `texts`."""

    servers: Mapping[str, Server]
    clients: Worker
    sizes: Sequence[int]  # texts of a request
    offline: Worker | None = None
    texts: infer_texts.Texts | None = None

    def ways(self) -> list[Way]:
        return [
            Way(name, protocol, size)
            for name, server in self.servers.items()
            for protocol in server.addresses
            for size in self.sizes
        ]

    def ask(self, way: Way, connections: int, **load: object) -> Json:
        """What the clients report; load: of `serve_client`."""
        return self.clients.ask(
            protocol=way.protocol,
            address=self.servers[way.server].addresses[way.protocol],
            texts_per_request=way.size,
            connections=connections,
            **load,
        )

    def press(self, way: Way, connections: int, seconds: float, rate: float | None = None) -> Json:
        """`ask` for so many seconds; UserError if nothing was answered."""
        reply = self.ask(way, connections, seconds=seconds, rate=rate)
        if not reply["requests"]:
            raise UserError(
                f"{way.name}: all {reply['failed']} requests failed: {reply['failure']}"
            )
        return reply

    def warm_up(self, connections: int, seconds: float) -> None:
        """Requests of all sizes: oneDNN compiles every new shape of a batch (5 to 20 ms), and with
        one text a request there are hundreds of shapes."""
        measure.say("requests of all sizes to all servers, not counted")
        for way in self.ways():
            if way.protocol != "grpc":  # what is behind it is warm then
                self.press(way, connections, seconds)

    def take_turns(
        self, rounds: int, connections: int, seconds: float
    ) -> tuple[list[Segment], dict[str, list[Json]]]:
        """Every way and the engine offline in every round, for `seconds` each; of each way's turns
        what the clients say under `full` load and at `half` of its rate."""
        ways = {way.name: way for way in self.ways()}
        details: dict[str, list[Json]] = {name: [] for name in ways}
        mean_tokens = self.texts.tokens / len(self.texts.examples) if self.texts else 0.0

        def run(_: int, name: str) -> Json:
            if name == OFFLINE:
                replies = [self._answer_offline()]
                while sum(reply["seconds"] for reply in replies) < seconds:
                    replies.append(self._answer_offline())
                summed = ("texts", "tokens", "seconds", "cpu_seconds")
                return {**replies[-1], **{key: sum(r[key] for r in replies) for key in summed}}
            way, server = ways[name], self.servers[ways[name].server]
            before = server.cpu_seconds()
            full = self.press(way, connections, seconds)
            cpu = server.cpu_seconds() - before
            half = self.press(way, connections, seconds, full["requests"] / full["seconds"] / 2)
            details[name].append({"full": full, "half": half})
            tokens = round(mean_tokens * full["texts"])
            used = {"tokens": tokens, "cpu_seconds": cpu, "peak_mb": server.megabytes()}
            return {**full, **used}

        engines = [OFFLINE, *ways] if self.offline else list(ways)
        return measure.take_turns(rounds, engines, run), details

    def _answer_offline(self) -> Json:
        assert self.offline is not None and self.texts is not None
        return infer.answer_all(self.offline, "sorted", self.texts)

    def first_answers(self, folder: Path) -> dict[str, np.ndarray]:
        """The answers float32 [texts, any] from each server and protocol, and from offline."""
        path, answers = str(folder / "answers.npy"), {}
        if self.offline is not None:
            self.offline.ask(plan="sorted", speed=None, save=path)
            answers[OFFLINE] = softmax(np.load(path)).astype(np.float32)
        for way in self.ways():
            if way.size == self.sizes[-1]:
                self.ask(way, 1, save=path)
                answers[way.server_and_protocol] = np.load(path)
        return answers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to serve")
    parser.add_argument("--data", required=True, metavar="FILE", help="texts: .tsv, .csv, .jsonl")
    parser.add_argument(
        "--variant",
        default="auto",
        metavar="NAME",
        help="variant to serve (default: auto: the fastest)",
    )
    parser.add_argument(
        "--sizes",
        type=lambda text: [measure.at_least_one(number) for number in text.split(",")],
        default=[1, 8, 32],
        metavar="N,N",
        help="texts of a request (default: 1,8,32)",
    )
    measure.add_numbers(
        parser,
        texts=(1000, "limit of texts, from the first on"),
        connections=(64, "connections of the clients"),
        seconds=(5, "seconds of each turn at each load"),
        warm=(20, "seconds of warm-up for each size of request"),
    )


def run(arguments: argparse.Namespace) -> None:
    with measure.workplace() as (folder, stack):
        bench, variant = start(arguments, bundles.read(arguments.bundle), folder, stack)
        answers = bench.first_answers(folder)
        bench.warm_up(arguments.connections, arguments.warm)
        alone = bench.press(bench.ways()[0], 1, arguments.seconds)
        segments, details = bench.take_turns(
            arguments.rounds, arguments.connections, arguments.seconds
        )
    notes = [*describe(arguments, variant, bench, alone), *answer_notes(answers)]
    rows = table_rows(segments, details, arguments.threads)
    figures = report(segments, details)
    measure.finish(arguments, rows, notes, segments, variant=variant, **figures)


def start(
    arguments: argparse.Namespace,
    bundle: bundles.Bundle,
    folder: Path,
    stack: ExitStack,
    others: Mapping[str, Server] | None = None,
) -> tuple[Bench, str]:
    """The server (and `others`, which run), the clients and the engine offline, until the stack is
    closed; and the variant that the server answers with."""
    task = tasks.of(bundle.task)
    if not (task.shape.answers and task.shape.picks_label) or task.shape.pair:
        raise UserError(
            f"bundle {bundle.root} does not answer single texts with a label; name one that does"
        )
    threads = arguments.threads
    texts = infer_texts.tokenize(bundle, arguments.data, arguments.texts, ["sorted"], folder)
    server = stack.enter_context(serve(folder, bundle, arguments.variant, threads))
    url = f"http://{server.addresses['http']}/v2/models/{MODEL}"
    variant = str(requests.get(url, timeout=60).json()["parameters"]["variant"])
    sent = [example.text_a for example in texts.examples]
    clients = stack.enter_context(start_clients(sent, folder))
    offline = stack.enter_context(infer.open_engine(bundle, variant, texts, threads))
    servers = {OURS: server, **(others or {})}
    return Bench(servers, clients, arguments.sizes, offline, texts), variant


def start_clients(texts: Sequence[str], folder: Path) -> Worker:
    program = ("-m", "fleetbert.bench.serve_client")
    return measure.start(program, folder / "clients.json", {"texts": texts}, 1)


@contextlib.contextmanager
def serve(folder: Path, bundle: bundles.Bundle, variant: str, threads: int) -> Iterator[Server]:
    """`fleetbert serve` with the bundle as its only model."""
    repository = folder / "models"
    (repository / MODEL).mkdir(parents=True)
    (repository / MODEL / "1").symlink_to(bundle.root.resolve())
    command = [
        *(sys.executable, "-m", "fleetbert.deploy.inference", "--repository", str(repository)),
        *("--http-port", "0", "--grpc-port", "0"),
        *(f"repository.default.variant={variant}", "repository.poll_seconds=0"),
        *(f"engine.workers={threads}", "engine.threads=1"),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = folder / "server.out"

    def addresses() -> dict[str, str]:
        """From what the server has printed when it is ready."""
        text = out.read_text(encoding="utf-8")
        words = text.split() if "\nready: " in text else []
        urls = [word.rstrip(",;").partition("://") for word in words if "://" in word]
        return {protocol: address for protocol, _, address in urls}

    measure.say("starting the server")
    with out.open("wb") as stdout, running(
        command, environ, folder / "server.log", addresses, stdout=stdout
    ) as server:
        yield server


@contextlib.contextmanager
def running(
    command: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    addresses: Callable[[], dict[str, str]],
    stdout: IO[bytes] | int,
) -> Iterator[Server]:
    """A server, until the block ends. addresses: where it listens; empty while it does not."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environ)
        try:
            until = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < until:
                if addresses_read := addresses():
                    yield Server(addresses_read, process.pid)
                    return
                time.sleep(0.05)
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            words = "\n".join(lines[-5:]) or "it was silent"
            raise UserError(f"the server did not become ready: {words}")
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def latencies(turns: Sequence[Json]) -> dict[str, float]:
    """Medians over the rounds, in ms, the processors that the clients took, and the requests that
    failed."""
    times = {
        f"{load}_{name}": statistics.median(turn[load][name] for turn in turns)
        for load in ("full", "half")
        for name in ("p50_ms", "p99_ms")
    }
    shares = [turn["full"]["cpu_seconds"] / turn["full"]["seconds"] for turn in turns]
    failed = sum(turn[load]["failed"] for turn in turns for load in ("full", "half"))
    return {**times, "client_processors": statistics.median(shares), "failed": failed}


def report(segments: Sequence[Segment], details: Mapping[str, list[Json]]) -> Json:
    engines: Json = {OFFLINE: measure.summarize(segments, OFFLINE)._asdict()}
    for name, turns in details.items():
        engines[name] = {
            **measure.summarize(segments, name)._asdict(),
            **latencies(turns),
            "of_offline": measure.ratio(segments, name, OFFLINE)._asdict(),
        }
    return {"engines": engines, "details": details}


def table_rows(
    segments: Sequence[Segment], details: Mapping[str, list[Json]], threads: int
) -> list[list[str]]:
    head = ["", "texts/s", "of offline", "clients out", "p50 ms", "p99 ms", "half: p50"]
    rows = [[*head, "half: p99", "clients' CPU", "CPU ms/text", "MB", "failed"]]
    for name in (OFFLINE, *details):
        figures = measure.summarize(segments, name)
        ratio = measure.ratio(segments, name, OFFLINE).median
        row = [name, f"{figures.texts_per_s:.0f}", f"{ratio:.2f}"]
        used = [f"{figures.cpu_ms_per_text:.2f}", f"{figures.peak_mb:.0f}"]
        if name == OFFLINE:
            rows.append([*row, *["-"] * 6, *used, "-"])
            continue
        *times, processors, failed = latencies(details[name]).values()
        # With the processors to itself, as far as they are what the server lacks.
        alone = threads / max(1e-9, threads - processors)
        row += [f"{ratio * alone:.2f}", *(f"{value:.1f}" for value in times), f"{processors:.2f}"]
        rows.append([*row, *used, str(failed)])
    return rows


def describe(arguments: argparse.Namespace, variant: str, bench: Bench, alone: Json) -> list[str]:
    """What the table is of, and what its columns mean."""
    texts = bench.texts
    assert texts is not None
    on, count = environment.machine(arguments.threads), len(texts.examples)
    return [
        f"Served variant {variant} on {on['processor']}, {on['threads']} processors: "
        f"{arguments.connections} connections, {count} texts of {texts.tokens / count:.1f} tokens "
        f"from {arguments.data}.",
        "Closed loop: every connection asks again as soon as it has its answer. Half: the same "
        "connections at half of that rate, latency from when a request was due.",
        "Clients' CPU: how many of the processors the clients took. Clients out: `of offline` "
        "times processors / (processors - that).",
        "Offline: token ids to logits in sorted batches, without tokenizing. One client alone, "
        f"one text: p50 {alone['p50_ms']:.1f} ms.",
    ]


def answer_notes(answers: Mapping[str, np.ndarray]) -> Iterable[str]:
    """How far everyone's probabilities are from the engine's offline."""
    for name, scores in answers.items():
        if name != OFFLINE:
            difference = float(np.abs(scores - answers[OFFLINE]).max())
            yield f"{name}: probabilities within {difference:.1e} of offline's."
