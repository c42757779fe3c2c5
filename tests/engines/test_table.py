"""Bundles of rows: what they answer, to whom, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiny_rows
from commands import call

import fleetbert
from fleetbert.core.errors import UserError
from fleetbert.data import fields
from fleetbert.engines import answer
from fleetbert.training.strategies.parameter_server import answering


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return tiny_rows.make_bundle(tmp_path_factory.mktemp("rows") / "bundle")


def by_paddle(bundle, lines, has_table=True) -> np.ndarray:
    """Probabilities by Paddle Inference and NumPy alone, as docs/wide_deep.md shows it."""
    import paddle.inference as inference

    folder = bundle / "float32"
    config = inference.Config(str(folder / "model.pdmodel"), str(folder / "model.pdiparams"))
    predictor = inference.create_predictor(config)
    ids, table = np.load(folder / "ids.npy"), np.load(folder / "rows.npy")
    numbers, asked = fields.parse([fields.split(line.encode(), False) for line in lines])
    rows = np.zeros((*asked.shape, table.shape[1]), np.float32)
    known = np.isin(asked, ids) & has_table
    rows[known] = table[np.searchsorted(ids, asked[known])]
    for name, array in {"numbers": fields.features(numbers), "rows": rows}.items():
        predictor.get_input_handle(name).copy_from_cpu(array)
    predictor.run()
    logits = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_answers_are_those_of_the_program_and_the_table(bundle):
    lines = tiny_rows.lines()
    expected = by_paddle(bundle, lines)
    assert np.ptp(expected[:40]) > 0.1
    model = fleetbert.load(bundle)
    found = [one.probability for one in model(lines)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert [model([line])[0].probability for line in lines[35:45]] == pytest.approx(
        expected[35:45], abs=1e-6
    )


def test_without_a_table_all_categories_are_unknown(tmp_path):
    path = tiny_rows.make_bundle(tmp_path / "bundle", known=0)
    lines = tiny_rows.lines(3)
    found = [one.probability for one in fleetbert.load(path)(lines)]
    np.testing.assert_allclose(found, by_paddle(path, lines), rtol=0, atol=1e-6)


def test_every_line_gets_an_answer_or_an_error(bundle):
    """With a label or without, or as PaddleRec writes rows."""
    line = tiny_rows.lines(1)[0]
    values = line.split("\t")
    sparse = [f"{n}:{value}" for n, value in enumerate(values[13:], 1) if value]
    values[:13] = [value or "0" for value in values[:13]]
    numbers = [f"dense_feature:{value}" for value in values[:13]]
    rows = ["\t".join(values), "1\t" + "\t".join(values), " ".join(["click:0", *numbers, *sparse])]
    text = "\n".join([*rows, "\t".join(values[:-1]), "", "2\t" + "\t".join(values)])
    model = answer.load(bundle)
    form = model.task.labels.input_format("-", None)
    windows = answer.answer_lines(model, io.BytesIO(text.encode()), form=form)
    answers = [line for window, _ in windows for line in window]
    assert answers[0] == answers[1] == answers[2]
    assert 0 < answers[0]["probability"] < 1
    assert answers[3]["error"].startswith("line 4: has 38 columns, not 40: a label, 13 numbers")
    assert answers[4]["error"].startswith("line 5: has 1 columns")
    assert answers[5]["error"] == "line 6: the label is '2', not 0 or 1"


def test_commands_ask_it(bundle, tmp_path, capsys):
    lines = tiny_rows.lines(20)
    table = tmp_path / "rows.tsv"
    table.write_text("".join(f"{n % 2}\t{line}\n" for n, line in enumerate(lines)))
    expected = by_paddle(bundle, lines)
    assert call("predict", "--bundle", str(bundle), "--input", str(table)) == 0
    found = [json.loads(line)["probability"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert call("ask", "--bundle", str(bundle), lines[0]) == 0
    assert f"→ {expected[0]:.2%}" in capsys.readouterr().out
    assert call("evaluate", "--bundle", str(bundle), "--data", str(table), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    pairs = [(a, b) for a in expected[1::2] for b in expected[::2]]
    assert report["auc"] == pytest.approx(np.mean([a > b for a, b in pairs]), abs=1e-9)
    table.write_text("text_a\tlabel\ngood\t1\n")
    with pytest.raises(UserError, match=r"rows\.tsv:1: has 2 columns, not 40"):
        fleetbert.load(bundle).evaluate(table)


def test_predict_asks_the_servers_and_not_its_files(bundle, tmp_path, capsys, monkeypatch):
    @contextlib.contextmanager
    def asking(*_):
        yield lambda ids: np.zeros((len(ids), 1 + tiny_rows.SIZE), np.float32)

    monkeypatch.setattr(answering, "asking", asking)
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:1")
    lines = tiny_rows.lines(5)
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    assert call("predict", "--bundle", bundle, "--input", tmp_path / "rows.txt") == 0
    found = [json.loads(line)["probability"] for line in capsys.readouterr().out.splitlines()]
    expected = by_paddle(bundle, lines, has_table=False)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_servers_hold_the_table_for_predict(bundle, tiny_bundle, tmp_path):
    """The text model has none; the error of any process ends the command."""
    lines = tiny_rows.lines()
    (tmp_path / "rows.txt").write_text("\n".join(lines))

    def predict(bundle, trainers=1):
        started = [sys.executable, "-m", "fleetbert.cli", "launch", "--servers", "2", "--trainers"]
        asked = ["--bundle", str(bundle), "--input", "rows.txt", "--output", "answers.jsonl"]
        words = [*started, str(trainers), "fleetbert.cli", "predict", *asked]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    code, printed = predict(bundle)
    assert code == 0, printed
    assert f"the servers hold {len(tiny_rows.table()[0])} rows" in printed
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    found = [json.loads(line)["probability"] for line in answers]
    np.testing.assert_allclose(found, by_paddle(bundle, lines), rtol=0, atol=2e-6)
    for asked, message in (
        ((tiny_bundle,), "its variant float32 has no table, so servers have nothing to hold"),
        ((bundle, 2), "--trainers: one process answers; give 1, and more --servers"),
    ):
        code, printed = predict(*asked)
        assert code != 0
        assert message in printed


@pytest.mark.parametrize(
    "words",
    [
        ("quantize", "method=dynamic", "bundle={}", "gate.data=x.tsv"),
        (
            "compress",
            "bundle={0}",
            "data.train=x",
            "selection.data=y",
            "gate.data=z",
            "output_dir={0}-s",
        ),
        ("export", "--bundle", "{}", "--format", "onnx"),
        ("export", "--bundle", "{}", "--format", "lite", "--target", "x86"),
        ("bench", "infer", "--bundle", "{}"),
    ],
)
def test_what_takes_texts_is_refused(bundle, words, capsys):
    assert call(*(word.format(bundle) for word in words)) != 0
    message = capsys.readouterr().err
    assert "answers rows of fields (task ctr), and fleetbert " + words[0] in message


def test_a_bundle_of_other_fields_is_refused(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "other")
    path = tmp_path / "other" / "fields.json"
    path.write_text(path.read_text().replace("26", "25"))
    with pytest.raises(UserError, match=r"fields\.json says .*25.* and this fleetbert reads rows"):
        answer.load(tmp_path / "other")
