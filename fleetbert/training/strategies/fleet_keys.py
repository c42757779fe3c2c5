"""`strategy.fleet`: keys of Fleet's DistributedStrategy, under its own names.

fleetbert trains in dynamic graphs, in which Fleet executes few of its keys and
ignores the others without a word. Those that it executes are passed on; the others are refused with
the key that does the same here. docs/distribute.md has the table.
"""

from __future__ import annotations

import difflib
from typing import Any, Mapping

from google.protobuf.json_format import ParseDict, ParseError
from paddle.distributed.fleet import DistributedStrategy

from fleetbert.core.errors import UserError

PASSED = ("find_unused_parameters", "fuse_grad_size_in_MB", "last_comm_group_size_MB")
DEGREES = ("dp_degree", "sharding_degree")
INSTEAD = {
    "amp": "set precision.level",
    "recompute": "set trainer.recompute=true",
    "gradient_merge": "set optimizer.accumulate_steps",
    "lamb": "set optimizer.name=lamb",
    "lars": "set optimizer.name=lars",
    "fp16_allreduce": "set strategy.gradients=bfloat16",
    "sharding": "for stage 1 set hybrid_configs: {sharding_degree: N}, for N ranks; stages 2 and 3 "
    "need GPUs, and are not supported",
    "a_sync": "set strategy.name=parameter_server",
    "sync_batch_norm": "the networks of fleetbert have no batch normalization",
}


def read(keys: Mapping[str, object], ranks: int) -> DistributedStrategy:
    """Return Fleet's strategy with `keys`. UserError for what `check` refuses, and for degrees that
    do not fit the number of ranks."""
    check(keys)
    strategy = DistributedStrategy()
    for name, value in keys.items():
        if name == "hybrid_configs" and isinstance(value, dict):
            # Where dp_degree is open, Fleet divides the ranks by all degrees but this.
            value = {**value, "dp_degree": ranks // _sharding_degree(value, ranks)}
        setattr(strategy, name, value)
    return strategy


def check(keys: Mapping[str, object]) -> None:
    """UserError for a key or a value that Fleet does not know or would ignore."""
    strategy = DistributedStrategy()
    known = list(strategy.strategy.DESCRIPTOR.fields_by_name)
    for name, value in keys.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise UserError(
                f"strategy.fleet: DistributedStrategy has no key {name!r}; did you mean {near}?"
            )
        try:
            ParseDict({name: value}, type(strategy.strategy)())
        except ParseError as error:
            raise UserError(f"strategy.fleet: {name}: {error}") from error
        if name not in (*PASSED, "hybrid_configs"):
            method = name[: -len("_configs")] if name.endswith("_configs") else name
            raise UserError(
                f"strategy.fleet: {name}: Fleet ignores it in dynamic graphs, in which fleetbert "
                f"trains; {INSTEAD.get(method, 'leave it out')}"
            )


def _sharding_degree(configs: Mapping[str, Any], ranks: int) -> int:
    for name, value in configs.items():
        if name not in DEGREES and value not in (1, -1):
            raise UserError(
                f"strategy.fleet: hybrid_configs: {name}: the networks of fleetbert have no layers "
                f"for it; it passes on {' and '.join(DEGREES)} only"
            )
    sharded = configs.get("sharding_degree", 1)
    if sharded not in (1, ranks):
        raise UserError(
            f"strategy.fleet: hybrid_configs: sharding_degree: must be the number of ranks, "
            f"{ranks}, or 1, and is {sharded}"
        )
    if configs.get("dp_degree", -1) not in (-1, ranks // sharded):
        raise UserError(
            "strategy.fleet: hybrid_configs: dp_degree times sharding_degree must be the number of "
            f"ranks, {ranks}; leave dp_degree out"
        )
    return int(sharded)
