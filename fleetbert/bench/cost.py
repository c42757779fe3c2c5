"""A model of what data parallel costs on 8 to 1,024 GPUs: the tables of docs/scaling.md.

Nothing here was measured. Times in seconds, sizes in bytes, rates per second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fleetbert.bench import measure


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


def report() -> dict[str, Any]:
    """Rows of the model, ready for JSON. O1 shares float32 gradients, O2 float16."""
    rows = []
    for shape in (BASE, LARGE):
        step = shape.step_operations(TEXTS, LENGTH) / RATE
        for level, width in (("O1", 4), ("O2", 2)):
            size = shape.parameters * width
            for network in NETWORKS:
                for gpus in GPUS:
                    sharing = all_reduce_seconds(size, gpus, network)
                    low, high = efficiency(step, sharing)
                    rows.append(
                        {
                            "model": shape.name,
                            "precision": level,
                            "gradient_bytes": size,
                            "network": network.name,
                            "gpus": gpus,
                            "step_s": step,
                            "all_reduce_s": sharing,
                            "efficiency": low,
                            "efficiency_overlapped": high,
                        }
                    )
    return {"bench": "scaling model", "rows": rows}


def format_report() -> str:
    """Two Markdown tables: gradients and steps, and efficiencies."""
    rows = report()["rows"]
    sizes = [["", "parameters", "gradients float32", "float16", "step of one GPU"]]
    for shape in (BASE, LARGE):
        step = shape.step_operations(TEXTS, LENGTH) / RATE
        sizes.append(
            [
                shape.name,
                f"{shape.parameters:,}",
                f"{shape.parameters * 4 / 1e6:.0f} MB",
                f"{shape.parameters * 2 / 1e6:.0f} MB",
                f"{step * 1000:.0f} ms",
            ]
        )
    table = [["", "network", *(f"{gpus:,} GPUs" for gpus in GPUS)]]
    for start in range(0, len(rows), len(GPUS)):
        line = rows[start : start + len(GPUS)]
        cells = [f"{row['efficiency']:.0%} / {row['efficiency_overlapped']:.0%}" for row in line]
        table.append([f"{line[0]['model']} {line[0]['precision']}", line[0]["network"], *cells])
    return "\n".join([measure.table(sizes, True), "", measure.table(table, True)])
