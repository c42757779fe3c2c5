"""What a processor can do, by what Linux tells of it."""

from __future__ import annotations

import pytest

from fleetbert.compat import environment, processor

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
