"""A bundle's program becomes a network again."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from fleetbert import bundle as bundles
from fleetbert.compress import from_program
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.errors import UserError
from fleetbert.graph import program as programs
from fleetbert.models import heads, weights


def test_the_network_answers_like_the_program(tiny_bundle):
    bundle = bundles.read(tiny_bundle)
    source = from_program.open_bundle(bundle, 0.2)
    paddle.seed(9)
    shape = weights.bert_config(source, len(bundle.task.labels), 1)
    network = heads.build("classification", shape)
    report = weights.load(network, source)
    assert report == ([], [])
    assert shape.num_attention_heads == 4
    assert shape.hidden_dropout_prob == 0.2
    network.eval()
    ids, types = random_batch(np.random.default_rng(1), (3, 32), 100)
    found = network(paddle.to_tensor(ids), paddle.to_tensor(types)).numpy()
    expected = engine.open_folder(engine.FLOAT32, bundle.folder("float32"), "cpu", 1)(ids, types)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_every_parameter_has_a_name(tiny_bundle):
    program = programs.read(bundles.read(tiny_bundle).folder("float32") / "model.pdmodel")
    found = from_program.names(program, "bundle")
    assert set(found.parameters) == set(programs.parameter_names(program))
    assert len(set(found.parameters.values())) == len(found.parameters)
    assert list(found.linear.values())[-1] == "classifier.weight"


def test_another_program_is_refused(tiny_bundle):
    program = programs.read(bundles.read(tiny_bundle).folder("float32") / "model.pdmodel")
    block = program.blocks[0]
    products = [op for op in block.ops if op.type == "matmul_v2"]
    programs.replace_ops(block, [op for op in block.ops if op is not products[-1]])
    with pytest.raises(UserError, match="here is not the program of a BERT as training exports it"):
        from_program.names(program, "here")
