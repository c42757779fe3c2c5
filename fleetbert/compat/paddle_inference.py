"""What Paddle Inference 2.6.2 needs before it may be trusted with texts of any length."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from fleetbert.compat import environment

# A shape has about 10, of some 5 KB each.
PRIMITIVES = 16384

# 3.3.1's passes write attributes by the first names. 2.6.2 knows only the second; both read those.
ATTRIBUTES = {"use_onednn": "use_mkldnn", "onednn_data_type": "mkldnn_data_type"}
# paddle.inference has no types.
PredictorConfig = Any
Predictor = Any
Tensor = Any  # an input or output of a predictor


def import_inference() -> Any:
    """The module paddle.inference, imported when it is needed: Paddle takes seconds."""
    return environment.import_paddle().inference


def config_of(program: Path, parameters: Path) -> PredictorConfig:
    """The config of a predictor for files.

    Their names are given as bytes: Paddle refuses texts with other than ASCII letters where the
    locale has none (`LC_ALL=C PYTHONUTF8=0`).
    """
    return import_inference().Config(os.fsencode(program), os.fsencode(parameters))


def has_onednn(config: PredictorConfig = None) -> bool:
    """Whether Paddle, by a config of its own, was built with oneDNN: for aarch64 it is not."""
    return hasattr(config or import_inference().Config, "set_mkldnn_cache_capacity")


def use_onednn(config: PredictorConfig) -> None:
    """oneDNN with one primitive cache for all shapes, never emptied.

    With the default (the last 10 input shapes have a cache each) every new shape reorders and
    keeps all weights again: BERT-base takes 150 to 800 ms and 350 MB more for it. With 0 there is
    one cache, and a new shape costs 5 to 20 ms; later calls are equally fast. The price is the
    bug that `compat.lengths` describes, which needs that one cache. A build without oneDNN runs
    without it.

    Paddle asks oneDNN for a primitive anew in every call of attention, softmax and additions, and
    oneDNN keeps the last 1,024, about 100 shapes of batches; after that it compiles again. It reads
    the number when its first primitive is made.
    """
    if not has_onednn(config):
        return
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRIMITIVES))
    config.enable_mkldnn()
    config.set_mkldnn_cache_capacity(0)


def ease_numpy() -> None:
    """Let NumPy's small work between Paddle's calls go fast, from now on in this process.

    OpenBLAS's threads and Paddle's wait for work by spinning, on the same processors: with one
    thread the heads of early exit take 17 ms for SST-2's 872 texts instead of 31. And hidden states
    are blocks of megabytes, which glibc gives back and asks for again: putting texts together takes
    11 ms with the blocks kept, and 25 without.
    """
    threadpoolctl.threadpool_limits(1, "blas")
    environment.keep_large_blocks(1 << 25, 1 << 28)


def lend(handle: Tensor, array: np.ndarray) -> None:
    """Let a predictor's input be the array itself, which it keeps until it gets another. Hidden
    states of 2,000 tokens take MiniLM's first layer 4 % of its time to copy. Nothing may be copied
    to that input later: `copy_from_cpu` would write into the array.

    `share_external_data` takes Paddle's own tensors only, and `paddle.to_tensor` copies (2.6.2).
    """
    from paddle.base import core

    tensor = core.LoDTensor()
    tensor.set(array, core.CPUPlace(), True)  # zero_copy
    handle.share_external_data(tensor)
