"""A trainer, or the server, of a job: a trainer prints what `fleet.metrics.auc` makes of the scores
that trainers share out."""

from __future__ import annotations

import numpy as np

BUCKETS = 4096


def scores() -> tuple[np.ndarray, np.ndarray]:
    """Truth 0 or 1, and the bucket of each score."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, 2000)
    return truth, ((random.random(2000) * 0.6 + truth * 0.2) * BUCKETS).astype(np.int64)


def main() -> None:
    import paddle
    from paddle.distributed import fleet
    from paddle.distributed.fleet.metrics import metric

    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    if fleet.is_server():
        return
    truth, buckets = (values[fleet.worker_index() :: fleet.worker_num()] for values in scores())
    counts = [np.bincount(buckets[truth == kind], minlength=BUCKETS + 1)[None] for kind in (1, 0)]
    print(f"auc {metric.auc(*counts)!r}", flush=True)


if __name__ == "__main__":
    main()
