"""Answers of a bundle whose table lies on servers: each holds a share of the rows in memory, and
who answers pulls those of a batch."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Iterator

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compat import environment
from fleetbert.compat.parameter_server import Fleet
from fleetbert.core.errors import UserError
from fleetbert.data.hashed_ids import ALL_IDS
from fleetbert.engines.table import LookUp, open_table
from fleetbert.training.sparse_table import AT_ONCE
from fleetbert.training.strategies.parameter_server import rendezvous, server
from fleetbert.training.strategies.parameter_server.arrival import Counted, Layout
from fleetbert.training.strategies.parameter_server.tables import fill
from fleetbert.training.strategies.parameter_server.watch import Watch

log = logging.getLogger(__name__)

DENSE = 256  # numbers of a vector that Paddle's servers have to have, and nobody reads
SHARDS = 16  # of a server's rows


@contextlib.contextmanager
def asking(bundle: bundles.Bundle, variant: str) -> Iterator[LookUp]:
    """Give the servers the rows, a piece at a time; then look rows up there. The servers end with
    it. Ids that have no row get zeros."""
    width = _width(bundle, variant)
    place, folder = _place()
    rendezvous.put(folder / "bundle", _digest(bundle, variant))
    watch = Watch(place.servers)
    layout, tables = _tables(width, place)
    tables.connect()
    counted = Counted(tables, layout, 0)
    ids, rows = open_table(bundle.folder(variant))
    for start in range(0, len(ids), AT_ONCE):
        part = np.array(rows[start : start + AT_ONCE])
        fill(counted, np.array(ids[start : start + AT_ONCE]), part, np.zeros_like(part))

    log.info(f"the servers hold {counted.count_rows() if len(ids) else 0} rows")

    def look_up(ids: np.ndarray) -> np.ndarray:
        unique, places = np.unique(ids, return_inverse=True)
        return tables.pull_rows(unique)[places.reshape(-1)]

    yield look_up
    watch.end()
    tables.stop_servers()


def serve(bundle: bundles.Bundle, variant: str) -> None:
    """Be a server until the one that asks ends."""
    width = _width(bundle, variant)
    place, folder = _place()
    environment.die_with_parent(os.getppid())
    server.check_port(place.endpoint)
    if rendezvous.get(folder / "bundle") != _digest(bundle, variant):
        raise UserError(
            f"{place.name}: the bundle {bundle.root} has another table than that of trainer 0; "
            "copy it here"
        )
    _tables(width, place)[1].serve()


def _place() -> tuple[rendezvous.Place, Path]:
    place = rendezvous.Place()
    if len(place.trainers) > 1:
        raise UserError("--trainers: one process answers; give 1, and more --servers")
    folder = os.environ.get("FLEETBERT_RUN")
    if not folder:
        raise UserError(
            "FLEETBERT_RUN: name a new, empty folder that all processes see, or start them with "
            "`fleetbert launch --servers 2 --trainers 1 fleetbert.cli predict ...`"
        )
    return place, Path(folder)


def _width(bundle: bundles.Bundle, variant: str) -> int:
    """Numbers of a row."""
    described = bundle.variant(variant)
    if not isinstance(described, bundles.TableVariant):
        raise UserError(
            f"bundle {bundle.root}: its variant {variant} has no table, so servers have nothing to "
            "hold; run fleetbert predict alone"
        )
    return described.width


def _tables(width: int, place: rendezvous.Place) -> tuple[Layout, Fleet]:
    """The same in all processes. Paddle waits in it until the servers listen."""
    layout = Layout(DENSE, ALL_IDS, SHARDS, len(place.servers), len(place.trainers))
    return layout, Fleet(layout.all_dense, layout.all_rows, width, layout.shards)


def _digest(bundle: bundles.Bundle, variant: str) -> list[str]:
    return [file.sha256 for file in bundle.variant(variant).files]
