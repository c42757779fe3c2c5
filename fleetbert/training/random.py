"""The random numbers of a step: a function of the seed, the rank and the step, and of nothing else.

So a run that is resumed draws what the undisturbed run drew, on any device, without saving the
state of any generator.
"""

from __future__ import annotations

import random

import numpy as np
import paddle


def start_step(seed: int, rank: int, step: int) -> np.random.Generator:
    """Seed Paddle's, NumPy's and Python's generators for a step; returns one for its dropout."""
    sequence = np.random.SeedSequence([seed, rank, step])
    paddle_seed, numpy_seed, python_seed = (int(n) for n in sequence.generate_state(3, np.uint32))
    paddle.seed(paddle_seed)
    np.random.seed(numpy_seed)
    random.seed(python_seed)
    return np.random.Generator(np.random.SFC64(sequence.spawn(1)[0]))
