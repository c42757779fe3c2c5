"""What a processor can do, by what Linux tells of it."""

from __future__ import annotations

import pytest

from fleetbert.compat import environment, processor
from fleetbert.core.errors import UserError

BEGINNING = "processor\t: 0\nmodel name\t: Some\nflags\t\t: fpu avx2 avx512f avx512_vnni"


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        (f"{BEGINNING} avx512_bf16\n", True),
        (f"{BEGINNING} amx_bf16 amx_tile amx_int8\n", True),
        (f"{BEGINNING} amx_tile amx_int8\n", False),
        (f"{BEGINNING}\nmodel name\t: not_avx512_bf16\n", False),
        ("Features\t: fp asimd bf16\n", False),
        ("", False),
    ],
    ids=["avx512", "amx", "amx-int8", "vnni", "arm", "unknown"],
)
def test_who_multiplies_bfloat16(monkeypatch, cpuinfo, has):
    monkeypatch.setattr(environment, "cpuinfo", lambda: cpuinfo)
    assert processor.bfloat16() is has


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        (["a", "b"], "x needs a processor with a or b, and this one has neither: run"),
        (["a"], "x needs a processor with a, and this one has not: run"),
        (["a", "b", "c"], "x needs a processor with a or b or c, and this one has none of them"),
    ],
)
def test_what_is_lacking_is_told(monkeypatch, needs, told):
    monkeypatch.setattr(environment, "cpuinfo", lambda: BEGINNING)
    with pytest.raises(UserError, match=told):
        processor.check(needs, "x")
    processor.check([*needs, "avx2"], "x")
    processor.check([], "x")
