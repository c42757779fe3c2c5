# ruff: noqa: FA100  pydantic evaluates these annotations at run time, also on Python 3.8
"""What a search knows of its candidates, as in search.json."""

import math
from typing import Dict, Optional

from pydantic import BaseModel

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import paired
from fleetbert.core.quantities import number


class Candidate(BaseModel):
    """What was measured of a candidate on selection.data. bundle: its folder below that of the
    search; ms: the median time of one text alone, float32_ms: float32's meanwhile; mb: of the
    variant and the tokenizer; failed: why there is none."""

    name: str
    bundle: str = ""
    variant: str = ""
    accuracy: float = 0.0
    drop: Optional[bundles.Drop] = None
    ms: float = 0.0
    float32_ms: float = 0.0
    mb: float = 0.0
    failed: str = ""

    def excess(self, job: config.Compress) -> float:
        """The largest ratio of what it takes to what is allowed: at most 1 where it meets all."""
        if self.failed or self.drop is None:
            return math.inf
        lost, most = self.drop.value, job.gate.max_accuracy_drop
        over = lost / most if most > 0 else math.inf
        ratios = [1.0 if lost <= most + 1e-9 else max(over, 1 + lost - most)]
        ratios += [self.ms / job.budget.ms] if job.budget.ms else []
        ratios += [self.mb / job.budget.mb] if job.budget.mb else []
        return max(ratios)

    def describe(self) -> str:
        if self.failed or self.drop is None:
            return f"{self.name}: {self.failed}"
        return (
            f"{self.name}: {number(self.ms)} ms a text ({self.float32_ms / self.ms:.2f} times as "
            f"fast as float32), {self.mb:.1f} MB, {paired.describe(self.drop)}"
        )


class Tried(BaseModel):
    """of: a hash of the job and its tables; candidates: those that are done, by name."""

    of: str
    candidates: Dict[str, Candidate] = {}
