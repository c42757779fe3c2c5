"""Trains a tiny BERT, compresses it and answers in every variant: `python -m fleetbert.doctor.smoke
FOLDER [--all]`. A line of JSON for each step, a `Finding`; the bundle stays in the folder.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Callable, Iterator, Sequence

import fleetbert
from fleetbert.compat import environment, processor
from fleetbert.core import extras
from fleetbert.doctor.findings import Finding, broken, not_here, ok, skipped
from fleetbert.tasks import LabelAnswer

SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}
TEXTS, DEV = 320, 80
LEAST_ACCURACY = 0.9  # chance is 0.5; with these texts it is 1.0
ALL = "fleetbert doctor --all"
LEAST_AGREEMENT = 0.95  # of a variant's answers with float32's
REPORT = "please send this table with the whole message to the project's issues"


def write_data(folder: Path) -> None:
    """Two labels that a bag of words tells apart: vocab.txt, train.tsv, dev.tsv."""
    words = [f"word{number}" for number in range(100)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join(special + words) + "\n", encoding="utf-8")
    random = Random(0)
    for name, count in (("train", TEXTS), ("dev", DEV)):
        lines = ["label\ttext_a"]
        for number in range(count):
            kind = number % 2
            chosen = random.choices(words[50 * kind : 50 * kind + 50], k=random.randint(4, 11))
            lines.append(f"{('bad', 'good')[kind]}\t{' '.join(chosen)}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_job(
    folder: Path, output: str, level: str = "O0", dtype: str = "float16", **more: Any
) -> Path:
    """The file of a training job of seconds. more: sections."""
    job = {
        "data": {
            "train": str(folder / "train.tsv"),
            "dev": str(folder / "dev.tsv"),
            "max_length": 16,
        },
        "model": {"init": "random", "vocab": str(folder / "vocab.txt"), **SHAPE},
        "optimizer": {"learning_rate": 2e-3},
        "precision": {"level": level, "dtype": dtype},
        "callbacks": {"progress": False, "report": False, "visualdl": False},
        "output_dir": str(folder / output),
        **more,
    }
    path = folder / f"{output}.json"  # JSON is YAML
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


def trained(folder: Path, output: str, level: str = "O0", dtype: str = "float16") -> str:
    """Train; what came of it. ValueError where nothing was learned."""
    run = fleetbert.train(config=write_job(folder, output, level, dtype))
    accuracy = run.metrics["accuracy"]
    if accuracy < LEAST_ACCURACY:
        raise ValueError(f"accuracy {accuracy:.3f}, at least {LEAST_ACCURACY} was expected")
    return f"accuracy {accuracy:.3f}, {run.summary['texts_per_s']:.0f} texts/s"


def paddle_runs() -> str:
    paddle = environment.import_paddle()
    square = paddle.ones([64, 64])
    if float((square @ square).sum()) != 64.0**3:
        raise ValueError("a product of ones is wrong")
    kind = f"CUDA {paddle.version.cuda()}" if paddle.device.is_compiled_with_cuda() else "CPU"
    return f"paddlepaddle {paddle.__version__} ({kind})"


def mixed_precision(folder: Path) -> Iterator[Finding]:
    import paddle

    if not paddle.device.is_compiled_with_cuda() or not paddle.device.cuda.device_count():
        yield not_here("train O1, O2", "there is no GPU, and Paddle's AMP does nothing on a CPU")
        lacks = "" if processor.bfloat16() else "the processor has neither AVX512-BF16 nor AMX"
    else:
        for level in ("O1", "O2"):
            yield step(f"train {level}", partial(trained, folder, level, level))
        lacks = "the card has none" if paddle.device.cuda.get_device_capability()[0] < 8 else ""
    if lacks:
        yield not_here("train bfloat16", lacks)
    else:
        yield step("train bfloat16", partial(trained, folder, "bfloat16", "O1", "bfloat16"))


def dev_texts(folder: Path) -> list[str]:
    lines = (folder / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t")[1] for line in lines]


def agreement(answers: Sequence[LabelAnswer], expected: Sequence[LabelAnswer]) -> str:
    """How many answers are those of float32 on the CPU; ValueError where they are too few."""
    agreed = sum(answer.label == other.label for answer, other in zip(answers, expected))
    same = agreed / len(expected)
    if same < LEAST_AGREEMENT:
        raise ValueError(f"{same:.0%} of its answers are float32's")
    return f"{same:.0%} of {len(expected)} answers are float32's"


def variants(folder: Path, everything: bool) -> Iterator[Finding]:
    """Quantize, cut for early exit, export; each variant answers the dev texts as float32 does."""
    bundle, train, dev = (folder / name for name in ("run/bundle", "train.tsv", "dev.tsv"))
    texts = dev_texts(folder)
    expected = fleetbert.load(bundle, task="classification")(texts)

    def agree(name: str) -> str:
        return agreement(fleetbert.load(bundle, name, task="classification")(texts), expected)

    def quantized(method: str, **more: Any) -> str:
        made = fleetbert.quantize(bundle, method=method, gate=dev, max_drop=0.05, **more)
        return agree(made.name)

    def exits() -> str:
        made = fleetbert.early_exit(
            bundle, train, gate=dev, max_drop=0.05, sources=["float32"],
            distill={"layers": [1, 2], "epochs": 2, "speed": 0.5},
        )  # fmt: skip
        return "; ".join(agree(variant.name) for variant in made) or "texts leave no earlier"

    def onnx() -> str:
        from fleetbert.export.onnx import export_onnx  # loads Paddle

        export_onnx(bundle)
        return agree("onnx")

    def lite() -> str:
        from fleetbert.export.lite import export_lite  # loads Paddle

        export_lite(bundle, "x86", "int8")
        return agree("lite-x86-int8")

    yield step("quantize static", partial(quantized, "static", calibration=train))
    yield step("quantize dynamic", partial(quantized, "dynamic", calibration=train))
    yield step("early exit", exits)
    if importlib.util.find_spec("paddle2onnx") is None:
        yield not_here("export ONNX", "no paddle2onnx: it has wheels for Python 3.8 to 3.12")
    else:
        yield step("export ONNX", onnx)
    if not everything:
        yield skipped("quantize QAT", "it trains again", ALL)
    else:
        more = {"train": train, "epochs": 1, "learning_rate": 1e-4, "max_length": 16}
        yield step("quantize QAT", partial(quantized, "qat", **more))
    if importlib.util.find_spec("paddlelite") is None:
        remedy = "" if sys.version_info >= (3, 11) else extras.command("lite")
        yield not_here("export Lite", "no paddlelite: it has wheels for Python 3.8 to 3.10", remedy)
    elif not everything:
        yield skipped("export Lite", "its converter takes a while", ALL)
    else:
        yield step("export Lite", lite)


def step(check: str, do: Callable[[], str]) -> Finding:
    """Do it: ok with what it says and the time it took, broken with its error."""
    began = time.perf_counter()
    try:
        return ok(check, f"{do()} ({time.perf_counter() - began:.0f} s)")
    except Exception as error:  # whatever it is, it is to be told
        return broken(check, f"{type(error).__name__}: {error}".splitlines()[0], REPORT)


def run(folder: Path, everything: bool) -> Iterator[Finding]:
    paddle = step("Paddle", paddle_runs)
    yield paddle
    if paddle.state == "broken":
        return
    lacking = ", ".join(extras.missing("train"))
    if lacking:
        yield not_here("train float32", f"no {lacking}", extras.command("train"))
        return
    write_data(folder)
    float32 = step("train float32", partial(trained, folder, "run"))
    yield float32
    yield from mixed_precision(folder)
    if float32.state == "ok":
        yield from variants(folder, everything)


if __name__ == "__main__":
    for finding in run(Path(sys.argv[1]), "--all" in sys.argv):
        print(json.dumps(finding._asdict()), flush=True)
