"""JSON as RFC 8259 has it, which knows no NaN and no infinity: null stands in their place."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """A value of dicts, lists and numbers with None for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def dumps(value: Any, **options: Any) -> str:
    """`json.dumps`, of `finite`."""
    return json.dumps(finite(value), allow_nan=False, **options)
