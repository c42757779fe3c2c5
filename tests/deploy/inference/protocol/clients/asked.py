"""What these clients ask, and arrays as JSON can say them."""

from __future__ import annotations

import numpy as np

TEXTS = ["good good", "bad", "坏", "a text of more than sixteen characters"]
IDS = [[2, 7, 3], [2, 3, 0]]


def listed(array):
    """None stays what it is."""
    if array is not None and array.dtype == np.object_:
        array = np.array([t.decode() if isinstance(t, bytes) else t for t in array])
    return None if array is None else array.tolist()
