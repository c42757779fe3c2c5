"""What tests of bfloat16 share: which of them a processor can run, and rounding of their own."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert.compat import processor

needs_bfloat16 = pytest.mark.skipif(
    not processor.bfloat16(), reason="the processor has neither avx512_bf16 nor amx_bf16"
)
WITHOUT = "processor : 0\nflags : fpu avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni\n"


def nearest(array) -> np.ndarray:
    """float32 → the nearest number of 8 bits of precision, of two the even one, as float64. By
    arithmetic; for normal numbers."""
    array = np.asarray(array, np.float64)
    _, exponent = np.frexp(array)
    step = np.exp2(exponent - 8.0)
    return np.rint(array / step) * step
