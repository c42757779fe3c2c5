"""PaddlePaddle 3.3.1 beside 2.6.2, by turns: training, and answering one text and many.

  python tests/benchmarks paddles --bundle output/quickstart/bundle

Needs both environments (`make venv`, `make venv PADDLE=3`). Both train the quickstart's job on the
same texts, docstrings of this environment's packages, and answer those with the same bundle. Losses
are compared as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import infer, infer_texts, measure, train
from fleetbert.bench.measure import Worker
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError
from fleetbert.data import api_docs

PYTHONS = {"2.6.2": ".venv/bin/python", "3.3.1": ".venv-paddle3/bin/python"}
ORDERS = ("single", "sorted")
NEARLY = 0.9  # of 2.6.2's texts/s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="what answers")
    parser.add_argument(
        "--engines", type=measure.words, default=["float32"], metavar="A,B", help="variants"
    )
    train.add_job(parser, steps=12, texts=(300, "that are answered in a turn"))
    parser.set_defaults(config="configs/quickstart.yaml")


def run(arguments: argparse.Namespace) -> Result:
    for python in PYTHONS.values():
        if not Path(python).exists():
            raise UserError(f"{python} is not there: make venv, make venv PADDLE=3")
    bundle, threads = bundles.read(arguments.bundle), arguments.threads
    with measure.workplace() as (folder, stack):
        texts = infer_texts.tokenize(bundle, None, arguments.texts, ORDERS, folder)
        changes = [*arguments.overrides, *write_tables(folder), "trainer.log_every=1"]
        workers: dict[str, Worker] = {}
        for version, python in PYTHONS.items():
            measure.say(f"starting {version}")
            own = folder / version
            trainer = train.open_training(arguments.config, changes, own, threads, python=python)
            stack.enter_context(trainer).ask(start=True)
            workers[f"training, {version}"] = trainer
            beside = texts._replace(path=Path(shutil.copy(texts.path, own)))
            for variant in arguments.engines:
                worker = infer.open_engine(bundle, variant, beside, threads, python)
                stack.enter_context(worker)
                for order in ORDERS:
                    workers[f"{variant} {order}, {version}"] = worker
        what = [name.rpartition(", ")[0] for name in workers][: len(workers) // 2]
        rows = [f"{one}, {version}" for one in what for version in PYTHONS]
        for row in rows[2:]:  # a first pass that is not counted
            workers[row].ask(plan=order_of(row), speed=None, save=None)
        losses: dict[str, list[float]] = {}

        def turn(number: int, row: str) -> Json:
            if not row.startswith("training"):
                return infer.answer_all(workers[row], order_of(row), texts)
            untimed = 0 if number else train.WARM_UP
            reply = workers[row].ask(steps=arguments.steps + untimed, untimed=untimed)
            losses[row.rpartition(", ")[2]] = reply["losses"]
            return reply

        segments = measure.take_turns(arguments.rounds, rows, turn)
    old, new = PYTHONS
    ratios = [measure.ratio(segments, f"{one}, {new}", f"{one}, {old}") for one in what]
    apart = max(abs(a - b) for a, b in zip(losses[old], losses[new]))
    targets = [Target(f"{one.engine}, of {old}'s texts/s", one.median, NEARLY) for one in ratios]
    steps = len(losses[old])
    targets.append(Target(f"largest difference of {steps} steps' losses", apart, 1e-5, True))
    return Result(
        "PaddlePaddle 3.3.1 beside 2.6.2",
        [harness.figures_table(segments, rows, {})],
        [
            f"{arguments.config} in float32 with {threads} threads; answered are "
            f"{len(texts.examples)} texts of {texts.tokens / len(texts.examples):.1f} tokens.",
            *map(str, ratios),
            f"Losses differ by {apart:.1e} at most in {steps} steps.",
            *harness.busy(segments, threads),
        ],
        {"segments": [segment._asdict() for segment in segments], "losses": losses},
        targets,
    )


def order_of(row: str) -> str:
    return row.partition(", ")[0].rpartition(" ")[2]


def write_tables(folder: Path) -> list[str]:
    """The texts as tables, for both: other packages have other docstrings. Keys of the job."""
    parts = {
        name: [f"{one.label}\t{one.text_a}" for one in examples]
        for name, examples in zip(("train", "dev"), api_docs.load())
    }
    paths = harness.write_tables(folder, "label\ttext_a", parts)
    keys = ["data.builtin=null", "strategy.name=single", "trainer.device=cpu"]
    return [*keys, *(f"data.{name}={json.dumps(str(path))}" for name, path in paths.items())]
