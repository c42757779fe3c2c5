"""`method: paddleslim`: PaddleSlim's own AutoCompression in a process of its own, as a stage."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import processes
import psutil
import pytest
import yaml
from compressing import content, job, values

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import auto_compression, pipeline
from fleetbert.compression.observed import observe
from fleetbert.compression.texts import read_batches
from fleetbert.compression.work import Source
from fleetbert.core.errors import UserError
from fleetbert.engines import answer


def slim(bundle: Path, data: Path, changes: dict) -> config.Quantize:
    texts = {"data": str(data / "train.tsv"), "texts": 200}
    loose = {"calibration": texts, "gate.max_accuracy_drop": 0.5}
    return job(bundle, data, "paddleslim", {**loose, **changes})


def linear_weights(folder: Path) -> dict[str, np.ndarray]:
    source = Source(folder)
    return {
        name: source.arrays[name]
        for name in source.layers.parameters
        if name.startswith("linear_") and name.endswith("w_0")
    }


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ("[QuantPost]", "has no sections"),
        ("QuantPost: {", "is not YAML"),
        ("Quantpost: {}", "no section Quantpost; did you mean QuantPost?"),
        ("Global: {}", "has no strategy"),
        ("ChannelPrune: {}", "ChannelPrune removes channels of convolutions"),
        ("ASPPrune: {}", "ASPPrune trains against the model as it was"),
        ("UnstructurePrune: {ratio: 0.5}\nDistillation: {}", "prune_params_type: null"),
        ("QuantPost: {}\nQuantAware: {}\nDistillation: {}", "leave one of them"),
    ],
)
def test_what_autocompression_would_pass_over_is_refused(tmp_path, sections, sentence):
    file = tmp_path / "act.yaml"
    file.write_text(sections)
    with pytest.raises(UserError, match=r"paddleslim\.config: .*act\.yaml: ") as refused:
        auto_compression.read(config.PaddleSlim(config=str(file)))
    assert sentence in str(refused.value)


@pytest.mark.parametrize("strategy", list(auto_compression.RECIPES))
def test_the_recipes_are_files_that_it_takes(tmp_path, strategy):
    file = tmp_path / "act.yaml"
    file.write_text(yaml.safe_dump(auto_compression.RECIPES[strategy]))
    taken = auto_compression.read(config.PaddleSlim(config=str(file)))
    assert taken == auto_compression.read(config.PaddleSlim(strategy=strategy))


paddle_2 = pytest.mark.usefixtures("paddleslim")


@pytest.fixture
def paddleslim():
    pytest.importorskip("paddleslim", reason="PaddleSlim 2.6.0: on Paddle 2.6.2 only")


@paddle_2
@pytest.mark.slow
def test_quant_post_has_the_thresholds_of_its_texts(bundle, tiny_data):
    """The mean over batches of the mean over texts of the largest magnitude, padding included."""
    settings = slim(bundle, tiny_data, {})
    before = content(bundle / "float32")
    result = pipeline.quantize(settings)
    variant = result.bundle.variant("int8-paddleslim")
    assert content(bundle / "float32") == before
    read = bundles.read(bundle)
    batches = read_batches(settings.calibration, read, settings.selection)
    layers = Source(bundle / "float32").layers
    layers.pad_id = -1
    texts = [np.arange(len(batch["input_ids"]))[:, None] for batch in batches]
    observed = [
        observe(layers, [{name: x[text] for name, x in batch.items()} for text in every])
        for batch, every in zip(batches, texts)
    ]
    assert len(variant.thresholds) >= 6
    for name, threshold in variant.thresholds.items():
        expected = np.mean([some.threshold(name) for some in observed])
        assert threshold == pytest.approx(expected, rel=1e-5)
    assert variant.output_errors and max(variant.output_errors.values()) < 0.3
    assert variant.accuracy[0].accuracy > 0.8
    assert variant.versions["paddleslim"] == "2.6.0"
    assert answer.load(bundle, "int8-paddleslim").labels == list(read.task.labels)


@paddle_2
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["asp", "unstructured", "transformer_prune"])
def test_pruned_by_paddleslim_then_in_int8(bundle, tiny_data, tmp_path, strategy):
    """What it removed stays removed in the int8 variant that static makes of it."""
    whole = linear_weights(bundle / "float32")
    name = "paddleslim-float32"
    changes = {"paddleslim.strategy": strategy}
    if strategy == "transformer_prune":
        with pytest.raises(UserError, match="removed no head; raise its pruned_ratio"):
            pipeline.quantize(slim(bundle, tiny_data, changes))  # a quarter of two heads
        recipe = {**auto_compression.RECIPES[strategy], "TransformerPrune": {"pruned_ratio": 0.5}}
        (tmp_path / "half.yaml").write_text(yaml.safe_dump(recipe))
        changes = {"paddleslim.config": str(tmp_path / "half.yaml")}
    pipeline.quantize(slim(bundle, tiny_data, changes))
    pruned = linear_weights(bundle / name)
    source = {"source": name, "gate.max_accuracy_drop": 0.5}
    pipeline.quantize(job(bundle, tiny_data, "static", source))
    from fleetbert.graph import weights

    integers, _ = weights.load(bundle / "paddleslim-int8-static")
    assert answer.load(bundle, "paddleslim-int8-static").labels
    if strategy == "transformer_prune":
        assert sum(w.size for w in pruned.values()) < 0.9 * sum(w.size for w in whole.values())
        return
    layers = {n: w for n, w in pruned.items() if n in integers and w.shape[0] % 4 == 0}
    assert len(layers) >= 6
    for layer, weight in layers.items():
        zero = weight == 0
        assert zero.mean() >= 0.45
        # A split unit has more columns; the first are the layer's own.
        assert (integers[layer].integers[: len(zero), : zero.shape[1]][zero] == 0).all()
        if strategy == "asp":  # two of each four inputs of an output, or outputs of an input
            groups = [zero.T.reshape(-1, 4), zero.reshape(-1, 4)]
            assert any((four.sum(1) >= 2).all() for four in groups)


@paddle_2
@pytest.mark.slow
def test_its_qat_chooses_by_the_tasks_metric(bundle, tiny_data, caplog):
    caplog.set_level("INFO")
    pipeline.quantize(slim(bundle, tiny_data, {"paddleslim.strategy": "qat"}))
    variant = bundles.read(bundle).variant("int8-paddleslim")
    assert variant.kind == "paddle-inference-int8" and variant.thresholds
    (metric,) = re.findall(r"The metric of final model is ([\d.]+)", caplog.text)
    assert 0.5 < float(metric) <= 1


@paddle_2
@pytest.mark.slow
def test_its_qat_of_the_network_is_int8_as_well(bundle, tiny_data, caplog):
    caplog.set_level("INFO")
    changes = {"paddleslim.strategy": "dygraph_qat", "gate.max_accuracy_drop": 0.05}
    pipeline.quantize(slim(bundle, tiny_data, changes))
    variant = bundles.read(bundle).variant("int8-paddleslim")
    assert variant.kind == "paddle-inference-int8" and len(variant.thresholds) >= 12
    assert re.search(r"step (\d+) of \1: loss 0\.", caplog.text)


@paddle_2
@pytest.mark.slow
def test_a_failure_of_paddleslim_is_one_sentence(bundle, tiny_data, tmp_path):
    file = tmp_path / "act.yaml"
    file.write_text(
        yaml.safe_dump(
            {"ASPPrune": {}, "Distillation": {"loss": "no_such_loss"}, "TrainConfig": {}}
        )
    )
    before = content(bundle)
    with pytest.raises(UserError, match=r"ASPPrune\+Distillation failed \(.+\); the bundle stays"):
        pipeline.quantize(slim(bundle, tiny_data, {"paddleslim.config": str(file)}))
    assert content(bundle) == before


@paddle_2
@pytest.mark.slow
def test_paddleslim_ends_with_the_job_that_was_killed(bundle, tiny_data, tmp_path):
    file = tmp_path / "job.yaml"
    given = values(bundle, tiny_data, "paddleslim", {"paddleslim.strategy": "asp"})
    given["calibration"] = {"data": str(tiny_data / "train.tsv"), "texts": 200}
    file.write_text(yaml.safe_dump(given))
    before = content(bundle)
    command = [
        sys.executable,
        str(processes.ROOT / "launch" / "quantize.py"),
        "--config",
        str(file),
    ]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with started:
        for line in started.stdout:
            if "Selected strategies" in line:
                break
        (child,) = psutil.Process(started.pid).children()
        started.send_signal(signal.SIGKILL)
    child.wait(30)
    after = content(bundle)
    assert {name: after[name] for name in before} == before
    assert not bundles.read(bundle).names[1:]
