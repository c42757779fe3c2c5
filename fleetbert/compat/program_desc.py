"""Saving a network as a ProgramDesc (model.pdmodel), on Paddle 3 too, which has another format."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import versions

# Operators of the functions that a network here calls, among those that 3.3.1 moved into C++, where
# they take no variable of a ProgramDesc.
UNARY = ("abs", "exp", "log", "rsqrt", "sigmoid", "sqrt", "tanh")
BINARY = {"maximum": "elementwise_max", "minimum": "elementwise_min", "multiply": "elementwise_mul"}


def save(network: paddle.nn.Layer, path: Path, inputs: Sequence[paddle.static.InputSpec]) -> None:
    """`paddle.jit.save` to `path`.pdmodel and `path`.pdiparams, and nothing else."""
    with into_program_desc():
        paddle.jit.save(network, str(path), input_spec=list(inputs))
    # Names and gradients of the training program: a pickle that nothing here reads.
    Path(f"{path}.pdiparams.info").unlink()


@contextlib.contextmanager
def into_program_desc() -> Iterator[None]:
    """Let Paddle 3 trace into a ProgramDesc, as 2.6.2 always does.

    Its functions in C++ refuse the variables ("must be Value, but got Variable", 3.3.1), so their
    operators are appended from here meanwhile.
    """
    if not versions.is_paddle_3():
        yield
        return
    patch: Any = importlib.import_module("paddle.base.dygraph.generated_tensor_methods_patch")
    # Paddle's layers take functions from this module, which the patch misses: the attribute
    # `paddle.tensor` is a function of the same name.
    functions = vars(sys.modules["paddle.tensor"])
    former = {name: functions[name] for name, _ in patch.methods_map}
    compiled = patch._C_ops
    with paddle.pir_utils.DygraphOldIrGuard():
        try:
            patch._C_ops = _Functions(compiled)
            functions.update(patch.methods_map)
            yield
        finally:
            patch._C_ops = compiled
            functions.update(former)


class _Functions:
    """Paddle's `_C_ops` that append to a ProgramDesc where they are given its variables."""

    def __init__(self, compiled: Any):
        self._compiled = compiled

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            if not any(isinstance(value, paddle.base.framework.Variable) for value in given):
                return getattr(self._compiled, name)(*args, **kwargs)
            kwargs.pop("name", None)
            if name in UNARY:
                return _append(name, *args, **kwargs)
            if name in BINARY:
                return _append(BINARY[name], *args, **kwargs, axis=-1)
            if name in OTHERS:
                return OTHERS[name](*args, **kwargs)
            raise NotImplementedError(f"paddle.{name} is not exported on Paddle 3; try 2.6.2")

        return call


def _append(kind: str, x: Any, y: Any = None, **attributes: Any) -> Any:
    helper = paddle.base.layer_helper.LayerHelper(kind)
    out = helper.create_variable_for_type_inference(x.dtype)
    inputs = {"X": x} if y is None else {"X": x, "Y": y}
    helper.append_op(type=kind, inputs=inputs, outputs={"Out": out}, attrs=attributes)
    return out


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    return _append("matmul_v2", x, y, trans_x=transpose_x, trans_y=transpose_y)


def _gelu(x: Any, approximate: bool = False) -> Any:
    return _append("gelu", x, approximate=approximate)


OTHERS: dict[str, Callable[..., Any]] = {"matmul": _matmul, "gelu": _gelu}
