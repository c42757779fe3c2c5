"""An engine of `infer.py` behind BentoML, which puts texts of several requests into one batch.

`bentoml serve` runs it in the peers' environment: adaptive batching of up to 32 requests that come
within `max_latency_ms`. FLEETBERT_JOB names the file with the job.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import List

import bentoml

sys.path.append(str(Path(__file__).resolve().parent))
import infer as engines

JOB = json.loads(Path(os.environ["FLEETBERT_JOB"]).read_text(encoding="utf-8"))


@bentoml.service(workers=1, traffic={"timeout": 60})
class Bench:
    def __init__(self) -> None:
        self.answer, _, _ = engines.open_for_texts(JOB)

    @bentoml.api(route="/infer", batchable=True, max_batch_size=32, max_latency_ms=1000)
    def infer(self, texts: List[str]) -> List[List[float]]:  # noqa: UP006  read at run time
        return engines.softmax(self.answer(texts)).tolist()
