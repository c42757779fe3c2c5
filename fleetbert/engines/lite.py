"""Paddle Lite's own engine, as its Python package has it for x86 processors."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from fleetbert.engines import exits
from fleetbert.errors import UserError

if TYPE_CHECKING:
    from fleetbert.engines.engine import Run

INPUTS = ["input_ids", "token_type_ids"]


def open_model(folder: Path, device: str, threads: int) -> Run:
    """Open model.nb in `folder`; UserError where there is no Paddle Lite.

    A program for another processor answers nonsense or ends the process: `engine.open` checks the
    manifest before it comes here.
    """
    return _open(_import_lite(device, threads), folder / "model.nb", INPUTS, threads)


def open_groups(folder: Path, device: str, threads: int) -> exits.EarlyExit:
    """Open the groups of layers in `folder`, as `open_model` does the whole."""
    lite = _import_lite(device, threads)
    settings = exits.load_settings(folder)
    groups = [
        _open(
            lite, folder / exits.program_name(end, "nb"), INPUTS if not n else INPUTS[:1], threads
        )
        for n, end in enumerate(settings.ends)
    ]
    return exits.EarlyExit(settings, [list(map(exits.of_rows, groups))], folder)


def _open(lite: Any, path: Path, inputs: list[str], threads: int) -> Run:
    """Open a program of two inputs, whose last names have to be `inputs`."""
    config = lite.MobileConfig()
    config.set_model_from_file(str(path))
    predictor = lite.create_paddle_predictor(config)
    names = predictor.get_input_names()
    if len(names) != 2 or names[-len(inputs) :] != inputs:
        raise UserError(
            f"{path} has the inputs {names} instead of {inputs}; export the variant again"
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


def _import_lite(device: str, threads: int) -> Any:
    if device != "cpu":
        raise UserError("Paddle Lite runs on CPUs here: use --device cpu")
    if threads < 1:
        raise UserError(f"threads is {threads}; it has to be at least 1")
    try:
        from paddlelite import lite
    except ImportError as error:
        raise UserError(
            f"Paddle Lite cannot be imported ({error}): run this command with Python 3.8 to 3.10 "
            "on x86-64 Linux after pip install paddlelite==2.13rc0 there, or use another variant"
        ) from None
    return lite


def _thread_setter() -> Callable[[int], Any]:
    """A function that sets how many threads Paddle Lite's matrix products use.

    Paddle Lite 2.13 sets MKL to one thread whenever it opens a model, and its Python package has
    no way to say another number.
    """
    try:
        mkl = ctypes.CDLL("libmklml_intel.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # not the x86 build, which has loaded it
        return lambda _: None
    return mkl.MKL_Set_Num_Threads
