"""An exported Paddle Inference program of a classifier → a bundle, without its training code.

A float32 program becomes the variant float32 as it is, but for the names of its inputs and its
output. A quantized one, as PaddleSlim's ACT and Paddle's post-training quantization save it (ONNX
format: quantize_linear, dequantize_linear), becomes two: float32, with its weights widened, and
int8-imported, with its own integers and scales. Both are compared with the program that was given,
run by Paddle Inference without any pass.
"""

from __future__ import annotations

import functools
import logging
import shutil
import struct
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

import numpy as np
import paddle
from google.protobuf.message import DecodeError

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compat import messages, paddle_inference
from fleetbert.core import charset
from fleetbert.core.device import CPU
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import tokenizers
from fleetbert.engines import alike, engine, golden, predictor
from fleetbert.export.program import versions
from fleetbert.graph import int8, quantizers, tidy, weights
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import fuse, merge_transposes
from fleetbert.graph.program import Parameters, ProgramDesc, VarType
from fleetbert.graph.quantizers import QUANTIZERS
from fleetbert.graph.weights import Quantized

NAME = "int8-imported"
PROGRAM = ".pdmodel"
WEIGHTS = ("model*.safetensors*", "model_state*.pdparams*", "pytorch_model*.bin*")
# Relative error (Frobenius norm) of the logits of a quantized program's variants beside its own, on
# random ids. float32 does not round activations, int8-imported no products of attention, and some
# processors take 7 bits of weights. Another model's logits are off by more than 1.
LARGEST_ERROR = 0.5
PADDED = 14  # tokens of a row that is half padding; it and its half are of SAFE_LENGTHS
# What classifiers compute with. Others may read files, write them or run Python.
OPERATORS = {
    "arange", "assign", "assign_value", "bmm", "cast", "clip", "concat", "cumsum", "dropout",
    "elementwise_add", "elementwise_div", "elementwise_mul", "elementwise_pow", "elementwise_sub",
    "equal", "erf", "exp", "expand_as_v2", "expand_v2", "fc", "feed", "fetch", "fill_any_like",
    "fill_constant", "fill_constant_batch_size_like", "flatten_contiguous_range", "gather", "gelu",
    "greater_than", "layer_norm", "less_than", "logical_and", "logical_not", "logical_or",
    "lookup_table", "lookup_table_v2", "matmul", "matmul_v2", "mul", "not_equal", "pow", "range",
    "reduce_max", "reduce_mean", "reduce_sum", "relu", "reshape2", "rsqrt", "scale", "shape",
    "sigmoid", "silu", "slice", "softmax", "split", "sqrt", "square", "squeeze2", "stack",
    "strided_slice", "sum", "swish", "tanh", "tile", "transpose2", "unsqueeze2", "unstack", "where",
    *QUANTIZERS,
}  # fmt: skip

Fields = Dict[str, Any]  # of config.json
# input_ids and token_type_ids, int64 [texts, length].
Batch = Tuple[np.ndarray, np.ndarray]

log = logging.getLogger(__name__)


class Given(NamedTuple):
    """path: of the .pdmodel file; inputs: its own names of input_ids and token_type_ids; program:
    with fleetbert's names; arrays: its parameters."""

    path: Path
    inputs: list[str]
    program: ProgramDesc
    arrays: Parameters


class Widened(NamedTuple):
    """A quantized program in float32. thresholds: the magnitude that becomes 127, by activation;
    quantized: the weights that it had as integers."""

    program: ProgramDesc
    arrays: Parameters
    thresholds: dict[str, float]
    quantized: dict[str, Quantized]


def find(folder: Path) -> Path | None:
    """The program in a folder; None where it has none, or has a model's weights to take instead."""
    paths = sorted(folder.glob(f"*{PROGRAM}")) if folder.is_dir() else []
    if not paths or any(True for pattern in WEIGHTS for _ in folder.glob(pattern)):
        return None
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(f"{folder} has several programs ({names}): leave one of them in it")
    return paths[0]


def import_program(
    path: Path,
    model: config.Model,
    bundle: Path,
    answers: Callable[[Fields, int], tuple[str, list[str]]],
    max_length: int | None,
    read_by: Callable[[str, int], Reading],
) -> bundles.Bundle:
    """Write the program at `path` (.pdmodel), the .pdiparams beside it and the folder's tokenizer
    as a bundle.

    max_length: None: as many as config.json has positions, at most 512, or 128 without one.
    answers: the task and the labels, of the folder's config.json ({} without one) and the number of
    logits. read_by: how texts are read, of the task and max_length. UserError says why a program
    cannot be served.
    """
    given = read(path)
    spec = tokenizers.changed(tokenizers.find(path.parent), model.vocab, model.lowercase)
    for file in spec.files.values():
        if not file.is_file():
            raise UserError(f"{path.parent} has no {file.name}: put the model's beside {path.name}")
    tokenizer = tokenizers.open(spec)
    widened = widen(given.program, given.arrays)
    (words,) = (
        len(widened.arrays[programs.argument(op.inputs, "W")])
        for op in widened.program.blocks[0].ops
        if op.type == "lookup_table_v2" and programs.argument(op.inputs, "Ids") == "input_ids"
    )
    if tokenizer.vocab_size > words:
        raise UserError(
            f"{path}: looks up {words} words, and its tokenizer has {tokenizer.vocab_size}; put "
            "the tokenizer that it was trained with beside it"
        )
    file = path.with_name("config.json")
    fields = charset.read_json(file, "configuration") if file.is_file() else {}
    if max_length is None:
        max_length = min(int(fields.get("max_position_embeddings", 128)), 512)
    pad_id = tokenizer.pad_id
    batches = alike.random_batches(max_length, tokenizer.vocab_size, pad_id)
    expected = _answers(given, batches)
    _check_padding(given, tokenizer)
    task, labels = answers(fields, expected[0].shape[1])

    def fill(folder: Path) -> list[bundles.Variant]:
        written = programs.write_model(folder / "float32", widened.program, widened.arrays)
        opened = engine.open_folder(engine.FLOAT32, written, pad_id=pad_id)
        float32 = functools.partial(opened, pad_id=pad_id)
        logits = [float32(*batch) for batch in batches]
        difference = alike.difference(logits, expected)
        error = _error(logits, expected)
        rounded = widened.quantized and error <= LARGEST_ERROR
        if not (rounded or difference <= alike.LARGEST_DIFFERENCE):  # also catches NaN
            raise UserError(
                f"{path}: as a float32 variant its logits differ by {difference:.3g} from what "
                "Paddle Inference answers without passes; export it again in float32"
            )
        described = describe(float32, logits, golden.FLOAT_SHARE)
        float32_variant = bundles.ProgramVariant(
            name="float32", runs_on=["x86", "gpu", "armv8"], **described
        )
        if not widened.quantized:
            return [float32_variant]
        made = _int8(widened, folder, batches, expected, path, pad_id)
        if made is None:
            return [float32_variant]
        variant, int8_run, answered = made
        described = describe(int8_run, answered, golden.INTEGER_SHARE)
        return [float32_variant, variant.model_copy(update=described)]

    def describe(run: golden.Run, logits: list[np.ndarray], share: float) -> dict[str, object]:
        """Fields of the manifest for a variant that gave `logits`."""
        return {
            "made_from": str(path),
            "versions": versions(),
            "max_difference_to_network": alike.difference(logits, expected),
            "golden": golden.record(run, max_length, tokenizer.vocab_size, share, pad_id),
        }

    return bundles.create(
        bundle,
        task=task,
        labels=labels,
        max_length=max_length,
        tokenizer=spec,
        fill=fill,
        reading=read_by(task, max_length),
    )


def read(path: Path) -> Given:
    """UserError for a program that is damaged, or is asked or answers otherwise than a bundle's."""
    parameters = path.with_suffix(".pdiparams")
    if not parameters.is_file():
        raise UserError(f"{path}: {parameters.name} is not beside it; copy both files")
    try:
        program = programs.read(path)
        arrays = programs.read_parameters(program, parameters)
    except (DecodeError, ValueError, KeyError, OverflowError, struct.error) as error:
        raise UserError(
            f"{path} or {parameters.name} cannot be read ({error}): export it again"
        ) from error
    if len(program.blocks) != 1:
        raise UserError(
            f"{path}: has branches or loops ({len(program.blocks)} blocks), which no BERT has"
        )
    block = program.blocks[0]
    strange = sorted({op.type for op in block.ops} - OPERATORS)
    if strange:
        quantized = any(name.startswith("fake_") for name in strange)
        raise UserError(
            f"{path}: has the operator {strange[0]}, which no classifier here computes with"
            + (": save the quantized program with onnx_format" if quantized else "")
        )
    outputs = programs.output_names(program)
    if len(outputs) != 1:
        raise UserError(f"{path}: has {len(outputs)} outputs; export it with its logits alone")
    inputs = _inputs(program, path)
    for old, new in zip(inputs, engine.INPUTS):
        tidy.rename(block, old, new)
    return Given(path, inputs, tidy.tidy(program), arrays)


def _inputs(program: ProgramDesc, path: Path) -> list[str]:
    """The names of what is input_ids and token_type_ids in every bundle, told by the tables that
    they are looked up in: words have most rows."""
    block = program.blocks[0]
    inputs = programs.input_names(program)
    for name in inputs:
        tensor = programs.tensor(block, name)
        if tensor.data_type != VarType.INT64 or list(tensor.dims) != [-1, -1]:
            raise UserError(
                f"{path}: its input {name} is no int64 [-1, -1] but {list(tensor.dims)}; export it "
                "for texts of any number and length"
            )
    looked_up = {
        programs.argument(op.inputs, "Ids"): programs.argument(op.inputs, "W")
        for op in block.ops
        if op.type == "lookup_table_v2"
    }
    if len(inputs) != 2 or not set(inputs) <= set(looked_up):
        raise UserError(
            f"{path}: is given {', '.join(inputs) or 'nothing'}, and a bundle's program is given "
            "input_ids and token_type_ids; export it with these two, so that it makes masks and "
            "positions itself"
        )

    return sorted(inputs, key=lambda name: -programs.tensor(block, looked_up[name]).dims[0])


def _answers(given: Given, batches: Sequence[Batch]) -> list[np.ndarray]:
    """The program's logits as it stands, by Paddle Inference without passes."""
    try:
        options = paddle_inference.config_of(given.path, given.path.with_suffix(".pdiparams"))
        options.switch_ir_optim(False)
        run = predictor.bind(predictor.create(lambda: options, CPU, 1), given.inputs)
        logits = [run(*batch)[0] for batch in batches]
    except UserError:
        raise
    except Exception as error:  # Paddle raises RuntimeError, ValueError, OSError, ...
        raise UserError(
            f"{given.path}: Paddle {paddle.__version__} cannot run it on texts of up to "
            f"{max(ids.shape[1] for ids, _ in batches)} tokens ({messages.last_error(error)})"
        ) from error
    if any(array.ndim != 2 for array in logits):
        raise UserError(
            f"{given.path}: answers with shape {list(logits[0].shape)}; a classifier's logits are "
            "[texts, labels]"
        )
    return logits


def widen(program: ProgramDesc, arrays: Parameters) -> Widened:
    """The program without quantize and dequantize operators, each layer with tensors of its own."""
    thresholds, quantized = quantizers.read(program, arrays)
    program = quantizers.in_float32(program)
    arrays = {**arrays, **{name: weights.widen(weight) for name, weight in quantized.items()}}
    for name, shared in tidy.own_parameters(program).items():
        arrays[name] = arrays[shared]
        if shared in quantized:
            quantized[name] = quantized[shared]
    arrays = {name: arrays[name] for name in programs.parameter_names(program)}
    return Widened(program, arrays, thresholds, quantized)


def _check_padding(given: Given, tokenizer: tokenizers.Tokenizer) -> None:
    """UserError unless a text's answer is the same with padding after it."""
    text = np.random.default_rng(0).choice(tokenizer.ordinary_ids, (1, PADDED // 2))
    ids = np.full((1, PADDED), tokenizer.pad_id, np.int64)
    ids[:, : PADDED // 2] = text
    padded, alone = _answers(given, [(rows, np.zeros_like(rows)) for rows in (ids, text)])
    if not np.abs(padded - alone).max() <= alike.LARGEST_DIFFERENCE:
        raise UserError(
            f"{given.path}: answers otherwise when padding follows a text, and the tokenizer's "
            f"padding is token {tokenizer.pad_id}; export it so that it makes its mask of "
            "input_ids itself"
        )


def _int8(
    widened: Widened,
    folder: Path,
    batches: Sequence[Batch],
    expected: list[np.ndarray],
    path: Path,
    pad_id: int,
) -> tuple[bundles.Variant, golden.Run, list[np.ndarray]] | None:
    """The variant with the program's own integers and thresholds, opened, and its answers, if the
    int8 engine takes it; else None, and the log says why."""
    made = folder / NAME
    made.mkdir()
    try:
        variant = write_int8(widened, folder / "float32", made)
        run = functools.partial(engine.open_folder(engine.INT8, made), pad_id=pad_id)
        logits = [run(*batch) for batch in batches]
        error = _error(logits, expected)
        if not error <= LARGEST_ERROR:  # also catches NaN
            raise UserError(f"there its logits differ by {error:.1%} from its own")
    except Exception as reason:  # a program of another shape than BERT's fails anywhere
        shutil.rmtree(made)
        text = str(reason).strip() or type(reason).__name__
        log.warning(f"{path}: float32 alone, for the int8 engine cannot run it: {text}")
        return None
    log.info(f"{path}: in int8 its logits differ by {error:.1%} from its own, on random ids")
    return variant, run, logits


def write_int8(widened: Widened, float32: Path, made: Path) -> bundles.Int8Variant:
    """Write the int8 form of the program in the folder `float32` into the folder `made`."""
    fused = fuse(float32)
    program = merge_transposes(fused.program)
    layers = int8.inputs(program)
    taken = {
        name: quantized
        for name, quantized in widened.quantized.items()
        if quantized.axis == 1 and layers.get(name) in widened.thresholds
    }
    if not taken:
        raise UserError("none of its Linear layers has integers and a threshold")
    program = int8.to_int8(first_token_only(program), widened.thresholds, taken)
    stored = dict(taken)
    for name in programs.embedding_tables(program):
        stored[name] = weights.quantize(widened.arrays[name], 0)
    programs.write(made / "x86.pdmodel", program)
    others = {name: array for name, array in fused.parameters.items() if name not in stored}
    weights.save(made, stored, others)
    return bundles.Int8Variant(
        name=NAME,
        runs_on=["x86"],
        float32_layers=[name for name in layers if name not in taken],
        thresholds={name: widened.thresholds[layers[name]] for name in taken},
    )


def _error(logits: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Relative, of all logits together (Frobenius norm)."""
    ours, theirs = (np.concatenate(list(some)) for some in (logits, expected))
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
