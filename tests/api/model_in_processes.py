"""A program that loads a model and asks it in other processes: BUNDLE VARIANT HOW.

HOW: preload (forked workers that end as those of gunicorn do, one of them of a forked worker), fork
or spawn (of multiprocessing).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading

import numpy as np

import fleetbert

TEXTS = [" ".join(["word1", "word25", "字3"][: 1 + n % 3] * (1 + n % 5)) for n in range(200)]


def logits(model: fleetbert.Model) -> np.ndarray:
    return np.array([answer.logits for answer in model(TEXTS)])


def answer_as(expected: np.ndarray, model: fleetbert.Model) -> None:
    """Ends with an error where the answers differ, or do not come."""
    signal.alarm(60)
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(logits(model))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) < 3 or not all(np.allclose(one, expected, atol=1e-5) for one in found):
        sys.exit("the answers differ")


def fork(work, *arguments) -> int:
    process = os.fork()
    if process == 0:
        work(*arguments)
        sys.exit(0)
    return os.waitpid(process, 0)[1]


def work_and_fork(expected: np.ndarray, model: fleetbert.Model) -> None:
    answer_as(expected, model)
    if fork(answer_as, expected, model):
        sys.exit("the worker's child failed")


def main(bundle: str, variant: str, how: str) -> None:
    model = fleetbert.load(bundle, variant, threads=2)
    expected = logits(model)
    if how == "preload":
        codes = [fork(work, expected, model) for work in (answer_as, work_and_fork)]
    else:
        context = multiprocessing.get_context(how)
        processes = [context.Process(target=answer_as, args=(expected, model)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        codes = [process.exitcode for process in processes]
    answer_as(expected, model)
    sys.exit(any(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
