"""A variant of a bundle, opened: batches of token ids in, logits out."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Protocol, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compat import environment, paddle_inference
from fleetbert.data.batching import Batch
from fleetbert.data.packing import PackedLayout, pack, packed_layout
from fleetbert.engines import exits
from fleetbert.engines.exits import EarlyExit, Part
from fleetbert.engines.parts import Parts, Run
from fleetbert.errors import UserError

if TYPE_CHECKING:
    from fleetbert.graph.program import ProgramDesc

INT8 = "paddle-inference-int8"
EARLY_EXIT = "paddle-inference-early-exit"
LITE_EARLY_EXIT = "paddle-lite-early-exit"
INPUTS = ("input_ids", "token_type_ids")
# What a predictor's inputs have to be, by NumPy's kinds.
DTYPES = {"i": np.int64, "f": np.float32, "b": np.bool_}


def open(  # noqa: A001  the engine's `open`, always written engine.open
    bundle: bundles.Bundle,
    variant: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    verify: bool = True,
    streams: bool = False,
) -> Engine:
    """Open a variant; UserError if its files are not those that were exported.

    device is "cpu" or "gpu"; threads (CPU only) is by default OMP_NUM_THREADS, which is the
    number of processors that this process may use unless the user has set it. streams: for many
    batches, where the time of one does not matter (`engines.parts`, for int8).
    """
    found = bundle.variant(variant)
    opener = OPENERS.get(found.kind)
    if opener is None:
        raise UserError(
            f"variant {variant} of bundle {bundle.root} is of kind {found.kind!r}, which this "
            f"command does not open; it opens {', '.join(OPENERS)}"
        )
    if device not in ("cpu", "gpu"):
        raise UserError(f"device is {device!r}; choose cpu or gpu")
    _check_processor(found)
    if verify:
        bundles.verify(bundle, variant)
    folder = bundle.folder(variant)
    threads = default_threads() if threads is None else threads
    if streams and threads > 1 and found.kind in FUSED:
        return Engine(FUSED[found.kind](folder, device, threads, streams))
    return Engine(opener(folder, device, threads))


class Engine:
    """Answers batches one at a time; safe to call from several threads, which then wait."""

    def __init__(self, run: Run):
        self._run = run
        self._lock = threading.Lock()

    def run(self, batch: Batch, speed: float | None = None) -> np.ndarray:
        """Logits float32 [texts, labels] of an unpacked batch, in the batch's order.

        speed: of early exit, see `exits.EarlyExit.run_all`; without meaning for others.

        Rows must have one of SAFE_LENGTHS tokens (ValueError otherwise).
        """
        if batch.segments is not None:
            raise ValueError("this engine takes unpacked batches: collate(..., packed=False)")
        if not batch.input_ids.size:
            raise ValueError("an empty batch")
        paddle_inference.check_length(batch.input_ids.shape[1])
        with self._lock:
            if self.early_exit is not None:
                return self.early_exit(batch.input_ids, batch.token_type_ids, speed)
            return self._run(batch.input_ids, batch.token_type_ids)

    @property
    def early_exit(self) -> EarlyExit | None:
        """What texts may leave early, in variants of that kind."""
        return self._run if isinstance(self._run, EarlyExit) else None

    def run_all(
        self,
        batches: Iterable[tuple[np.ndarray, Batch]],
        speed: float | None = None,
        batch_tokens: int = 0,
    ) -> Iterator[Part]:
        """Logits of many batches, each with the numbers of its texts, in parts as they are ready.

        speed, batch_tokens: of early exit, see `exits.EarlyExit.run_all`; without meaning for
        others, whose every text goes through all layers (layer 0 in its part).
        """
        if isinstance(self._run, (EarlyExit, Parts)):
            with self._lock:
                yield from self._run.run_all(batches, speed, batch_tokens)
            return
        for numbers, batch in batches:
            yield Part(numbers, self.run(batch), 0)


def open_program(folder: Path, device: str, threads: int, bfloat16: bool = False) -> Run:
    """Open model.pdmodel and model.pdiparams in `folder` with Paddle Inference.

    bfloat16: have oneDNN multiply in it, on processors that can.
    """
    inference = paddle_inference.import_inference()
    config = inference.Config(str(folder / "model.pdmodel"), str(folder / "model.pdiparams"))
    config.switch_ir_optim(True)
    config.enable_memory_optim()
    if bfloat16:
        config.enable_mkldnn()
        config.enable_mkldnn_bfloat16()
    return _bind(_predictor(inference, config, device, threads))


def open_weight_only(folder: Path, device: str, threads: int) -> Run:
    """Open a program whose weights are integers on disk; they are widened to float32 here."""
    inference = paddle_inference.import_inference()
    config = inference.Config()
    config.switch_ir_optim(True)
    config.enable_memory_optim()
    return _bind(_predictor(inference, config, device, threads, _from_integers(folder)))


def open_int8(folder: Path, device: str, threads: int, streams: bool = False) -> Parts:
    """Open a program that computes in int8 through oneDNN, as `graph.int8` wrote it.

    streams: one for each of the threads instead of one for them all.

    oneDNN wants float32 weights and makes integers of them: the very ones that are on disk.
    """
    if device != "cpu":
        raise UserError("an int8 variant of this kind runs on CPUs (oneDNN); use --device cpu")
    from fleetbert.graph import embeddings, single_row

    program, parameters = _from_integers(folder)
    pad_id = embeddings.pad_id(program, parameters)
    runs = open_fused(program, parameters, threads, streams)
    return Parts(runs, pad_id, any_length=single_row.fits(program))


def open_early_exit(folder: Path, device: str, threads: int, streams: bool = False) -> EarlyExit:
    """Open the groups of layers of a program that texts may leave after each of them.

    streams: as of `open_int8`.
    """
    if device != "cpu":
        raise UserError("an early-exit variant runs on CPUs (oneDNN); use --device cpu")
    from fleetbert.graph import program as programs
    from fleetbert.graph import single_row, weights

    settings = exits.load_settings(folder)
    tensors = weights.load(folder)
    parts = [programs.read(folder / exits.program_name(end)) for end in settings.ends]
    groups = [open_fused(part, weights.pick(*tensors, part), threads, streams) for part in parts]
    paddle_inference.ease_numpy()
    return EarlyExit(settings, list(zip(*groups)), folder, any_length=single_row.fits(parts[0]))


def open_fused(
    program: ProgramDesc, parameters: dict[str, np.ndarray], threads: int, streams: bool = False
) -> list[Callable[..., Any]]:
    """Open a BERT for CPUs whose passes have been run, which takes (input_ids, token_type_ids) and
    gives logits, or a group of its layers (`exits.Group`).

    streams: one for each of the threads instead of one for them all. They share their parameters,
    which the first run of the first changes: it has to be over before the others begin.
    """
    from fleetbert.graph import embeddings, packed, single_row

    start = embeddings.take_out(program, parameters)
    split = (1, threads) if streams else (threads, 1)
    row: list[Any] = [None] * split[1]
    if single_row.fits(start.program):
        rest = single_row.rewrite(start.program, start.parameters, start.inputs[0])
        row = _open_rest(*rest, start.inputs[:1], *split, lend=False)
    rest, needed = packed.rewrite(start.program, start.inputs)
    rows = _open_rest(rest, start.parameters, (start.inputs[0], *needed), *split)
    pad_id = embeddings.pad_id(program, parameters)
    tables = start.tables  # without the parameters: Paddle has copied them

    def join(row: Callable[..., Any] | None, rows: Callable[..., Any]) -> Callable[..., Any]:
        def run(first: np.ndarray, second: np.ndarray, at: PackedLayout | None = None) -> Any:
            input_ids = first if tables else second
            at = at or packed_layout(input_ids != pad_id)
            length = input_ids.shape[1]
            if row is not None and at.single_row:
                if tables:
                    first = embeddings.add_up(tables, first[0], second[0], at.pack_index[:length])
                found = row(first[None, :length])
                return found.reshape(-1, found.shape[-1])
            if tables:
                ids, types = pack(first, at), pack(second, at)
                first = embeddings.add_up(tables, ids, types, at.pack_index % length)
            given = (getattr(at, name) for name in needed)
            found = rows(first.reshape(*at.shape, -1), *given)
            return found.reshape(-1, found.shape[-1])

        return run

    return list(map(join, row, rows))


def _open_rest(
    program: ProgramDesc,
    parameters: dict[str, np.ndarray],
    inputs: Sequence[str],
    threads: int,
    streams: int,
    lend: bool = True,
) -> list[Callable[..., Any]]:
    """Open a program that computes from `inputs`; lend: see `_bind`."""
    from fleetbert.graph import layouts
    from fleetbert.graph.layouts import convert_layouts_once
    from fleetbert.graph.reuse import add_in_place, share_variables

    program = convert_layouts_once(share_variables(add_in_place(program)))
    inference = paddle_inference.import_inference()
    config = inference.Config()
    config.switch_ir_optim(False)
    predictor = _predictor(inference, config, "cpu", threads, (program, parameters))
    names = (*inputs, layouts.FIRST_RUN)

    def settled(predictor: Any, *first_runs: bool) -> Callable[..., Any]:
        predict = _bind(predictor, names, lend)
        coming = [np.array([value]) for value in first_runs]  # after these the input stays

        def run(*arrays: np.ndarray) -> Any:
            return predict(*arrays, coming.pop(0)) if coming else predict(*arrays)

        return run

    clones = [predictor.clone() for _ in range(1, streams)]
    return [settled(predictor, True, False), *(settled(clone, False) for clone in clones)]


def open_as_it_is(
    program: ProgramDesc, parameters: dict[str, np.ndarray], threads: int
) -> Callable[..., Any]:
    """Open a program for CPUs, all operators of which are left to Paddle; it takes its inputs in
    their order. parameters: those of the program, and maybe others."""
    from fleetbert.graph import program as programs

    inference = paddle_inference.import_inference()
    config = inference.Config()
    config.switch_ir_optim(False)
    feeds = [op for op in program.blocks[0].ops if op.type == "feed"]
    feeds.sort(key=lambda op: programs.attribute(op, "col").i)
    inputs = [programs.argument(op.outputs, "Out") for op in feeds]
    stored = {name: parameters[name] for name in programs.parameter_names(program)}
    return _bind(_predictor(inference, config, "cpu", threads, (program, stored)), inputs)


def _from_integers(folder: Path) -> tuple[ProgramDesc, dict[str, np.ndarray]]:
    """Program and float32 parameters, of x86.pdmodel and weights.safetensors in `folder`."""
    from fleetbert.graph import program as programs
    from fleetbert.graph import weights

    program = programs.read(folder / "x86.pdmodel")
    return program, weights.parameters(folder, program)


def _predictor(
    inference: Any,
    config: Any,
    device: str,
    threads: int,
    model: tuple[ProgramDesc, dict[str, np.ndarray]] | None = None,
) -> Any:
    """Paddle's predictor; model: program and parameters, where the config does not name files."""
    if threads < 1:
        raise UserError(f"threads is {threads}; it has to be at least 1")
    config.disable_glog_info()
    if device == "gpu":
        import paddle

        if not paddle.device.is_compiled_with_cuda():
            raise UserError(
                "device is gpu, but the installed PaddlePaddle is the CPU build: install "
                "paddlepaddle-gpu 2.6.2 or use --device cpu"
            )
        config.enable_use_gpu(256, 0)  # MB to begin with; it grows
    else:
        config.disable_gpu()
        config.set_cpu_math_library_num_threads(threads)
        paddle_inference.use_onednn(config)
    with contextlib.ExitStack() as stack:
        if model is not None:
            from fleetbert.graph import int8
            from fleetbert.graph import program as programs

            program, parameters = model
            program = int8.limit_weights(program, int8.weight_steps(environment.cpuinfo()))
            # Files in memory: a buffer is copied six times (BERT-base: 0.4 s instead of 3.8).
            text = stack.enter_context(_memory_file([program.SerializeToString()]))
            data = stack.enter_context(_memory_file(programs.parameter_parts(parameters)))
            config.set_model(text, data)
        return inference.create_predictor(config)


def _bind(predictor: Any, inputs: Sequence[str] = INPUTS, lend: bool = True) -> Callable[..., Any]:
    """What gives the predictor's output (a list of them, where it has more) for its inputs.

    inputs: their names, in the order in which they are given; those that a call does not give stay
    as they were. lend: let Paddle read floats where they lie; small ones are copied in less time.
    """
    handles = [predictor.get_input_handle(name) for name in inputs]
    outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]

    def run(*arrays: np.ndarray) -> Any:
        for handle, array in zip(handles, arrays):
            # both read the memory as it lies
            array = np.ascontiguousarray(array, DTYPES[array.dtype.kind])
            if lend and array.dtype.kind == "f":
                paddle_inference.lend(handle, array)
            else:
                handle.copy_from_cpu(array)
        predictor.run()
        found = [output.copy_to_cpu() for output in outputs]
        return found[0] if len(found) == 1 else found

    return run


@contextlib.contextmanager
def _memory_file(parts: Iterable[bytes | memoryview]) -> Iterator[str]:
    """The path of a file that is in memory only, as long as it is needed."""
    descriptor = os.memfd_create("model")
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def open_onnx(folder: Path, device: str, threads: int) -> Run:
    """Open model.onnx in `folder` with ONNX Runtime."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError("ONNX Runtime is not installed: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    provider = "CUDAExecutionProvider" if device == "gpu" else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise UserError(
            "device is gpu, but the installed ONNX Runtime has no CUDA: install "
            "onnxruntime-gpu or use --device cpu"
        )
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=[provider]
    )

    def run(ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        return session.run(["logits"], {"input_ids": ids, "token_type_ids": types})[0]

    return run


def open_lite(folder: Path, device: str, threads: int) -> Run:
    """Open model.nb in `folder` with Paddle Lite."""
    from fleetbert.engines import lite

    return lite.open_model(folder, device, threads)


def open_lite_early_exit(folder: Path, device: str, threads: int) -> EarlyExit:
    """Open the groups of layers in `folder` with Paddle Lite."""
    from fleetbert.engines import lite

    return lite.open_groups(folder, device, threads)


class FusedOpener(Protocol):
    def __call__(self, folder: Path, device: str, threads: int, streams: bool = False) -> Run: ...


# Through `open_fused`: texts share rows, and there may be streams.
FUSED: dict[str, FusedOpener] = {INT8: open_int8, EARLY_EXIT: open_early_exit}
OPENERS: dict[str, Callable[[Path, str, int], Run]] = {
    "paddle-inference": open_program,
    "paddle-inference-weight-only": open_weight_only,
    **FUSED,
    "onnx": open_onnx,
    "paddle-lite": open_lite,
    LITE_EARLY_EXIT: open_lite_early_exit,
}

# What `runs_on` calls a processor, by its names in Python's `platform`.
PROCESSORS = {
    "x86_64": "x86",
    "amd64": "x86",
    "aarch64": "armv8",
    "arm64": "armv8",
    "armv7l": "armv7",
}


def _check_processor(variant: bundles.Variant) -> None:
    """UserError for a variant of another processor, whose program might answer nonsense here."""
    here = PROCESSORS.get(platform.machine().lower())
    if here is not None and variant.runs_on and here not in variant.runs_on:
        raise UserError(
            f"variant {variant.name} is for {' and '.join(variant.runs_on)} and this machine is "
            f"{here}: run it there, or export the variant for {here}"
        )


def default_threads() -> int:
    """OMP_NUM_THREADS; `fleetbert.compat.environment` sets it where the user has not."""
    value = os.environ.get("OMP_NUM_THREADS", "1")
    try:
        return max(1, int(value.split(",")[0]))  # "4,2" has a number per nesting level
    except ValueError:
        raise UserError(f"OMP_NUM_THREADS is {value!r}; set it to a number of threads") from None
