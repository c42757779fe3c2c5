"""`fleetbert select`."""

from __future__ import annotations

import csv

import commands
import numpy as np
import pytest
import tiny_job

from fleetbert.labelling import select


def test_unsure_texts_that_differ_are_chosen():
    """Of eight bundles of like texts, of which a model is unsure of four, a text of each of these
    is taken first."""
    rng = np.random.default_rng(0)
    kinds = np.arange(800) % 8
    points = np.eye(8, dtype=np.float32)[kinds] + 0.05 * rng.normal(size=(800, 8))
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    doubt = np.where(kinds < 4, 0.9, 0.1)
    assert sorted(kinds[select.choose(points, doubt, 4)].tolist()) == [0, 1, 2, 3]
    chosen = select.choose(points, np.ones(800), 40)
    assert len(set(chosen.tolist())) == 40
    assert set(kinds[chosen].tolist()) == set(range(8))


@pytest.mark.parametrize("has_labels", [False, True])
def test_what_is_chosen_is_a_table_to_fill(has_labels, encoder, tiny_data, tmp_path):
    labelled = (tiny_data / "dev.tsv").read_text().splitlines()[1:]
    tiny_job.write_table(tmp_path / "pool.tsv", 90, 5)
    pool = [row.split("\t")[1] for row in (tmp_path / "pool.tsv").read_text().splitlines()[1:]]
    pool += [labelled[0].split("\t")[1], pool[0]]
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(pool) + "\n")
    words = ["--labelled", tiny_data / "dev.tsv"] if has_labels else []
    words += ["--bundle", encoder] if has_labels else [f"model.init={encoder.parent}/model"]
    words += [f"output_dir={tmp_path}"]
    assert commands.call("select", texts, "--n", 9, *words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"pool.tsv", "selected.tsv", "texts.txt"}
    with (tmp_path / "selected.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert len({row["line"] for row in rows}) == 9
    assert all(pool[int(row["line"]) - 1] == row["text_a"] for row in rows)
    assert {row["label"] for row in rows} == {""}
    assert {row["likely"] for row in rows} <= ({"bad", "good"} if has_labels else {""})
    assert not {"92"} & {row["line"] for row in rows}  # a text that was there before
    # What somebody has filled in is not lost.
    filled = [{**row, "label": ("bad", "good")[n % 2]} for n, row in enumerate(rows)]
    with (tmp_path / "selected.tsv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(filled)
    before = (tmp_path / "selected.tsv").read_bytes()
    assert commands.call("select", texts, "--n", 9, *words) == 2
    assert (tmp_path / "selected.tsv").read_bytes() == before
    filled_in = ["--labelled", tmp_path / "selected.tsv"]
    assert commands.call("select", texts, "--n", 9, *words, *filled_in) == 2
    assert (tmp_path / "selected.tsv").read_bytes() == before
    (tmp_path / "train.tsv").write_bytes(before)
    words[-1:-1] = ["--labelled", tmp_path / "train.tsv"]
    assert commands.call("select", texts, "--n", 9, *words) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{data}/train.tsv"], "train.tsv:2: has the label '"),
        (
            ["{data}/texts.txt", "--n", "5000"],
            "--n is 5000, but 24 different texts",
        ),
        (["{data}/texts.txt", "--labelled", "{labelled}"], "each of its texts has a label in"),
        (["-"], "-: the standard input is read by ask, label and predict only; name a file"),
        (["{data}/texts.txt", "task.name=embedding"], "has no one label for a text"),
        (["{data}/texts.txt", "data.train={labelled}"], "have labels as --labelled"),
        (["{data}/texts.txt", "--n", "2", "--bundle", "nowhere"], "nowhere is not a bundle"),
    ],
)
def test_what_cannot_be_selected_is_refused(
    words, sentence, encoder, tiny_data, tmp_path, tmp_path_factory, capfd
):
    texts = (tiny_data / "texts.txt").read_text().splitlines()
    rows = [f"{'ab'[number % 2]}\t{text}" for number, text in enumerate(texts)]
    labelled = tmp_path_factory.mktemp("labelled") / "all.tsv"
    labelled.write_text("\n".join(["label\ttext_a", *rows]) + "\n")
    given = [word.format(data=tiny_data, labelled=labelled) for word in words]
    more = [f"output_dir={tmp_path / 'new' / 'run'}", "--bundle", encoder]
    assert commands.call("select", *more, *given) == 2  # a key may come first
    assert sentence in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
