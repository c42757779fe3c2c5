"""Where an engine computes, and in which precision: the CPU, or an NVIDIA card."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

from fleetbert.core.errors import UserError

Precision = Literal["float32", "float16", "bfloat16", "int8"]
TensorRT = Literal["auto", "off"]


class Device(NamedTuple):
    """name: cpu, gpu (the first card) or gpu:N. precision: of matrix products on a card. tensorrt:
    auto lets TensorRT compute where it is installed and can; only on a card."""

    name: str = "cpu"
    precision: str = "float32"
    tensorrt: str = "off"

    @property
    def card(self) -> int | None:
        """The number of the card; None is the CPU."""
        return None if self.name == "cpu" else int(self.name[len("gpu:") :] or 0)


CPU = Device()


def of(name: str, precision: str = "float32", tensorrt: str = "off") -> Device:
    """The device of that name; UserError where the three do not go together."""
    if not re.fullmatch(r"cpu|gpu(:[0-9]+)?", name):
        raise UserError(f"device is {name!r}; choose cpu, gpu or gpu:N, as gpu:1")
    for key, value, choices in (
        ("precision", precision, get_args(Precision)),
        ("tensorrt", tensorrt, get_args(TensorRT)),
    ):
        if value not in choices:
            raise UserError(f"{key} is {value!r}; choose one of {', '.join(choices)}")
    if name == "cpu" and (precision, tensorrt) != CPU[1:]:
        raise UserError(
            "precision and tensorrt are for GPUs, and the device is cpu: name the variant bfloat16 "
            "or int8-static instead"
        )
    if precision == "int8" and tensorrt == "off":
        raise UserError("precision is int8, which GPUs compute through TensorRT: set tensorrt=auto")
    return Device(name, precision, tensorrt)
