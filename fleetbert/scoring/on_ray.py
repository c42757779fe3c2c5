"""The files of `predict` on a Ray cluster: Ray Data gives them to actors, each with one model."""

from __future__ import annotations

import logging
import os
import struct
from contextlib import closing, suppress
from typing import Any, Generator, Sequence

from fleetbert.core.errors import UserError
from fleetbert.scoring import remote
from fleetbert.scoring.plan import Plan

# How a client of HTTP/2, on which gRPC is built, begins: with these bytes and an empty frame of
# settings. A server begins with such a frame too (RFC 9113, 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">3sBBI")  # length, type, flags and stream of a frame
SETTINGS = 4


class Answering:
    """An actor of Ray Data; its process keeps the model."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return remote.answer(row["work"])._asdict()


def run(
    plans: Sequence[Plan], address: str | None = None
) -> Generator[tuple[int, int], None, None]:
    """Answer the files with as many actors as the cluster has processors.

    address: `host:port`, `ray://host:port` or auto. Default: RAY_ADDRESS, else a Ray of this
    machine that ends with the job. Raises UserError where it cannot be reached or a file fails.
    """
    import ray
    from ray import data as ray_data

    if address is None:  # without "local" Ray joins one that runs here, or waits for a killed one
        address = os.environ.get("RAY_ADDRESS") or "local"
    if address not in ("auto", "local"):
        check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        ray_data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        scorer = plans[0].scorer
        threads = scorer.threads or 1
        largest = max(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
        if 0 < largest < threads:
            raise UserError(
                f"--threads {threads}: the machines of this Ray have {largest} processors at most; "
                "say fewer"
            )
        actors = min(len(plans), max(1, int(ray.cluster_resources().get("CPU", 1)) // threads))
        files = ray_data.from_items(
            [{"work": work} for work in remote.pack(plans)], override_num_blocks=len(plans)
        )
        outcomes = files.map(
            Answering,
            compute=ray_data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=1),
            num_cpus=threads,
            num_gpus=0 if scorer.device == "cpu" else 1,
        )
        # Ray Data has to end its work, also that of a file that failed, before Ray ends.
        with closing(iter(outcomes.iter_rows())) as rows:
            yield from remote.counted(plans, (remote.Outcome(**row) for row in rows))
    except ConnectionError as error:
        raise UserError(
            f"--on ray: {remote.cause(error)}; if it asks for a token, set RAY_AUTH_MODE=token, "
            "and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
        raise UserError(f"--on ray: {remote.cause(error)}") from error
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """UserError where no server of gRPC is at the address: Ray would wait for minutes."""
    with remote.connect(address) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return  # it would ask for a certificate first
        header = b""
        with suppress(OSError):
            connection.sendall(PREFACE + HEADER.pack(bytes(3), SETTINGS, 0, 0))
            while len(header) < HEADER.size and (read := connection.recv(HEADER.size)):
                header += read
    if len(header) < HEADER.size or HEADER.unpack(header[: HEADER.size])[1] != SETTINGS:
        raise UserError(
            f"--address {address}: what listens there is not Ray; name the port that `ray start` "
            "prints, or a Ray Client server's"
        )
