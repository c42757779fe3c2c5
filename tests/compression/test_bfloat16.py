"""bfloat16: its way through the gate, what is in it, who serves it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from compressing import job
from halves import WITHOUT, nearest, needs_bfloat16
from running_core import RunningCore

from fleetbert import bundle as bundles
from fleetbert.compat import environment
from fleetbert.compression import pipeline
from fleetbert.core.device import CPU
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference.repository import variants
from fleetbert.engines import answer
from fleetbert.graph import program as programs
from fleetbert.graph import weights

TEXTS = ["word0 word3 word1", "word1 word1", "word2"]


@pytest.fixture(scope="module")
def added(trained, tiny_data, tmp_path_factory) -> Path:
    bundle = Path(shutil.copytree(trained, tmp_path_factory.mktemp("bfloat16") / "bundle"))
    assert pipeline.quantize(job(bundle, tiny_data, "bfloat16")).variant == "bfloat16"
    return bundle


@needs_bfloat16
def test_it_is_a_variant_like_the_others(added):
    bundle = bundles.read(added)
    variant = bundle.variant("bfloat16")
    assert isinstance(variant, bundles.BFloat16Variant)
    assert variant.runs_on == ["x86"] and variant.needs == ["avx512_bf16", "amx_bf16"]
    measured = variant.accuracy[0]
    assert measured.n == 60 and measured.float32_accuracy > 0.8
    assert 0 < variant.comparison.max_logit_difference < 0.2
    assert variant.comparison.size_ratio < 0.7
    assert len(variant.float32_layers) == 1  # the one that gives the logits
    bundles.verify(bundle, "bfloat16")
    assert "| bfloat16 |" in (added / "README.md").read_text(encoding="utf-8")
    assert "bfloat16</th>" in (added / "quantize-report.html").read_text(encoding="utf-8")


@needs_bfloat16
def test_products_and_tables_are_float32s_rounded(added):
    bundle = bundles.read(added)
    program = programs.read(bundle.folder("float32") / "model.pdmodel")
    exact = programs.read_parameters(program, bundle.folder("float32") / "model.pdiparams")
    halves, others = weights.load_halves(bundle.folder("bfloat16"))
    matrices = {name for name, array in exact.items() if array.ndim == 2}
    assert set(halves) == matrices - set(bundle.variant("bfloat16").float32_layers)
    for name, bits in halves.items():
        found = (bits.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(found, nearest(exact[name]))
    assert all(one.dtype == np.float32 for name, one in others.items() if name in exact)


@needs_bfloat16
def test_layers_that_skip_names_stay_float32(bundle, tiny_data):
    result = pipeline.quantize(
        job(bundle, tiny_data, "bfloat16", {"skip": ["linear_1*"], "name": "some"})
    )
    left = result.bundle.variant("some").float32_layers
    assert len(left) > 1
    halves, others = weights.load_halves(result.bundle.folder("some"))
    assert set(left) <= set(others) and not set(left) & set(halves)
    with pytest.raises(UserError, match=r"skip: 'nothing\*' matches no weight"):
        pipeline.quantize(job(bundle, tiny_data, "bfloat16", {"skip": ["nothing*"]}))


def test_processors_without_it_make_none(bundle, tiny_data, monkeypatch):
    monkeypatch.setattr(environment, "cpuinfo", lambda: WITHOUT)
    said = "method: bfloat16 needs a processor with avx512_bf16 or amx_bf16, and this one has nei"
    with pytest.raises(UserError, match=said):
        pipeline.quantize(job(bundle, tiny_data, "bfloat16"))
    assert bundles.read(bundle).names == ["float32"]


@pytest.mark.slow
@needs_bfloat16
def test_a_server_measures_it_and_answers_with_it(added, tmp_path):
    """`variant: auto` measures it beside float32; named, it answers."""
    shutil.copytree(added, tmp_path / "auto" / "1")
    shutil.copytree(added, tmp_path / "named" / "1")
    expected = answer.compute_logits(answer.load(added, "bfloat16"), TEXTS, None).values
    core = RunningCore(
        {
            "repository": {
                "path": str(tmp_path),
                "poll_seconds": 0,
                "models": {"named": {"variant": "bfloat16"}},
            },
            "engine": {"workers": 1, "threads": 1},
        }
    )
    try:
        core.wait_until_ready()
        speeds = {v.name: v.texts_per_s for v in core.do(core.repository.find, "auto").variants}
        assert speeds["bfloat16"] > 0 and speeds["float32"] > 0
        assert core.do(core.repository.find, "named").variant == "bfloat16"
        found = core.ask(model="named", texts=TEXTS).outputs["logits"]
        np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    finally:
        core.close()


@needs_bfloat16
def test_auto_leaves_it_out_where_the_processor_lacks_it(added, monkeypatch, caplog):
    bundle = bundles.read(added)
    assert variants.candidates(bundle, CPU) == ["float32", "bfloat16"]
    monkeypatch.setattr(environment, "cpuinfo", lambda: WITHOUT)
    with caplog.at_level(logging.INFO, "fleetbert"):
        assert variants.candidates(bundle, CPU) == ["float32"]
    assert "variant bfloat16 of" in caplog.text and "left out" in caplog.text
