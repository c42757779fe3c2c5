"""What `hidden_act` of a config.json may be: functions of the feed-forward part and of the
masked-word head, by Hugging Face's names.

Paddle fuses gelu, gelu_new, relu and tanh into the Linear before them; the others stay operators of
their own.
"""

from __future__ import annotations

from typing import Callable

import paddle
import paddle.nn.functional as F

from fleetbert.errors import UserError
from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, ProgramDesc

Activation = Callable[[paddle.Tensor], paddle.Tensor]

DEFAULT = "gelu"


def gelu_tanh(x: paddle.Tensor) -> paddle.Tensor:
    """GELU by its approximation with tanh (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate=True)


def quick_gelu(x: paddle.Tensor) -> paddle.Tensor:
    """GELU by its approximation with the logistic function (the same paper)."""
    return x * F.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
    "quick_gelu": quick_gelu,
}


def get(name: object) -> Activation:
    """UserError with the names there are."""
    activation = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if activation is None:
        raise UserError(f"hidden_act is {name}; supported are {', '.join(ACTIVATIONS)}")
    return activation


def of_program(program: ProgramDesc, before: str) -> str | None:
    """The name of the activation after the Linear whose bias is the parameter `before`, in a
    program as training exports it; None if it is none of these."""
    ops = program.blocks[0].ops
    add = next(op for op in ops if op.type == "elementwise_add" and before in _arguments(op))
    (output,) = (slot.arguments[0] for slot in add.outputs)
    readers = [op for op in ops if output in _arguments(op)]
    kinds = sorted(op.type for op in readers)
    if kinds == ["elementwise_mul", "scale"]:
        return "quick_gelu"
    if kinds == ["gelu"]:
        return "gelu_new" if programs.attribute(readers[0], "approximate").b else "gelu"
    return kinds[0] if len(kinds) == 1 and kinds[0] in ("relu", "silu", "tanh") else None


def _arguments(op: OpDesc) -> list[str]:
    return [name for slot in op.inputs for name in slot.arguments]
