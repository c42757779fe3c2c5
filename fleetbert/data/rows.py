"""Sequences whose arrays are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from typing import Sequence, overload

import numpy as np


class Rows(Sequence[np.ndarray]):
    """A sequence by its length and its `row` of a number from 0."""

    @abstractmethod
    def row(self, number: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, which: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, which: slice) -> list[np.ndarray]: ...

    def __getitem__(self, which: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(which, slice):
            return [self.row(number) for number in range(len(self))[which]]
        return self.row(range(len(self))[which])
