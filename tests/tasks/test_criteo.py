"""Click logs: lines to arrays, hashed categories, and rows that were made up."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from clicks_job import read
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.data import fields
from fleetbert.data.split import Split
from fleetbert.data.tokenizers import Encodings
from fleetbert.data.tokenizers.fields import SPEC, Fields
from fleetbert.tasks.ctr import criteo_made
from fleetbert.tasks.ctr import labels as ctr

NUMBER = st.one_of(st.none(), st.integers(-(10**6), 10**6))
CATEGORY = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\t\r\n"), max_size=12
)
ROW = st.tuples(
    st.integers(0, 1),
    st.lists(NUMBER, min_size=13, max_size=13),
    st.lists(CATEGORY, min_size=26, max_size=26),
)
MASK = 2**64 - 1


def line(label=1, numbers=(None,) * 13, categories=("",) * 26) -> str:
    words = ["" if number is None else str(number) for number in numbers]
    return "\t".join([str(label), *words, *categories])


def write(folder, *lines: str):
    path = folder / "rows.tsv"
    path.write_bytes("".join(text + "\n" for text in lines).encode())
    return path


def reference_id(column: int, category: str) -> int:
    """FNV-1a and SplitMix64's last step, in Python's integers."""
    number = (0xCBF29CE484222325 ^ (column + 1)) * 0x100000001B3 & MASK
    for byte in category.encode():
        number = (number ^ byte) * 0x100000001B3 & MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return (number ^ number >> 31) >> 4


def test_paddlerecs_samples_are_the_same_rows(tmp_path):
    numbers = [n / 8 for n in range(13)]
    categories = [str(7 * n) if n != 4 else "" for n in range(26)]  # one is missing
    words = [f"dense_feature:{number}" for number in numbers]
    words += [f"{n}:{word}" for n, word in enumerate(categories, 1) if word]
    sample = " ".join(["click:1", *words])
    actual = read(write(tmp_path, sample, line(0), sample.replace(" 1:0 ", " ")))
    same = read(write(tmp_path, line(1, numbers, categories)))
    assert actual.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(actual.numbers[[0, 2]], same.numbers.repeat(2, axis=0))
    np.testing.assert_array_equal(actual.ids[0], same.ids[0])
    assert actual.ids[2, 0] == reference_id(0, "")
    short = sample.replace("dense_feature:0.5 ", "")
    for wrong in (f"{sample} 27:5", f"{sample} 3:9", short, f"{short} 27:5"):
        with pytest.raises(UserError, match=r"rows.tsv:1: has (41|39) columns, not 40"):
            read(write(tmp_path, wrong))


@settings(max_examples=30)
@given(st.lists(ROW, min_size=1, max_size=4))
def test_reads_what_was_written(tmp_path_factory, rows):
    actual = read(write(tmp_path_factory.mktemp("rows"), *(line(*row) for row in rows)))
    assert actual.labels.tolist() == [label for label, _, _ in rows]
    expected = [[math.nan if n is None else n for n in numbers] for _, numbers, _ in rows]
    np.testing.assert_array_equal(actual.numbers, np.array(expected, np.float32))
    ids = [[reference_id(n, c) for n, c in enumerate(row)] for _, _, row in rows]
    assert actual.ids.tolist() == ids
    assert actual.split.lines.tolist() == list(range(1, len(rows) + 1))


def test_ends_of_lines_do_not_matter(tmp_path):
    rows = [line(n % 2, [n] * 13, [f"c{n}"] * 26) for n in range(23)]
    whole = read(write(tmp_path, *rows))
    path = tmp_path / "other.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*rows[:9], "", *rows[9:]]).encode())
    other = read(path)
    for one, same in zip(other[:3], whole[:3]):
        np.testing.assert_array_equal(one, same)
    assert other.split.lines.tolist() == [*range(1, 10), *range(11, 25)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("1\t2", "has 2 columns, not 40"),
        (line(label="2"), "the label is '2', not 0 or 1"),
        (line(numbers=[None, "x", *[None] * 11]), "column 3 is 'x', not a number"),
        (line(numbers=["inf", *[None] * 12]), "column 2 is 'inf', not a number"),
        (line(numbers=["nan", *[None] * 12]), "column 2 is 'nan', not a number"),
        (line(categories=["", "y" * 65, *[""] * 24]), "column 16 has 65 bytes"),
        (line(categories=["a\0b", *[""] * 25]), "column 15 holds a NUL"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path, bad, reason):
    path = write(tmp_path, line(0), "", bad, line(1))
    with pytest.raises(UserError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:3: {reason}")
    actual = read(path, "skip")
    assert (actual.labels.tolist(), actual.split.lines.tolist()) == ([0, 1], [1, 4])
    assert actual.split.skipped == 1


def test_categories_are_bytes_of_any_kind(tmp_path):
    path = tmp_path / "bytes.tsv"
    row = [b"1", *[b"3"] * 13, b"\xff\xfe", *[b"x"] * 25]
    path.write_bytes(b"\t".join(row) + b"\n")
    assert (read(path).ids == fields.parse([row])[1]).all()


def test_a_file_without_rows_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no example"):
        read(write(tmp_path))
    with pytest.raises(UserError, match="all 1 lines are bad, the first at line 1"):
        read(write(tmp_path, "x"), "skip")
    with pytest.raises(UserError, match=r"none\.tsv"):
        read(tmp_path / "none.tsv")


def test_numbers_become_logarithms_and_flags():
    actual = fields.features(
        np.array([[0, math.e - 1, 1 - math.e, math.nan, *[7] * 9]], np.float32)
    )
    assert actual.shape == (1, 26)
    assert actual[0, :4] == pytest.approx([0, 1, -1, 0], abs=1e-6)
    assert actual[0, 13:17].tolist() == [0, 0, 0, 1]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5))
def test_each_rank_gets_its_share_of_a_step(rows, size, parts):
    words = fields.pack(np.zeros((rows, 13)), np.arange(rows * 26).reshape(rows, 26))
    encodings = Encodings(list(words), np.full(rows, fields.WORDS), 0)
    split = Split("made", encodings, np.zeros(rows, np.float32), 0, np.arange(rows))
    job = config.Config.model_validate(
        {"task": {"name": "ctr"}, "data": {"train": "x", "batch_size": size}}
    )
    collector = ctr.Collector(split, job, Fields(SPEC))
    seen: list[int] = []
    for step in collector.plan(0):
        shares = collector.micro_batches(step, 0, parts, slice(0, parts))
        assert len(shares) == parts
        weight = np.concatenate([arrays["weight"] for arrays in shares])
        assert weight.sum() == pytest.approx(1, abs=1e-5)
        assert sum(arrays["n_texts"] for arrays in shares) == len(step) <= size
        counted = [arrays["texts"][arrays["weight"] > 0] for arrays in shares]
        assert np.concatenate(counted).tolist() == step.tolist()
        seen += step.tolist()
    assert sorted(seen) == list(range(rows))


class TestMade:
    def test_the_best_auc_is_that_of_the_true_chances(self, tmp_path):
        truth = criteo_made.make(tmp_path, 40, 3000, 520, seed=1)
        world = criteo_made.World(520, 1)
        numbers, categories, logits = world.draw(np.random.default_rng([1, 2]), 3000, None)
        rows = read(tmp_path / "dev.tsv")
        missing = np.isnan(rows.numbers)
        assert (missing == (numbers < 0)).all()
        assert (rows.numbers[~missing] == numbers[~missing]).all()
        chances = 1 / (1 + np.exp(-logits))
        dev = truth["dev"]
        assert dev["best_auc"] == pytest.approx(roc_auc_score(rows.labels, chances), abs=1e-9)
        assert dev["best_loss"] == pytest.approx(log_loss(rows.labels, chances), abs=1e-6)
        assert abs(dev["best_auc"] - dev["expected_auc"]) < 0.05
        assert json.loads((tmp_path / "truth.json").read_text()) == truth
        # Each category has a word, and so an id, of its own.
        pairs = set(zip(rows.ids[:, 3].tolist(), categories[:, 3].tolist()))
        assert len(pairs) == len({i for i, _ in pairs}) == len({c for _, c in pairs})

    def test_the_expected_auc_is_the_mean_over_labels(self):
        logits = np.random.default_rng(0).normal(size=400)
        drawn = np.random.default_rng(1).random((300, 400)) < 1 / (1 + np.exp(-logits))
        mean = np.mean([roc_auc_score(labels, logits) for labels in drawn])
        assert criteo_made.expected_auc(logits) == pytest.approx(mean, abs=0.005)

    def test_every_id_is_there_where_it_has_to_be(self, tmp_path):
        criteo_made.make(tmp_path, 150, 10, 2600, seed=0, every_id=True)
        rows = read(tmp_path / "train.tsv")
        assert len(np.unique(rows.ids[:100])) == 2600

    def test_a_command_line(self, tmp_path, capsys):
        words = ["--rows", "30", "--dev-rows", "60", "--ids", "260", "--seed", "3"]
        criteo_made.main(["--out", str(tmp_path / "made"), *words])
        assert "30 and 60 rows; on dev.tsv expected_auc 0." in capsys.readouterr().out
        first = (tmp_path / "made" / "train.tsv").read_bytes()
        criteo_made.main(["--out", str(tmp_path / "again"), *words])
        assert (tmp_path / "again" / "train.tsv").read_bytes() == first
        with pytest.raises(UserError, match="--every-id: needs --rows 100 or more for 2600 ids"):
            criteo_made.make(tmp_path, 99, 10, 2600, 0, every_id=True)
        with pytest.raises(UserError, match="--ids: at least 26"):
            criteo_made.make(tmp_path, 99, 10, 25, 0)
