"""`trainer.compile`: the network's training forward and backward as programs, not op by op."""

from __future__ import annotations

import inspect
from typing import Any, Callable, List

import paddle
from paddle import nn
from paddle.static import BuildStrategy, InputSpec

from fleetbert.compat import training
from fleetbert.core.errors import UserError

Values = List[Any]  # of the arguments, or what specifies them
Program = Callable[..., paddle.Tensor]


def compile_training(network: nn.Layer, device: str) -> None:
    """Send the network's training-time forward through `paddle.jit.to_static`, in place.

    There is one program for each set of arguments by name, rank and type. The first dimension of
    its tensors is open, and so is each other one from when it first differs: that costs a new
    tracing, once. Where Paddle is built with CINN that compiles the programs, one for each shape:
    CINN knows no open dimensions. Evaluation and export see Paddle's own forward.
    Raises UserError for a custom device.
    """
    if device not in ("cpu", "gpu"):
        # Programs need kernels of memcpy_d2h in float32, which a custom device need not have:
        # tests/fp16sim, the one that was tried, has not.
        raise UserError(
            f"trainer.compile: programs were never run on {device}; set it to false, or choose cpu "
            "or gpu with trainer.device"
        )
    python = network.forward
    signature = inspect.signature(python)
    known: dict[tuple[object, ...], tuple[Values, Program]] = {}  # specification and program

    def forward(*args: object, **kwargs: object) -> paddle.Tensor:
        if not network.training:
            return python(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        # to_static matches a specification to arguments by their place: none may be left out.
        values = [given.get(name, p.default) for name, p in signature.parameters.items()]
        key = tuple(_kind(value) for value in values)
        former, program = known.get(key, (None, None))
        specification = [_specify(*pair) for pair in zip(values, former or values)]
        if program is None or _shapes(specification) != _shapes(former):
            program = _to_static(python, specification)
            known[key] = specification, program
            with training.gradients_kept(network.parameters()):
                return program(*values)
        return program(*values)

    network.forward = forward


def _to_static(function: Program, specification: Values) -> Program:
    """The program of `function` for arguments like those specified."""
    build = BuildStrategy()
    build.build_cinn_pass = paddle.is_compiled_with_cinn()
    specs = None if build.build_cinn_pass else specification
    # full_graph: the whole forward or an error; the other way, SOT, needs Python below 3.12.
    program: Program = paddle.jit.to_static(function, specs, build, full_graph=True)
    return program


def _kind(value: object) -> object:
    return (value.ndim, value.dtype) if isinstance(value, paddle.Tensor) else value


def _specify(value: Any, former: Any) -> Any:  # an argument, of any type
    """The argument `value` for to_static, its dimensions open where they differ from `former`'s."""
    if not isinstance(value, paddle.Tensor):
        return value
    same = [size if size == other else None for size, other in zip(value.shape, former.shape)]
    shape = [None, *same[1:]][: value.ndim]
    return InputSpec(shape, value.dtype, stop_gradient=value.stop_gradient)


def _shapes(specification: Values | None) -> list[object]:
    return [getattr(value, "shape", None) for value in specification or ()]
