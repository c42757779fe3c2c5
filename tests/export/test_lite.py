"""Paddle Lite's variants say what Paddle says, and what cannot work is refused."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
import same_answers
import tiny_job
from tiny_bert import EARLY_SPEED, LABELS, OTHER_TASKS, WORDS, add_early_exit, make_bundle

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.compat.static_graph import static_graph
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import sentencepiece
from fleetbert.engines import answer, engine, evaluate, exits
from fleetbert.engines.alike import random_batch
from fleetbert.export import lite, lite_opt, lite_unigram
from fleetbert.export.program import export_bundle
from fleetbert.graph import program as programs
from fleetbert.graph import weights
from fleetbert.models import task_heads
from fleetbert.models.bert import BertConfig

pytest.importorskip("paddlelite", reason="paddlelite has wheels for x86-64 and Python 3.8 to 3.10")

from fleetbert.compression import static
from fleetbert.compression.gate import lite_accuracy
from fleetbert.compression.observed import observe
from fleetbert.compression.texts import feeds
from fleetbert.compression.work import Source
from fleetbert.graph import lite_program

SHAPES = [(1, 16), (2, 32), (5, 64), (3, 128), (1, 512), (17, 48)]
HERE = [("x86", "float32"), ("x86", "int16"), ("x86", "int8")]
ON_BOARDS = [("armv8", "float16"), ("armv8", "static-int8"), ("armv7", "int8"),
             (lite.OPENCL, "float32")]  # fmt: skip


@pytest.fixture(scope="module")
def lite_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with the variants that run here. Do not change it."""
    folder = tmp_path_factory.mktemp("lite") / "模型 一 'x' é"  # opt gives paths to a shell
    path = Path(shutil.copytree(tiny_bundle, folder))
    for target, precision in HERE:
        lite.export_lite(path, target, precision)
    return path


@pytest.fixture(scope="module")
def board_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with variants for boards alone. Do not change it."""
    path = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("board") / "bundle"))
    add_static(path)
    for target, precision in ON_BOARDS:
        lite.export_lite(path, target, precision)
    return path


def measure(table: Path, max_drop: float) -> lite.Measure:
    gate = config.Gate(data=str(table), max_accuracy_drop=max_drop)
    return functools.partial(lite_accuracy, gate)


def add_static(path: Path) -> None:
    """Add the variant int8-static, calibrated with random texts."""
    bundle = bundles.read(path)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 12)) for _ in range(32)]
    tokenizer = tokenizers.open(bundle)
    encodings = tokenizer.encode(texts, None, bundle.max_length)
    batches = feeds(encodings, range(32), tokenizer.pad_id)
    source = Source(bundle.folder("float32"))
    prepared = static.of_texts(source, observe(source.layers, batches), "abs_max")
    bundles.add_variant(path, lite.STATIC, lambda folder: static.write(prepared, folder))


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "dev.tsv"
    lines = [f"{word} {WORDS[3]}\t{LABELS[n % 3]}" for n, word in enumerate(WORDS[:40])]
    path.write_text("\n".join(["text_a\tlabel", *lines]) + "\n", encoding="utf-8")
    return path


def test_a_bundle_by_a_relative_path(tiny_bundle, tmp_path, monkeypatch):
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    lite.export_lite("bundle", "x86", "float32")
    assert bundles.read("bundle").variant("lite-x86-float32").runs_on == ["x86"]


@pytest.mark.parametrize(("target", "precision"), [*HERE, *ON_BOARDS])
def test_a_variant_says_what_it_is_for(request, target, precision):
    made = "lite_bundle" if target == "x86" else "board_bundle"
    bundle = bundles.read(request.getfixturevalue(made))
    variant = bundle.variant(f"lite-{target}-{precision}")
    bundles.verify(bundle, variant.name)
    assert [file.path for file in variant.files] == [f"{variant.name}/model.nb"]
    assert variant.kind == "paddle-lite"
    assert variant.runs_on == [target.split("-")[0]]
    assert variant.made_from == ("int8-static" if precision == "static-int8" else "float32")
    assert variant.versions["opt"].startswith("v2.13")
    assert set(variant.versions) == {"fleetbert", "opt", "paddlelite", "python"}
    assert variant.precision == precision
    kernels = variant.kernels
    kind = {"float16": "kFP16", "static-int8": "kInt8"}.get(precision, "kFloat")
    place = {"x86": "kX86", lite.OPENCL: "kOpenCL"}.get(target, "kARM")
    kind = "kFP16" if target == lite.OPENCL else kind
    assert any(kernel.startswith(f"fc,{place},{kind},") for kernel in kernels), kernels
    other = "kARM" if target == "x86" else "kX86"
    assert not any(other in kernel for kernel in kernels)
    run = precision not in ("float16", "static-int8") and target != lite.OPENCL
    assert (variant.checked_on == "x86") == run
    if run:
        assert 0 <= variant.max_difference_to_paddle < 1e-3
    # By this key a server knows what needs no gate.
    same = (precision, run) == ("float32", True)
    assert (variant.max_difference_to_float32 is not None) == same


def test_integers_make_the_file_smaller(lite_bundle):
    bundle = bundles.read(lite_bundle)
    size = {
        precision: bundle.variant(f"lite-x86-{precision}").files[0].size
        for precision in ("float32", "int16", "int8")
    }
    assert size["int8"] < size["int16"] < size["float32"]
    # The program of 16 kB and the scales weigh more in a model this small.
    saved = size["float32"] - size["int8"]
    stored = (bundle.folder("float32") / "model.pdiparams").stat().st_size
    assert saved > 0.55 * stored  # three quarters of the matrices, the embeddings with them


@pytest.mark.parametrize("precision", ["float32", "int16", "int8"])
def test_x86_answers_like_paddle_with_the_same_weights(lite_bundle, tmp_path, precision):
    bundle = bundles.read(lite_bundle)
    source = bundle.folder("float32")
    if precision != "float32":
        source = round_weights(source, tmp_path, 127 if precision == "int8" else 32767)
    paddle = engine.open_folder(engine.FLOAT32, source, "cpu", 2)
    float32 = engine.open_folder(engine.FLOAT32, bundle.folder("float32"), "cpu", 2)
    opened = engine.open_folder("paddle-lite", bundle.folder(f"lite-x86-{precision}"), "cpu", 2)
    random = np.random.default_rng(1)
    rounding = []
    for shape in [*SHAPES, *SHAPES[::-1]]:
        batch = random_batch(random, shape, 195)
        found, expected = opened(*batch), paddle(*batch)
        assert found.shape == (shape[0], 3)
        # Its weights are so large that float32's own rounding makes 1e-5.
        np.testing.assert_allclose(found, expected, atol=1e-3 if precision == "int8" else 1e-4)
        rounding.append(np.abs(found - float32(*batch)).max())
    if precision == "int8":
        assert max(rounding) > 1e-2  # so that the comparison above says something
    elif precision == "int16":
        assert max(rounding) < 1e-2


def round_weights(source: Path, folder: Path, steps: int) -> Path:
    """The program in `source` with its matrices rounded, a scale for each column, in NumPy.

    Position embeddings and the like too: all that Paddle Lite multiplies or looks up.
    """
    program = programs.read(source / "model.pdmodel")
    arrays = programs.read_parameters(program, source / "model.pdiparams")
    matrices = [name for name, array in arrays.items() if array.ndim == 2]
    assert len(matrices) == 3 + 2 * 6 + 2
    for name in matrices:
        scale = np.abs(arrays[name]).max(0) / np.float32(steps)
        quotient = arrays[name] / scale
        integers = np.sign(quotient) * np.floor(np.abs(quotient) + np.float32(0.5))
        arrays[name] = (integers * scale).astype(np.float32)
    programs.write(folder / "model.pdmodel", program)
    (folder / "model.pdiparams").write_bytes(programs.parameter_bytes(arrays))
    return folder


def test_the_static_program_for_converters_answers_like_the_one_that_is_served(board_bundle):
    """Paddle's own executor takes it: its weights are integers that are scaled once, and the inputs
    of Linear layers alone are rounded."""
    bundle = bundles.read(board_bundle)
    folder = bundle.folder(lite.STATIC)
    program = programs.read(folder / "model.pdmodel")
    arrays = weights.parameters(folder, program)
    assert sum(array.dtype == np.int8 for array in arrays.values()) == 2 * 6 + 1
    batch = random_batch(np.random.default_rng(2), (4, 32), 195)
    served = engine.open_folder(engine.INT8, folder, "cpu", 1)(*batch)
    with static_graph(), paddle.static.scope_guard(paddle.static.Scope()):
        runner = paddle.static.Executor(paddle.CPUPlace())
        loaded = paddle.static.deserialize_program(program.SerializeToString())
        paddle.static.deserialize_persistables(loaded, programs.parameter_bytes(arrays), runner)
        feed = dict(zip(("input_ids", "token_type_ids"), batch))
        found = runner.run(loaded, feed=feed, fetch_list=["logits"])[0]
    np.testing.assert_allclose(found, served, atol=1e-3)


MEASURED = {"measure": lambda *_: None}
EARLY = {"early_exit": True}


@pytest.mark.parametrize(
    ("target", "precision", "how", "message"),
    [
        ("x86", "static-int8", {}, "Paddle Lite has no int8 kernels there"),
        (lite.OPENCL, "int8", {}, "it takes --precision float32 only"),
        ("x86", "float16", {}, "in half precision on armv8 only"),
        ("armv7", "float16", {}, "in half precision on armv8 only"),
        ("arm", "int8", {}, "target is 'arm'; choose one of armv8, armv7, armv8-opencl, x86"),
        ("x86", "int4", {}, "precision is 'int4'; choose one of float32"),
        ("armv8", "static-int8", {}, "made from the variant int8-static"),
        ("armv8", "float16", EARLY, "early exit does not work in float16"),
        ("armv8", "static-int8", EARLY, "early exit does not work in static-int8"),
        ("x86", "float32", EARLY, "early exit is made from the variant early-exit-float32"),
        ("armv8", "float16", MEASURED, "the accuracy of float16 cannot be measured here"),
        ("armv8", "static-int8", MEASURED, "the accuracy of static-int8 cannot be measured here"),
    ],
)
def test_what_cannot_work_is_refused(tiny_bundle, target, precision, how, message):
    with pytest.raises(UserError, match=message):
        lite.export_lite(tiny_bundle, target, precision, **how)


@pytest.mark.parametrize(
    ("task", "pooling"),
    [
        pytest.param(*each, marks=[] if each[1] == "mean" else pytest.mark.slow)
        for each in OTHER_TASKS
        if each[0] in lite.TASKS
    ]
    + [("classification", "mean")],
)
def test_answers_of_other_heads_are_those_of_paddle(task, pooling, tiny_vocab, tmp_path):
    path = make_bundle(tmp_path / "bundle", task, tiny_vocab, pooling)
    lite.export_lite(path, "x86", "float32")
    lite.export_lite(path, "x86", "int8")
    texts = ["word1 word2 word3", "word4", "字1 word5, word6"]
    shown = tasks.get(task)
    seconds = texts[::-1] if shown.shape.pair else None
    expected = fleetbert.load(path)(texts, seconds)
    found = fleetbert.load(path, "lite-x86-float32")(texts, seconds)
    same_answers.check(found, expected, 1e-4)
    assert bundles.read(path).variant("lite-x86-int8").max_difference_to_paddle < 0.03
    if not shown.answer.doubt:  # no text leaves early
        return
    add_early_exit(path)
    lite.export_lite(path, "x86", "float32", early_exit=True)
    for speed, source in ((0.0, "float32"), (None, "early-exit-float32")):
        early = fleetbert.load(path, "lite-x86-float32-early-exit")(texts, seconds, speed=speed)
        same_answers.check(early, fleetbert.load(path, source)(texts, seconds), 1e-4)


@pytest.mark.parametrize(
    ("target", "precision"),
    [pytest.param("armv8", "int8", marks=pytest.mark.slow), ("x86", "float32")],
)
def test_early_exit_brings_a_file_for_each_group_and_the_heads(
    copied_bundle, table, target, precision
):
    add_early_exit(copied_bundle)
    bundle = lite.export_lite(copied_bundle, target, precision, True, measure(table, 1.0))
    name = f"lite-{target}-{precision}-early-exit"
    variant = bundle.variant(name)
    bundles.verify(bundle, name)
    wanted = ["exits.json", "group-1.nb", "group-2.nb", "heads.safetensors"]
    assert [file.path for file in variant.files] == [f"{name}/{file}" for file in wanted]
    source = bundle.folder("early-exit-float32")
    for file in ("exits.json", "heads.safetensors"):
        assert (bundle.folder(name) / file).read_bytes() == (source / file).read_bytes()
    assert (variant.kind, variant.runs_on) == ("paddle-lite-early-exit", [target])
    assert variant.made_from == "early-exit-float32"
    assert (variant.ends, variant.speed) == ([1, 2], EARLY_SPEED)
    assert variant.max_difference_to_paddle < 1e-3
    # Texts that leave are answered otherwise.
    assert variant.max_difference_to_float32 is None
    place = "kX86" if target == "x86" else "kARM"
    assert all(place in kernel or "kHost" in kernel for kernel in variant.kernels)
    # At the variant's own speed.
    expected = evaluate.evaluate(answer.load(bundle.root, "early-exit-float32"), table)["accuracy"]
    assert variant.accuracy[0].accuracy == pytest.approx(expected, abs=0.051)
    if target == "x86":
        found = evaluate.evaluate(answer.load(bundle.root, name), table)["accuracy"]
        assert variant.accuracy[0].accuracy == found


def change_variant(path: Path, name: str, change) -> None:
    """Put a copy of it, changed by `change(folder)`, in its place."""

    def fill(folder):
        bundle = bundles.read(path)
        shutil.copytree(bundle.folder(name), folder, dirs_exist_ok=True)
        change(folder)
        return bundle.variant(name)

    bundles.add_variant(path, name, fill)


def test_early_exit_needs_heads_of_the_same_model(copied_bundle):
    def deepen(folder):
        exits.save_settings(folder, exits.load_settings(folder)._replace(ends=[1, 2, 3]))

    add_early_exit(copied_bundle)
    change_variant(copied_bundle, lite.EARLY_EXIT, deepen)
    with pytest.raises(UserError, match="has 3 layers and float32 has 2"):
        lite.export_lite(copied_bundle, "x86", "float32", early_exit=True)


def test_a_static_variant_whose_weights_would_be_scaled_twice_is_refused(board_bundle, tmp_path):
    def age(folder):
        program = programs.read(folder / "model.pdmodel")
        for found in program.blocks[0].vars:
            if found.type.lod_tensor.tensor.data_type == programs.VarType.INT8:
                found.type.lod_tensor.tensor.data_type = programs.VarType.FP32
        programs.write(folder / "model.pdmodel", program)

    path = Path(shutil.copytree(board_bundle, tmp_path / "bundle"))
    change_variant(path, lite.STATIC, age)
    with pytest.raises(UserError, match=r"the converter would scale twice: run `fleetbert quan"):
        lite.export_lite(path, "armv8", "static-int8")


def refused(path: Path, message: str, target: str = "x86", precision: str = "int8") -> None:
    """Export fails with the message and leaves the bundle as it was."""
    before = bundles.read(path).manifest
    files = sorted(found.name for found in path.iterdir())
    with pytest.raises(UserError, match=message):
        lite.export_lite(path, target, precision)
    assert bundles.read(path).manifest == before
    assert sorted(found.name for found in path.iterdir()) == files


def test_a_rewrite_that_changes_an_answer_is_refused(copied_bundle, monkeypatch):
    for_lite = lite_program.for_lite

    def changing(program, arrays):
        program = for_lite(program, arrays)
        name = lite_program.quantized_weights(program, arrays)[-1]
        arrays[name] = arrays[name] * np.float32(1 + 1e-6)
        return program

    monkeypatch.setattr(lite_program, "for_lite", changing)
    refused(copied_bundle, "changes its answers by")


@pytest.mark.parametrize(("target", "wrong"), [("x86", np.nan), ("armv8", 0.05)])
def test_a_model_that_answers_otherwise_is_not_added(copied_bundle, monkeypatch, target, wrong):
    convert = lite_opt.convert

    def converted(*arguments, **options):
        done = convert(*arguments, **options)
        return done._replace(answers=[logits + wrong for logits in done.answers])

    monkeypatch.setattr(lite_opt, "convert", converted)
    refused(copied_bundle, "logits differ from Paddle's by", target)


def test_a_matrix_that_would_not_be_widened_is_refused(copied_bundle, monkeypatch):
    """As where a head multiplies with the embeddings: such a file answers NaN."""
    monkeypatch.setattr(lite_program, "to_mul", lambda program, arrays: program)
    refused(copied_bundle, "cannot make integers of")


def test_a_converter_that_fails_is_quoted(copied_bundle, monkeypatch, tmp_path):
    script = tmp_path / "process.py"
    said = "Check failed: no such operator"
    script.write_text(f"import os\nprint('{said}', flush=True)\nos.abort()\n")
    monkeypatch.setattr(lite_opt, "PROCESS", script)
    refused(copied_bundle, f"{said}; try another --precision")


def test_a_changed_program_is_not_converted(copied_bundle):
    tiny_job.flip(copied_bundle / "float32" / "model.pdiparams")
    refused(copied_bundle, r"model\.pdiparams is not the file")


def test_an_encoder_without_labels_is_refused(edit_manifest):
    path = edit_manifest(lambda manifest: manifest["task"].update(name="mlm", labels=[]))
    refused(path, "is a pretrained encoder")


def test_the_gate_measures_what_the_engine_answers(lite_bundle, table, tmp_path):
    """Of a board's variant, the answers of its twin for x86."""
    path = Path(shutil.copytree(lite_bundle, tmp_path / "bundle"))
    before = bundles.read(path).manifest
    with pytest.raises(GateFailed, match="--max-accuracy-drop allows -1"):
        lite.export_lite(path, "armv8", "int8", measure=measure(table, -1.0))
    assert bundles.read(path).manifest == before
    bundle = lite.export_lite(path, "armv8", "int8", measure=measure(table, 1.0))
    found = bundle.variant("lite-armv8-int8").accuracy[0]
    assert found.n == 40
    assert found.data == str(table)
    for variant, measured in (
        ("float32", found.float32_accuracy),
        ("lite-x86-int8", found.accuracy),
    ):
        assert evaluate.evaluate(answer.load(path, variant), table)["accuracy"] == measured


def test_another_python_of_the_machine_is_taken(tiny_bundle, tmp_path, monkeypatch):
    assert lite_opt.find_python() == (sys.executable, os.environ)
    real = Path(sys.prefix) / "bin" / "python"
    found, preferred = tmp_path / "bin/python3.9", tmp_path / "pyenv/versions/3.10.1/bin/python"
    broken = tmp_path / "bin/python3.10"
    for path in (found, preferred, broken):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
        path.chmod(0o755)
    broken.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(lite_opt.sys, "executable", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(found.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    python, environ = lite_opt.find_python()
    assert python == str(preferred)
    assert "PYTHONPATH" not in environ
    preferred.unlink()
    assert lite_opt.find_python()[0] == str(found)
    found.unlink()
    with pytest.raises(UserError, match=r"python3\.10 -m pip install paddlelite==2\.13rc0"):
        lite.export_lite(tiny_bundle, "armv8", "int8")


FILES = Path(__file__).parents[1] / "data" / "tokenizers" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text())["texts"]
XLM = sentencepiece.XLM_ROBERTA


def unigram_spec(folder: Path, **parts):
    """Of a tiny XLM-RoBERTa; parts of its tokenizer.json that are otherwise."""
    folder.mkdir()
    whole = json.loads(sentencepiece.convert(FILES / "sentencepiece.bpe.model", XLM).to_str())
    whole["model"].update(parts.pop("model", {}))
    (folder / "tokenizer.json").write_text(json.dumps({**whole, **parts}))
    return tokenizers.find(folder)


def added(content: str, **how):
    usual = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": 1, "content": content, **usual, **how}


REGEX = {"type": "Replace", "pattern": {"Regex": "[^a-z]"}, "content": ""}


def tokenizer_refused(folder: Path, spec, reason: str) -> None:
    bundle = bundles.create(
        folder / "bundle", task="classification", labels=["a", "b"], max_length=64,
        tokenizer=spec, fill=lambda folder: [],
    )  # fmt: skip
    with pytest.raises(UserError, match=reason) as raised:
        lite.export_lite(bundle.root, "armv8", "float32")
    assert "serve the bundle with Paddle Inference" in str(raised.value)
    assert not list(bundle.root.glob("*lite*"))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"normalizer": REGEX}, r"what the regular expression '\[\^a-z\]' finds"),
        ({"normalizer": {"type": "Nmt"}}, "its normalizer is Nmt"),
        ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "pre_tokenizer is BertPreTokenizer"),
        (
            {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}},
            "Metaspace with prepend_scheme first",
        ),
        ({"model": {"byte_fallback": True}}, "unknown characters in bytes"),
        ({"model": {"unk_id": None}}, "no token for unknown characters"),
        ({"added_tokens": [added("<pad>", single_word=True)]}, "'<pad>' is found as a single word"),
    ],
)
def test_a_tokenizer_that_boards_do_not_know_is_refused(tmp_path, parts, reason):
    tokenizer_refused(tmp_path, unigram_spec(tmp_path / "made", **parts), reason)


def test_byte_level_bpe_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(FILES / name, tmp_path / name)
    reason = "because it is byte-level BPE, which splits texts by a"
    tokenizer_refused(tmp_path, tokenizers.find(tmp_path), reason)


@pytest.mark.slow
def test_a_family_with_unigram_answers_as_float32_does(tmp_path):
    """A tiny XLM-RoBERTa with random weights, for x86 and with early exit."""
    spec = unigram_spec(tmp_path / "tokenizer")
    paddle.seed(3)
    shape = BertConfig(
        vocab_size=tokenizers.open(spec).vocab_size, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=128, max_position_embeddings=64,
        pad_token_id=1, num_labels=3, initializer_range=0.3,
    )  # fmt: skip
    path = tmp_path / "bundle"
    export_bundle(
        path, task_heads.build("classification", shape), task="classification", labels=LABELS,
        max_length=48, tokenizer=spec,
    )  # fmt: skip
    add_early_exit(path, pad_id=1)
    texts = [line for line in EXPECTED if line.strip() and line.isprintable()]
    wanted = np.array([one.logits for one in fleetbert.load(path, variant="float32")(texts)])
    assert np.std(wanted) > 0.1
    for early, how in ((False, {}), (True, {"speed": 0.0})):
        name = lite.variant_name("x86", "float32", early)
        bundle = lite.export_lite(path, "x86", "float32", early)
        files = {Path(file.path).name for file in bundle.variant(name).files}
        assert lite_unigram.NAME in files
        found = [one.logits for one in fleetbert.load(path, variant=name)(texts, **how)]
        np.testing.assert_allclose(found, wanted, atol=1e-4)
