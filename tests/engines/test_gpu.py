"""Engines on a GPU: each call that Paddle Inference gets for one, and what is refused. The calls
are recorded and the CPU answers (`fake_card`): nothing here says that a GPU does."""

from __future__ import annotations

import fake_card
import numpy as np
import paddle
import pytest
from passes import texts_of
from tiny_bert import add_early_exit

from fleetbert import bundle as bundles
from fleetbert.core import device as devices
from fleetbert.core.errors import UserError
from fleetbert.engines import engine, golden
from fleetbert.engines.alike import random_batch

Types = paddle.inference.PrecisionType
BATCH = random_batch(np.random.default_rng(0), (5, 32), 150)
RANGES = "shape_range_info.pbtxt"
INT8 = {"variant": "int8-static", "precision": "int8", "tensorrt": "auto"}


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(path, variant="float32", name="gpu:1", **how) -> engine.Engine:
    device = devices.of(name, **how)
    return engine.open(bundles.read(path), variant, device, threads=1, batch_tokens=128)


@pytest.mark.parametrize(
    ("name", "precision", "number", "kind"),
    [("gpu", "float32", 0, Types.Float32), ("gpu:1", "float16", 1, Types.Half),
     ("gpu:1", "bfloat16", 1, Types.Bfloat16)],
)  # fmt: skip
def test_a_card_computes_in_a_precision(tiny_bundle, monkeypatch, name, precision, number, kind):
    expected = engine.open(bundles.read(tiny_bundle), threads=1)(*BATCH)
    created = fake_card.put_in(monkeypatch)
    answers = opened(tiny_bundle, name=name, precision=precision)(*BATCH)
    np.testing.assert_allclose(answers, expected, atol=1e-4)
    (config,) = created
    assert config.calls == [
        ("switch_ir_optim", (True,), {}),
        ("enable_memory_optim", (), {}),
        ("disable_glog_info", (), {}),
        ("enable_use_gpu", (256, number, kind), {}),
    ]


@pytest.mark.parametrize(
    ("variant", "precision", "kind"),
    [("float32", "float32", Types.Float32), ("float32", "float16", Types.Half),
     ("int8-static", "int8", Types.Int8)],
)  # fmt: skip
def test_tensorrt_gets_the_ranges_of_batches_that_ran(
    int8_bundle, monkeypatch, tmp_path, variant, precision, kind
):
    expected = engine.open(int8_bundle, variant, threads=1)(*BATCH)
    created = fake_card.put_in(monkeypatch)
    how = {"variant": variant, "precision": precision, "tensorrt": "auto"}
    answers = opened(int8_bundle.root, **how)(*BATCH)
    most = golden.GPU_SHARES[precision] * np.abs(expected).max()
    np.testing.assert_allclose(answers, expected, atol=most)
    collecting, config = created
    (cache,) = (tmp_path / "cache" / "fleetbert").iterdir()
    assert cache.name.startswith("tensorrt-")
    assert [name for name, *_ in collecting.calls][-2:] == [
        "enable_use_gpu", "collect_shape_range_info",
    ]  # fmt: skip
    assert config.calls[-4:] == [
        ("enable_use_gpu", (256, 1, Types.Float32), {}),
        ("enable_tensorrt_engine", (), {
            "workspace_size": 1 << 30, "max_batch_size": 1, "min_subgraph_size": 3,
            "precision_mode": kind, "use_static": True, "use_calib_mode": False,
        }),
        ("enable_tuned_tensorrt_dynamic_shape", (str(cache / RANGES), True), {}),
        ("set_optim_cache_dir", (str(cache),), {}),
    ]  # fmt: skip
    ranges = (cache / RANGES).read_bytes()  # as Paddle wrote them: 8 x 16 to 1 x 512 tokens
    assert b"input_ids" in ranges and b"attention_mask" in ranges
    opened(int8_bundle.root, **how)
    assert len(created) == 3, "the second start takes the ranges and the engine of the first"


def test_a_batch_of_another_size_and_other_weights_are_compiled_anew(
    copied_bundle, monkeypatch, tmp_path
):
    fake_card.put_in(monkeypatch)
    opened(copied_bundle, tensorrt="auto")
    weights = copied_bundle / "float32" / "model.pdiparams"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    device = devices.of("gpu", tensorrt="auto")
    for tokens in (128, 512):
        engine.open(
            bundles.read(copied_bundle), device=device, threads=1, verify=False, batch_tokens=tokens
        )
    assert len(list((tmp_path / "cache" / "fleetbert").iterdir())) == 3


def test_texts_leave_early_on_a_card(copied_bundle, monkeypatch):
    add_early_exit(copied_bundle)
    bundle = bundles.read(copied_bundle)
    expected = engine.open(bundle, "early-exit-float32", threads=1)
    created = fake_card.put_in(monkeypatch)
    computed = opened(copied_bundle, "early-exit-float32", precision="float16")
    texts = texts_of(BATCH[0])
    for speed in (0.0, 0.6):
        here = sorted(expected.run_all(texts, speed), key=lambda result: result.layer)
        there = sorted(computed.run_all(texts, speed), key=lambda result: result.layer)
        assert [(r.layer, *r.numbers) for r in here] == [(r.layer, *r.numbers) for r in there]
        for mine, other in zip(there, here):
            np.testing.assert_allclose(mine.outputs, other.outputs, atol=1e-4)
    assert len(created) == len(computed.early_exit.ends), "a program for each group of layers"
    assert all(config.called("enable_use_gpu")[0][1][1:] == (1, Types.Half) for config in created)


@pytest.mark.parametrize(
    ("machine", "where", "message"),
    [
        ({}, {"name": "gpu:2"}, "device is gpu:2, but Paddle finds gpu:0 to gpu:1 only"),
        ({"count": 0}, {}, "device is gpu:1, but Paddle finds no GPU: use --device cpu"),
        ({"capability": (9, 0)}, {}, "NVIDIA Some Card has compute capability 9.0"),
        ({"capability": (7, 5)}, {"precision": "bfloat16"}, "Some Card has no bfloat16: set"),
        ({}, {"precision": "int8", "tensorrt": "auto"}, "precision is int8, for which the variant"),
        ({}, {"variant": "int8-static"}, "computes in int8: set precision=int8 tensorrt=auto"),
        ({}, {"variant": "early-exit-int8"}, "in floats: name early-exit-float32"),
        ({"built_for": (0, 0, 0)}, INT8, "needs TensorRT, but the installed PaddlePaddle was bu"),
        ({"installed": (0, 0, 0)}, INT8, "finds no libnvinfer.so: install TensorRT 8.5.1 and na"),
        ({"installed": (10, 1, 0)}, INT8, "TensorRT 10.1.0 is installed and Paddle was built for"),
    ],
)
def test_what_a_card_cannot_is_one_sentence(int8_bundle, monkeypatch, machine, where, message):
    fake_card.put_in(monkeypatch, **machine)
    with pytest.raises(UserError, match=message) as refused:
        opened(int8_bundle.root, **where)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("machine", "precision", "reason"),
    [
        ({"built_for": (0, 0, 0)}, "float16", "was built without TensorRT"),
        ({"installed": (0, 0, 0)}, "float32", "Paddle finds no libnvinfer.so"),
        ({}, "bfloat16", "TensorRT 8.5.1 has no bfloat16"),
    ],
)
def test_auto_goes_without_tensorrt_and_says_why(
    tiny_bundle, monkeypatch, caplog, machine, precision, reason
):
    created = fake_card.put_in(monkeypatch, **machine)
    opened(tiny_bundle, precision=precision, tensorrt="auto")
    assert reason in caplog.text
    assert not created[0].called("enable_tensorrt_engine")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tpu",), "device is 'tpu'; choose cpu, gpu or gpu:N"),
        (("gpu:x",), "choose cpu, gpu or gpu:N"),
        (("gpu", "float64"), "precision is 'float64'; choose one of float32, float16, bfloat16"),
        (("gpu", "float32", "on"), "tensorrt is 'on'; choose one of auto, off"),
        (("cpu", "float16"), "are for GPUs, and the device is cpu: name the variant bfloat16"),
        (("gpu", "int8"), "set tensorrt=auto"),
    ],
)
def test_devices_that_are_none(words, message):
    with pytest.raises(UserError, match=message):
        devices.of(*words)


def test_golden_bounds_on_a_card_are_those_of_its_precision(tiny_bundle):
    bundle = bundles.read(tiny_bundle)
    kept = golden.read(bundle, "float32")
    largest = max(1.0, np.abs(kept.logits).max())
    for precision, share in golden.GPU_SHARES.items():
        device = devices.Device("gpu", precision)
        assert golden.read(bundle, "float32", device).bound == pytest.approx(share * largest)
        assert golden.alone_share(device) == share
