"""The command line of `fleetbert bench`; light to import."""

from __future__ import annotations

import argparse
from typing import Any, Callable

DESCRIPTION = """\
Measure this project beside other engines on this machine, in one run and by turns.

  fleetbert bench train     fine-tuning, beside PyTorch + transformers
  fleetbert bench infer     answering, beside PyTorch, ONNX Runtime and OpenVINO
  fleetbert bench compress  quantized variants, beside ONNX Runtime's dynamic int8
  fleetbert bench scaling   training in one rank and in several, and what the all-reduce costs
  fleetbert bench ps        training in one process, in ranks, and on parameter servers
  fleetbert bench serve     the server, beside the engine offline and FastAPI servers
  fleetbert bench amp       float32, O1 and O2, on a GPU

Every round gives each engine a turn, in an order that rotates; what counts is the median over the
rounds of the ratio within a round. The other engines live in an environment of their own, which
`make venv-bench` makes. Close what else runs on the machine: the report tells when it was busy.
"""

TRAIN = """\
The same fine-tuning through PyTorch + transformers and through this project, by turns.

  fleetbert bench train --config configs/sst2.yaml data.train=train.tsv data.dev=dev.tsv
  fleetbert bench train --config configs/sst2.yaml --full --json sst2.json

Both train the same token ids from the same weights, in float32 on the CPU, with the same batch
size, learning rate, warm-up, decay and clipping. The peer does it the plain way: random order,
padded to the longest text of the batch. This project trains as the config says (data.batching).
Start-up, evaluation, checkpoints and the first 5 steps are not timed.
"""

INFER = """\
A bundle's variants here, and the same model in PyTorch, ONNX Runtime and OpenVINO, by turns.

  fleetbert bench infer --bundle output/sst2/bundle --data dev.tsv --html infer.html
  fleetbert bench infer --bundle output/sst2/bundle --data dev.tsv --full
  fleetbert bench infer --shape bert-base --vocab vocab.txt --data texts.jsonl --texts 300 \\
      --engines float32,int8-static,torch,ort-int8

Each engine answers the same texts one at a time, in batches of 32 in arrival order padded to the
longest, and in batches of like length with at most 2,048 tokens; --full times batches of 1 to 64
rows of 16 to 512 tokens as well (--texts 0: only these). Timed is the way from token ids to logits.
Shown: texts/s, the time of one text, memory, accuracy. The bundle is never changed. Without
--bundle one with random weights is made. Peers that the other Python lacks are left out.

Engines: float32, bfloat16, int8-static, early-exit-float32, early-exit-int8 and other variants of
the bundle; torch, torchscript, ort, ort-int8, openvino, openvino-bf16, openvino-int8.
"""

COMPRESS = """\
Quantized variants of a bundle, its float32, and ONNX Runtime's float32 and dynamic int8 of the
same model, by turns: accuracy, texts/s and bytes, beside what is expected of each method.

  fleetbert bench compress --bundle output/sst2/bundle --data dev.tsv --calibration train.tsv
  fleetbert bench compress --config configs/sst2.yaml --data dev.tsv data.train=train.tsv
  fleetbert bench compress --shape bert-base --vocab vocab.txt --data texts.tsv --texts 500

The bundle is copied, never changed; variants that it has already are measured too. --config trains
one first; with neither one with random weights is made, for speed alone. All engines answer the
same texts in the same batches, sorted by length. Timed is the way from token ids to logits.
"""

SCALING = """\
The same training in one rank and in several ranks of this machine, by turns, on CPUs.

  fleetbert bench scaling --json scaling.json
  fleetbert bench scaling --config configs/sst2.yaml data.train=train.tsv data.dev=dev.tsv
  fleetbert bench scaling --model

One rank with its share of the processors, one with all of them, and --ranks with a share each
train the same texts (data.batch_size is of all ranks together). Shown: texts/s, the efficiency
against one rank with one share, the part of the time that reading texts takes, and the part of a
step that the all-reduce takes: each of --steps steps is done twice, with and without it.
--model measures nothing: it prints the tables of docs/scaling.md, a model of 8 to 1,024 GPUs.
"""

PS = """\
The same training in one process, in several ranks, and on parameter servers, by turns, on CPUs.

  fleetbert bench ps --json ps.json
  fleetbert bench ps --servers 2 --trainers 2 --config configs/ps/bert_async.yaml \\
      data.train=train.tsv data.dev=dev.tsv

On servers: async with one trainer, and async, sync and geo with --trainers. All do the same steps
on the same texts (data.batch_size is of all trainers together), each with one share of the
processors; servers run beside them. Shown: the time of a step, texts/s of all trainers together,
and the bytes that a trainer pushes and pulls in a step, beside what the method needs.
"""

SERVE = """\
A bundle behind `fleetbert serve`, the same engine offline, and the same model in int8 in ONNX
Runtime and OpenVINO, each behind a plain FastAPI server, by turns.

  fleetbert bench serve --bundle output/sst2/bundle --data dev.tsv
  fleetbert bench serve --bundle output/sst2/bundle --data dev.tsv --variant int8-static --rounds 5

Through HTTP (binary tensors) and gRPC, with 1, 8 and 32 texts a request; the peers get JSON. Peers
are compared through the same number of connections, and at their own p99. The clients are one
process on the same processors; what they take is reported and can be counted out.
"""

AMP = """\
Training in float32, AMP O1 and AMP O2 by batch size and length: ms per step, texts/s, peak memory
and the loss, with the speed-up beside float32.

  fleetbert bench amp --json amp.json --plot amp.png
  fleetbert bench amp --losses --device DEVICE

The texts are made of the vocabulary's words and fill the length. Speeds and memory need a GPU.
Elsewhere --losses compares the losses alone: of all three on a Paddle custom device, of float32
only on a CPU, where Paddle's AMP does nothing. The first 5 steps are not timed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="what", metavar="what", required=True)
    for name, summary, description, add in (
        ("train", "fine-tuning, beside PyTorch + transformers", TRAIN, _add_train),
        ("infer", "answering, beside other engines", INFER, _add_infer),
        ("compress", "quantized variants, beside ONNX Runtime", COMPRESS, _add_compress),
        ("scaling", "training in one rank and in several", SCALING, _add_scaling),
        ("ps", "training on parameter servers, in ranks, in one process", PS, _add_ps),
        ("serve", "the server, beside the engine offline and FastAPI servers", SERVE, _add_serve),
        ("amp", "float32, O1 and O2, on a GPU", AMP, _add_amp),
    ):
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add(subparser)
        subparser.add_argument("--json", metavar="FILE", help="write all figures there as well")
        subparser.add_argument(
            "--markdown", action="store_true", help="print the table as Markdown"
        )


def _add_train(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "--steps", type=int, default=100, metavar="N", help="steps of each side in a round (100)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument(
        "--full",
        action="store_true",
        help="train all epochs on both sides, cut into --rounds parts, and compare the accuracy",
    )
    _add_peer(parser)


def _add_infer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", metavar="DIR", help="the bundle to measure")
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="texts, .tsv or .jsonl; with labels accuracy is shown (default: api_docs)",
    )
    parser.add_argument(
        "--texts", type=int, default=1000, metavar="N", help="only the first N of them (1000)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument(
        "--engines", type=_words, metavar="A,B", help="only these (all that are there)"
    )
    parser.add_argument(
        "--orders",
        type=_words,
        default="single,arrival,sorted",
        metavar="A,B",
        help="how texts come (single,arrival,sorted)",
    )
    parser.add_argument(
        "--drops",
        type=_shares,
        default="0.015",
        metavar="D,D",
        help="accuracy that early exit may lose; each has rows of its own (0.015, 1.5 points)",
    )
    parser.add_argument(
        "--full", action="store_true", help="batches of 1 to 64 rows of 16 to 512 tokens as well"
    )
    parser.add_argument("--html", metavar="FILE", help="write one page with tables and plots there")
    _add_shape(parser, "without --bundle")
    _add_peer(parser)


def _add_compress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", metavar="DIR", help="the bundle to quantize a copy of")
    parser.add_argument("--config", metavar="FILE", help="without --bundle: the job that trains it")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to --config")
    parser.add_argument(
        "--data", required=True, metavar="FILE", help="labelled texts to answer, .tsv or .jsonl"
    )
    parser.add_argument(
        "--calibration", metavar="FILE", help="texts to calibrate with (those of --data)"
    )
    parser.add_argument(
        "--methods",
        default="dynamic,static",
        metavar="A,B",
        help="of `fleetbert quantize`, or YAML files of its jobs (dynamic,static)",
    )
    parser.add_argument(
        "--student", metavar="DIR", help="a smaller bundle; its static int8 is measured as well"
    )
    parser.add_argument(
        "--texts", type=int, default=1000, metavar="N", help="only the first N of --data (1000)"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(5)")
    _add_shape(parser, "without --bundle and --config")
    parser.add_argument("--plot", metavar="FILE", help="draw the figures there (.png, .svg)")
    _add_peer(parser)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument(
        "--steps", type=int, default=30, metavar="N", help="steps of each side in a round (30)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument("--model", action="store_true", help="only print the model of many GPUs")


def _add_ps(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument("--servers", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--trainers", type=int, default=2, metavar="N", help="and ranks (2)")
    parser.add_argument(
        "--steps", type=int, default=30, metavar="N", help="steps of each side in a round (30)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to serve")
    parser.add_argument("--data", required=True, metavar="FILE", help="texts, .tsv or .jsonl")
    parser.add_argument(
        "--variant", default="auto", metavar="NAME", help="(auto: the fastest, as the server does)"
    )
    parser.add_argument(
        "--texts", type=int, default=1000, metavar="N", help="only the first N of --data (1000)"
    )
    parser.add_argument("--connections", type=int, default=64, metavar="N", help="(64)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="of each turn and load (5)"
    )
    parser.add_argument(
        "--warm", type=float, default=20.0, metavar="S", help="before, each size of request (20)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument(
        "--peers",
        type=_words,
        default="ort-int8,openvino-int8",
        metavar="A,B",
        help="engines of the plain servers, as peers of `bench infer` (ort-int8,openvino-int8)",
    )
    _add_peer(parser)


def _add_amp(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    for name, default in (("--batch-sizes", "32,64,128"), ("--lengths", "128,512")):
        parser.add_argument(
            name, type=_numbers, default=default, metavar="N,N", help=f"({default})"
        )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="timed steps (20)")
    parser.add_argument("--device", default="auto", help="as trainer.device (auto)")
    parser.add_argument("--losses", action="store_true", help="losses only, on any device")
    parser.add_argument("--plot", metavar="FILE", help="draw the figures there (.png, .svg)")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _shares(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        default="configs/bench.yaml",
        metavar="FILE",
        help="YAML file of the job (configs/bench.yaml)",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the config")


def _add_shape(parser: argparse.ArgumentParser, when: str) -> None:
    """The options of a bundle with random weights."""
    parser.add_argument(
        "--shape",
        choices=("minilm", "bert-base"),
        default="minilm",
        help=f"{when}: 6 layers of 384, or 12 of 768 (minilm)",
    )
    parser.add_argument("--vocab", metavar="FILE", help=f"{when}: vocab.txt")
    parser.add_argument(
        "--max-length", type=int, default=128, metavar="N", help=f"{when}: tokens (128)"
    )


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads of each engine (the processors that this process may use)",
    )
    parser.add_argument(
        "--peer-python",
        default=".venv-bench/bin/python",
        metavar="FILE",
        help="the interpreter that has the other engines (.venv-bench/bin/python)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table, write the JSON."""
    from fleetbert.bench import measure

    measure.check_output(arguments.json)
    report, text = MEASURES[arguments.what](arguments)
    if arguments.json:
        measure.write_json(arguments.json, report)
    print(text)


def _train(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from fleetbert.bench import train

    report = train.bench(
        arguments.config,
        arguments.overrides,
        steps=arguments.steps,
        full=arguments.full,
        **_peer(arguments),
    )
    return report, train.format_report(report, arguments.markdown)


def _infer(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from fleetbert.bench import infer, measure

    measure.check_output(arguments.html, "--html")
    report = infer.bench(
        arguments.bundle,
        arguments.data,
        texts=arguments.texts,
        shape=arguments.shape,
        vocab=arguments.vocab,
        max_length=arguments.max_length,
        engines=arguments.engines,
        orders=arguments.orders,
        drops=arguments.drops,
        full=arguments.full,
        **_peer(arguments),
    )
    if arguments.html:
        from fleetbert.bench import infer_page

        infer_page.write(arguments.html, report)
    return report, infer.format_report(report, arguments.markdown)


def _compress(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from fleetbert.bench import compress, measure

    measure.check_output(arguments.plot, "--plot")
    report = compress.bench(
        arguments.bundle,
        arguments.data,
        methods=arguments.methods.split(","),
        calibration=arguments.calibration,
        texts=arguments.texts,
        student=arguments.student,
        config=arguments.config,
        overrides=arguments.overrides,
        shape=arguments.shape,
        vocab=arguments.vocab,
        max_length=arguments.max_length,
        **_peer(arguments),
    )
    if arguments.plot:
        compress.plot(report, arguments.plot)
    return report, compress.format_report(report, arguments.markdown)


def _scaling(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from fleetbert.bench import cost, scaling

    if arguments.model:
        return cost.report(), cost.format_report()
    report = scaling.bench(
        arguments.config,
        arguments.overrides,
        ranks=arguments.ranks,
        steps=arguments.steps,
        rounds=arguments.rounds,
    )
    return report, scaling.format_report(report, arguments.markdown)


def _ps(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from fleetbert.bench import ps

    report = ps.bench(
        arguments.config,
        arguments.overrides,
        servers=arguments.servers,
        trainers=arguments.trainers,
        steps=arguments.steps,
        rounds=arguments.rounds,
    )
    return report, ps.format_report(report, arguments.markdown)


def _serve(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from fleetbert.bench import serve

    report = serve.bench(
        arguments.bundle,
        arguments.data,
        variant=arguments.variant,
        texts=arguments.texts,
        connections=arguments.connections,
        seconds=arguments.seconds,
        warm=arguments.warm,
        peers=arguments.peers,
        **_peer(arguments),
    )
    return report, serve.format_report(report, arguments.markdown)


def _amp(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from fleetbert.bench import amp, measure
    from fleetbert.compat import environment

    measure.check_output(arguments.plot, "--plot")
    environment.import_paddle()
    report = amp.bench(
        arguments.config,
        arguments.overrides,
        batch_sizes=arguments.batch_sizes,
        lengths=arguments.lengths,
        steps=arguments.steps,
        device=arguments.device,
        losses=arguments.losses,
    )
    if arguments.plot:
        amp.plot(report, arguments.plot)
    return report, amp.format_report(report, arguments.markdown)


def _peer(arguments: argparse.Namespace) -> dict[str, Any]:
    from fleetbert.engines.engine import default_threads

    threads = default_threads() if arguments.threads is None else arguments.threads
    return {
        "rounds": arguments.rounds,
        "threads": threads,
        "peer_python": arguments.peer_python,
    }


# The report and its text for each `what`.
MEASURES: dict[str, Callable[[argparse.Namespace], tuple[dict[str, Any], str]]] = {
    "train": _train,
    "infer": _infer,
    "compress": _compress,
    "scaling": _scaling,
    "ps": _ps,
    "serve": _serve,
    "amp": _amp,
}
