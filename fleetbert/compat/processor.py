"""What this machine's processor can do. Imports no Paddle."""

from __future__ import annotations

from fleetbert.compat import environment

# As Linux names them: either multiplies bfloat16. Without them oneDNN emulates it, more slowly
# than float32.
BFLOAT16 = ("avx512_bf16", "amx_bf16")


def bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself; False where Linux does not tell."""
    return not set(BFLOAT16).isdisjoint(environment.cpuinfo().split())
