"""Paddle's predictor as a function of arrays."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Sequence

import numpy as np

from fleetbert.compat import environment, paddle_inference
from fleetbert.core.device import CPU, Device
from fleetbert.core.errors import UserError
from fleetbert.engines import gpu
from fleetbert.graph import int8, layouts, weights
from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters, ProgramDesc
from fleetbert.graph.reuse import add_in_place, share_variables

# A program's inputs, in an order that was agreed on → its outputs.
Predict = Callable[..., List[np.ndarray]]
# What a predictor's inputs have to be, by NumPy's kinds.
DTYPES = {"i": np.int64, "f": np.float32, "b": np.bool_}


def create(
    make: Callable[[], paddle_inference.PredictorConfig],
    device: Device,
    threads: int,
    whole: gpu.Whole | None = None,
) -> paddle_inference.Predictor:
    """The predictor of a config that `make` makes and that names its files. whole: see `gpu`."""
    if threads < 1:
        raise UserError(f"threads is {threads}; it has to be at least 1")
    if device.card is not None:
        return gpu.create(make, device, whole)
    config = make()
    config.disable_glog_info()
    config.disable_gpu()
    config.set_cpu_math_library_num_threads(threads)
    paddle_inference.use_onednn(config)
    return paddle_inference.import_inference().create_predictor(config)


def create_from_memory(
    program: ProgramDesc,
    parameters: Parameters | Path,
    device: Device,
    threads: int,
    optimize: bool,
    whole: gpu.Whole | None = None,
) -> paddle_inference.Predictor:
    """The predictor of a program. optimize: let Paddle run its own passes over it. parameters: may
    be those of a .pdiparams file."""
    if device.card is None:
        program = int8.limit_weights(program, int8.weight_steps(environment.cpuinfo()))

    def make() -> paddle_inference.PredictorConfig:
        config = paddle_inference.config_of(text, data)
        config.switch_ir_optim(optimize)
        if optimize:
            config.enable_memory_optim()
        return config

    # Files in memory: a buffer is copied six times (BERT-base: 0.4 s instead of 3.8).
    with contextlib.ExitStack() as files:
        text = files.enter_context(memory_file([program.SerializeToString()]))
        if isinstance(parameters, Path):
            data = parameters
        else:
            data = files.enter_context(memory_file(programs.parameter_parts(parameters)))
        return create(make, device, threads, whole)


def open_fused(
    program: ProgramDesc,
    parameters: Parameters | Path,
    inputs: Sequence[str],
    threads: int,
    streams: int = 1,
) -> list[Predict]:
    """Open a program for CPUs whose passes have been run, which computes from `inputs`, as often as
    there are streams.

    They share the parameters, which the first run of the first changes: it has to be over before
    the others begin. `graph.reuse` makes the variables fewer: with Paddle's own pass MiniLM in
    float32 takes 100 MB more after texts of all lengths.
    """
    program = share_variables(add_in_place(program))
    program = layouts.convert_layouts_once(program)
    first = create_from_memory(program, parameters, CPU, threads, optimize=False)
    names = (*inputs, layouts.FIRST_RUN)
    clones = [first.clone() for _ in range(1, streams)]
    return [
        _after_first_run(bind(first, names), True, False),
        *(_after_first_run(bind(clone, names), False) for clone in clones),
    ]


def _after_first_run(predict: Predict, *first_runs: bool) -> Predict:
    """What gives the input `layouts.FIRST_RUN` these values in turn; it stays at the last."""
    coming = [np.array([value]) for value in first_runs]

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        return predict(*arrays, coming.pop(0)) if coming else predict(*arrays)

    return run


def bind(
    predictor: paddle_inference.Predictor, inputs: Sequence[str], device: Device = CPU
) -> Predict:
    """The predictor as a function of its inputs, which are given in the order of their names here.

    Inputs that a call does not give stay as they were. On a CPU Paddle reads floats where they lie.
    """
    handles = [predictor.get_input_handle(name) for name in inputs]
    outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]

    def predict(*arrays: np.ndarray) -> list[np.ndarray]:
        for handle, array in zip(handles, arrays):
            # both read the memory as it lies
            array = np.ascontiguousarray(array, DTYPES[array.dtype.kind])
            if array.dtype.kind == "f" and device.card is None:
                paddle_inference.lend(handle, array)
            else:
                handle.copy_from_cpu(array)
        predictor.run()
        return [output.copy_to_cpu() for output in outputs]

    return predict


def open_as_it_is(program: ProgramDesc, parameters: Parameters, threads: int) -> Predict:
    """Open a program for CPUs, all operators of which are left to Paddle; it takes its inputs in
    their order. parameters: those of the program, and maybe others."""
    stored = {name: parameters[name] for name in programs.parameter_names(program)}
    predictor = create_from_memory(program, stored, CPU, threads, optimize=False)
    return bind(predictor, programs.input_names(program))


def read_integers(folder: Path) -> tuple[ProgramDesc, Parameters]:
    """Program and float32 parameters, of x86.pdmodel and weights.safetensors in `folder`."""
    program = programs.read(folder / "x86.pdmodel")
    return program, weights.parameters(folder, program)


@contextlib.contextmanager
def memory_file(parts: Iterable[bytes | memoryview]) -> Iterator[Path]:
    """The path of a file that is in memory only, as long as it is needed."""
    descriptor = os.memfd_create("model")
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
        file.flush()
        yield Path(f"/proc/self/fd/{descriptor}")
