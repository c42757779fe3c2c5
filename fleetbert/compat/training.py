"""What training needs of Paddle 2.6.2 that has no public name. Look here when Paddle changes."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import timeit
from typing import Any, Dict, Iterator, Sequence

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
from paddle import Tensor, _C_ops
from paddle.amp import GradScaler
from paddle.base import core
from paddle.distributed import fleet
from paddle.nn import functional as F
from paddle.optimizer import Optimizer
from paddle.profiler import Profiler, ProfilerTarget
from paddle.profiler.profiler_statistic import StatisticData
from paddle.profiler.timer import benchmark

from fleetbert.core.errors import NotConnected

State = Dict[str, Any]  # names, and numbers, tensors or dicts of these


def found_infinite(scaler: GradScaler) -> bool:
    """After `scaler.step`: whether it found infinite or NaN gradients and skipped the step."""
    # 2.6.2's spelling of what 3.3.1 calls _cache_found_inf.
    name = "_cache_found_inf" if hasattr(scaler, "_cache_found_inf") else "_cache_founf_inf"
    return bool(scaler._enable and getattr(scaler, name))


def scaling(scaler: GradScaler) -> bool:
    """Whether the GradScaler scales at all."""
    return bool(scaler._enable)


def loss_scale(scaler: GradScaler) -> float:
    return scaler._scale.item() if scaling(scaler) else 1.0


def operators() -> set[str]:
    """The names of Paddle's operators, as its AMP lists have them."""
    names: set[str] = core.op_supported_infos("CPU", core.VarDesc.VarType.FP32)[0]
    return names


def set_tf32(allowed: bool) -> bool:
    """Let float32 products on a GPU use TF32, or not; returns whether this Paddle has the switch.
    cuBLAS's and cuDNN's have no public name."""
    switches = [getattr(core, f"set_{name}_switch", None) for name in ("cublas", "cudnn")]
    for switch in switches:
        if switch is not None:
            switch(allowed)
    return None not in switches


@contextlib.contextmanager
def counting_operators(counts: dict[str, tuple[int, int]]) -> Iterator[None]:
    """Add to `counts`, of each operator that runs in this block, how often it runs in half
    precision, and how often at all: what `paddle.amp.debugging` prints."""
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    core.clear_low_precision_op_list()
    try:
        yield
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})
        for name, calls in core.get_low_precision_op_list().items():
            # float16, bfloat16, float32, other types
            each = [int(number) for number in str(calls).split(",")]
            counts[name] = sum(each[:2]), sum(each)
        core.clear_low_precision_op_list()


def widen_gradients(parameters: list[Tensor]) -> None:
    """Make half gradients float32, which AdamW takes for half weights with float32 masters.

    `paddle.amp.decorate(master_grad=True)` does it after every backward, and the next
    micro-batch's half gradient cannot be added to a float32 one (2.6.2: InvalidArgument).
    """
    if parameters:
        core.eager.set_master_grads(parameters)


@contextlib.contextmanager
def interrupt_waits() -> Iterator[None]:
    """Delay Ctrl-C to the end of this block; a second one interrupts at once.

    For a backward pass: out of a PyLayer, a KeyboardInterrupt comes as an OSError with its name in
    the message (2.6.2, eager/pylayer/py_layer_node.cc). Only the main thread hears signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = False

    def hear(*_: object) -> None:
        nonlocal heard
        heard = True
        signal.signal(signal.SIGINT, former)

    former = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if heard and callable(former):
        former(signal.SIGINT, None)


@contextlib.contextmanager
def gradients_kept(weights: Sequence[Tensor]) -> Iterator[None]:
    """Keep gradients through the first run of a program of `to_static`: tracing gives each weight
    the type of its gradient (`_set_grad_type`), and in 2.6.2 it is then without the gradient of the
    micro-batches before."""
    kept = [(weight, weight.grad) for weight in weights if weight.grad is not None]
    yield
    for weight, gradient in kept:
        weight.grad = gradient


def cast_cuts_bits_off(tensor: Tensor) -> bool:
    """Whether Paddle's cast of this float32 tensor to bfloat16 cuts bits off instead of rounding:
    2.6.2's on a CPU does."""
    return bool(tensor.place.is_cpu_place())


def binary_cross_entropy(logits: Tensor, truth: Tensor, positive: Tensor | None) -> Tensor:
    """`binary_cross_entropy_with_logits` of each number, float32 (texts, labels). positive: what a
    true label counts, (labels); None: as much as one that is not. Paddle's own `pos_weight` has
    wrong gradients (2.6.2)."""
    losses = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    return losses if positive is None else losses * (1 + (positive - 1) * truth)


def name_master_weights(state: State) -> None:
    """Give a loaded optimizer state's float32 master weights the names that the optimizer itself
    would: it looks for their moments by name, and a saved tensor brings its former name along."""
    for name, weight in state.get("master_weights", {}).items():
        weight.name = f"{name}_fp32_master_0"


def profiled() -> list[ProfilerTarget]:
    """What Paddle's profiler can watch. Left alone, it refuses to start, timer and all, where a
    custom device without a profiler of its own is present."""
    targets = [ProfilerTarget.CPU]
    if paddle.is_compiled_with_cuda():
        targets.append(ProfilerTarget.GPU)
    return targets


def squared_norm(tensor: Tensor) -> Tensor:
    """Sum of the squares, in float32, read once and without an array in between."""
    return _C_ops.squared_l2_norm(
        tensor if tensor.dtype == paddle.float32 else tensor.cast("float32")
    )


def multiply(tensor: Tensor, factor: float) -> None:
    """Multiply in place, in a tenth of the 10 us that `Tensor.scale_` takes for a small tensor."""
    _C_ops.scale_(tensor, factor, 0.0, True)


def share_of(optimizer: Any) -> list[Tensor]:
    """Of a Fleet optimizer with a sharded state: the parameters that this rank updates. Paddle's
    own clipping takes the place of the optimizer's then: that one is put back."""
    sharded = optimizer._inner_opt
    inner = sharded._inner_opt
    inner._grad_clip = getattr(inner._grad_clip, "_clip", inner._grad_clip)
    parameters: list[Tensor] = sharded._rank2params[sharded._sharding_rank]
    return parameters


def gradients_were_finite(optimizer: Optimizer) -> bool:
    """What `train.optimizer.Clip` found in the optimizer's last step."""
    return bool(optimizer._grad_clip.finite)


def join_ranks(strategy: fleet.DistributedStrategy) -> None:
    """`fleet.init` for collective training. NotConnected where gloo fails at what works when tried
    again: in 2.6.2 on a busy machine, 2 starts of 30 ended in "Connection refused" or
    "TIMEOUT" while the ranks, all alive and on one machine, connect to each other.
    """
    try:
        fleet.init(is_collective=True, strategy=strategy)
    except RuntimeError as error:
        if "gloo/transport" not in str(error):
            raise
        raise NotConnected(
            f"{error}; if this comes again: gloo takes the address that this machine's name stands "
            "for, unless GLOO_SOCKET_IFNAME names a network interface"
        ) from error


def wait_for_ranks(name: str, rank: int, world_size: int, failed: bool = False) -> bool:
    """A barrier without a time limit, counted in the job's TCP store; `name` is used once.

    Returns, on all ranks, whether any of them came with `failed`.

    `paddle.distributed.barrier` over gloo gives up after 30 s and takes no other limit, which is
    less than writing a checkpoint or a bundle may take on the first rank.
    """
    store = core.create_or_get_global_tcp_store()
    most = 1 << 30  # ranks; above it the failed ones are counted
    arrived = store.add(name, 1 + most if failed else 1)
    while arrived % most < world_size:
        time.sleep(0.02)
        arrived = store.add(name, 0)
    # The store is the first rank's and goes with it: it leaves when the others have looked.
    looked = store.add(f"{name}-looked", 1)
    while rank == 0 and looked < world_size:
        time.sleep(0.02)
        looked = store.add(f"{name}-looked", 0)
    return arrived >= most


def before_reading() -> None:
    """Start Paddle's reader clock, as its DataLoader does before each batch, and its batch clock:
    left alone that one runs on through evaluations and checkpoints."""
    benchmark().hooks["timer_hook"].start_time = timeit.default_timer()
    benchmark().before_reader()


def after_reading() -> None:
    benchmark().after_reader()


def timer_summary() -> State:
    """Paddle's own figures of the running timer: reader, batch (s) and ips, from step 11 on."""
    event = benchmark().current_event
    if event is None:
        return {}
    iterations = event.total_iters  # get_summary subtracts the skipped ones, once for each call
    summary: State = event.get_summary()
    event.total_iters = iterations
    if summary:
        # It adds up the batches from step 10 on, and divides by the steps from 11 on.
        steps = iterations - event.skip_iter
        summary["batch_summary"]["avg"] *= steps / (steps + 1)
        summary["reader_ratio"] *= (steps + 1) / steps
    return summary


def slow_operators(recorded: Profiler, most: int = 20) -> list[State]:
    """The operators, and what `RecordEvent` names, that took longest in a recorded timeline (times
    in ms)."""
    result = recorded.profiler_result
    events = StatisticData(result.get_data(), result.get_extra_info()).event_summary
    rows = [
        {
            "name": name,
            "calls": int(item.call),
            "total_ms": item.cpu_time / 1e6,
            "average_ms": item.avg_cpu_time / 1e6,
        }
        for name, item in [*events.items.items(), *events.userdefined_items.items()]
    ]
    return sorted(rows, key=lambda row: -row["total_ms"])[:most]


def to_arrays(state: State) -> State:
    """A `state_dict` with NumPy's arrays in place of tensors, which processes can exchange."""
    return {
        key: to_arrays(value) if isinstance(value, dict)
        else value.numpy() if isinstance(value, Tensor) else value
        for key, value in state.items()
    }  # fmt: skip


def to_tensors(state: State) -> State:
    """The inverse of `to_arrays`."""
    return {
        key: to_tensors(value) if isinstance(value, dict)
        else paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
        for key, value in state.items()
    }  # fmt: skip


def rename_state(state: State, names: dict[str, str]) -> State:
    """An optimizer's state_dict with each parameter `old` called `names[old]`.

    Its keys are a parameter's name and what is kept of it, as in `linear_3.w_0_moment1_0`.
    """
    renamed: State = {}
    for key, value in state.items():
        if key == "master_weights":
            renamed[key] = {names[old]: weight for old, weight in value.items()}
            continue
        old = max((old for old in names if key.startswith(old + "_")), key=len, default=None)
        renamed[key if old is None else names[old] + key[len(old) :]] = value
    return renamed
