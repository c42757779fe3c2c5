"""What a burst needed goes back to the system.

glibc gives each thread a heap of its own and keeps what was freed in it, however much that is: the
threads of gRPC's core hold what the largest burst took. `malloc_trim` gives free pages back in all
heaps.
"""

from __future__ import annotations

import asyncio
import ctypes

SECONDS = 10.0


async def trim(seconds: float = SECONDS) -> None:
    """Give free memory of this process back every `seconds`, until cancelled.

    In a thread: glibc locks a heap while it looks through it. Nothing happens where the C library
    is not glibc.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(seconds)
        await loop.run_in_executor(None, malloc_trim, 0)
