"""A model of what more machines cost: the tables of docs/scaling.md.

What was measured has the page that it is from; all else is assumed. Times in seconds, sizes in
bytes, rates per second.
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

from benchmarks.harness import Result


class Shape(NamedTuple):
    """A BERT of Devlin et al. (2019), section 3, with the vocabulary of its uncased English."""

    name: str
    layers: int
    hidden: int
    words: int = 30522
    positions: int = 512

    @property
    def layer_weights(self) -> int:
        """Of all layers: attention, the feed-forward part of 4 x hidden, two LayerNorms."""
        attention = 4 * (self.hidden**2 + self.hidden)
        wide = 4 * self.hidden
        return self.layers * (
            attention + 2 * self.hidden * wide + wide + self.hidden + 4 * self.hidden
        )

    @property
    def parameters(self) -> int:
        embeddings = (self.words + self.positions + 2 + 2) * self.hidden
        pooler = self.hidden**2 + self.hidden
        return embeddings + self.layer_weights + pooler

    def step_operations(self, texts: int, length: int) -> int:
        """Floating-point operations of a step: forward, and twice that backward. Two for each
        weight of a layer and token, and in each layer 4 x hidden for each pair of tokens."""
        forward = 2 * self.layer_weights * texts * length
        forward += self.layers * 4 * self.hidden * texts * length**2
        return 3 * forward


class Link(NamedTuple):
    name: str
    bytes_per_s: float  # one way


BASE = Shape("BERT-base", 12, 768)
LARGE = Shape("BERT-large", 24, 1024)

# NVIDIA A100 data sheet: NVLink 600 GB/s both ways together. InfiniBand HDR: 200 Gbit/s a port.
# IEEE 802.3: 25 and 100 Gbit/s. All one way, without protocol overhead.
NVLINK = Link("NVLink (A100)", 300e9)
NETWORKS = (
    Link("InfiniBand HDR", 200e9 / 8),
    Link("100 Gbit Ethernet", 100e9 / 8),
    Link("25 Gbit Ethernet", 25e9 / 8),
)
NODE = 8  # GPUs in a machine, which share one port
GPUS = (8, 16, 64, 256, 1024)

# Assumed: a third of an A100's published 312 TFLOP/s in float16, at 32 texts of 128 tokens a GPU.
RATE = 104e12
TEXTS, LENGTH = 32, 128
BACKWARD = 2 / 3  # of a step; the part of the all-reduce that it hides costs nothing

# Ranks of one thread on CPUs, over gloo: docs/benchmarks/2026-11-22-scaling.md, a machine that was
# not quite quiet. 32 texts a step take four micro-batches.
CPU_GRADIENTS = 90.9e6
CPU_STEP = 1.709  # without an all-reduce
GLOO = 1.08e9  # what gloo copies and adds a second, with no network
HOP = 50e-6  # assumed, between machines of one room; a ring has 2 (n - 1) for each bucket
BUCKETS = 3
ETHERNET = (Link("10 Gbit/s", 10e9 / 8), Link("100 Gbit/s", 100e9 / 8))
RANKS = (1, 2, 4, 8, 16, 64, 256)

# Parameter servers: docs/wide_deep.md, 20 million rows of 8 numbers on two servers.
ROWS = 1e9
ROW_BYTES, SERVER_BYTES = 163, 270e6
SERVER_MEMORY = 0.7  # assumed: the part of a machine's memory that the table may fill
MEMORIES = (32e9, 64e9, 128e9, 256e9)

# Scoring: `fleetbert predict` of SST-2's training texts, MiniLM, int8-static, one thread: 40,000
# texts in 20 Parquet files, start of the process included (docs/scaling.md).
TEXTS_A_CORE = 40_000 / 45.1
CORES = 16  # of a machine
TOGETHER = 0.8  # assumed: what a core gives when all are busy, beside one alone
CORE_HOUR = 0.05  # assumed, in dollars
MACHINES = (1, 4, 16, 64)


def ring_seconds(size: float, gpus: int, bytes_per_s: float) -> float:
    """A ring all-reduce sends 2 (n - 1) / n of the data over every link (Patarasuk & Yuan 2009)."""
    return 2 * (gpus - 1) / gpus * size / bytes_per_s


def all_reduce_seconds(size: float, gpus: int, network: Link) -> float:
    """One ring through all GPUs: as fast as its slowest link, which is the network's once it
    leaves the machine."""
    return ring_seconds(size, gpus, (NVLINK if gpus <= NODE else network).bytes_per_s)


def efficiency(step: float, sharing: float) -> tuple[float, float]:
    """The part of a GPU's time that computes: with nothing hidden, and with as much of the
    all-reduce hidden behind the backward pass as fits."""
    left = max(0.0, sharing - BACKWARD * step)
    return step / (step + sharing), step / (step + left)


def gloo_seconds(ranks: int, network: Link) -> float:
    """An all-reduce over gloo: copies, the wire and the hops after one another. Paddle's gloo
    does it in the thread that computes, so the backward pass hides none of it."""
    if ranks == 1:
        return 0.0
    wire = ring_seconds(CPU_GRADIENTS, ranks, network.bytes_per_s)
    copies = ring_seconds(CPU_GRADIENTS, ranks, GLOO)
    return wire + copies + 2 * (ranks - 1) * BUCKETS * HOP


def ranks_table() -> list[list[str]]:
    """The part of a rank's time that computes, with an all-reduce a step, and one in four."""
    table = [["network", *(f"{ranks} ranks" for ranks in RANKS)]]
    for network in ETHERNET:
        for steps in (1, 4):
            step = steps * CPU_STEP
            parts = [step / (step + gloo_seconds(ranks, network)) for ranks in RANKS]
            name = network.name if steps == 1 else f"{network.name}, accumulate_steps 4"
            table.append([name, *(f"{part:.0%}" for part in parts)])
    return table


def servers_table() -> list[list[str]]:
    """How many machines hold ROWS rows, and how long a restart reads them."""
    table = [["memory of a machine", "servers", "rows on each", "full"]]
    for memory in MEMORIES:
        room = SERVER_MEMORY * memory - SERVER_BYTES
        servers = max(2, math.ceil(ROWS * ROW_BYTES / room))
        rows = ROWS / servers
        full = (rows * ROW_BYTES + SERVER_BYTES) / memory
        table.append([f"{memory / 1e9:.0f} GB", f"{servers}", f"{rows / 1e6:.0f} M", f"{full:.0%}"])
    return table


def scoring_table() -> list[list[str]]:
    """Time and money of 10^9 texts."""
    table = [["machines of 16 cores", "texts/s", "hours", "dollars an hour", "dollars"]]
    for machines in MACHINES:
        rate = machines * CORES * TOGETHER * TEXTS_A_CORE
        hours, price = 1e9 / rate / 3600, machines * CORES * CORE_HOUR
        row = [f"{rate:,.0f}", f"{hours:.1f}", f"{price:.2f}", f"{hours * price:.0f}"]
        table.append([str(machines), *row])
    return table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(_: argparse.Namespace) -> Result:
    """The tables of docs/scaling.md. O1 shares float32 gradients, O2 float16."""
    sizes = [["", "parameters", "gradients float32", "float16", "step of one GPU"]]
    table = [["", "network", *(f"{gpus:,} GPUs" for gpus in GPUS)]]
    for shape in (BASE, LARGE):
        step = shape.step_operations(TEXTS, LENGTH) / RATE
        float32, float16 = (f"{shape.parameters * width / 1e6:.0f} MB" for width in (4, 2))
        sizes.append(
            [shape.name, f"{shape.parameters:,}", float32, float16, f"{step * 1000:.0f} ms"]
        )
        for level, width in (("O1", 4), ("O2", 2)):
            for network in NETWORKS:
                cells = []
                for gpus in GPUS:
                    sharing = all_reduce_seconds(shape.parameters * width, gpus, network)
                    low, high = efficiency(step, sharing)
                    cells.append(f"{low:.0%} / {high:.0%}")
                table.append([f"{shape.name} {level}", network.name, *cells])
    tables = {
        "sizes": sizes,
        "gpus": table,
        "ranks": ranks_table(),
        "servers": servers_table(),
        "scoring": scoring_table(),
    }
    return Result("A model of more machines", list(tables.values()), [], tables)
