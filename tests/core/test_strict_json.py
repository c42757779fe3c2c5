"""JSON without NaN, which is no JSON."""

from __future__ import annotations

import json
import math

import numpy as np

from fleetbert.core import strict_json


def test_what_is_no_number_is_null():
    value = {"a": math.nan, "b": [1.5, -math.inf, (np.float64("nan"), 2)], "c": {"d": "NaN"}}
    expected = {"a": None, "b": [1.5, None, [None, 2]], "c": {"d": "NaN"}}
    assert strict_json.finite(value) == expected
    assert json.loads(strict_json.dumps(value, indent=1)) == expected
    assert strict_json.dumps({"é": 1}, ensure_ascii=False) == '{"é": 1}'
