"""What `hidden_act` of a config.json may be: functions of the feed-forward part and of the
masked-word head, by Hugging Face's names.

tests/models/test_activations.py compares each with NumPy in the network, in its gradient and in the
float32 program.
"""

from __future__ import annotations

from typing import Callable

import paddle
import paddle.nn.functional as F

from fleetbert.core.errors import UserError

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
