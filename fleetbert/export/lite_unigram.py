"""A tokenizer.json of Unigram → unigram.safetensors, from which the programs for boards tokenize.

Pieces are sorted and stand one after the other, so that those that begin a text are found by
halving, and nothing is parsed or built on the board. The rest (normalizer, pre-tokenizer, added
tokens, template) is JSON in the file's metadata. deploy/lite/src/unigram.cc reads it.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any, Dict, NamedTuple

import numpy as np
import tokenizers as library
from safetensors.numpy import save_file

from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers.whole import WHOLE, Whole

NAME = "unigram.safetensors"
# compatible, composed
FORMS = {"NFC": (False, True), "NFD": (False, False), "NFKC": (True, True), "NFKD": (True, False)}
BPE = (
    "it is byte-level BPE, which splits texts by a regular expression over all of Unicode's "
    "letters and digits"
)

Step = Dict[str, Any]  # of a normalizer or a pre-tokenizer, as JSON


class _Unknown(Exception):
    """What the programs for boards do not have, as the end of a sentence."""


class Compiled(NamedTuple):
    settings: Step
    tensors: dict[str, np.ndarray]


def compiled(tokenizer: Whole) -> Compiled:
    """UserError if the programs for boards cannot tokenize as it does."""
    path = tokenizer.spec.files[WHOLE]
    # As the library has read it: it rounds scores otherwise than Python, and equal ways to spell a
    # word are told apart by that.
    opened = library.Tokenizer.from_file(str(path))
    try:
        return _parts(tokenizer, json.loads(opened.to_str()), opened.normalizer)
    except _Unknown as reason:
        raise UserError(
            f"{path}: the programs for boards cannot tokenize with it, because {reason}: serve the "
            "bundle with Paddle Inference, or train from an encoder with WordPiece or Unigram"
        ) from None


def write(made: Compiled, folder: Path) -> None:
    """Write `NAME` into a folder."""
    metadata = {"tokenizer": json.dumps(made.settings)}
    save_file(made.tensors, folder / NAME, metadata=metadata)


def _parts(tokenizer: Whole, whole: Step, normalizer: Any) -> Compiled:
    model = whole["model"]
    if model["type"] != "Unigram":
        raise _Unknown(BPE if model["type"] == "BPE" else f"it is a {model['type']}")
    if model.get("byte_fallback"):
        raise _Unknown("it spells unknown characters in bytes (byte_fallback)")
    if model.get("unk_id") is None:
        raise _Unknown("it has no token for unknown characters (unk_id)")
    numbers = {piece: number for number, (piece, _) in enumerate(model["vocab"]) if piece}
    pieces = sorted((piece.encode(), number) for piece, number in numbers.items())
    scores = np.array([score for _, score in model["vocab"]], np.float64)
    ids = np.array([number for _, number in pieces], np.uint32)
    tensors: dict[str, np.ndarray] = {
        "pieces": np.frombuffer(b"".join(piece for piece, _ in pieces), np.uint8),
        "ends": np.cumsum([len(piece) for piece, _ in pieces]).astype(np.uint32),
        "scores": scores[ids],
        "ids": ids,
    }
    settings = {
        "normalizer": [
            _normalizer(step, tensors) for step in _steps(whole.get("normalizer"), "normalizers")
        ],
        "pre_tokenizer": [
            _pre_tokenizer(step) for step in _steps(whole.get("pre_tokenizer"), "pretokenizers")
        ],
        "added": [_added(token, normalizer) for token in whole.get("added_tokens") or []],
        "lowest_score": float(scores.min()),
        "unknown": model["unk_id"],
        "replacement": tokenizer.unk_id,
        "never": sorted({*tokenizer.special_ids} - {tokenizer.unk_id}),
        "pad": tokenizer.pad_id,
        "size": tokenizer.vocab_size,
        "template": tokenizer.template._asdict(),
    }
    return Compiled(settings, tensors)


def _steps(part: Step | None, inner: str) -> list[Step]:
    """The steps of a part of tokenizer.json, those in sequences one after the other."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [single for step in part[inner] for single in _steps(step, inner)]


def _normalizer(step: Step, tensors: dict[str, np.ndarray]) -> Step:
    """A step of the normalizer; what it needs of numbers is added to the tensors."""
    kind = step["type"]
    if kind == "Precompiled":
        name = f"charsmap.{len(tensors)}"
        data = base64.b64decode(step["precompiled_charsmap"])
        tensors[name] = np.frombuffer(data, np.uint8)
        return {"kind": "charsmap", "tensor": name}
    if kind == "Replace":
        return {**_pattern(step["pattern"]), "by": step["content"]}
    if kind in FORMS:
        compatible, composed = FORMS[kind]
        return {"kind": "form", "compatible": compatible, "composed": composed}
    if kind == "Strip":
        return {"kind": "strip", "left": step["strip_left"], "right": step["strip_right"]}
    if kind == "Lowercase":
        return {"kind": "lowercase"}
    raise _Unknown(f"its normalizer is {kind}")


def _pattern(pattern: dict[str, str]) -> Step:
    """The texts to replace: one string, each of some characters, or runs of a character."""
    if "String" in pattern:
        return {"kind": "string", "of": pattern["String"]}
    regex = pattern["Regex"]
    run = re.fullmatch(r"([^\\.^$|?*+()\[\]{}])(?:\{(\d+),\}|(\+))", regex)
    if run is not None:
        return {"kind": "characters", "of": run[1], "least": int(run[2] or 1)}
    # Characters in brackets, with a backslash before those that mean something there.
    listed = re.fullmatch(r"\[((?:\\[^A-Za-z0-9]|[^\\\[\]^&-])+)\]", regex, re.DOTALL)
    if listed is not None:
        characters = re.sub(r"\\(.)", r"\1", listed[1], flags=re.DOTALL)
        return {"kind": "characters", "of": characters, "least": 0}
    raise _Unknown(f"its normalizer replaces what the regular expression {regex!r} finds")


def _pre_tokenizer(step: Step) -> Step:
    kind = step["type"]
    if kind == "WhitespaceSplit":
        return {"kind": "whitespace"}
    if kind != "Metaspace":
        raise _Unknown(f"its pre_tokenizer is {kind}")
    if step["prepend_scheme"] == "first":
        raise _Unknown("its pre_tokenizer is Metaspace with prepend_scheme first")
    return {
        "kind": "metaspace",
        "replacement": step["replacement"],
        "prepend": step["prepend_scheme"] == "always",
        "split": step["split"],
    }


def _added(token: Step, normalizer: Any) -> Step:
    if token["single_word"] and not token["special"]:
        raise _Unknown(f"its added token {token['content']!r} is found as a single word only")
    text = token["content"]
    if token["normalized"] and normalizer is not None:
        text = normalizer.normalize_str(text)
    return {
        "text": text, "id": token["id"], "normalized": token["normalized"],
        "special": token["special"], "left": token["lstrip"], "right": token["rstrip"],
    }  # fmt: skip
