"""Opening variants, and answers that do not depend on what was asked before."""

from __future__ import annotations

import os
import subprocess
import sys

import fresh
import numpy as np
import paddle
import passes
import pytest
import shapes
import threadpoolctl
import tiny_job
from passes import texts_of
from tiny_bert import make_network

from fleetbert import bundle as bundles
from fleetbert.compat import paddle_inference
from fleetbert.core.errors import UserError
from fleetbert.data.ragged import Texts
from fleetbert.engines import engine

no_cuda = pytest.mark.skipif(
    paddle.device.is_compiled_with_cuda(), reason="this PaddlePaddle has CUDA"
)


def make_texts(texts: int, length: int) -> Texts:
    """Random texts of random lengths; the first fills its row."""
    lengths = np.random.default_rng([texts, length]).integers(3, length + 1, texts - 1)
    return texts_of(passes.make_batch([length, *lengths], length)[0])


@pytest.mark.parametrize("variant", ["float32", "int8-static", "early-exit-int8"])
def test_any_sequence_of_shapes_is_answered_as_by_a_fresh_predictor(int8_bundle, variant):
    """oneDNN's cache confuses shapes whose digits meet; see compat.paddle_inference. A dozen;
    tests/endurance has 2,000."""
    # Rows that make digits meet where lengths allow it: (1, 139) and (11, 39) in the report.
    # (16, 4) then (1, 64) gave wrong answers where 4 was a length.
    meeting = [(16, 64), (1, 64), (11, 96), (1, 96), (111, 16), (11, 16), (1, 192), (13, 32)]
    shapes.check(int8_bundle, variant, [*shapes.random_shapes(8, 2048, 0), *meeting])


def test_float32_keeps_fewer_activations_than_paddles_own_passes_leave(tiny_bundle, monkeypatch):
    """Of answers to texts of several lengths, which are the same."""
    folder = bundles.read(tiny_bundle).folder("float32")

    def answer() -> tuple[np.ndarray, int]:
        opened = engine.open_folder(engine.FLOAT32, folder)
        opened.run(make_texts(1, 7))  # parameters have the layout that they keep
        before = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
        outputs = [opened.run(make_texts(*shape)) for shape in ((4, 64), (64, 26), (256, 7))]
        kept = paddle.base.core.host_memory_stat_current_value("Allocated", 0) - before
        return np.concatenate(outputs), kept

    logits, kept = answer()
    monkeypatch.setattr(paddle_inference, "has_onednn", lambda config=None: config is not None)
    expected, without = answer()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)
    assert 0 < kept < 0.7 * without


def test_numpy_takes_one_thread_beside_early_exit(int8_bundle):
    """Its threads would spin where Paddle's wait; see compat.paddle_inference."""
    threadpoolctl.threadpool_limits(2, "blas")
    engine.open(int8_bundle, "early-exit-int8")
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    assert [pool["num_threads"] for pool in pools] == [1] * len(pools) != []


def test_the_bug_that_safe_lengths_avoid_is_still_there(tiny_bundle):
    """When this fails the workaround may go: Paddle's keys no longer meet."""
    run = engine.open_folder(engine.FLOAT32, bundles.read(tiny_bundle).folder("float32"), "cpu", 2)
    one, other = passes.make_batch([39] * 11), passes.make_batch([139])
    run._run(*one, np.ones_like(one[0]))
    with pytest.raises(RuntimeError, match="could not reshape a memory descriptor"):
        run._run(*other, np.ones_like(other[0]))


def test_models_in_one_process_do_not_share_weights(tiny_bundle, tmp_path):
    from fleetbert.export.program import save_program

    save_program(make_network(seed=2), tmp_path)
    runs = [
        engine.open_folder(engine.FLOAT32, folder, "cpu", 2)
        for folder in (bundles.read(tiny_bundle).folder("float32"), tmp_path)
    ]
    batches = [make_texts(texts, length) for texts in (1, 5) for length in (16, 64)]
    first, second = ([run.run(batch) for batch in batches] for run in runs)
    for number, batch in enumerate(batches):
        again = [run.run(batch) for run in runs]
        np.testing.assert_array_equal(again[0], first[number])
        np.testing.assert_array_equal(again[1], second[number])
        assert np.abs(again[0] - again[1]).max() > 0.01


def test_onnx_answers_like_paddle(tiny_bundle):
    bundle = bundles.read(tiny_bundle)
    paddle, onnx = engine.open(bundle, "float32"), engine.open(bundle, "onnx")
    for shape in [(1, 16), (5, 32), (17, 64), (2, 128), (1, 512)]:
        batch = make_texts(*shape)
        np.testing.assert_allclose(paddle.run(batch), onnx.run(batch), atol=1e-5)


def test_a_changed_weight_is_not_served(copied_bundle):
    tiny_job.flip(copied_bundle / "float32" / "model.pdiparams")
    with pytest.raises(UserError, match=r"float32/model\.pdiparams is not the file"):
        engine.open(bundles.read(copied_bundle))
    engine.open(bundles.read(copied_bundle), "onnx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "int8"}, "no variant 'int8'; it has: float32"),
        ({"device": "tpu"}, "choose cpu, gpu or gpu:N"),
        ({"threads": 0}, "threads is 0"),
        pytest.param({"device": "gpu"}, "paddlepaddle-gpu", marks=no_cuda),
    ],
)
def test_what_cannot_be_opened_says_why(tiny_bundle, arguments, message):
    with pytest.raises(UserError, match=message):
        engine.open(bundles.read(tiny_bundle), **arguments)


def test_a_variant_of_an_unknown_kind_is_named(edit_manifest):
    path = edit_manifest(lambda manifest: manifest["variants"][0].update(kind="abacus"))
    with pytest.raises(UserError, match="kind 'abacus'"):
        engine.open(bundles.read(path))


def test_threads_come_from_the_environment(monkeypatch):
    for value, threads in (("3", 3), ("4,2", 4), ("0", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert engine.default_threads() == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(UserError, match="OMP_NUM_THREADS is 'many'"):
        engine.default_threads()


def test_answering_imports_no_training(tiny_bundle):
    """A server starts in about the time that Paddle itself takes, and says nothing meanwhile."""
    code = (
        "import sys\n"
        "from fleetbert.engines import answer, evaluate\n"
        f"model = answer.load({str(tiny_bundle)!r})\n"
        "answer.answer(model, ['word1 word2'])\n"
        "banned = ('paddlenlp', 'paddleslim', 'fleetbert.training', 'fleetbert.models',\n"
        "          'sklearn', 'onnxruntime', 'visualdl', 'transformers', 'datasets')\n"
        "print([name for name in banned if name in sys.modules])\n"
    )
    done = fresh.python(code)
    assert done.stdout == "[]\n", done.stderr
    assert "OMP_NUM_THREADS" not in done.stderr


def test_without_onednn_the_build_for_arm_keeps_its_own_kernels():
    """Its AnalysisConfig has enable_mkldnn, which would only warn, and nothing for the cache."""
    from fleetbert.compat import paddle_inference

    class Config:
        def enable_mkldnn(self):
            raise AssertionError("there is no oneDNN")

    paddle_inference.use_onednn(Config())


@pytest.mark.slow
def test_no_shape_is_compiled_twice(tiny_bundle):
    """oneDNN says of each primitive that is made whether it was kept from before."""
    script = """
import sys
import numpy as np
from fleetbert import bundle as bundles
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.engines import engine
opened = engine.open(bundles.read(sys.argv[1]))
for turn in range(2):
    print("turn", turn, flush=True)
    for length in SAFE_LENGTHS[:15]:
        for texts in range(1, 21):
            ids = np.ones((texts, length), np.int64)
            opened(ids, 0 * ids)
"""
    environ = {**os.environ, "ONEDNN_VERBOSE": "2"}
    command = [sys.executable, "-c", script, str(tiny_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, env=environ)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("turn 1")
    assert first.count("create:cache_miss") > 1024
    assert second.count("create:cache_hit") > 1024
    assert second.count("create:cache_miss") == 0
