"""The model card says what the manifest says."""

from __future__ import annotations

import re

import pytest

from fleetbert import bundle as bundles
from fleetbert.bundle import Accuracy, Comparison, Drop, Int8Variant, ProgramVariant
from fleetbert.bundle.card import wilson
from fleetbert.data.tokenizers import of_vocab

INT8 = Int8Variant(
    name="int8-static",
    made_from="float32",
    runs_on=["x86"],
    versions={"paddlepaddle": "2.6.2"},
    accuracy=[
        Accuracy(
            data="dev.tsv", n=872, accuracy=0.875, float32_accuracy=0.88,
            drop=Drop(value=0.005, low=-0.002, high=0.012, test="mcnemar"),
        )
    ],
    comparison=Comparison(
        texts_per_s=300.0, float32_texts_per_s=100.0, speed_ratio=3.0,
        max_logit_difference=0.1, size_ratio=0.3,
    ),
)  # fmt: skip


def fill(folder):
    (folder / "float32").mkdir()
    (folder / "float32" / "model.pdmodel").write_bytes(b"0" * 2_500_000)
    accuracy = [Accuracy(data="dev.tsv", n=872, accuracy=0.88)]
    return [ProgramVariant(name="float32", made_from="package:tiny", accuracy=accuracy)]


def fill_int8(folder):
    (folder / "model.pdmodel").write_bytes(b"0" * 700_000)
    return INT8


def rows(text: str) -> dict[str, list[str]]:
    found = [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines() if "|" in line]
    return {row[0]: row[1:] for row in found[2:]}


def create(folder, labels):
    vocab = folder / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n")
    return bundles.create(
        folder / "bundle", task="classification", labels=labels, max_length=64,
        tokenizer=of_vocab(vocab, True), fill=fill,
    ).root  # fmt: skip


def test_it_tells_labels_figures_and_limits(tmp_path):
    root = create(tmp_path, ["no", "是"])
    text = (root / "README.md").read_text(encoding="utf-8")
    for said in (
        "# Classification model", "2 labels: `no`, `是`", "cut to 64 tokens (wordpiece, lower-c",
        "Trained from: package:tiny", 'variant="float32"',
    ):  # fmt: skip
        assert said in text
    assert rows(text)["float32"][:3] == ["dev.tsv", "872", "0.880 (0.857 to 0.900)"]
    assert rows(text)["float32"][5] == "2.5"

    bundles.add_variant(root, "int8-static", fill_int8)
    text = (root / "README.md").read_text(encoding="utf-8")
    assert list(rows(text)) == ["float32", "int8-static"]
    assert rows(text)["int8-static"] == [
        "dev.tsv", "872", "0.875 (0.851 to 0.895)", "+0.0050 (-0.0020 to +0.0120)", "3.00", "0.7",
        "x86",
    ]  # fmt: skip
    assert "int8-static: paddlepaddle 2.6.2" in text


def test_many_labels_are_not_all_told(tmp_path):
    root = create(tmp_path, [f"label{n}" for n in range(7000)])
    text = (root / "README.md").read_text(encoding="utf-8")
    assert "and 6950 more" in text
    assert len(text) < 3000


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),  # Newcombe 1998, table I, method 3
    [(81 / 263, 263, 0.2553, 0.3662), (15 / 148, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)],
)
def test_intervals_are_those_of_the_literature(share, n, low, high):
    assert wilson(share, n) == pytest.approx((low, high), abs=5e-5)
