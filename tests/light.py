"""Models that light workers answer: whole bundles but for the program, which nothing reads. With
them it takes no Paddle to see what a server loads, routes, replaces and refuses."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

import light_worker
import numpy as np
from light_worker import PARAMETERS, logits_of
from tiny_bert import LABELS, VOCAB, WORDS

from fleetbert import bundle as bundles
from fleetbert.data import tokenizers
from fleetbert.engines import golden

WORKER = (sys.executable, "-S", "-E", light_worker.__file__)  # workers.process.COMMAND
MAX_LENGTH = 64


def make_bundle(path: Path, factor: float = 1.0, **told: object) -> Path:
    """A bundle with the variant float32; those of another `factor` answer otherwise. told: what its
    manifest says of the task, if not of a classifier with `LABELS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vocab = path.parent / ".vocab.txt"
    vocab.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    parameters = array("f", [factor, factor, -factor, 0.25])

    def run(ids: np.ndarray, _: np.ndarray) -> np.ndarray:
        rows = [row[row > 0].tolist() for row in ids]
        return np.array([logits_of(parameters, row, len(row)) for row in rows], np.float32)

    def fill(folder: Path) -> list[bundles.Variant]:
        (folder / "float32").mkdir()
        (folder / "float32" / PARAMETERS).write_bytes(parameters.tobytes())
        kept = golden.record(run, MAX_LENGTH, len(VOCAB), golden.FLOAT_SHARE)
        return [bundles.ProgramVariant(name="float32", runs_on=["x86", "armv8"], golden=kept)]

    spec = tokenizers.of_vocab(vocab, True)
    words = {"task": "classification", "labels": LABELS, "max_length": MAX_LENGTH}
    bundles.create(path, tokenizer=spec, fill=fill, **{**words, **told})
    return path


def add_variant(bundle: Path, name: str, parameters: bytes | None = None, **fields: object) -> None:
    """A variant of ONNX's kind, with float32's parameters unless others are given."""
    opened = bundles.read(bundle)
    if parameters is None:
        parameters = (opened.folder("float32") / PARAMETERS).read_bytes()

    def fill(folder: Path) -> bundles.Variant:
        (folder / PARAMETERS).write_bytes(parameters)
        kept = opened.variant("float32").golden
        return bundles.OnnxVariant(name=name, runs_on=["x86", "armv8"], golden=kept, **fields)

    bundles.add_variant(bundle, name, fill)


def make_texts(count: int, seed: int, longest: int = 100) -> list[str]:
    """Of one word and more."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, longest))) for _ in range(count)]


def parameters(bundle: Path) -> array[float]:
    return array("f", (bundle / "float32" / PARAMETERS).read_bytes())


def logits(bundle: Path, texts: list[str]) -> np.ndarray:
    """float32 [texts, labels]: what its workers answer."""
    opened = bundles.read(bundle)
    encoded = tokenizers.open(opened).encode(texts, None, opened.max_length)
    known = parameters(bundle)
    both = zip(encoded.ids, encoded.first_lengths)
    return np.array([logits_of(known, ids.tolist(), first) for ids, first in both], np.float32)
