"""The ranges of activations, found by running texts through Paddle's post-training quantization.

PaddleSlim's `quant_post_static` calls the same class, with the same scales and integers
(tests/compression/test_paddleslim.py), and only writes files, which would be read again here.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np
import paddle
from paddle.static.quantization import PostTrainingQuantization

from fleetbert.compat.static_graph import quick_graphs, static_graph
from fleetbert.compression.texts import Feeds
from fleetbert.engines.engine import INPUTS
from fleetbert.graph import program as programs
from fleetbert.graph import quantizers
from fleetbert.graph.quantizers import LINEAR
from fleetbert.graph.weights import Quantized


class Calibration(NamedTuple):
    """thresholds: largest magnitude to represent, by activation; weights: int8 [K, N] of each
    Linear; program: the quantize-dequantize program (ONNX format) that says the same."""

    thresholds: dict[str, float]
    weights: dict[str, Quantized]
    program: programs.ProgramDesc
    parameters: dict[str, np.ndarray]


def calibrate(
    folder: Path, batches: Sequence[Feeds], algorithm: str = "avg", skip: Sequence[str] = ()
) -> Calibration:
    """Run `batches` through the float32 program in `folder` and quantize it.

    algorithm: abs_max, or avg (mean over the batches of each one's maximum). Weights are rounded
    to the nearest: `round_type="adaround"` of Paddle learns nothing, as its loss is computed
    from outputs that are fed as data.
    skip: names of weights that stay float32.
    """
    logging.getLogger("paddle.static.quantization.post_training_quantization").setLevel("WARNING")
    place = paddle.CPUPlace()
    fed = [{name: batch[name] for name in INPUTS} for batch in batches]
    loader = paddle.io.DataLoader(fed, batch_size=None, places=[place])
    scope = paddle.static.Scope()
    with static_graph(), quick_graphs(), paddle.static.scope_guard(scope):
        quantization = PostTrainingQuantization(
            executor=paddle.static.Executor(place),
            scope=scope,
            model_dir=str(folder),
            model_filename="model.pdmodel",
            params_filename="model.pdiparams",
            data_loader=loader,
            batch_nums=len(batches),
            algo=algorithm,
            quantizable_op_type=[LINEAR],
            weight_quantize_type="channel_wise_abs_max",
            skip_tensor_list=list(skip),
            onnx_format=True,
        )
        desc = quantization.quantize().desc.serialize_to_string()
        program = programs.ProgramDesc.FromString(desc)
        parameters = {
            name: np.array(scope.find_var(name).get_tensor())
            for name in programs.parameter_names(program)
        }
    thresholds, weights = quantizers.read(program, parameters)
    for name in weights:  # Paddle leaves that to its own way of saving
        programs.tensor(program.blocks[0], name).data_type = programs.VarType.INT8
    return Calibration(thresholds, weights, program, parameters)


def with_thresholds(
    calibration: Calibration, source: programs.ProgramDesc, thresholds: dict[str, float]
) -> Calibration:
    """The calibration of the program `source` with other thresholds for inputs of layers, given
    by the weight that each is multiplied with."""
    changed, parameters = dict(calibration.thresholds), dict(calibration.parameters)
    for op in source.blocks[0].ops:
        if op.type == LINEAR and programs.argument(op.inputs, "Y") in thresholds:
            threshold = thresholds[programs.argument(op.inputs, "Y")]
            changed[programs.argument(op.inputs, "X")] = threshold
    for op in calibration.program.blocks[0].ops:
        if op.type == "quantize_linear" and programs.argument(op.inputs, "X") in changed:
            scale = programs.argument(op.inputs, "Scale")
            value = changed[programs.argument(op.inputs, "X")]
            parameters[scale] = np.full_like(parameters[scale], value)
    return calibration._replace(thresholds=changed, parameters=parameters)
