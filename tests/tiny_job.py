"""A training job of seconds: a table of two classes that a bag of words tells apart."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import yaml

# "##s" lets whole-word masking see a word of two pieces.
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(150)), "##s"]
SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}


def write_table(path: Path, texts: int, seed: int, pair: bool = False) -> None:
    """Texts of 4 to 12 words, more than half of them from the 20 words of their class.

    As pairs: the label says whether both texts are of the same class.
    """
    rng = np.random.default_rng(seed)

    def text(kind: int) -> str:
        own, other = rng.integers(0, 20, 12) + 20 * kind, rng.integers(40, 150, 12)
        words = np.where(rng.random(12) < 0.6, own, other)[: rng.integers(4, 13)]
        words[0] = own[0]
        return " ".join(f"word{word}" for word in words)

    rows = ["label\ttext_a" + "\ttext_b" * pair]
    for _ in range(texts):
        first, second = rng.integers(0, 2, 2)
        if pair:
            rows.append(f"{'same' if first == second else 'other'}\t{text(first)}\t{text(second)}")
        else:
            rows.append(f"{('bad', 'good')[first]}\t{text(first)}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_runs_of_words(path: Path, texts: int, seed: int) -> None:
    """Lines in which each word says the next: word n is followed by word n + 1, of eight."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(texts):
        start = rng.integers(0, 8)
        lines.append(" ".join(f"word{(start + n) % 8}s" for n in range(rng.integers(4, 7))))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tags(path: Path, texts: int, seed: int) -> None:
    """Texts of words: word0 to word9 are a person, with a word20 to word29 behind them if there is
    one; word10 to word19 a place of one word."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(texts):
        for _ in range(rng.integers(2, 6)):
            kind = rng.integers(0, 4)
            if kind == 0:
                lines.append(f"word{rng.integers(0, 10)}\tB-per")
                if rng.random() < 0.5:
                    lines.append(f"word{rng.integers(20, 30)}s\tI-per")
            elif kind == 1:
                lines.append(f"word{rng.integers(10, 20)}\tB-loc")
            else:
                lines.append(f"word{rng.integers(40, 150)}s\tO")
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def number_rows(count: int, seed: int, pair: bool = False) -> list[dict]:
    """Texts of `word0` and `word1`; the number is the share of `word1`, of pairs in both texts."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        sides = [rng.random(12) < rng.random() for _ in range(1 + pair)]
        words = [" ".join(f"word{int(one)}" for one in side) for side in sides]
        rows.append({**dict(zip(("text_a", "text_b"), words)), "label": float(np.mean(sides))})
    return rows


def question_rows(count: int, seed: int) -> list[dict]:
    """Contexts of 40 words, some with line ends between. The question word0 asks for the one word
    of word10 to word19 in it, word1 for the two of word20 to word29; a quarter has none."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = [f"word{n}" for n in rng.integers(40, 150, 40)]
        kinds = [[f"word{rng.integers(10, 20)}"], [f"word{n}" for n in rng.integers(20, 30, 2)]]
        asked, place = int(rng.integers(2)), int(rng.integers(20))
        has = [rng.random() < 0.75 or kind != asked for kind in (0, 1)]
        for kind, begin in ((0, place), (1, place + 18)):
            if has[kind]:
                words[begin : begin + 1 + kind] = kinds[kind]
        context = words[0] + "".join(rng.choice([" ", "\r\n"], p=[0.9, 0.1]) + w for w in words[1:])
        match = re.search(rf"\b{kinds[asked][0]}(\s+{kinds[asked][-1]})?\b", context)
        answers = [{"text": match[0], "answer_start": match.start()}] if has[asked] else []
        rows.append({"question": f"word{asked}", "context": context, "answers": answers})
    return rows


THREE_LABELS = ("joy", "love", "怒")  # of texts that have word0, word1, word2


def label_rows(count: int, seed: int, wrong: float = 0.0) -> list[dict]:
    """Texts of ten words; each of word0 to word2 in it is a label of it, but for a share."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        own = rng.choice(3, rng.integers(1, 3), replace=False).tolist()
        words = [f"word{n}" for n in (*own, *own, *rng.integers(40, 150, 6))]
        rng.shuffle(words)
        if wrong and rng.random() < wrong:
            own = [int(rng.integers(3))]
        rows.append({"text_a": " ".join(words), "label": [THREE_LABELS[n] for n in own]})
    return rows


def vector_rows(count: int, seed: int, fields: int = 2, numbers: bool = False) -> list[dict]:
    """Texts of one row have three words of one subject among others, text_c of another; numbers: a
    label says whether text_b has."""
    rng = np.random.default_rng(seed)

    def text(subject: int) -> str:
        words = [f"word{10 * subject + n}" for n in rng.integers(0, 10, 3)]
        words += [f"word{n}" for n in rng.integers(120, 150, rng.integers(1, 4))]
        return " ".join(rng.permutation(words))

    rows = []
    for _ in range(count):
        subjects = rng.permutation(12)[:3]
        same = rng.random() < 0.5
        own = [subjects[0], subjects[0] if same or not numbers else subjects[1], subjects[2]]
        row = {f"text_{name}": text(one) for name, one in zip("abc"[:fields], own)}
        rows.append({**row, **({"label": float(same)} if numbers else {})})
    return rows


def ranked_rows(queries: int, seed: int) -> list[dict]:
    """Each query asks for `word<n>`; documents that have word0 or word1 answer it."""
    rng = np.random.default_rng(seed)
    rows = []
    for query in range(queries):
        answers = rng.permutation([1, 0, *rng.integers(0, 2, 4)])
        for relevant in answers:
            words = rng.integers(20, 100, 5)
            words[rng.integers(0, 5)] = rng.integers(0, 2) if relevant else rng.integers(2, 4)
            document = " ".join(f"word{word}" for word in words)
            text = f"word{100 + query % 50} word{100 + query // 50}"
            rows.append({"text_a": text, "text_b": document, "label": int(relevant)})
    return rows


def triplets_of(ranked: list[dict]) -> list[dict]:
    """Each query with a document that answers it and one that does not."""
    rows = []
    for query in dict.fromkeys(row["text_a"] for row in ranked):
        own = [row for row in ranked if row["text_a"] == query]
        sides = [[row["text_b"] for row in own if row["label"] == one] for one in (1, 0)]
        rows += [{"text_a": query, "text_b": a, "text_c": b} for a, b in zip(*sides)]
    return rows


def write_rows(path: Path, rows: list[dict]) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_data(folder: Path) -> Path:
    """vocab.txt and the tables train, dev, pairs and pairs-dev, and texts for mlm, in `folder`."""
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    write_table(folder / "train.tsv", 160, 1)
    write_table(folder / "dev.tsv", 60, 2)
    write_table(folder / "pairs.tsv", 64, 3, pair=True)
    write_table(folder / "pairs-dev.tsv", 24, 4, pair=True)
    write_runs_of_words(folder / "texts.txt", 160, 5)
    write_runs_of_words(folder / "texts-dev.txt", 40, 6)
    return folder


def values(data: Path, output: Path, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The job as its YAML file would have it; `changes` has dotted keys."""
    made: dict[str, Any] = {
        "task": {"name": "classification"},
        "data": {
            "train": str(data / "train.tsv"),
            "dev": str(data / "dev.tsv"),
            "max_length": 16,
            "batch_size": 16,
        },
        "model": {"init": "random", "vocab": str(data / "vocab.txt"), **SHAPE},
        "optimizer": {"learning_rate": 2e-3},
        "trainer": {"epochs": 1, "log_every": 1, "device": "cpu"},
        "callbacks": {
            "progress": False,
            "visualdl": False,
            "report": False,
            "profiler": {"enabled": False},
        },
        "output_dir": str(output),
    }
    for name, value in copy.deepcopy(changes or {}).items():
        *sections, last = name.split(".")
        place = made
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return made


def job(data: Path, output: Path, changes: dict[str, Any] | None = None) -> Any:
    """The job itself."""
    from fleetbert import config

    return config.Config.model_validate(values(data, output, changes))


def write_config(
    path: Path, data: Path, output: Path, changes: dict[str, Any] | None = None
) -> Path:
    path.write_text(yaml.safe_dump(values(data, output, changes)), encoding="utf-8")
    return path


def flip(path: Path) -> None:
    """Damage a file: another bit in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rows(output: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def losses(output: Path) -> dict[int, float]:
    """The training loss of each logged step."""
    return {row["step"]: row["loss"] for row in rows(output) if "loss" in row}


def check_resume(make: Callable[..., Any], again: dict[str, Any] | None = None) -> None:
    """A run that is killed at step 7 goes on from its checkpoint with the losses of one that was
    not. make(name, **changes): the job with these keys that writes the folder `name`; again: keys
    of the run that goes on."""
    import fleetbert
    from fleetbert.training import job as training

    class Killed(fleetbert.Callback):
        def on_step(self, run):
            if run.state.step == 7:
                raise RuntimeError("killed")

    saves = {"trainer.checkpoint_every": 5}
    whole = training.train(make("whole", **saves))
    with pytest.raises(RuntimeError, match="killed"):
        training.train(make("half", **saves), [Killed()])
    found = training.train(make("half", **saves, **(again or {})))
    assert found.summary["resumed_at"] == 5
    assert losses(found.output_dir) == losses(whole.output_dir)


def check_early_exit(bundle: Path, name: str, table: Path, metric: str, speed: float) -> dict:
    """What the manifest says of the variant at its own speed is what `evaluate` finds, which is
    returned."""
    import fleetbert
    from fleetbert import bundle as bundles

    found = fleetbert.load(bundle, name).evaluate(table)
    told = {point.speed: point for point in bundles.read(bundle).variant(name).by_speed}[speed]
    assert found[metric] == pytest.approx(told.accuracy, abs=1e-3)
    assert found["mean_layers"] == pytest.approx(told.mean_layers, abs=1e-3)
    return found
