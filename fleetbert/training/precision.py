"""Float32, or mixed precision O1 and O2 with a GradScaler."""

from __future__ import annotations

import difflib
from typing import ContextManager, Dict

import numpy as np
import paddle
from paddle import nn
from paddle.optimizer import Optimizer

from fleetbert import config as schema
from fleetbert.compat import onednn, processor, training
from fleetbert.core.errors import UserError
from fleetbert.models import fused, layers

# The scaler's state for JSON.
Counts = Dict[str, object]


def choose(settings: schema.Precision, device: str, float32: str | None = None) -> Precision:
    """The precision that a job asked for, on the device it runs on.

    float32: what of the job computes in float32 on a CPU, for a sentence.

    Raises UserError for O1 and O2 where nothing would compute so, and for custom lists that would
    not be noticed.
    """
    tf32 = settings.tf32
    if tf32 is not None and (device == "cpu" or not training.set_tf32(tf32)):
        raise UserError(f"precision.tf32: the device {device} has no TF32; leave it out")
    settings = fixed(settings)
    if settings.dtype == "auto":
        dtype = "float16" if _missing("O1", "bfloat16", device, float32) else "bfloat16"
        settings = settings.model_copy(update={"dtype": dtype})
    if settings.level == "auto":
        level = "O0" if _missing("O1", settings.dtype, device, float32) else "O1"
        settings = settings.model_copy(update={"level": level})
    missing = _missing(settings.level, settings.dtype, device, float32)
    if settings.level != "O0" and missing:
        raise UserError(f"precision.level: {settings.level} {missing}")
    if settings.level != "O0":
        _check_lists(settings, device)
    if device != "cpu" or not onednn.is_there():
        return Precision(settings)
    kind = fused.FLOAT32 if settings.level == "O0" else fused.BFLOAT16
    return Precision(settings, fused.Functions(kind))


def fixed(settings: schema.Precision) -> schema.Precision:
    """Return the settings with GradScaler's keys as `scale` wants them."""
    if settings.scale is None:
        return settings
    keys = {"init_loss_scaling": settings.scale, "use_dynamic_loss_scaling": False}
    return settings.model_copy(update=keys)


def _check_lists(settings: schema.Precision, device: str) -> None:
    """Paddle takes any name into its lists, and an operator that has none just stays as it is."""
    known = training.operators()
    for key in ("custom_white_list", "custom_black_list"):
        for name in getattr(settings, key):
            if device == "cpu":
                raise UserError(
                    f"precision.{key}: {name} is for Paddle's AMP, which a CPU does not use; there "
                    "bfloat16 is for the products of the encoder's layers; leave the list out"
                )
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


def _missing(level: str, dtype: str, device: str, float32: str | None) -> str | None:
    """Why O1 or O2 cannot be had in this type, for a sentence; None where it can. As in
    Paddle's `amp/auto_cast.py`, and on a CPU as `models.fused`."""
    instead = "; choose O0, or auto, which takes O1 where the device has it"
    if device == "cpu":
        if not processor.bfloat16():
            return (
                "does nothing on this CPU, which has neither AVX512-BF16 nor AMX, and Paddle's AMP "
                f"runs float32 there{instead}"
            )
        if float32:
            return f"does not go together with {float32}, which computes in float32{instead}"
        if dtype == "float16":
            return "cannot be had in float16 on a CPU; set precision.dtype to bfloat16 or auto"
        if level == "O2":
            return "keeps weights in half, for which a CPU has no kernels; choose O1"
    elif device == "gpu":
        needed = 7 if dtype == "float16" else 8
        if paddle.device.cuda.get_device_capability()[0] < needed:
            return (
                f"does nothing in {dtype} on a GPU of compute capability below {needed}.0, "
                f"Paddle's AMP runs float32 there{instead}"
            )
    elif dtype == "bfloat16":
        return (
            f"does nothing in bfloat16 on the device {device} (precision.dtype: float16 works), "
            f"Paddle's AMP runs float32 there{instead}"
        )
    return None


def named(level: str, dtype: str) -> str:
    """A level that was chosen, for people; auto has chosen none."""
    return "float32" if level in ("O0", "auto") else f"{dtype}, {level}"


class Precision:
    """How the steps compute: a context for the forward pass, and the scaler of the loss.

    functions: on a CPU with oneDNN; what `models.layers` compute with in training steps and, of the
    same element type, in evaluations, instead of AMP.
    """

    def __init__(self, settings: schema.Precision, functions: fused.Functions | None = None):
        self.settings = settings
        self.functions = functions
        self.mixed = settings.level != "O0" and functions is None
        self.half_weights: list[paddle.Tensor] = []  # O2: the parameters to update
        self.network: nn.Layer | None = None
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
        # The fixed scale of a loss that Paddle's scaler leaves alone: float32, bfloat16.
        self.factor = 1.0 if training.scaling(self.scaler) else settings.scale or 1.0

    @property
    def name(self) -> str:
        """What was chosen, for people."""
        return named(self.settings.level, self.settings.dtype)

    def decorate(self, network: nn.Layer, optimizer: Optimizer) -> tuple[nn.Layer, Optimizer]:
        """For O2: half weights, with float32 master weights in the optimizer."""
        self.network = network
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

    def step(self) -> ContextManager[object]:
        """The context that the forward pass and the loss of a training step run in."""
        return self._amp() if self.functions is None else layers.during(self.functions)

    def forward(self) -> ContextManager[object]:
        """The context of an evaluation's: of the same element type."""
        if self.functions is None:
            return self._amp()
        # without the table's touched rows, whose lookups wait for a gradient
        return layers.during(fused.Functions(self.functions.kind))

    def _amp(self) -> ContextManager[object]:
        context: ContextManager[object] = paddle.amp.auto_cast(
            enable=self.mixed,
            level=self.settings.level if self.mixed else "O1",
            dtype=self.settings.dtype,
            custom_white_list=set(self.settings.custom_white_list) or None,
            custom_black_list=set(self.settings.custom_black_list) or None,
        )
        return context

    def prepare_gradients(self) -> None:
        """Before the update, with all micro-batches' gradients there. O2: to float32, so that
        unscaling flushes none to zero and the norm to clip by does not overflow. Otherwise unscale
        them, if the scaler will not."""
        training.widen_gradients(self.half_weights)
        if self.factor != 1 and self.network is not None:
            with paddle.no_grad():
                for parameter in self.network.parameters():
                    if parameter.grad is not None:
                        parameter.grad.scale_(1 / self.factor)

    @property
    def scale(self) -> float:
        """The present loss scale; 1.0 without scaling."""
        return self.factor * training.loss_scale(self.scaler)

    @property
    def can_back_off(self) -> bool:
        """Whether a lower loss scale will follow an overflow. Below 1 it would help nothing."""
        return self.settings.use_dynamic_loss_scaling and self.scale > 1

    @property
    def remedy(self) -> str:
        """What to set when gradients stay infinite, for an error's sentence."""
        at = f"the loss scale is fixed at {self.scale:g}: set "
        if self.factor != 1 or (self.settings.scale and training.scaling(self.scaler)):
            return f"{at}precision.scale lower, or leave it out"
        if not self.mixed:  # nor does bfloat16 overflow where float32 does not
            return "lower optimizer.learning_rate"
        if training.scaling(self.scaler) and not self.settings.use_dynamic_loss_scaling:
            return (
                f"{at}precision.use_dynamic_loss_scaling=true, or lower precision.init_loss_scaling"
            )
        return (
            "lower optimizer.learning_rate, name the operators that overflow in "
            "precision.custom_black_list, or choose precision.level=O0"
        )

    def state(self) -> Counts:
        return {name: np.asarray(v).tolist() for name, v in self.scaler.state_dict().items()}

    def set_state(self, state: Counts) -> None:
        """Go on with a saved scale and counts; the other settings are the job's. So is a fixed
        scale: it may have been lowered because it overflowed."""
        if state and training.scaling(self.scaler) and self.settings.use_dynamic_loss_scaling:
            counts = {name: state[name] for name in ("incr_count", "decr_count")}
            scale = np.array(state["scale"], np.float32)
            self.scaler.load_state_dict({**self.scaler.state_dict(), **counts, "scale": scale})
