"""What this machine's processor can do. Imports no Paddle."""

from __future__ import annotations

from typing import Sequence

from fleetbert.compat import environment
from fleetbert.core.errors import UserError

# As Linux names them: either multiplies bfloat16. Without them oneDNN emulates it, more slowly
# than float32.
BFLOAT16 = ("avx512_bf16", "amx_bf16")


def bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself; False where Linux does not tell."""
    return has_one_of(BFLOAT16)


def has_one_of(flags: Sequence[str]) -> bool:
    """Whether the processor has one of these, by Linux's names; True where none are named."""
    return not flags or not set(flags).isdisjoint(environment.cpuinfo().split())


def check(needs: Sequence[str], what: str) -> None:
    """UserError where the processor has none of `needs`. `what` begins the sentence."""
    if not has_one_of(needs):
        lacks = "neither" if len(needs) == 2 else "none of them" if needs[1:] else "not"
        raise UserError(
            f"{what} needs a processor with {' or '.join(needs)}, and this one has {lacks}: run it "
            "on another machine, or choose another variant"
        )
