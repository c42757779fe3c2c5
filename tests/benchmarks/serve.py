"""The server beside other servers over the same model, each at its best, by turns.

  python tests/benchmarks serve --bundle output/sst2/bundle --data dev.tsv --variant int8-static

As `fleetbert bench serve`. The peers answer in int8 over JSON; each is tried with three settings
(`servers.py`), and the fastest takes part in the turns. A peer that fails is named with its error.
Compared through the same number of connections, and at the peer's p99: this server is then asked
through as many connections as bring its p99 there, because in a closed loop latency grows with
them.
"""

from __future__ import annotations

import argparse
import functools
from typing import Callable, NamedTuple, Sequence

from benchmarks import harness, infer, servers
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import infer_texts, measure, serve
from fleetbert.bench.serve import OURS, Way
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError

# How many times as many connections may be opened to bring p99 to a peer's, and how often to try.
MOST_CONNECTIONS = 4
TRIES = 2
# Texts/s beside each peer, with as many connections.
TARGET = 1.5


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
        "--peers", type=measure.words, default=list(servers.FRONTS), metavar="A,B", help="(all)"
    )
    parser.add_argument("--calibration", metavar="FILE", help="texts for peers' int8 (--data)")
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    for name in arguments.peers:
        if name not in servers.FRONTS:
            known = ", ".join(servers.FRONTS)
            raise UserError(f"--peers: {name} is unknown; choose from {known}")
    with measure.workplace() as (folder, stack):
        bundle = bundles.read(arguments.bundle)
        (folder / "texts").mkdir()
        texts = infer_texts.tokenize(
            bundle, arguments.data, arguments.texts, ["sorted"], folder / "texts"
        )
        job = {
            **infer.peer_job(bundle, arguments.calibration or arguments.data),
            **front_job(bundle, arguments.threads),
        }
        clients = stack.enter_context(
            serve.start_clients([example.text_a for example in texts.examples], folder / "texts")
        )
        press = servers.presser(clients, arguments.sizes, arguments.connections, arguments.seconds)
        pythons = (arguments.peer_python, arguments.servers_python)
        others, tried, missing = {}, [["", "tried, texts/s"]], []
        for name in arguments.peers:
            try:
                label, server, told = servers.open_best(
                    name, job, pythons, folder, stack, press, arguments.threads
                )
            except UserError as error:
                missing.append(f"{name} ({error})")
            else:
                others[label] = server
                tried.append([name, "; ".join(f"{key}: {told[key]}" for key in told)])
        bench, variant = serve.start(arguments, bundle, folder, stack, others)
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
    sizes = " and ".join(str(size) for size in arguments.sizes)
    return Result(
        f"Serving variant {variant}",
        [
            serve.table_rows(segments, details, arguments.threads),
            peer_rows(same, equal),
            tried,
        ],
        [
            "Beside peers: how many times their texts/s, through as many connections, and through "
            "as many as keep p99 within theirs (both asked once more).",
            f"Tried: with requests of {sizes} texts, {arguments.seconds} s each.",
            *([f"Not measured: {'; '.join(missing)}."] if missing else []),
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
            Target(f"{ratio.engine}: beside {ratio.reference}", ratio.median, TARGET)
            for ratio in same
        ],
    )


def front_job(bundle: bundles.Bundle, threads: int) -> Json:
    """What a peer's front has to know besides its model."""
    return {
        "vocab": str(bundle.vocab_path),
        "lowercase": bundle.manifest.tokenizer.lowercase,
        "max_length": bundle.max_length,
        "labels": bundle.labels,
        "threads": threads,
    }


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
        peer = ratio.reference.partition(", JSON")[0]
        cells = [ratio.engine, peer, f"{ratio.median:.2f}", f"{row.times:.2f}"]
        cells += [str(row.connections), f"{row.p99_ms:.0f}", f"{row.reference_p99_ms:.0f}"]
        rows.append(cells)
    return rows
