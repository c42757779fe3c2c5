"""Every `hidden_act` in each form that a bundle's model can take, as good as gelu in it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from activation import FORMULAS, SAME, bert, make_bundle, make_network
from tiny_bert import WORDS

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import from_program, onnx, qat, static
from fleetbert.compress.texts import feeds
from fleetbert.compress.work import Source
from fleetbert.data import tokenizers
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.export.program import save_program
from fleetbert.graph import gelu
from fleetbert.graph import program as programs

NAMES = [name for name in FORMULAS if name not in SAME]
# In int8: spelled out, never negative, and bounded.
OTHERS = ["gelu_new", "relu", pytest.param("tanh", marks=pytest.mark.endurance)]
BATCH = random_batch(np.random.default_rng(1), (3, 16), 100)
# Of random weights: with 0.3 a rounding becomes an error of a sixth.
SMALL = 0.05


@pytest.fixture(scope="module")
def expected(every):
    """Of the network with every activation. With another one in a layer it would answer others."""
    state = {n: t.numpy() for n, t in every[0].network.state_dict().items()}
    right = bert(state, [FORMULAS[name] for name in NAMES], *BATCH)
    for place, name in enumerate(NAMES):
        for other in {*NAMES} - {name}:
            others = [*NAMES[:place], other, *NAMES[place + 1 :]]
            wrong = bert(state, [FORMULAS[one] for one in others], *BATCH)
            assert np.abs(wrong - right).max() > 3e-4, (name, other)
    return right


def answers(folder, kind, batch=BATCH):
    return engine.open_folder(kind, folder, "cpu", 1)(*batch)


@pytest.fixture(scope="module")
def every(tiny_vocab, tmp_path_factory):
    """A network with another activation in each layer, and its bundle, to which variants are
    added."""
    network = make_network(*NAMES)
    return network, make_bundle(tmp_path_factory.mktemp("every") / "bundle", network, tiny_vocab)


def test_onnx_computes_the_formulas(every, expected):
    bundle = onnx.export_onnx(every[1]).bundle
    assert bundle.variant("onnx").max_difference_to_float32 < 1e-4
    found = answers(bundle.folder("onnx"), engine.ONNX)
    np.testing.assert_allclose(found, expected, atol=5e-5)


def test_paddle_lite_computes_the_formulas(every, expected):
    pytest.importorskip("paddlelite", reason="paddlelite has wheels for x86-64, Python 3.8 to 3.10")
    from fleetbert.compress import lite

    bundle = lite.export_lite(every[1], "x86", "float32").bundle
    found = answers(bundle.folder("lite-x86-float32"), engine.LITE)
    np.testing.assert_allclose(found, expected, atol=5e-5)
    made = lite.export_lite(every[1], "armv8", "float32").bundle.variant("lite-armv8-float32")
    assert made.max_difference_to_float32 < 1e-4


class Errors:
    """Of int8 beside what it was made from, relative, by name of the activation."""

    def __init__(self, vocab, folder):
        self.vocab, self.folder, self.found = vocab, folder, {}

    def of(self, name):
        if name not in self.found:
            self.found[name] = self._measure(name, self.folder / name)
        return self.found[name]

    def _measure(self, name, folder):
        folder.mkdir()
        network = make_network(name, scale=SMALL)
        bundle = bundles.read(make_bundle(folder / "bundle", network, self.vocab))
        batches = texts_of(bundle)
        source = Source(bundle.folder("float32"))
        test = random_batch(np.random.default_rng(2), (32, 32), 195)
        static.write_mix(static.of_texts(source, batches, "abs_max"), folder)
        before = answers(source.folder, engine.FLOAT32, test)
        of_static = relative(answers(folder, engine.INT8, test), before)

        (folder / "qat").mkdir()
        names = from_program.names(source.program, "bundle")
        left = source.float32_layers(())
        start = qat.begin(source, batches, left, config.Calibration(split="none"))
        qat.quantize_network(network, {names.linear[one]: found for one, found in start.items()})
        trained = qat._trained(source, network, names)
        model = SimpleNamespace(task=SimpleNamespace(per_token=False))
        gate = SimpleNamespace(few=lambda count: batches, threads=1, model=model)
        work = SimpleNamespace(
            source=source, bundle=bundle, gate=gate, job=SimpleNamespace(skip=(), source="float32")
        )
        qat.write(work, trained, folder / "qat")
        as_trained = network(*map(paddle.to_tensor, test)).numpy()
        of_qat = relative(answers(folder / "qat", engine.INT8, test), as_trained)
        return of_static, of_qat


def texts_of(bundle):
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 20)) for _ in range(64)]
    tokenizer = tokenizers.open(bundle)
    encodings = tokenizer.encode(texts, None, bundle.max_length)
    return feeds(encodings, range(64), 1024, tokenizer.pad_id)


def relative(found, wanted):
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


@pytest.fixture(scope="module")
def errors(tiny_vocab, tmp_path_factory):
    return Errors(tiny_vocab, tmp_path_factory.mktemp("int8"))


@pytest.mark.parametrize("name", OTHERS)
def test_int8_is_as_near_as_with_gelu(errors, name):
    """After calibration beside float32, after training beside the trained network."""
    for found, of_gelu in zip(errors.of(name), errors.of("gelu")):
        assert 0 < found < 1.5 * of_gelu
    assert errors.of("gelu")[0] < 0.05


def test_only_the_approximation_is_spelled_out(tmp_path):
    kinds = {}
    for name in ("gelu", "gelu_new"):
        save_program(make_network(name), tmp_path / name)
        program = programs.read(tmp_path / name / "model.pdmodel")
        before = program.SerializeToString()
        kinds[name] = [op.type for op in gelu.spell_out(program).blocks[0].ops]
        assert program.SerializeToString() == before
        assert (gelu.spell_out(program) == program) == (name == "gelu")
    assert kinds["gelu"].count("gelu") == 2
    assert "gelu" not in kinds["gelu_new"]
