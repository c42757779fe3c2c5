"""Distribution strategies: one process, many ranks that share the gradients, or servers.

`connect` turns `strategy.name` into a strategy. A strategy knows tasks only through `task.loss`,
`task.predict` and `task.table`.
"""

from __future__ import annotations

import logging
import os

import paddle

from fleetbert import config as schema
from fleetbert.compat import cards
from fleetbert.core.errors import UserError
from fleetbert.training.strategies import fleet_keys
from fleetbert.training.strategies.collective import Collective
from fleetbert.training.strategies.parameter_server import rendezvous
from fleetbert.training.strategies.parameter_server.trainer import ParameterServer
from fleetbert.training.strategies.single import Single

log = logging.getLogger(__name__)


def connect(job: schema.Config) -> Single:
    """Take the device, join the other ranks if there are any, and return the strategy."""
    if job.strategy.name == "parameter_server":
        return ParameterServer(set_device("cpu"), job)
    if rendezvous.is_job():
        raise UserError(
            f"strategy.name: {job.strategy.name} cannot run on servers and trainers; set it to "
            "parameter_server, or start the script without --servers and --trainers"
        )
    device = set_device(job.trainer.device)
    launched = int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1
    if job.strategy.name == "single" and launched:
        raise UserError(
            "strategy.name: single cannot run in several ranks; start the script without "
            "paddle.distributed.launch, or choose collective"
        )
    # One rank needs no group: `collective` without a launcher is the same as single.
    if job.strategy.fleet and not launched:
        fleet_keys.check(job.strategy.fleet)
        log.warning(
            "strategy.fleet: one process exchanges nothing, so its keys are not used; start it "
            "with fleetbert launch, or leave them out"
        )
    return Collective(device, job.strategy) if launched else Single(device)


def set_device(device: str) -> str:
    """Make `trainer.device` Paddle's device; returns it without a number (`cpu`, `gpu`, ...)."""
    has_gpu = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    if device == "auto":
        device = "gpu" if has_gpu else "cpu"
    if device == "gpu" and not has_gpu:
        reason = "finds no GPU" if paddle.is_compiled_with_cuda() else "is built without CUDA"
        raise UserError(
            f"trainer.device: gpu: the installed Paddle {reason}; choose cpu or auto, or install "
            "fleetbert[gpu]"
        )
    known = ["cpu", "gpu", *paddle.device.get_all_custom_device_type()]
    if device not in known:
        raise UserError(f"trainer.device: {device} is not one of {', '.join(known)}, auto")
    number = os.environ.get("FLAGS_selected_gpus", "0").split(",")[0] or "0"
    if device == "gpu":
        cuda, card = paddle.device.cuda, int(number)
        instead = "set trainer.device=cpu"
        cards.check(cuda.get_device_capability(card), cuda.get_device_name(card), instead)
    paddle.set_device(f"gpu:{number}" if device == "gpu" else device)
    return device
