"""`make endurance`: twenty tiny models on two processors, while one of them answers. Prints when
all are ready, the memory (PSS) of all processes, and how long the first model's answers took
meanwhile and afterwards.

Alone: python -m pytest tests/endurance/test_many_models.py
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import psutil
import pytest
import requests
from served import REAL, ask, serving
from tiny_bert import export, make_network

MODELS, WORKERS = 20, 2
LARGEST = 1.6e9  # bytes of all processes, of 40 workers


def memory(pid: int) -> int:
    """Bytes of a process and those below it; what several share is divided among them."""
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    fields = [Path(f"/proc/{one}/smaps_rollup").read_text().split() for one in family]
    return sum(1024 * int(words[words.index("Pss:") + 1]) for words in fields)


def describe(seconds: list[float]) -> str:
    *_, late = statistics.quantiles(seconds, n=20)
    return f"median {1e3 * statistics.median(seconds):.1f} ms, 95 % within {1e3 * late:.1f} ms"


@pytest.mark.timeout(1800)
def test_twenty_models(tmp_path, tiny_vocab, capfd):
    models = tmp_path / "models"
    for number in range(MODELS):
        export(models / f"m{number:02}" / "1", make_network(seed=number), tiny_vocab)
    words = [f"repository.path={models}", f"engine.workers={WORKERS}", "engine.threads=1"]
    begin = time.monotonic()
    with serving(tmp_path, *words, command=REAL, ready=False) as served:
        served.wait_for(lambda: "serving on" in served.out)
        served.urls = [word.rstrip(",;") for word in served.out.split() if "://" in word]
        seconds = []
        while "\nready: " not in served.out:
            asked = time.monotonic()
            status = ask(served.http, "word1 word2", "m00").status_code
            if status == 200:
                seconds.append(time.monotonic() - asked)
            assert status == 200 or (status == 503 and not seconds)  # once it answers, always
        ready = time.monotonic() - begin
        load = os.getloadavg()[0]
        alone = [ask(served.http, "word1 word2", "m00").elapsed.total_seconds() for _ in range(999)]
        answers = [ask(served.http, "word1 word2", f"m{n:02}").json() for n in range(MODELS)]
        assert len({str(answer["outputs"]) for answer in answers}) == MODELS
        assert len(served.workers()) == MODELS * WORKERS
        total = memory(served.process.pid)
        assert requests.get(f"{served.http}/v2/health/ready", timeout=60).status_code == 200
        assert served.end() == 0
    with capfd.disabled():
        print(
            f"\n{MODELS} models ready after {ready:.1f} s (load {load:.1f}), {total / 1e6:.0f} MB; "
            f"{len(seconds)} answers meanwhile: {describe(seconds)}; afterwards: {describe(alone)}"
        )
    assert total < LARGEST
