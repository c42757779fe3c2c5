"""Paddle Lite's own engine, as its Python package has it for x86 processors.

Its programs tell padding by the pad id alone: they do not look at such a token inside a text.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import ModuleType
from typing import Callable, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.engines import exits
from fleetbert.engines.early_exit import EarlyExitEngine, of_rows
from fleetbert.engines.engine import INPUTS, Options, ProgramEngine

# A program's two inputs → its output.
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]


def open_variant(folder: Path, options: Options) -> ProgramEngine:
    """Open model.nb in `folder`; UserError where there is no Paddle Lite.

    A program for another processor answers nonsense or ends the process: `engine.open` checks the
    manifest before it comes here.
    """
    lite = _import_lite(options)
    run = _open(lite, folder / "model.nb", INPUTS, options.threads)
    return ProgramEngine(lambda ids, types, _: run(ids, types), options.pad_id)


def open_early_exit(folder: Path, options: Options) -> EarlyExitEngine:
    """Open the groups of layers in `folder`, as `open_variant` does the whole."""
    lite = _import_lite(options)
    settings = exits.load_settings(folder)
    groups = []
    for number, end in enumerate(settings.ends):
        inputs = INPUTS[:1] if number else INPUTS
        path = folder / exits.program_name(end, "nb")
        run = _open(lite, path, inputs, options.threads)
        groups.append(of_rows(run, settings.pad_id))
    return EarlyExitEngine(settings, [groups], folder)


def _open(lite: ModuleType, path: Path, inputs: Sequence[str], threads: int) -> Run:
    """Open a program of two inputs, whose last names have to be `inputs`."""
    config = lite.MobileConfig()
    config.set_model_from_file(str(path))
    predictor = lite.create_paddle_predictor(config)
    names = predictor.get_input_names()
    if len(names) != 2 or names[-len(inputs) :] != list(inputs):
        raise UserError(
            f"{path} has the inputs {names} instead of {list(inputs)}; export the variant again"
        )
    tensors = [predictor.get_input(number) for number in range(2)]
    set_threads = _thread_setter()

    def run(*arrays: np.ndarray) -> np.ndarray:
        set_threads(threads)
        for tensor, values in zip(tensors, arrays):
            dtype = np.int64 if values.dtype.kind == "i" else np.float32
            tensor.from_numpy(np.ascontiguousarray(values, dtype))
        predictor.run()
        return np.array(predictor.get_output(0).numpy())  # a copy: the next run writes there

    return run


def _import_lite(options: Options) -> ModuleType:
    if options.device.card is not None:
        raise UserError("Paddle Lite runs on CPUs here: use --device cpu")
    if options.threads < 1:
        raise UserError(f"threads is {options.threads}; it has to be at least 1")
    try:
        from paddlelite import lite  # optional; it has wheels for few Pythons
    except ImportError as error:
        raise UserError(
            f"Paddle Lite cannot be imported ({error}): run this command with Python 3.8 to 3.10 "
            "on x86-64 Linux after pip install paddlelite==2.13rc0 there, or use another variant"
        ) from None
    return lite


def _thread_setter() -> Callable[[int], object]:
    """A function that sets how many threads Paddle Lite's matrix products use.

    Paddle Lite 2.13 sets MKL to one thread whenever it opens a model, and its Python package has
    no way to say another number.
    """
    try:
        mkl = ctypes.CDLL("libmklml_intel.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # not the x86 build, which has loaded it
        return lambda _: None
    return mkl.MKL_Set_Num_Threads
