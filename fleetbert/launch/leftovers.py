"""Checks for environment variables that are left over from a cluster or another launcher."""

from __future__ import annotations

import logging
from typing import Mapping

from fleetbert.core.errors import UserError

log = logging.getLogger(__name__)

_ID, _COUNT, _ENDPOINTS = "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS"

# Who sets it, how many processes it says there are, what else comes with it.
_OTHERS = (
    ("torchrun", "WORLD_SIZE", ("RANK", "LOCAL_RANK", "MASTER_ADDR")),
    ("srun of Slurm", "SLURM_STEP_NUM_TASKS", ("SLURM_PROCID",)),
    ("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_RANK",)),
)


def check(environ: Mapping[str, str]) -> None:
    """Raise UserError if Paddle's variables do not describe a whole job. Log a warning if another
    launcher started several processes, because they do not know of each other."""
    given = [name for name in (_ID, _COUNT, _ENDPOINTS) if environ.get(name)]
    wrong = _wrong(environ)
    if wrong:
        raise UserError(
            f"{_listed(environ, given)}: {wrong}; they are left over "
            f"from a launcher: for one process `unset {' '.join(given)}`, several are started with "
            "`fleetbert launch --ranks N` or paddle.distributed.launch"
        )
    for launcher, count, more in _OTHERS:
        number = environ.get(count, "")
        if not given and number.isdigit() and int(number) > 1:
            names = [name for name in (count, *more) if name in environ]
            log.warning(
                f"{_listed(environ, names)}: set by {launcher}, and "
                "not used: this process trains alone. Start several with `fleetbert launch --ranks "
                f"N` or paddle.distributed.launch, or `unset {' '.join(names)}`"
            )


def _wrong(environ: Mapping[str, str]) -> str:
    """Return why Paddle's variables do not describe a whole job; "" if they do."""
    endpoints = [word for word in environ.get(_ENDPOINTS, "").split(",") if word]
    number, count = environ.get(_ID, ""), environ.get(_COUNT, "")
    for name, value in ((_ID, number), (_COUNT, count)):
        if value and not value.isdigit():
            return f"{name} is no number"
    if not endpoints:
        is_alone = number in ("", "0") and count in ("", "0", "1")
        return "" if is_alone else f"{_ENDPOINTS} is missing"
    if not all(word.rpartition(":")[2].isdigit() for word in endpoints):
        return f"{_ENDPOINTS} are not addresses with ports"
    if not number or int(number) >= len(endpoints):
        return f"{_ID} is none of the {len(endpoints)} ranks"
    return "" if not count or int(count) == len(endpoints) else f"{_COUNT} is another number"


def _listed(environ: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name}={environ[name]}" for name in names)
