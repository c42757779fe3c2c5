"""Memory that was freed does not stay with the server."""

from __future__ import annotations

import subprocess
import sys

# A thread of its own, as gRPC's core has them, takes 100 MB in small blocks and frees all but the
# last one, which keeps glibc from shrinking the heap by itself.
SCRIPT = """
import asyncio, contextlib, ctypes, threading
import psutil
from fleetbert.deploy.inference.ops import memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def burst():
    blocks = [libc.malloc(4000) for _ in range(25_000)]
    for block in blocks:
        ctypes.memset(block, 1, 4000)
    for block in blocks[:-1]:
        libc.free(block)

thread = threading.Thread(target=burst)
thread.start()
thread.join()
process = psutil.Process()
before = process.memory_info().rss
with contextlib.suppress(asyncio.TimeoutError):
    asyncio.run(asyncio.wait_for(memory.trim(0.01), 1))
print(before - process.memory_info().rss)
"""


def test_what_a_burst_took_goes_back():
    done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) > 80e6
