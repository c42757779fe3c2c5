"""Exported Paddle Inference programs, float32 and quantized, become bundles; others are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import commands
import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.static.quantization import PostTrainingQuantization
from tiny_bert import LABELS, VOCAB, WORDS, make_network

import fleetbert
from fleetbert import bundle as bundles
from fleetbert.compat import program_desc
from fleetbert.compat.static_graph import static_graph
from fleetbert.core.errors import UserError
from fleetbert.graph import program as programs
from fleetbert.graph import weights

TEXTS = [" ".join(WORDS[at : at + 1 + at % 11]) for at in range(0, 138, 5)]


def export(
    folder: Path, network: nn.Layer, shapes=((None, None), (None, None)), names=None
) -> Path:
    """A folder as PaddleNLP's export leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = names or ("input_ids", "token_type_ids")
    spec = [paddle.static.InputSpec(list(one), "int64", name) for one, name in zip(shapes, names)]
    network.eval()
    with program_desc.into_program_desc():  # 3.3.1 by itself writes another format
        paddle.jit.save(network, str(folder / "inference"), input_spec=spec)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    labels = {str(number): label for number, label in enumerate(LABELS)}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "id2label": labels}))
    return folder


def ids_of(texts) -> list[np.ndarray]:
    return [np.array([[2, *map(VOCAB.index, text.split()), 3]], np.int64) for text in texts]


def directly(folder: Path, texts, names=("input_ids", "token_type_ids")) -> np.ndarray:
    """Logits of the files in the folder, by paddle.inference as its own page shows it."""
    config = paddle.inference.Config(
        str(folder / "inference.pdmodel"), str(folder / "inference.pdiparams")
    )
    config.disable_glog_info()
    config.switch_ir_optim(False)
    predictor = paddle.inference.create_predictor(config)
    found = []
    for ids in ids_of(texts):
        for name, array in zip(names, (ids, np.zeros_like(ids))):
            predictor.get_input_handle(name).copy_from_cpu(array)
        predictor.run()
        output = predictor.get_output_handle(predictor.get_output_names()[0])
        found.append(output.copy_to_cpu()[0].copy())
    return np.array(found)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("exported") / "model", make_network())


def quantize(exported: Path, folder: Path) -> Path:
    """The exported model after Paddle's post-training quantization, which PaddleSlim's calls do."""
    shutil.copytree(exported, folder)
    place, scope = paddle.CPUPlace(), paddle.static.Scope()
    batches = [{"input_ids": ids, "token_type_ids": np.zeros_like(ids)} for ids in ids_of(TEXTS)]

    class Texts(paddle.io.IterableDataset):
        def __iter__(self):
            return iter(batches)

    with static_graph(), paddle.static.scope_guard(scope):
        quantization = PostTrainingQuantization(
            executor=paddle.static.Executor(place),
            scope=scope,
            model_dir=str(exported),
            model_filename="inference.pdmodel",
            params_filename="inference.pdiparams",
            data_loader=paddle.io.DataLoader(Texts(), batch_size=None, places=[place]),
            batch_nums=len(batches),
            algo="abs_max",
            quantizable_op_type=["matmul_v2"],
            weight_quantize_type="channel_wise_abs_max",
            onnx_format=True,
        )
        quantization.quantize()
        names = "inference.pdmodel", "inference.pdiparams"
        quantization.save_quantized_model(str(folder), *names)
    return folder


def logits_of(bundle: Path, variant: str, texts=TEXTS) -> np.ndarray:
    return np.array([one.logits for one in fleetbert.load(bundle, variant=variant)(list(texts))])


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_a_float32_program(exported, tmp_path, capsys):
    assert commands.call("import", exported, "--output", tmp_path / "bundle") == 0
    opened = bundles.read(tmp_path / "bundle")
    assert (opened.labels, opened.max_length) == (LABELS, 128)
    assert [variant.name for variant in opened.manifest.variants] == ["float32"]
    wanted = directly(exported, TEXTS)
    assert np.std(wanted) > 0.5
    np.testing.assert_allclose(logits_of(opened.root, "float32"), wanted, atol=1e-4)
    assert "float32, 128 tokens, bad, so so, 好" in capsys.readouterr().out
    # It is quantized as any bundle.
    table = [(text, LABELS[best]) for text, best in zip(TEXTS, wanted.argmax(1))]
    fleetbert.quantize(opened.root, method="static", calibration=TEXTS, gate=table, max_drop=1.0)
    assert error(logits_of(opened.root, "int8-static"), wanted) < 0.1


def test_layers_that_share_their_weights(tmp_path):
    """As ALBERT's; each has inputs of its own to smooth and to cut."""
    network = make_network()
    layers = network.network.bert.encoder.layers
    layers[1] = layers[0]
    folder = export(tmp_path / "model", network)
    bundle = fleetbert.import_model(folder, tmp_path / "bundle")
    wanted = directly(folder, TEXTS)
    np.testing.assert_allclose(logits_of(bundle, "float32"), wanted, atol=1e-4)
    table = [(text, LABELS[best]) for text, best in zip(TEXTS, wanted.argmax(1))]
    fleetbert.quantize(bundle, method="static", calibration=TEXTS, gate=table, max_drop=1.0)
    assert error(logits_of(bundle, "int8-static"), wanted) < 0.1


def test_attention_without_a_bias_is_refused_by_static(tmp_path):
    network = make_network()
    network.network.bert.encoder.layers[0].self_attn.q_proj.bias = None
    bundle = fleetbert.import_model(export(tmp_path / "model", network), tmp_path / "bundle")
    table = [(text, label) for text, label in zip(TEXTS, LABELS)]
    with pytest.raises(UserError, match="a linear layer with a bias is needed"):
        fleetbert.quantize(bundle, method="static", calibration=TEXTS, gate=table, max_drop=1.0)
    assert fleetbert.quantize(bundle, method="dynamic", gate=table, max_drop=1.0).size > 0


@pytest.mark.slow
def test_inputs_of_other_names(tmp_path):
    names = ("x", "y")
    folder = export(tmp_path / "model", make_network(), names=names)
    bundle = fleetbert.import_model(folder, tmp_path / "bundle")
    wanted = directly(folder, TEXTS, names)
    np.testing.assert_allclose(logits_of(bundle, "float32"), wanted, atol=1e-4)


@pytest.mark.slow
def test_a_quantized_program_keeps_its_own_scales(exported, tmp_path):
    quantized = quantize(exported, tmp_path / "model")
    bundle = fleetbert.import_model(quantized, tmp_path / "bundle")
    opened = bundles.read(bundle)
    assert [variant.name for variant in opened.manifest.variants] == ["float32", "int8-imported"]
    wanted = directly(quantized, TEXTS)
    assert error(wanted, directly(exported, TEXTS)) > 1e-3  # it does round
    # Of random weights this large a rounding becomes a tenth: 0.07 and 0.10, with 7 bits.
    assert error(logits_of(bundle, "float32"), wanted) < 0.15
    assert error(logits_of(bundle, "int8-imported"), wanted) < 0.15
    program = programs.read(quantized / "inference.pdmodel")
    arrays = programs.read_parameters(program, quantized / "inference.pdiparams")
    scales = {
        programs.argument(op.inputs, "X"): arrays[programs.argument(op.inputs, "Scale")]
        for op in program.blocks[0].ops
        if op.type in ("quantize_linear", "dequantize_linear")
    }
    found = opened.variant("int8-imported").thresholds
    assert len(found) == 14  # of two layers, the pooler and the classifier
    assert set(found.values()) <= {scale.item() for scale in scales.values() if scale.size == 1}
    stored, _ = weights.load(bundle / "int8-imported")
    for name in found:
        np.testing.assert_array_equal(stored[name].integers, arrays[name])
        np.testing.assert_array_equal(stored[name].scales, scales[name].reshape(-1))
    smaller = opened.variant("int8-imported").bytes / opened.variant("float32").bytes
    assert smaller < 0.6


def paddlenlps():
    """A tiny BERT of PaddleNLP's."""
    from paddlenlp.transformers import BertConfig, BertForSequenceClassification  # it takes seconds

    paddle.seed(1)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(
        vocab_size=len(VOCAB), hidden_size=64, initializer_range=0.3, num_labels=3, **shape
    )
    return BertForSequenceClassification(config)


class Changed(nn.Layer):
    """PaddleNLP's BERT, whose forward is another."""

    def __init__(self, forward):
        super().__init__()
        self.network, self.change = paddlenlps(), forward

    def forward(self, input_ids, token_type_ids, attention_mask=None):
        return self.change(self.network, input_ids, token_type_ids, attention_mask)


@pytest.mark.slow
def test_a_quantized_program_that_the_int8_engine_cannot_run(tmp_path, caplog):
    """It makes its mask in a way that is not PaddleNLP's."""
    network = Changed(lambda net, ids, types, _: net(ids, types, attention_mask=ids > 0))
    folder = quantize(export(tmp_path / "model", network), tmp_path / "quantized")
    bundle = fleetbert.import_model(folder, tmp_path / "bundle")
    assert [variant.name for variant in bundles.read(bundle).manifest.variants] == ["float32"]
    assert error(logits_of(bundle, "float32"), directly(folder, TEXTS)) < 0.15
    assert "float32 alone, for the int8 engine cannot run it: StopIteration" in caplog.text


THREE = ((None, None),) * 3
NAMES = ("input_ids", "token_type_ids", "attention_mask")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "how", "sentence"),
    [
        (
            lambda net, ids, types, mask: net(ids, types, attention_mask=mask),
            {"shapes": THREE, "names": NAMES},
            "is given input_ids, token_type_ids, attention_mask, and a bundle's program",
        ),
        (
            lambda net, ids, types, _: net(ids, types),
            {"shapes": ((None, 16), (None, 16))},
            r"its input input_ids is no int64 \[-1, -1\] but \[-1, 16\]",
        ),
        (lambda net, ids, types, _: (net(ids, types), ids), {}, "has 2 outputs"),
        (lambda net, ids, types, _: net(ids, types)[:, 0], {}, r"answers with shape \[1\]"),
        (
            lambda net, ids, types, _: net(ids, types, attention_mask=paddle.ones_like(ids)),
            {},
            "answers otherwise when padding follows a text, and the tokenizer's padding is token 0",
        ),
        (
            lambda net, ids, types, _: paddle.sort(net(ids, types)),
            {},
            "has the operator argsort, which no classifier here computes with",
        ),
    ],
    ids=["mask", "length", "outputs", "shape", "padding", "operator"],
)
def test_programs_that_cannot_be_served(tmp_path, forward, how, sentence):
    folder = export(tmp_path / "model", Changed(forward), **how)
    with pytest.raises(UserError, match=sentence):
        fleetbert.import_model(folder, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: (f / "inference.pdiparams").unlink(), "inference.pdiparams is not beside it"),
        (lambda f: (f / "inference.pdmodel").write_bytes(b"\xff" * 40), "cannot be read"),
        (lambda f: (f / "inference.pdiparams").write_bytes(b"\0" * 9), "cannot be read"),
        (lambda f: shutil.copy(f / "inference.pdmodel", f / "b.pdmodel"), "several programs"),
        (lambda f: (f / "vocab.txt").unlink(), "has no vocab.txt: put the model's beside"),
        (
            lambda f: (f / "vocab.txt").write_text("\n".join([*VOCAB, *"abc"])),
            "looks up 195 words, and its tokenizer has 198",
        ),
    ],
)
def test_files_that_cannot_be_used(exported, tmp_path, change, sentence):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    change(folder)
    with pytest.raises(UserError, match=sentence):
        fleetbert.import_model(folder, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_labels_and_lengths_that_do_not_fit(exported, tmp_path):
    with pytest.raises(
        UserError, match="has 3 logits, and the labels a, b; give as many, in their order"
    ):
        fleetbert.import_model(exported, tmp_path / "bundle", labels=["a", "b"])
    small = export(tmp_path / "small", make_network(positions=32))
    with pytest.raises(UserError, match="cannot run it on texts of up to 64 tokens"):
        fleetbert.import_model(small, tmp_path / "bundle", max_length=64)


def test_weights_beside_a_program_are_taken_instead(exported, tmp_path):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"model\.init"):
        fleetbert.import_model(folder, tmp_path / "bundle")
