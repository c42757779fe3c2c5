"""Bundles for a board, made without a converter, and what the fake engine answers."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.core.reading import Reading
from fleetbert.data import windows
from fleetbert.data.tokenizers import of_vocab
from fleetbert.data.tokenizers.wordpiece import WordPiece
from fleetbert.engines import early_exit, exit_heads, exits
from fleetbert.export import lite_unigram
from fleetbert.tasks.metrics import softmax

TARGETS = {"x86_64": "x86", "aarch64": "armv8", "armv7l": "armv7"}
HERE = TARGETS.get(platform.machine(), "x86")
LABELS = ["negative", "positive", "无"]
WORDS = [f"word{number}" for number in range(95)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
# What a bundle says of long texts.
READINGS = {
    "cut": None,
    "windows": Reading(16, "windows", 5),
    "max": Reading(16, "windows", 0, "max"),
    "head_tail": Reading(16, "head_tail"),
}
MODEL = b"not a model: the fake engine does not read it" * 1000


def write_bundle(
    folder: Path,
    *,
    pair: bool = False,
    targets=(HERE,),
    precisions=("int8",),
    max_length=16,
    unigram=None,
    task=None,
    vocab=None,
    **told,
) -> Path:
    """A bundle with a variant for each target and precision; unigram: its tokenizer, else one of
    `vocab`, else of `VOCAB`. task: else of labels; told: what its manifest says of it."""
    if vocab is None:
        vocab = folder / "words.txt"
        vocab.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")

    def fill(path: Path) -> list[bundles.Variant]:
        variants = []
        for target in targets:
            for precision in precisions:
                name = f"lite-{target}-{precision}"
                (path / name).mkdir()
                (path / name / "model.nb").write_bytes(MODEL)
                if unigram is not None:
                    lite_unigram.write(lite_unigram.compiled(unigram), path / name)
                variants.append(
                    bundles.LiteVariant(
                        name=name,
                        runs_on=[target],
                        versions={"opt": "2.13"},
                        precision=precision,
                    )
                )
        return variants

    bundles.create(
        folder / "bundle",
        task=task or ("pair_classification" if pair else "classification"),
        max_length=max_length,
        tokenizer=of_vocab(vocab, True) if unigram is None else unigram.spec,
        fill=fill,
        **{"labels": LABELS, **told},
    )
    return folder / "bundle"


# Of variants with early exit.
ENDS, WIDTH, SPEED, SPREAD = [1, 2, 4], 8, 0.8, 1.0


def make_heads(kind: str, outputs: int = len(LABELS)) -> dict[int, dict[str, np.ndarray]]:
    """Random heads of a kind, certain of some texts and not of others."""
    random = np.random.default_rng(122)
    sizes = {"inner": (WIDTH if kind == "tokens" else 2 * WIDTH, 6), "out": (6, outputs)}
    if kind == "vector":
        sizes = {"out": (2 * WIDTH, outputs)}
    if kind == "fastbert":
        names = ("key", "value", "query", "mix")
        sizes = {"narrow": (WIDTH, 6), **dict.fromkeys(names, (6, 6)), **sizes, "inner": (6, 6)}
    found: dict[int, dict[str, np.ndarray]] = {}
    for end in ENDS[:-1]:
        found[end] = {}
        for name, size in sizes.items():
            scale = 1 if name == "out" else 0.5
            found[end][f"{name}.weight"] = scale * random.normal(size=size).astype(np.float32)
            found[end][f"{name}.bias"] = scale * random.normal(size=size[1]).astype(np.float32) / 4
    return found


def add_early_exit(path: Path, target: str, kind: str = "pooled", change=None) -> str:
    """Add a variant with early exit; its name. change(folder) may spoil its files."""
    name = f"lite-{target}-int8-early-exit"
    bundle = bundles.read(path)
    task = tasks.of(bundle.task)
    kind = task.answer.exit_head(kind)
    settings = exits.Settings(ENDS, kind, SPEED, 0, task.answer.doubt, SPREAD)

    def fill(folder: Path) -> bundles.Variant:
        for end in ENDS:
            (folder / exits.program_name(end, "nb")).write_bytes(MODEL)
        exit_heads.save(folder, make_heads(kind, task.outputs(bundle.labels)))
        exits.save_settings(folder, settings)
        if change is not None:
            change(folder)
        return bundles.LiteEarlyExitVariant(
            name=name,
            runs_on=[target],
            versions={"opt": "2.13"},
            precision="int8",
            ends=ENDS,
            head=kind,
            speed=SPEED,
        )

    bundles.add_variant(path, name, fill)
    return name


def open_early_exit(folder: Path, outputs: int = len(LABELS)) -> early_exit.EarlyExitEngine:
    """Such a variant with the groups of layers that engine.cc's fake has."""
    settings = exits.load_settings(folder)

    def first(ids, types):
        ids, steps = ids + 1000 * types, np.arange(1, WIDTH + 1)
        return ((ids[..., None] * steps % 17) / 8 - 1).astype(np.float32)

    def inner(state, ids):
        return (ids % 3)[..., None].astype(np.float32) - state / 2

    def last(state, ids):
        weights = (np.arange(1, ids.shape[1] + 1) / 16 * (ids != 0)).astype(np.float32)
        each = (state * weights[..., None])[..., np.arange(outputs) % WIDTH]
        return each if settings.head == "tokens" else each.sum(1)

    groups = [early_exit.of_rows(run, pad_id=0) for run in (first, inner, last)]
    return early_exit.EarlyExitEngine(settings, [groups], folder)


def fake_logits(ids, types=None, labels: int = len(LABELS), pad_id: int = 0) -> np.ndarray:
    """float32 [labels]: what engine.cc's fake answers to a row of token ids."""
    types = [0] * len(ids) if types is None else types
    total = sum((i + 1000 * t) * n for n, (i, t) in enumerate(zip(ids, types), 1) if i != pad_id)
    return np.array([total * k % 97 / 16 for k in range(1, labels + 1)], np.float32)


def fake_tokens(ids, labels: int) -> np.ndarray:
    """float32 [tokens, labels]: of each token, where tags are asked."""
    return np.array([[i * k * k % 97 / 16 for k in range(1, labels + 1)] for i in ids], np.float32)


def expected(bundle, name: str, texts, vocab=None, pairs=None):
    """The task, its labels and the outputs that the fake engine gives; pairs: second texts, else
    the texts backwards."""
    task = tasks.of(bundles.read(bundle).task)
    labels = bundles.read(bundle).task.answered_labels
    tokenizer = WordPiece(of_vocab(vocab or bundle / "vocab.txt", True))
    pairs = list(pairs or texts[::-1]) if task.shape.pair else None
    encoded = task.answer.encode(tokenizer, list(texts), pairs, bundles.read(bundle).reading)
    of_rows, layout = windows.divide(encoded) or (encoded, None)
    rows = np.empty(len(of_rows.ids), object)
    for number, (ids, first) in enumerate(zip(of_rows.ids, of_rows.first_lengths.tolist())):
        if task.shape.per_token:
            rows[number] = fake_tokens(ids.tolist(), task.outputs(labels))
        else:
            types = [0] * first + [1] * (len(ids) - first)
            rows[number] = fake_logits(ids.tolist(), types, task.outputs(labels))
    outputs = task.answer.pool(rows if task.shape.per_token else np.stack(rows), layout)
    return task, labels, task.answer.of_texts(outputs, encoded.words, pairs or texts)


def logits_of(tokenizer, text: str, second: str | None = None, max_length: int = 16) -> np.ndarray:
    """The same of a text or pair, with the tokenizer that fleetbert trains with."""
    pairs = None if second is None else [second]
    encoded = tokenizer.encode([text], pairs, max_length)
    ids, first = encoded.ids[0].tolist(), int(encoded.first_lengths[0])
    types = [0] * first + [1] * (len(ids) - first)
    return fake_logits(ids, types, pad_id=tokenizer.pad_id)


def answer_of(logits: np.ndarray) -> dict:
    """What `predict` writes of them."""
    scores = softmax(logits[None])[0]
    return {
        "label": LABELS[int(logits.argmax())],
        "scores": {name: float(score) for name, score in zip(LABELS, scores)},
    }
