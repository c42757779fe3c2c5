"""Which NVIDIA cards the installed Paddle has kernels for. Imports no Paddle."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Sequence, Tuple

from fleetbert.compat import versions
from fleetbert.core.errors import UserError

Capability = Tuple[int, int]  # a card's, as in 8.6

# What PyPI's paddlepaddle-gpu 2.6.2 is built for (CUDA 11.8), which it does not tell.
OF_2_6: tuple[Capability, ...] = ((6, 1), (7, 0), (7, 5), (8, 0), (8, 6))
# From which card on which build of 3.3 is for it, by CUDA (Paddle's installation guide, "Tables").
OF_3: tuple[tuple[Capability, str], ...] = (((10, 0), "12.9"), ((9, 0), "12.6"), ((6, 1), "11.8"))


def gpu_version() -> str:
    """The version of the installed paddlepaddle-gpu; "" where Paddle is the build for CPUs."""
    try:
        return importlib.metadata.version("paddlepaddle-gpu")
    except importlib.metadata.PackageNotFoundError:
        return ""


def architectures() -> tuple[Capability, ...]:
    """The cards that the installed wheel has kernels for; () where they are not known."""
    version = gpu_version()
    if not version:
        return ()
    if version.startswith("2.6."):
        return OF_2_6
    spec = importlib.util.find_spec("paddle")  # imports nothing
    for folder in (spec and spec.submodule_search_locations) or ():
        text = Path(folder, "version", "__init__.py").read_text(encoding="utf-8")
        for line in re.findall(r"^compiled_cuda_archs\s*=\s*(.*)$", text, re.M):
            return tuple(divmod(int(number), 10) for number in re.findall(r"\d+", line))
    return ()


def runs(card: Capability, built_for: Sequence[Capability]) -> bool:
    """Whether machine code for one of these runs on the card: of the same first number, and at most
    its second ("Binary Compatibility" in NVIDIA's CUDA C++ Programming Guide). True where it is not
    known what the wheel was built for."""
    return not built_for or any(card[0] == x and card[1] >= y for x, y in built_for)


def problem(card: Capability) -> str:
    """Why the installed wheel cannot use a card, for a sentence; "" where it can."""
    built_for = architectures()
    if runs(card, built_for):
        return ""
    return (
        f"compute capability {_text(card)}, and paddlepaddle-gpu {gpu_version()} has kernels for "
        f"{', '.join(map(_text, built_for))} only"
    )


def check(card: Capability, name: str, instead: str) -> None:
    """UserError where the installed wheel has no kernels for the card. instead: what to do without
    it, as the end of the sentence."""
    if wrong := problem(card):
        raise UserError(f"{name} has {wrong}: {wheel(card)}, or {instead}")


def wheel(card: Capability) -> str:
    """What to install for a card, for a sentence."""
    if runs(card, OF_2_6) and not versions.is_paddle_3():
        return "pip install --force-reinstall --no-deps paddlepaddle-gpu==2.6.2"
    for first, cuda in OF_3:
        if card >= first:
            return f"install paddlepaddle-gpu 3.3 for CUDA {cuda} as docs/paddle3.md says"
    return "no wheel of Paddle is built for it"


def _text(capability: Capability) -> str:
    return ".".join(map(str, capability))
