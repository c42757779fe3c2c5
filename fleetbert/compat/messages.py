"""What engines say in their errors' texts, where only the text tells what went wrong.

Paddle 2.6.2 and 3.3.1, and ONNX Runtime. Imports neither.
"""

from __future__ import annotations

from typing import Sequence

# Of a file that cannot be opened: PADDLE_ENFORCE, its streams, ONNX Runtime, ONNX Runtime's mmap.
CANNOT_OPEN = (
    "(NotFound) Cannot open file",
    "fails to open file",
    "NO_SUCHFILE",
    "system error number",
)
NO_MEMORY = "(ResourceExhausted)"  # PADDLE_ENFORCE


def is_out_of_memory(error: Exception) -> bool:
    return NO_MEMORY in str(error)


def cannot_open(error: Exception, files: Sequence[str]) -> bool:
    """Whether the error says of one of these that it cannot be opened."""
    text = str(error)
    return any(words in text for words in CANNOT_OPEN) and any(file in text for file in files)


def first_line(error: Exception) -> str:
    """Paddle's errors are pages long, below a line of dashes; the first line says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.strip("-")), "")


def last_error(error: Exception) -> str:
    """The line of a page that names an error, as in "InvalidArgumentError: ..."; the last of
    several, as those before are of the calls above it."""
    lines = [line for line in str(error).splitlines() if "Error" in line]
    return (lines or [repr(error)])[-1]
