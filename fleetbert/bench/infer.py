"""`fleetbert bench infer`: a bundle's variants here, and the same model in other engines, by turns.

Three ways in which texts come are measured: one at a time, in arrival order in batches of 32, and
sorted by length in batches of 2,048 tokens; with `full`, batches of one shape too.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence, Tuple

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.bench import measure, models
from fleetbert.bench.measure import Segment, Worker
from fleetbert.compat import environment
from fleetbert.data import api_docs, tokenizers
from fleetbert.data.batching import SAFE_LENGTHS, plan_inference, round_up
from fleetbert.data.read import Example, read
from fleetbert.data.tokenizers import Encodings
from fleetbert.engines.alike import LARGEST_DIFFERENCE
from fleetbert.engines.answer import BATCH_TOKENS
from fleetbert.errors import UserError

BATCH_SIZE = 32
ORDERS = {
    "single": "one text at a time",
    "arrival": f"batches of {BATCH_SIZE} as texts come, padded to the longest",
    "sorted": f"texts of like length together, at most {BATCH_TOKENS:,} tokens a batch",
}
# Of batches of one shape.
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (16, 32, 64, 128, 256, 512)
SHAPE_SECONDS = 0.1  # of calls of one shape in a turn
# Texts that ONNX Runtime calibrates its static quantization with.
CALIBRATION = 64
EARLY_EXIT = "early-exit-int8"
# Accuracy that an early exit which leaves sooner than the variant's own speed may lose, by default.
DROPS = (0.015,)

# Our variants, in the order of the table; bfloat16 is float32's program.
OURS = ("float32", "bfloat16", "int8-static", "early-exit-float32", EARLY_EXIT)
PEERS = {
    "torch": "PyTorch eager",
    "torchscript": "TorchScript",
    "ort": "ONNX Runtime float32",
    "ort-int8": "ONNX Runtime dynamic int8",
    "openvino": "OpenVINO float32",
    "openvino-bf16": "OpenVINO bfloat16",
    "openvino-int8": "OpenVINO int8",
}
# What a peer's Python needs for it.
NEEDS = {"torch": ("torch", "transformers"), "ort": ("onnxruntime",), "openvino": ("openvino",)}

# Indices of the texts of each batch, and the tokens that its rows are padded to.
Batches = List[Tuple[List[int], int]]


class Row(NamedTuple):
    """A line of the table: who answers, how the texts come, how many they are, and the speed of an
    early exit (None: the variant's own)."""

    worker: Worker
    order: str
    texts: int
    tokens: int
    speed: float | None = None


class Bar(NamedTuple):
    """How many times as fast one row has to be as another: texts/s, or p50 of a text's time."""

    row: str
    reference: str
    at_least: float
    p50: bool = False


ORT8 = PEERS["ort-int8"]
# MiniLM on SST-2, and BERT-base's shape with random weights on Chinese book reviews.
BARS = {
    "bundle": (
        Bar("int8-static, sorted", "float32, arrival", 4.9),
        Bar(f"{EARLY_EXIT}, sorted", "float32, arrival", 6.5),
        Bar(f"{EARLY_EXIT}, sorted", f"{ORT8}, arrival", 3.5),
        Bar(f"{EARLY_EXIT}, sorted", f"{ORT8}, sorted", 1.9),
        Bar(f"{EARLY_EXIT} at -1.5 pt, sorted", "float32, arrival", 8.0),
        Bar("int8-static, single", f"{ORT8}, single", 1.0, p50=True),
        Bar(f"{EARLY_EXIT}, single", f"{ORT8}, single", 1.0, p50=True),
    ),
    "bert-base": (
        Bar("int8-static, sorted", f"{PEERS['torch']}, single", 28.0),
        Bar("int8-static, sorted", "float32, arrival", 9.0),
        Bar("int8-static, sorted", f"{ORT8}, sorted", 1.4),
    ),
    "minilm": (),
}


def bench(
    bundle: str | None,
    data: str | None,
    *,
    texts: int,
    rounds: int,
    threads: int,
    peer_python: str,
    shape: str = "minilm",
    vocab: str | None = None,
    max_length: int = 128,
    engines: Sequence[str] | None = None,
    orders: Sequence[str] = tuple(ORDERS),
    drops: Sequence[float] = DROPS,
    full: bool = False,
) -> dict[str, Any]:
    """Answer the first `texts` texts of `data` by turns and return the report, ready for JSON.

    Without `bundle` one of that shape with random weights is made, in int8 too; without `data` the
    texts are those of api_docs. The user's bundle is never changed. engines: of OURS and PEERS (or
    other variants of the bundle); None: all that are there. drops: EARLY_EXIT is measured at speeds
    that lose so much accuracy, too (0.015: 1.5 points). Timed is the way from token ids to
    logits, padding included; tokenizing is not. full: batches of one shape as well; texts 0: only
    these.
    """
    for name, value, least in (
        ("texts", texts, 0 if full else 1),
        ("rounds", rounds, 1),
        ("threads", threads, 1),
    ):
        if value < least:
            raise UserError(f"--{name} is {value}; it has to be at least {least}")
    for order in orders:
        if order not in ORDERS:
            raise UserError(f"--orders: {order} is none of {', '.join(ORDERS)}")
    measure.check_peer(peer_python, "bench infer", ("numpy",))
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        if bundle is None:
            examples = read_texts(data, False)[: texts or BATCH_SIZE]
            opened = models.make_random(folder / "bundle", shape, vocab, max_length, examples)
            if engines is None or "int8-static" in engines:
                opened = _add_int8(opened, examples, folder)
        else:
            opened = bundles.read(bundle)
            if not opened.labels:
                raise UserError(f"bundle {bundle} has no labels to answer with; name a classifier")
            examples = read_texts(data, opened.task.pair)[: texts or BATCH_SIZE]
        chosen, missing = choose(opened, peer_python, engines)
        if any(name.startswith(("ort", "openvino")) for name in chosen):
            opened = models.with_onnx(opened, folder / "bundle")
        encodings = tokenize(opened, examples, folder / "texts.npz")
        plans = plan(encodings)
        workers: dict[str, Worker] = {}
        for name in chosen:
            measure.say(f"starting {name}")
            extra = _model(name, opened, encodings, folder)
            job = write_job(folder / f"{name}.json", opened, plans, threads, **extra)
            workers[name] = stack.enter_context(
                measure.peer_worker(peer_python, "peer_infer.py", job, threads)
                if name in PEERS
                else measure.our_worker("ours_infer", job, threads)
            )
        rows = _rows(workers, opened, encodings, orders, drops) if texts else {}
        logits, segments, times = by_turns(rows, rounds, folder)
        shapes = time_shapes(workers, opened, rounds) if full else None
        busy = measure.busy_note(segments, threads) if segments else None
    right = {} if bundle is None else accuracies(logits, examples, opened.labels)
    first = next(iter(rows), None)
    return {
        "bench": "infer",
        "bundle": bundle,
        "random_weights": shape if bundle is None else None,
        "texts_from": data or "api_docs",
        "machine": environment.machine(threads),
        "versions": {PEERS.get(n, n): w.hello["engine"] for n, w in workers.items()},
        "missing": missing,
        "data": {
            "texts": len(examples),
            "mean_tokens": int(encodings.lengths.sum()) / len(examples),
        },
        "cut": encodings.truncated,
        "engines": {
            label: {
                **measure.summarize(segments, label),
                "order": row.order,
                "batches": len(plans[row.order]),
                "padding": _padding(plans[row.order], row.tokens),
                "p50_ms": _median(times[label], 50) if row.order == "single" else None,
                "p99_ms": _median(times[label], 99) if row.order == "single" else None,
                "speed": row.speed,
                "accuracy": right.get(label),
                "difference": float(np.abs(logits[label] - logits[str(first)]).max()),
                "exact": _is_exact(label),
            }
            for label, row in rows.items()
        },
        "reference": first,
        "ratios": [
            found
            for bar in BARS[shape if bundle is None else "bundle"]
            if (found := _judge(bar, segments, times, right)) is not None
        ],
        "shapes": shapes,
        "busy": busy,
        "segments": [segment._asdict() for segment in segments],
    }


def _padding(batches: Batches, tokens: int) -> float:
    return 1 - tokens / sum(len(indices) * length for indices, length in batches)


def _is_exact(label: str) -> bool:
    """Whether an engine computes what float32 does, but for rounding in it."""
    names = ("float32", *(PEERS[name] for name in ("torch", "torchscript", "ort", "openvino")))
    return label.startswith(tuple(f"{name}, " for name in names))


def _median(rounds: list[list[float]], percentile: int) -> float:
    return statistics.median(1000 * float(np.percentile(found, percentile)) for found in rounds)


def choose(
    bundle: bundles.Bundle, peer_python: str, engines: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """The engines that are measured, and what is not there, in words."""
    there = {variant.name for variant in bundle.manifest.variants} | {"bfloat16"}
    wanted = [*OURS, *PEERS] if engines is None else list(engines)
    for name in wanted:
        if name not in (*OURS, *PEERS, *there):
            known = ", ".join([*OURS, *PEERS])
            raise UserError(f"--engines: {name} is none of {known}, nor a variant of the bundle")
    chosen, missing = [], []
    for name in wanted:
        if name in PEERS:
            if (lacking := lacks(name, peer_python)) is not None:
                missing.append(lacking)
                continue
        elif name not in there:
            missing.append(f"{name} (the bundle has no such variant)")
            continue
        elif name == "bfloat16" and "avx512_bf16" not in environment.cpuinfo():
            missing.append("bfloat16 (this processor has no AVX512-BF16)")
            continue
        chosen.append(name)
    if not chosen:
        raise UserError(f"there is no engine to measure: {'; '.join(missing)}")
    return chosen, missing


def lacks(peer: str, peer_python: str) -> str | None:
    """Which peer cannot be measured and why, if its modules are not there."""
    modules = NEEDS[next(kind for kind in NEEDS if peer.startswith(kind))]
    try:
        measure.check_peer(peer_python, "bench", modules)
    except UserError:
        return f"{PEERS[peer]} ({peer_python} has no {' or '.join(modules)})"
    return None


def _add_int8(bundle: bundles.Bundle, examples: Sequence[Example], folder: Path) -> bundles.Bundle:
    """The bundle with int8-static. Nothing is known of its accuracy, so a few texts will do."""
    labels = bundle.labels
    path = folder / "calibration.jsonl"
    lines = [
        json.dumps({"label": labels[number % len(labels)], "text_a": example.text_a})
        for number, example in enumerate(examples[:CALIBRATION])
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    environment.import_paddle()
    return models.add_variant(bundle, "static", str(path), str(path))


def _model(name: str, bundle: bundles.Bundle, encodings: Encodings, folder: Path) -> dict[str, Any]:
    """What an engine's job says of its model."""
    if name in PEERS:
        return peer_model(name, bundle, encodings, folder)
    return {"variant": "float32", "bfloat16": True} if name == "bfloat16" else {"variant": name}


def peer_model(
    name: str, bundle: bundles.Bundle, encodings: Encodings, folder: Path
) -> dict[str, Any]:
    """What a peer's job says of its model, which is made in `folder`; the bundle has ONNX unless
    the peer is PyTorch."""
    if name.startswith("torch"):
        path = folder / "torch.npz"
        config, tensors = models.torch_weights(bundle.folder("float32"))
        if not path.exists():
            np.savez(path, **tensors)
        traced = name == "torchscript"
        return {"peer": "torch", "weights": str(path), "config": config, "traced": traced}
    model = bundle.folder("onnx") / "model.onnx"
    (folder / name).mkdir()
    target = folder / name / "model.onnx"
    if name == "ort-int8":
        model = models.quantize_onnx(model, target)
    if name == "openvino-int8":
        model = models.quantize_onnx_static(model, target, calibration(encodings))
    if name.startswith("ort"):
        return {"peer": "onnxruntime", "model": str(model)}
    precision = "bf16" if name == "openvino-bf16" else "f32"
    return {"peer": "openvino", "model": str(model), "precision": precision}


def calibration(encodings: Encodings) -> list[dict[str, np.ndarray]]:
    """A few of the texts, one a batch, as an ONNX model takes them."""
    step = max(1, len(encodings.ids) // CALIBRATION)
    batches = []
    for number in range(0, len(encodings.ids), step):
        ids = np.asarray(encodings.ids[number], np.int64)[None]
        types = np.zeros_like(ids)
        types[0, encodings.first_lengths[number] :] = 1
        batches.append({"input_ids": ids, "token_type_ids": types})
    return batches


def _rows(
    workers: dict[str, Worker],
    bundle: bundles.Bundle,
    encodings: Encodings,
    orders: Sequence[str],
    drops: Sequence[float],
) -> dict[str, Row]:
    count, tokens = len(encodings.ids), int(encodings.lengths.sum())
    rows = {}
    for name, worker in workers.items():
        for order in orders:
            rows[f"{PEERS.get(name, name)}, {order}"] = Row(worker, order, count, tokens)
            if name != EARLY_EXIT:
                continue
            for drop in drops:
                speed = sooner(bundle.variant(name), drop)
                if speed is not None:
                    label = f"{name} at -{100 * drop:g} pt, {order}"
                    rows[label] = Row(worker, order, count, tokens, speed)
    return rows


def sooner(variant: bundles.Variant, drop: float) -> float | None:
    """The largest speed at which no more than `drop` of float32's accuracy is lost on the data that
    it was chosen on; None where that is no more than the variant's own."""
    measured = next(iter(variant.accuracy), None)
    if measured is None or measured.float32_accuracy is None:
        return None
    if not isinstance(variant, bundles.EarlyExitVariant):
        return None
    least = measured.float32_accuracy - drop - 1e-9
    good = [point.speed for point in variant.by_speed if point.accuracy >= least]
    return max((speed for speed in good if speed > variant.speed), default=None)


def by_turns(
    rows: dict[str, Row], rounds: int, folder: Path
) -> tuple[dict[str, np.ndarray], list[Segment], dict[str, list[list[float]]]]:
    """Have all rows answer their texts, once uncounted and then by turns; each one's logits, its
    segments, and the seconds of its batches in each round.

    folder: where workers may leave their logits.
    """
    logits = {}
    times: dict[str, list[list[float]]] = {name: [] for name in rows}
    for name, row in rows.items():
        measure.say(f"first pass, not counted: {name}")
        row.worker.ask(plan=row.order, speed=row.speed, save=str(folder / "logits.npy"))
        logits[name] = np.load(folder / "logits.npy")

    def run(number: int, name: str) -> Segment:
        row, load = rows[name], measure.load()
        reply = row.worker.ask(plan=row.order, speed=row.speed, save=None)
        times[name].append(reply["times"])
        figures = (reply[figure] for figure in ("seconds", "cpu_seconds", "peak_mb"))
        return Segment(number, name, load, row.texts, row.tokens, *figures)

    return logits, measure.take_turns(rounds, list(rows), run) if rows else [], times


def time_shapes(
    workers: dict[str, Worker], bundle: bundles.Bundle, rounds: int
) -> list[dict[str, Any]]:
    """Milliseconds of a batch by engine, length and batch size: the medians over the rounds.

    Every engine has a turn at one length with all batch sizes; the first round warms up.
    """
    environment.import_paddle()
    longest = models.longest_row(bundle.folder("float32"))
    found: dict[tuple[str, int], list[list[float]]] = {}
    for number in range(rounds + 1):
        for length in LENGTHS:
            if length > longest:
                continue
            names = list(workers)
            start = number % len(names)
            measure.say(f"batches of {length} tokens a text, round {number} of {rounds}")
            for name in [*names[start:], *names[:start]]:
                reply = measure.rested(
                    workers[name],
                    length=length,
                    batches=BATCHES,
                    seconds=SHAPE_SECONDS if number else 0.0,
                )
                if number:
                    found.setdefault((name, length), []).append(reply["seconds"])
    return [
        {
            "engine": PEERS.get(name, name),
            "length": length,
            "batch": batch,
            "ms": 1000 * statistics.median(one[column] for one in seconds),
        }
        for name in workers
        for length in LENGTHS
        if (seconds := found.get((name, length)))
        for column, batch in enumerate(BATCHES)
    ]


def _judge(
    bar: Bar,
    segments: Sequence[Segment],
    times: dict[str, list[list[float]]],
    right: dict[str, float],
) -> dict[str, Any] | None:
    """The ratio that a bar asks for, and what accuracy it costs; None if a row was not measured."""
    if bar.row not in times or bar.reference not in times:
        return None
    if bar.p50:
        pairs = zip(times[bar.reference], times[bar.row])
        rounds = [float(np.median(theirs) / np.median(ours)) for theirs, ours in pairs]
        found: dict[str, Any] = {
            "engine": bar.row,
            "reference": bar.reference,
            "median": statistics.median(rounds),
            "rounds": rounds,
        }
    else:
        found = measure.ratio(segments, bar.row, bar.reference)
    exact = next((value for label, value in right.items() if label.startswith("float32, ")), None)
    mine = right.get(bar.row)
    drop = None if exact is None or mine is None else exact - mine
    met = found["median"] >= bar.at_least
    return {
        **found,
        "of": "p50" if bar.p50 else "texts/s",
        "at_least": bar.at_least,
        "met": met,
        "drop": drop,
    }


def plan(encodings: Encodings) -> dict[str, Batches]:
    """The batches of each of ORDERS."""
    lengths = encodings.lengths.tolist()
    arrival: Batches = []
    for start in range(0, len(lengths), BATCH_SIZE):
        indices = list(range(start, min(start + BATCH_SIZE, len(lengths))))
        arrival.append((indices, max(lengths[index] for index in indices)))
    by_tokens: Batches = []
    for found in plan_inference(encodings.lengths, BATCH_TOKENS):
        longest = max(lengths[index] for index in found)
        by_tokens.append((found.tolist(), round_up(longest, SAFE_LENGTHS)))
    single = [([number], length) for number, length in enumerate(lengths)]
    return {"single": single, "arrival": arrival, "sorted": by_tokens}


def read_texts(data: str | None, pair: bool) -> list[Example]:
    if data is not None:
        return read(data, pair=pair, labelled=False).examples
    if pair:
        raise UserError("the bundle answers pairs of texts, api_docs has none: give --data")
    train, dev = api_docs.load()
    return dev + train


def tokenize(bundle: bundles.Bundle, examples: Sequence[Example], path: Path) -> Encodings:
    """Token ids of the texts, which are written to `path` for the workers.

    `rows` are for batches of one shape: int64 [64, 512], the texts one after the other, each row
    begun by a [CLS].
    """
    tokenizer = tokenizers.open(bundle)
    texts_b = [example.text_b or "" for example in examples] if bundle.task.pair else None
    texts_a = [example.text_a for example in examples]
    encodings = tokenizer.encode(texts_a, texts_b, bundle.max_length)
    ids = np.concatenate(encodings.ids)
    rows = np.resize(ids.astype(np.int64), (max(BATCHES), max(LENGTHS)))
    rows[:, 0] = ids[0]
    np.savez(
        path,
        ids=ids,
        lengths=encodings.lengths,
        first_lengths=encodings.first_lengths,
        rows=rows,
    )
    return encodings


def write_job(
    path: Path, bundle: bundles.Bundle, plans: dict[str, Batches], threads: int, **more: Any
) -> Path:
    """What a worker is told at its start; `more` goes over what is said otherwise."""
    job = {
        "bundle": str(bundle.root),
        "texts": str(path.parent / "texts.npz"),
        "labels": len(bundle.labels),
        "pad_id": tokenizers.open(bundle).pad_id,
        "plans": plans,
        "threads": threads,
        **more,
    }
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


def accuracies(
    logits: dict[str, np.ndarray], examples: Sequence[Example], labels: Sequence[str]
) -> dict[str, float]:
    """Each engine's accuracy; nothing unless all texts have labels that the bundle knows."""
    index = {label: number for number, label in enumerate(labels)}
    truth = [index.get(example.label or "", -1) for example in examples]
    if min(truth) < 0:
        return {}
    return {name: float((found.argmax(1) == truth).mean()) for name, found in logits.items()}


def format_report(report: dict[str, Any], markdown: bool = False) -> str:
    """The tables and what they mean."""
    data, on = report["data"], report["machine"]
    lines = [
        f"Answering with {on['threads']} threads of {on['processor']}; {data['texts']} texts of "
        f"{data['mean_tokens']:.1f} tokens from {report['texts_from']}",
        "",
    ]
    if report["engines"]:
        lines += [measure.table(table_rows(report), markdown), ""]
        orders = {found["order"] for found in report["engines"].values()}
        words = [f"{order}: {ORDERS[order]}." for order in ORDERS if order in orders]
        lines += [" ".join(words), "Tokenizing is not timed. ", ""]
    lines += [bar_line(found) for found in report["ratios"]]
    for title, rows in shape_tables(report):
        lines += ["", title, "", measure.table(rows, markdown)]
    lines += ["", *notes(report)]
    return "\n".join(line.rstrip() for line in lines)


def table_rows(report: dict[str, Any]) -> list[list[str]]:
    """The table of texts: a header and a row for each engine and order."""
    header = ["", "texts/s", "lowest", "highest", "padding", "batches", "p50 ms", "p99 ms"]
    rows = [[*header, "CPU ms/text", "peak MB", "accuracy"]]
    for name, found in report["engines"].items():
        p50, p99, accuracy = (found[key] for key in ("p50_ms", "p99_ms", "accuracy"))
        rows.append(
            [
                name,
                *(f"{found[key]:.1f}" for key in ("texts_per_s", "lowest", "highest")),
                f"{found['padding']:.1%}",
                str(found["batches"]),
                "-" if p50 is None else f"{p50:.2f}",
                "-" if p99 is None else f"{p99:.2f}",
                f"{found['cpu_ms_per_text']:.1f}",
                f"{found['peak_mb']:.0f}",
                "-" if accuracy is None else f"{accuracy:.4f}",
            ]
        )
    return rows


def bar_line(found: dict[str, Any]) -> str:
    """A ratio beside what is expected of it."""
    mark = "met" if found["met"] else "MISSED"
    rounds = " ".join(f"{value:.2f}" for value in found["rounds"])
    what = (
        f"{found['median']:.2f} times as fast as {found['reference']}, by p50"
        if found["of"] == "p50"
        else f"{found['median']:.2f} times the texts/s of {found['reference']}"
    )
    drop = "" if found["drop"] is None else f", {-100 * found['drop']:+.2f} pt"
    return (
        f"{mark:6}  {found['engine']}: {what}{drop}; at least {found['at_least']} "
        f"(rounds: {rounds})"
    )


def shape_tables(report: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Tables of batches of one shape, one for each length: milliseconds of a batch."""
    tables = []
    shapes = report["shapes"] or []
    for length in dict.fromkeys(cell["length"] for cell in shapes):
        rows = [["", *(f"batch {batch}" for batch in BATCHES)]]
        cells = [cell for cell in shapes if cell["length"] == length]
        for engine in dict.fromkeys(cell["engine"] for cell in shapes):
            by_batch = {c["batch"]: c["ms"] for c in cells if c["engine"] == engine}
            rows.append([engine, *(f"{by_batch[batch]:.2f}" for batch in BATCHES)])
        tables.append((f"Rows of {length} tokens: ms of a batch", rows))
    return tables


def notes(report: dict[str, Any]) -> list[str]:
    """What one has to know beside the tables."""
    lines = []
    exact = {n: f["difference"] for n, f in report["engines"].items() if f["exact"]}
    if exact:
        largest = max(exact.values())
        lines.append(f"Largest difference between logits in float32: {largest:.1e}.")
        if not largest <= LARGEST_DIFFERENCE:
            lines.append(
                f"WARNING: that is more than {LARGEST_DIFFERENCE}: they are different models."
            )
    versions = dict.fromkeys(report["versions"].values())
    lines.append(f"Measured: {', '.join(versions)}.")
    lines += [f"Not measured: {'; '.join(report['missing'])}."] if report["missing"] else []
    if report["random_weights"]:
        lines.append("The weights are random: accuracy means nothing and is not shown.")
    loads = [segment["load"] for segment in report["segments"]]
    if loads:
        lines.append(f"Load of the machine: {min(loads):.1f} to {max(loads):.1f}.")
    return [*lines, *([report["busy"]] if report["busy"] else [])]
