"""The files of `predict` on a Ray cluster: Ray Data gives them to actors, each with one model."""

from __future__ import annotations

import logging
import os
import re
import struct
from contextlib import closing, suppress
from socket import socket
from typing import Any, Generator, Sequence

from fleetbert.core.errors import UserError
from fleetbert.scoring import remote
from fleetbert.scoring.plan import Plan

# A call of gRPC is a request of HTTP/2 (RFC 9113): these bytes, then frames.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">3sBBI")  # length, type, flags and stream of a frame
DATA, HEADERS, SETTINGS, LAST_TYPE = 0, 1, 4, 9
END_STREAM, END_HEADERS = 1, 4
UNIMPLEMENTED = b"12"  # gRPC's status where a server lacks the method
PING = b"\x08\x06"  # ray.rpc.ClusterInfoRequest


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
    """UserError where no Ray is at the address: it would be waited for, for minutes."""
    if address.startswith("ray://"):
        call = _call("/ray.rpc.RayletDriver/ClusterInfo", PING)
    else:
        call = _call("/ray.rpc.NodeInfoGcsService/GetClusterId", b"")
    with remote.connect(address) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return  # it would ask for a certificate first
        status = None
        with suppress(OSError):
            connection.sendall(call)
            status = _status(connection)
    if status in (None, UNIMPLEMENTED):  # who asks for a token has another one
        raise UserError(
            f"--address {address}: what listens there is not Ray; name the port that `ray start` "
            "prints, or, behind ray://, a Ray Client server's"
        )


def _call(method: str, message: bytes) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "ray",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    fields = b"".join(b"\0%c%b%c%b" % (len(n), n, len(v), v) for n, v in pairs)  # RFC 7541, 6.2.2
    message = b"\0" + len(message).to_bytes(4, "big") + message
    return (
        PREFACE
        + _frame(SETTINGS, 0, 0, b"")
        + _frame(HEADERS, END_HEADERS, 1, fields)
        + _frame(DATA, END_STREAM, 1, message)
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload).to_bytes(3, "big"), kind, flags, stream) + payload


def _status(connection: socket) -> bytes | None:
    """gRPC's status in the answer; None where there is none. The gRPC of Ray's servers writes it as
    it is, while others may compress it (RFC 7541, 5.2)."""
    while len(header := remote.read(connection, HEADER.size)) == HEADER.size:
        length, kind, flags, stream = HEADER.unpack(header)
        if kind > LAST_TYPE:  # not HTTP/2
            break
        payload = remote.read(connection, int.from_bytes(length, "big"))
        status = re.search(rb"grpc-status[\1\2](\d+)", payload)
        if kind == HEADERS and status:
            return status[1]
        if stream == 1 and flags & END_STREAM:
            break
    return None
