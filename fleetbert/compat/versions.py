"""Which Paddle is installed, and what it lacks. Imports no Paddle."""

from __future__ import annotations

import functools
import importlib.metadata
import re

from fleetbert.core.errors import UserError

# Both fill the folder `paddle`. The first is put over the second, which pip always installs too.
DISTRIBUTIONS = ("paddlepaddle-gpu", "paddlepaddle")
# From the first of each to below the second, as setup.py has it. What is between was not tried.
PYTHONS = ((3, 8), (3, 13))  # first and last; which Paddle runs on which is in `OF_PYTHONS`
OF_PYTHONS = "PaddlePaddle 2.6.2 runs on Python 3.8 to 3.12, and 3.3.1 on 3.9 to 3.13"
SUPPORTED = (((2, 6, 2), (2, 7, 0)), ((3, 3, 1), (3, 4, 0)))


@functools.lru_cache(maxsize=None)
def paddle_version() -> str:
    """The version of the installed package, like "2.6.2"; "" where there is none."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def is_paddle_3() -> bool:
    return paddle_version().startswith("3.")


def check() -> None:
    """UserError where a Paddle is installed that nothing here was written for."""
    version = paddle_version()
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if version and not any(least <= numbers < beyond for least, beyond in SUPPORTED):
        raise UserError(
            f"PaddlePaddle {version} is installed, and this project runs on 2.6.2 and 3.3.1: "
            "pip install paddlepaddle==2.6.2, or on Python 3.13 paddlepaddle==3.3.1"
        )


def need_paddle_2(what: str) -> None:
    """UserError on Paddle 3. `what` begins the sentence."""
    if is_paddle_3():
        raise UserError(
            f"{what} needs PaddlePaddle 2.6.2, and {paddle_version()} is installed here: "
            "pip install paddlepaddle==2.6.2, or `make venv PADDLE=2` in a checkout, on Python 3.8 "
            "to 3.12"
        )
