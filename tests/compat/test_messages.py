"""What is read out of engines' errors."""

from __future__ import annotations

import pytest

from fleetbert.compat import messages

PAGE = """
--------------------------------------
InvalidArgumentError: shapes differ, 3 and 4
  [Hint: Expected 3 == 4] (at operator.cc:1)
"""


@pytest.mark.parametrize(
    ("error", "path", "expected"),
    [
        (
            OSError("(NotFound) Cannot open file b/float32/model.pdmodel, please"),
            "model.pdmodel",
            True,
        ),
        (
            RuntimeError("[ONNXRuntimeError] : 3 : NO_SUCHFILE : onnx/model.onnx"),
            "model.onnx",
            True,
        ),
        (RuntimeError("(NotFound) Cannot open file libother.so"), "model.pdmodel", False),
        (RuntimeError("model.pdmodel: (InvalidArgument)"), "model.pdmodel", False),
    ],
)
def test_files_that_cannot_be_opened(error, path, expected):
    assert messages.cannot_open(RuntimeError(error), [path]) == expected


def test_the_line_that_says_what_is_wrong():
    error = RuntimeError(PAGE)
    assert messages.first_line(error) == "InvalidArgumentError: shapes differ, 3 and 4"
    assert messages.last_error(error) == "InvalidArgumentError: shapes differ, 3 and 4"
    assert messages.last_error(ValueError("no such line")) == "ValueError('no such line')"
    assert messages.first_line(ValueError("")) == ""
    assert messages.is_out_of_memory(RuntimeError("(ResourceExhausted) no memory left"))
