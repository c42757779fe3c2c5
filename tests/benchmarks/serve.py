"""The server beside plain FastAPI servers over the same model, by turns.

  python tests/benchmarks serve --bundle output/sst2/bundle --data dev.tsv --variant int8-static

As `fleetbert bench serve`. The peers get JSON, and run each request by itself, as a server that is
written soon does. Compared through the same number of connections, and at the peer's p99: this
server is then asked through as many connections as bring its p99 there, because in a closed loop
latency grows with them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Sequence

from benchmarks import harness, infer, models
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import infer as own_infer
from fleetbert.bench import measure, serve
from fleetbert.bench.infer import Texts
from fleetbert.bench.serve import OURS, Server, Way
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError

NEEDS = ("fastapi", "uvicorn", "tokenizers")
# How many times as many connections may be opened to bring p99 to a peer's, and how often to try.
MOST_CONNECTIONS = 4
TRIES = 2
# Throughput at equal p99 beside FastAPI + ONNX Runtime's dynamic int8.
TARGET = 2.3


class Equal(NamedTuple):
    """Texts/s of ours beside a peer's at its p99, with as many connections as keep within it."""

    engine: str
    reference: str
    times: float
    connections: int
    p99_ms: float
    reference_p99_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    serve.add_arguments(parser)
    parser.add_argument(
        "--peers",
        type=measure.words,
        default=["ort-int8"],
        metavar="A,B",
        help="engines behind FastAPI (ort-int8)",
    )
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    check_peers(arguments.peers, arguments.peer_python)
    with measure.workplace() as (folder, stack):
        bundle = models.with_onnx(bundles.read(arguments.bundle), folder / "bundle")
        servers = {}
        for engine in arguments.peers:
            label = f"FastAPI + {infer.PEERS[engine].label}"
            measure.say(f"starting {label}")
            place = folder / engine
            place.mkdir()
            texts = own_infer.tokenize(bundle, arguments.data, arguments.texts, ["sorted"], place)
            job = peer_job(engine, bundle, texts, arguments.threads)
            servers[label] = stack.enter_context(
                open_fastapi(arguments.peer_python, place, job, arguments.threads)
            )
        bench, variant = serve.start(arguments, bundle, folder, stack, servers)
        answers = bench.first_answers(folder)
        bench.warm_up(arguments.connections, arguments.warm)
        alone = bench.press(bench.ways()[0], 1, arguments.seconds)
        segments, details = bench.take_turns(
            arguments.rounds, arguments.connections, arguments.seconds
        )
        measure.say("this server at the peers' p99")
        pairs = pair_ways(bench.ways())
        equal = at_equal_p99(
            lambda way, count: bench.press(way, count, arguments.seconds),
            pairs,
            arguments.connections,
        )
    same = [measure.ratio(segments, ours.name, peer.name) for ours, peer in pairs]
    return Result(
        f"Serving variant {variant}",
        [
            serve.table_rows(segments, details, arguments.threads),
            peer_rows(same, equal),
        ],
        [
            "Beside peers: how many times their texts/s, through as many connections, and through "
            "as many as keep p99 within theirs (both asked once more).",
            *serve.describe(arguments, variant, bench, alone),
            *serve.answer_notes(answers),
            *harness.busy(segments, arguments.threads + 1),
        ],
        {
            "variant": variant,
            **serve.report(segments, details),
            "beside_peer": [ratio._asdict() for ratio in same],
            "at_equal_p99": [row._asdict() for row in equal],
        },
        [
            Target(f"{row.engine}: at equal p99, beside {row.reference}", row.times, TARGET)
            for row in equal
            if row.reference.startswith(f"FastAPI + {infer.ORT8}")
        ],
    )


def check_peers(engines: Sequence[str], python: str) -> None:
    for engine in engines:
        if engine not in infer.PEERS:
            raise UserError(f"--peers: {engine} is unknown; choose from {', '.join(infer.PEERS)}")
        harness.check_peer(python, (*NEEDS, *infer.PEERS[engine].needs))


def peer_job(engine: str, bundle: bundles.Bundle, texts: Texts, threads: int) -> Json:
    model = infer.peer_model(engine, bundle, texts, texts.path.parent)
    return {**model, **front_job(bundle, threads), "streams": threads}


def front_job(bundle: bundles.Bundle, threads: int) -> Json:
    """What a peer's front has to know besides its model."""
    return {
        "vocab": str(bundle.vocab_path),
        "lowercase": bundle.manifest.tokenizer.lowercase,
        "max_length": bundle.max_length,
        "labels": bundle.labels,
        "threads": threads,
    }


@contextlib.contextmanager
def open_fastapi(python: str, folder: Path, job: Json, threads: int) -> Iterator[Server]:
    path = folder / "job.json"
    with harness.start_peer(python, "fastapi_server.py", path, job, threads) as worker:
        yield Server({"json": worker.hello["address"]}, worker.pid)


def pair_ways(ways: Sequence[Way]) -> list[tuple[Way, Way]]:
    """Each of ours with each of the peers' that has as many texts a request."""
    return [
        (ours, peer)
        for ours in ways
        if ours.server == OURS
        for peer in ways
        if peer.server != OURS and peer.size == ours.size
    ]


def at_equal_p99(
    ask: Callable[[Way, int], Json], pairs: Sequence[tuple[Way, Way]], connections: int
) -> list[Equal]:
    """Texts/s of ours beside the peer's, with as many connections as keep p99 within the peer's."""
    ask = functools.lru_cache(None)(ask)
    rows = []
    for ours, other in pairs:
        peer = ask(other, connections)
        limit = peer["p99_ms"]
        counts = [connections]
        for _ in range(TRIES):
            count = round(counts[-1] * limit / ask(ours, counts[-1])["p99_ms"])
            counts.append(max(1, min(count, MOST_CONNECTIONS * connections)))
        tried = {count: ask(ours, count) for count in counts}
        within = [n for n, one in tried.items() if one["p99_ms"] <= limit and not one["failed"]]
        best = max(within or [connections], key=lambda count: rate(tried[count]))
        times = rate(tried[best]) / rate(peer)
        rows.append(Equal(ours.name, other.name, times, best, tried[best]["p99_ms"], limit))
    return rows


def rate(reply: Json) -> float:
    return reply["texts"] / reply["seconds"]


def peer_rows(same: Sequence[measure.Ratio], equal: Sequence[Equal]) -> list[list[str]]:
    rows = [["", "beside", "times texts/s", "at its p99", "connections", "p99 ms", "its p99 ms"]]
    for ratio, row in zip(same, equal):
        peer = ratio.reference.partition(",")[0]
        cells = [ratio.engine, peer, f"{ratio.median:.2f}", f"{row.times:.2f}"]
        cells += [str(row.connections), f"{row.p99_ms:.0f}", f"{row.reference_p99_ms:.0f}"]
        rows.append(cells)
    return rows
