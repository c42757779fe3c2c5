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
import numpy as np
from tokenizers import BertWordPieceTokenizer

sys.path.append(str(Path(__file__).resolve().parent))
import infer as engines

JOB = json.loads(Path(os.environ["FLEETBERT_JOB"]).read_text(encoding="utf-8"))


@bentoml.service(workers=1, traffic={"timeout": 60})
class Bench:
    def __init__(self) -> None:
        self.run, _, _ = engines.OPENERS[JOB["peer"]](JOB)
        self.tokenizer = BertWordPieceTokenizer(JOB["vocab"], lowercase=JOB["lowercase"])
        self.tokenizer.enable_truncation(JOB["max_length"])
        self.tokenizer.enable_padding(pad_id=JOB["pad_id"])

    @bentoml.api(route="/infer", batchable=True, max_batch_size=32, max_latency_ms=1000)
    def infer(self, texts: List[str]) -> List[List[float]]:  # noqa: UP006  read at run time
        encodings = self.tokenizer.encode_batch(texts)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        types = np.array([encoding.type_ids for encoding in encodings], np.int64)
        logits = self.run(ids, types)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (scores / scores.sum(axis=1, keepdims=True)).tolist()
