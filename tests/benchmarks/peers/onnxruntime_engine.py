"""ONNX Runtime, after its own optimizer of transformers with all fusions, and its own quantizer."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
from batches import calibration, inputs_of

INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def export(folder: Path, target: Path) -> None:
    """PyTorch's ONNX of the model, with attention as the optimizer knows it."""
    import torch
    import transformers

    network = transformers.BertForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    ids = torch.ones(2, 8, dtype=torch.long)
    feeds = {"input_ids": ids, "attention_mask": ids, "token_type_ids": torch.zeros_like(ids)}
    torch.onnx.export(
        network,
        (feeds,),
        str(target),
        input_names=list(feeds),
        output_names=["logits"],
        dynamic_axes={name: {0: "texts", 1: "length"} for name in feeds},
        opset_version=17,
        dynamo=False,
    )


def fuse(model: Path, target: Path, config: dict) -> None:
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(
        str(model),
        model_type="bert",
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
    )
    if not fused.get_fused_operator_statistics()["Attention"]:
        raise ValueError("onnxruntime.transformers.optimizer fused no attention")
    fused.save_model_to_file(str(target))


def quantize(model: Path, target: Path, job: dict) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    settings = {
        "per_channel": True,
        "weight_type": quantization.QuantType.QInt8,
        # Types are not inferred through fused operators.
        "extra_options": {"DefaultTensorType": onnx.TensorProto.FLOAT},
    }
    if job["form"] == "dynamic":
        quantization.quantize_dynamic(str(model), str(target), **settings)
        return

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.left = iter(calibration(job))

        def get_next(self):
            return next(self.left, None)

    inferred = target.with_name("onnx-inferred.onnx")
    quant_pre_process(str(model), str(inferred), skip_optimization=True)
    quantization.quantize_static(
        str(inferred),
        str(target),
        Reader(),
        quant_format=quantization.QuantFormat.QOperator,
        op_types_to_quantize=["MatMul", "Gemm"],
        activation_type=quantization.QuantType.QUInt8,
        **settings,
    )


def made(job: dict) -> Path:
    """The file of the setting, which is made in `job["files"]` once."""
    import transformers

    files = Path(job["files"])
    target = files / f"onnx-{job['form']}.onnx"
    if not target.is_file():
        plain, fused = files / "onnx-plain.onnx", files / "onnx-fused.onnx"
        export(Path(job["folder"]), plain)
        fuse(plain, fused, transformers.AutoConfig.from_pretrained(job["folder"]).to_dict())
        new = target.with_suffix(".new")
        quantize(fused, new, job)
        new.rename(target)
    return target


def open_engine(job):
    """model: an ONNX file, else it is made: form says how it is quantized. callers: how many run at
    once, with their share of the threads each."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = job["threads"] // job.get("callers", 1)
    options.log_severity_level = 3
    model = job.get("model") or str(made(job))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(input_ids, token_type_ids):
        return session.run(["logits"], inputs_of(input_ids, token_type_ids, job["pad_id"]))[0]

    return run, onnxruntime.__version__
