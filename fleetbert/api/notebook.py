"""What a notebook shows of results."""

from __future__ import annotations

import html
from typing import Iterable


def table(rows: Iterable[Iterable[object]]) -> str:
    """HTML with a cell for each value."""
    lines = ("".join(f"<td>{html.escape(str(value))}</td>" for value in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
