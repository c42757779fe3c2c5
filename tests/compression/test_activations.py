"""Every `hidden_act` in each form that a bundle's model can take, as good as gelu in it."""

from __future__ import annotations

import numpy as np
import pytest
from activation import FORMULAS, SAME, bert, make_network
from tiny_bert import WORDS, export

from fleetbert.compression import static
from fleetbert.compression.observed import observe
from fleetbert.compression.texts import feeds
from fleetbert.compression.work import Source
from fleetbert.data import tokenizers
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.export import onnx
from fleetbert.export.program import save_program
from fleetbert.graph import gelu
from fleetbert.graph import program as programs

NAMES = [name for name in FORMULAS if name not in SAME]
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
    return network, export(tmp_path_factory.mktemp("every") / "bundle", network, tiny_vocab).root


@pytest.mark.slow
def test_onnx_computes_the_formulas(every, expected):
    bundle = onnx.export_onnx(every[1])
    assert bundle.variant("onnx").max_difference_to_float32 < 1e-4
    found = answers(bundle.folder("onnx"), engine.ONNX)
    np.testing.assert_allclose(found, expected, atol=5e-5)


@pytest.mark.slow
def test_paddle_lite_computes_the_formulas(every, expected):
    pytest.importorskip("paddlelite", reason="paddlelite has wheels for x86-64, Python 3.8 to 3.10")
    from fleetbert.export import lite

    bundle = lite.export_lite(every[1], "x86", "float32")
    found = answers(bundle.folder("lite-x86-float32"), engine.LITE)
    np.testing.assert_allclose(found, expected, atol=5e-5)
    made = lite.export_lite(every[1], "armv8", "float32").variant("lite-armv8-float32")
    assert made.max_difference_to_float32 < 1e-4


class Errors(dict):
    """Of int8 beside float32, relative, by name of the activation."""

    def __init__(self, vocab, folder):
        self.vocab, self.folder = vocab, folder

    def __missing__(self, name):
        network = make_network(name, scale=SMALL)
        bundle = export(self.folder / name, network, self.vocab)
        source = Source(bundle.folder("float32"))
        folder = self.folder / f"{name}-int8"
        folder.mkdir()
        static.write(
            static.of_texts(source, observe(source.layers, texts_of(bundle)), "abs_max"), folder
        )
        test = random_batch(np.random.default_rng(2), (32, 32), 195)
        before = answers(source.folder, engine.FLOAT32, test)
        self[name] = relative(answers(folder, engine.INT8, test), before)
        return self[name]


def texts_of(bundle):
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 20)) for _ in range(64)]
    tokenizer = tokenizers.open(bundle)
    encodings = tokenizer.encode(texts, None, bundle.max_length)
    return feeds(encodings, range(64), tokenizer.pad_id)


def relative(found, wanted):
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


@pytest.fixture(scope="module")
def errors(tiny_vocab, tmp_path_factory):
    return Errors(tiny_vocab, tmp_path_factory.mktemp("int8"))


@pytest.mark.parametrize(
    "name", ["relu", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gelu_new", "tanh"))]
)
def test_int8_is_as_near_as_with_gelu(errors, name):
    """Spelled out, never negative, and bounded."""
    assert 0 < errors[name] < 1.5 * errors["gelu"]
    assert errors["gelu"] < 0.05


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
