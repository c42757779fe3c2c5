"""A model of what data parallel costs on 8 to 1,024 GPUs: the tables of docs/scaling.md.

Nothing here was measured. Times in seconds, sizes in bytes, rates per second.
"""

from __future__ import annotations

import argparse
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
    return Result(
        "A model of 8 to 1,024 GPUs", [sizes, table], [], {"sizes": sizes, "table": table}
    )
