"""The typed schema of configs/serve/*.yaml: every key of the server once, with its meaning.

Read with `fleetbert.config.load_as(Serve, path, overrides)`, which explains what is wrong.
"""

from __future__ import annotations

import re
from typing import Dict, List, Literal, Optional, Union

from pydantic import field_validator

from fleetbert.config import Section, key

Admins = Literal["loopback", "anyone", "nobody"]
VERSION_NAME = re.compile(r"0|[1-9][0-9]{0,17}")  # of a folder in the repository


class Listen(Section):
    host: str = key("0.0.0.0", 'address to listen on; "::": IPv6 and IPv4')
    http_port: Optional[int] = key(8000, "0: any free one; null: no HTTP", ge=0, le=65535)
    grpc_port: Optional[int] = key(8001, "0: any free one; null: no gRPC", ge=0, le=65535)
    admin_port: Optional[int] = key(
        None, "load, unload and metrics on a port of their own (null: on http_port)", ge=0, le=65535
    )
    admin: Optional[Admins] = key(
        None, "who may load and unload (null: this machine only; with admin_port anyone)"
    )
    idle_seconds: float = key(
        75.0,
        "a connection without a request for so long is ended; longer than balancers keep it",
        gt=0,
    )
    age_seconds: Optional[float] = key(
        None,
        "an older connection is ended after its answer: balancers choose anew (null: never)",
        gt=0,
    )
    grpc_ping_seconds: float = key(
        0.5,
        "the shortest time between a gRPC client's keepalive pings; faster ones are cut off",
        gt=0,
    )
    grace_seconds: float = key(20.0, "after SIGTERM: for what was taken already", ge=0)

    @field_validator("host")
    @classmethod
    def _without_brackets(cls, host: str) -> str:
        """[::], as in a URL, is ::."""
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host


class Safety(Section):
    api_key_file: Optional[str] = key(
        None, "file with one key a line; clients send it as `Authorization: Bearer KEY`"
    )
    tls_certificate: Optional[str] = key(None, "PEM file; with tls_key: HTTPS and gRPC over TLS")
    tls_key: Optional[str] = key(None, "PEM file")
    max_body_bytes: int = key(8 << 20, "a larger request is refused with 413", ge=1024)
    max_texts: int = key(1024, "texts of one request; more are refused with 413", ge=1)
    max_text_bytes: int = key(1 << 20, "of one text; more are refused with 413", ge=16)
    max_waiting_bytes: int = key(
        64 << 20,
        "of all requests, until they are token ids or answered; more are refused with 503",
        ge=1 << 20,
    )
    max_connections: int = key(
        1000,
        "of each port, or as many as descriptors allow (ulimit -n); further ones are closed",
        ge=1,
    )
    head_seconds: float = key(10.0, "for a request's headers to come, or a handshake", gt=0)
    body_seconds: float = key(60.0, "for its body to come, or its answer to be read", gt=0)


class Policy(Section):
    versions: Union[Literal["all"], List[int], Dict[Literal["latest"], int]] = key(
        {"latest": 1}, "which versions of the model to serve: {latest: N}, a list, or all"
    )
    aliases: Dict[str, int] = key({}, "names for versions that requests may use: {stable: 3}")
    variant: str = key(
        "auto",
        "which of the bundle's variants answers; auto: the fastest of those that passed the gate, "
        "measured on this processor when the version is loaded",
    )


class Repository(Section):
    path: str = key("models", "folder with MODEL/VERSION/ bundles (VERSION/bundle works too)")
    poll_seconds: float = key(2.0, "how often changes on disk are looked for (0: never)", ge=0)
    models: Dict[str, Policy] = key({}, "policies of single models")
    default: Policy = key(Policy(), "policy of all others")


class Batching(Section):
    batch_tokens: int = key(2048, "tokens of a batch", ge=16)
    max_wait_ms: float = key(
        4.0, "how long a worker that is free waits for its share of the texts", ge=0
    )
    max_age_ms: float = key(200.0, "has no effect: who came first goes first, always", ge=0)
    queue_tokens: int = key(131072, "a full queue answers 503", ge=16)
    timeout_ms: float = key(30000.0, "of requests that name no timeout", gt=0)


class Engine(Section):
    device: Literal["cpu", "gpu"] = key("cpu", "gpu: needs paddlepaddle-gpu")
    workers: Optional[int] = key(
        None, "processes of each version (null: one a processor, at most 8; on GPUs one)", ge=1
    )
    threads: Optional[int] = key(None, "of each worker (null: processors shared out)", ge=1)
    pin: bool = key(True, "bind each worker to processors of its own")
    hang_seconds: float = key(
        10.0,
        "a batch that takes longer, and three times as long as others: the worker is replaced",
        gt=0,
    )
    heal_seconds: float = key(
        300.0,
        "a model that has no worker for so long, as none can be started: /v2/health/live is 503, "
        "so that whoever runs the server starts it anew",
        gt=0,
    )


class Logs(Section):
    level: Literal["debug", "info", "warning", "error"] = key("info", "least important line shown")
    format: Literal["json", "text"] = key("json", "json: one object a line")
    requests: bool = key(False, "a line for each request")
    otlp_endpoint: Optional[str] = key(
        None, "OpenTelemetry collector for traces, e.g. http://localhost:4318/v1/traces"
    )


class Serve(Section):
    """A server."""

    listen: Listen = Listen()
    repository: Repository = Repository()
    batching: Batching = Batching()
    engine: Engine = Engine()
    safety: Safety = Safety()
    logs: Logs = Logs()
