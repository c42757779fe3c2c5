"""Float32, or mixed precision O1 and O2 with a GradScaler."""

from __future__ import annotations

import difflib
from typing import ContextManager, Dict

import numpy as np
import paddle
from paddle import nn
from paddle.optimizer import Optimizer

from fleetbert import config as schema
from fleetbert.compat import training
from fleetbert.errors import UserError

# The scaler's state for JSON.
Counts = Dict[str, object]


def choose(settings: schema.Precision, device: str) -> Precision:
    """The precision that a job asked for, on the device it runs on.

    Raises UserError for O1 and O2 where Paddle's AMP only warns and runs float32, and for custom
    lists that it would not notice.
    """
    if settings.dtype == "auto":
        dtype = "float16" if _missing("bfloat16", device) else "bfloat16"
        settings = settings.model_copy(update={"dtype": dtype})
    missing = _missing(settings.dtype, device)
    if settings.level == "auto":
        settings = settings.model_copy(update={"level": "O0" if missing else "O1"})
    if settings.level != "O0" and missing:
        raise UserError(
            f"precision.level: {settings.level} does nothing {missing}, Paddle's AMP runs float32 "
            "there; choose O0, or auto, which takes O1 where the device has it"
        )
    if settings.level != "O0":
        _check_lists(settings)
    return Precision(settings)


def _check_lists(settings: schema.Precision) -> None:
    """Paddle takes any name into its lists, and an operator that has none just stays as it is."""
    known = training.operators()
    for key in ("custom_white_list", "custom_black_list"):
        for name in getattr(settings, key):
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
                raise UserError(
                    f"precision.{key}: Paddle has no operator {name!r}; did you mean {near}?"
                )
    both = set(settings.custom_white_list) & set(settings.custom_black_list)
    if both:
        raise UserError(
            f"precision.custom_white_list: {', '.join(sorted(both))} cannot also stand in "
            "precision.custom_black_list"
        )


def _missing(dtype: str, device: str) -> str | None:
    """Where the half type does not work, for a sentence; None where it does. As in Paddle 2.6.2's
    `amp/auto_cast.py`."""
    if device == "cpu":
        return "on a CPU"
    if device == "gpu":
        needed = 7 if dtype == "float16" else 8
        if paddle.device.cuda.get_device_capability()[0] < needed:
            return f"in {dtype} on a GPU of compute capability below {needed}.0"
    elif dtype == "bfloat16":
        return f"in bfloat16 on the device {device} (precision.dtype: float16 works)"
    return None


class Precision:
    """How the steps compute: a context for the forward pass, and the scaler of the loss."""

    def __init__(self, settings: schema.Precision):
        self.settings = settings
        self.mixed = settings.level != "O0"
        self.half_weights: list[paddle.Tensor] = []  # O2: the parameters to update
        self.scaler = paddle.amp.GradScaler(
            # bfloat16 has float32's range and needs no scaling.
            enable=self.mixed and settings.dtype == "float16",
            init_loss_scaling=settings.init_loss_scaling,
            incr_ratio=settings.incr_ratio,
            decr_ratio=settings.decr_ratio,
            incr_every_n_steps=settings.incr_every_n_steps,
            decr_every_n_nan_or_inf=settings.decr_every_n_nan_or_inf,
            use_dynamic_loss_scaling=settings.use_dynamic_loss_scaling,
        )

    def decorate(self, network: nn.Layer, optimizer: Optimizer) -> tuple[nn.Layer, Optimizer]:
        """For O2: half weights, with float32 master weights in the optimizer."""
        if self.settings.level != "O2":
            return network, optimizer
        self.half_weights = [p for p in network.parameters() if not p.stop_gradient]
        return paddle.amp.decorate(
            models=network,
            optimizers=optimizer,
            level="O2",
            dtype=self.settings.dtype,
            master_weight=True,
        )

    def forward(self) -> ContextManager[object]:
        """The context that the forward pass and the loss run in."""
        context: ContextManager[object] = paddle.amp.auto_cast(
            enable=self.mixed,
            level=self.settings.level if self.mixed else "O1",
            dtype=self.settings.dtype,
            custom_white_list=set(self.settings.custom_white_list) or None,
            custom_black_list=set(self.settings.custom_black_list) or None,
        )
        return context

    def widen_gradients(self) -> None:
        """Before the update, with all micro-batches' gradients there. O2: to float32, so that
        unscaling flushes none to zero and the norm to clip by does not overflow."""
        training.widen_gradients(self.half_weights)

    @property
    def scale(self) -> float:
        """The present loss scale; 1.0 without scaling."""
        return training.loss_scale(self.scaler)

    @property
    def can_back_off(self) -> bool:
        """Whether a lower loss scale will follow an overflow. Below 1 it would help nothing."""
        return self.settings.use_dynamic_loss_scaling and self.scale > 1

    @property
    def remedy(self) -> str:
        """What to set when gradients stay infinite, for an error's sentence."""
        if not self.mixed:
            return "lower optimizer.learning_rate"
        if training.scaling(self.scaler) and not self.settings.use_dynamic_loss_scaling:
            return (
                f"the loss scale is fixed at {self.scale:g}: set "
                "precision.use_dynamic_loss_scaling=true, or lower precision.init_loss_scaling"
            )
        return (
            "lower optimizer.learning_rate, name the operators that overflow in "
            "precision.custom_black_list, or choose precision.level=O0"
        )

    def state(self) -> Counts:
        state = self.scaler.state_dict()
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in state.items()
        }

    def set_state(self, state: Counts) -> None:
        """Go on with a saved scale and counts; the other settings are the job's. So is a fixed
        scale: it may have been lowered because it overflowed."""
        if state and training.scaling(self.scaler) and self.settings.use_dynamic_loss_scaling:
            counts = {name: state[name] for name in ("incr_count", "decr_count")}
            scale = np.array(state["scale"], np.float32)
            self.scaler.load_state_dict({**self.scaler.state_dict(), **counts, "scale": scale})
