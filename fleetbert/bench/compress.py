"""`fleetbert bench compress`: quantized variants beside float32 and ONNX Runtime's dynamic int8."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.bench import infer, measure, models
from fleetbert.bench.infer import Row
from fleetbert.bench.models import ORT
from fleetbert.compat import environment
from fleetbert.errors import UserError


class Bar(NamedTuple):
    """What a method is expected to reach on SST-2 with MiniLM and AVX512-VNNI: accuracy lost at
    most, texts/s at least and bytes at most, both beside float32."""

    drop: float
    speed: float
    size: float


BARS = {
    "dynamic": Bar(0.005, 0.9, 0.28),
    "static": Bar(0.005, 2.8, 0.28),
    "qat": Bar(0.003, 2.8, 0.28),
    "student": Bar(0.025, 4.5, 0.2),
}
# Of BERT-base's shape only the speed is expected: its weights are random here.
BERT_BASE_SPEED = 3.0
# Static and QAT beside ONNX Runtime's dynamic int8.
ORT_DROP = 0.003
ORT_SPEED = 1.4
BESIDE_ORT = ("static", "qat")


def bench(
    bundle: str | None,
    data: str,
    *,
    methods: Sequence[str],
    calibration: str | None,
    texts: int,
    rounds: int,
    threads: int,
    peer_python: str,
    student: str | None = None,
    config: str | None = None,
    overrides: Sequence[str] = (),
    shape: str = "minilm",
    vocab: str | None = None,
    max_length: int = 128,
) -> dict[str, Any]:
    """Quantize a copy of `bundle`, answer the first `texts` texts of `data` by turns, report.

    methods: of `fleetbert quantize`, or YAML files of its jobs. Variants that the bundle has
    already are measured as well. Without `bundle` one is trained by the job `config`, or without
    that one of `shape` with random weights is made. student: a bundle whose int8-static (made if
    it lacks one) is measured beside the others.
    """
    for name, value in (("texts", texts), ("rounds", rounds), ("threads", threads)):
        if value < 1:
            raise UserError(f"--{name} is {value}; it has to be at least 1")
    if overrides and config is None:
        raise UserError(f"{overrides[0]}: changes to a job need --config, which trains the bundle")
    measure.check_peer(peer_python, "bench compress", ("onnxruntime", "numpy"))
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        random = bundle is None and config is None
        if config is not None:
            bundle = str(_train(config, overrides, folder / "run"))
        if bundle is None:
            examples = infer.read_texts(data, False)[:texts]
            opened = models.make_random(folder / "bundle", shape, vocab, max_length, examples)
        else:
            opened = _copied(bundle, folder / "bundle")
            examples = infer.read_texts(data, opened.task.pair)[:texts]
        opened = models.with_onnx(opened, folder / "bundle")
        environment.import_paddle()
        for method in methods:
            opened = models.add_variant(opened, method, calibration or data, data)
        served = {v.name: opened for v in opened.manifest.variants if v.name != "onnx"}
        if student is not None:
            small = _copied(student, folder / "student")
            if all(v.name != "int8-static" for v in small.manifest.variants):
                small = models.add_variant(small, "static", calibration or data, data)
            if small.manifest.tokenizer != opened.manifest.tokenizer:
                raise UserError(f"--student {student}: its vocabulary is not that of the bundle")
            served["student int8-static"] = small
        measure.say("quantizing with ONNX Runtime")
        (folder / "ort").mkdir()
        peers = {
            f"{ORT} float32": opened.folder("onnx") / "model.onnx",
            f"{ORT} dynamic int8": models.quantize_onnx(
                opened.folder("onnx") / "model.onnx", folder / "ort" / "model.onnx"
            ),
        }
        encodings = infer.tokenize(opened, examples, folder / "texts.npz")
        plans = {"sorted": infer.plan(encodings)["sorted"]}
        tokens = int(encodings.lengths.sum())
        rows: dict[str, Row] = {}
        for name, bundle_of in served.items():
            path, name_there = folder / f"{len(rows)}.json", name.split()[-1]
            job = infer.write_job(path, bundle_of, plans, threads, variant=name_there)
            worker = stack.enter_context(measure.our_worker("ours_infer", job, threads))
            rows[name] = Row(worker, "sorted", len(examples), tokens)
        for name, model in peers.items():
            path = folder / f"{len(rows)}.json"
            job = infer.write_job(path, opened, plans, threads, model=str(model))
            worker = stack.enter_context(
                measure.peer_worker(peer_python, "peer_infer.py", job, threads)
            )
            rows[name] = Row(worker, "sorted", len(examples), tokens)
        logits, segments, _ = infer.by_turns(rows, rounds, folder)
        sizes = {
            **{name: _bytes(found.variant(name.split()[-1])) for name, found in served.items()},
            **{name: model.stat().st_size for name, model in peers.items()},
        }
        found = {n: v.variant(n.split()[-1]) for n, v in served.items()}
        kinds = {
            name: "student" if name.startswith("student") else v.compressed_by
            for name, v in found.items()
        }
        accuracies = {} if random else infer.accuracies(logits, examples, opened.labels)
    engines = {}
    for name in rows:
        accuracy = accuracies.get(name)
        drop = None if accuracy is None else accuracies["float32"] - accuracy
        engines[name] = {
            **measure.summarize(segments, name),
            "method": kinds.get(name, ""),
            "made_from": found[name].made_from if name in found else None,
            "accuracy": accuracy,
            "drop": drop,
            "speed": measure.ratio(segments, name, "float32"),
            "beside_ort": measure.ratio(segments, name, f"{ORT} dynamic int8"),
            "bytes": sizes[name],
            "size": sizes[name] / sizes["float32"],
            "difference": float(np.abs(logits[name] - logits["float32"]).max()),
        }
    ort = engines[f"{ORT} dynamic int8"]["drop"]
    for found_ in engines.values():
        found_["bars"] = _bars(found_, ort, shape if random else None)
    return {
        "bench": "compress",
        "bundle": bundle,
        "random_weights": shape if random else None,
        "texts_from": data,
        "calibrated_on": calibration or data,
        "machine": environment.machine(threads),
        "versions": {name: row.worker.hello["versions"] for name, row in rows.items()},
        "data": {"texts": len(examples), "mean_tokens": tokens / len(examples)},
        "engines": engines,
        "busy": measure.busy_note(segments, threads),
        "segments": [segment._asdict() for segment in segments],
    }


def _bars(found: dict[str, Any], ort_drop: float | None, shape: str | None) -> list[dict[str, Any]]:
    """What is expected of an engine, and whether it is there: name, value, bar, met.

    Nothing of variants that were made from other ones than float32.
    """
    method = found["method"]
    speed = found["speed"]["median"]
    if shape is not None:
        expected = shape == "bert-base" and method == "static"
        return [_at_least("times float32's texts/s", speed, BERT_BASE_SPEED)] if expected else []
    if method not in BARS or found["made_from"] != "float32":
        return []
    bar = BARS[method]
    bars = [
        _at_least("times float32's texts/s", speed, bar.speed),
        _at_most("of float32's bytes", found["size"], bar.size),
    ]
    if found["drop"] is not None:
        bars.append(_at_most("accuracy lost", found["drop"], bar.drop))
    if method in BESIDE_ORT:
        ratio = found["beside_ort"]["median"]
        bars.append(_at_least(f"times {ORT}'s dynamic int8's texts/s", ratio, ORT_SPEED))
        if found["drop"] is not None and ort_drop is not None:
            lost = found["drop"] - ort_drop
            bars.append(_at_most(f"more accuracy lost than by {ORT}", lost, ORT_DROP))
    return bars


def _at_least(name: str, value: float, bar: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_least": bar, "met": value >= bar}


def _at_most(name: str, value: float, bar: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_most": bar, "met": value <= bar + 1e-9}


def _train(config: str, overrides: Sequence[str], output: Path) -> Path:
    """The bundle of a training run with this job, in a process of its own."""
    command = [sys.executable, "-m", "fleetbert.cli", "train", "--config", config, *overrides]
    done = subprocess.run([*command, f"output_dir={output}", "trainer.resume=none"])
    if done.returncode:
        raise UserError(f"training by {config} ended with exit code {done.returncode}")
    return output / "bundle"


def _copied(bundle: str, copy: Path) -> bundles.Bundle:
    opened = bundles.read(bundle)
    if not opened.labels:
        raise UserError(f"bundle {bundle} has no labels to answer with; name a classifier")
    shutil.copytree(opened.root, copy)
    return bundles.read(copy)


def _bytes(variant: bundles.Variant) -> int:
    return sum(file.size for file in variant.files)


def format_report(report: dict[str, Any], markdown: bool = False) -> str:
    """The table, and each bar with what was reached."""
    header = ["", "accuracy", "drop", "texts/s", "of float32's", f"of {ORT} int8's"]
    rows = [[*header, "MB", "of float32's", "logits within"]]
    for name, found in report["engines"].items():
        accuracy, drop = found["accuracy"], found["drop"]
        rows.append(
            [
                name,
                "-" if accuracy is None else f"{accuracy:.4f}",
                "-" if drop is None else f"{drop:+.4f}",
                f"{found['texts_per_s']:.1f}",
                f"{found['speed']['median']:.2f}",
                f"{found['beside_ort']['median']:.2f}",
                f"{found['bytes'] / 1e6:.1f}",
                f"{found['size']:.3f}",
                f"{found['difference']:.3f}",
            ]
        )
    data, on = report["data"], report["machine"]
    lines = [
        f"{on['threads']} threads of {on['processor']}; {data['texts']} texts of "
        f"{data['mean_tokens']:.1f} tokens from {report['texts_from']}, the same sorted batches",
        "",
        measure.table(rows, markdown),
        "",
    ]
    for name, found in report["engines"].items():
        for bar in found["bars"]:
            limit = (
                f"at least {bar['at_least']}" if "at_least" in bar else f"at most {bar['at_most']}"
            )
            mark = "met" if bar["met"] else "MISSED"
            lines.append(f"{mark:6}  {name}: {bar['value']:.3f} {bar['name']}, {limit}")
    if report["random_weights"]:
        lines.append("The weights are random: accuracy means nothing and is not shown.")
    return "\n".join([*lines, *([report["busy"]] if report["busy"] else [])])


def plot(report: dict[str, Any], path: str) -> None:
    """Speed and size beside float32's, and accuracy where it means something, as a picture."""
    from matplotlib.figure import Figure

    engines = report["engines"]
    names = list(engines)
    columns = [
        ("times float32's texts/s", [engines[n]["speed"]["median"] for n in names], "{:.2f}"),
        ("of float32's bytes", [engines[n]["size"] for n in names], "{:.2f}"),
    ]
    if engines["float32"]["accuracy"] is not None:
        lost = [100 * engines[n]["drop"] for n in names]
        columns.append(("accuracy lost, % points", lost, "{:+.2f}"))
    figure = Figure(figsize=(4.5 * len(columns), 1 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    colours = ["#c2540a" if name.startswith(ORT) else "#2563c9" for name in names]
    for axis, (title, values, form) in zip(axes, columns):
        bars = axis.barh(names, values, color=colours, height=0.65)
        axis.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"--plot {path}: {reason}; name a .png or .svg file") from None
