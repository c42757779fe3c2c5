"""The typed schema of configs/serve/*.yaml: every key of the server once, with its meaning.

Read with `fleetbert.config.load_as(Serve, path, overrides)`, which explains what is wrong. Run as a
module, it prints configs/serve/x86.yaml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Literal, Optional, Union

from pydantic import field_validator, model_validator

from fleetbert.config import Section, key, yaml_text
from fleetbert.core import device as devices
from fleetbert.core.errors import UserError

Admins = Literal["loopback", "anyone", "nobody"]
# Of folders in the repository.
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION_NAME = re.compile(r"0|[1-9][0-9]{0,17}")
MANIFESTS = ("manifest.json", "bundle/manifest.json")  # one of them is in a version's folder


SERVE = ("serve",)  # of `fleetbert serve --help`


class Listen(Section):
    host: str = key(
        "127.0.0.1",
        "address to listen on; 127.0.0.1: only this machine reaches the server; 0.0.0.0: every "
        'machine of the network; "::": IPv6 too',
        common_for=SERVE,
    )
    http_port: Optional[int] = key(
        8000,
        "port of HTTP: REST, and the page for people at / (0: any free port; null: no HTTP)",
        common_for=SERVE,
        ge=0,
        le=65535,
    )
    grpc_port: Optional[int] = key(
        8001, "port of gRPC (0: any free port; null: no gRPC)", common_for=SERVE, ge=0, le=65535
    )
    admin_port: Optional[int] = key(
        None,
        "separate port for load, unload, /metrics and the page (null: http_port has them)",
        ge=0,
        le=65535,
    )
    admin: Optional[Admins] = key(
        None,
        "who may load and unload models: loopback (this machine), anyone, nobody (null: loopback; "
        "anyone on admin_port)",
    )
    idle_seconds: float = key(
        75.0,
        "time after which a connection without a request is closed; longer than load balancers "
        "keep it",
        gt=0,
    )
    age_seconds: Optional[float] = key(
        None,
        "age after which a connection is closed after its next answer, so that load balancers "
        "distribute clients again (null: never)",
        gt=0,
    )
    grpc_ping_seconds: float = key(
        0.5,
        "shortest time between a gRPC client's keepalive pings; a client with faster ones is "
        "disconnected",
        gt=0,
    )
    grace_seconds: float = key(
        20.0, "time after SIGTERM for the requests that were accepted before", ge=0
    )

    @field_validator("host")
    @classmethod
    def _without_brackets(cls, host: str) -> str:
        """[::], as in a URL, is ::."""
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host


class Safety(Section):
    api_key_file: Optional[str] = key(
        None,
        "file with one API key a line; clients send `Authorization: Bearer KEY`",
        common_for=SERVE,
    )
    tls_certificate: Optional[str] = key(
        None,
        "PEM file of the certificate; with tls_key: HTTPS, and gRPC over TLS",
        common_for=SERVE,
    )
    tls_key: Optional[str] = key(None, "PEM file of the certificate's key", common_for=SERVE)
    cors_origins: List[str] = key(
        [],
        'web sites whose pages may read answers (CORS), e.g. [https://example.com]; ["*"]: all',
    )
    max_body_bytes: int = key(
        8 << 20, "limit of a request's size; larger requests are refused with 413", ge=1024
    )
    max_texts: int = key(
        1024, "limit of texts in a request; larger requests are refused with 413", ge=1
    )
    max_text_bytes: int = key(
        1 << 20,
        "limit of a text's size; requests with a larger one are refused with 413 (the model "
        "truncates texts to its own length)",
        ge=16,
    )
    max_waiting_bytes: int = key(
        64 << 20,
        "limit of the size of all requests that wait to be tokenized or answered; further ones are "
        "refused with 503",
        ge=1 << 20,
    )
    max_connections: int = key(
        1000,
        "limit of connections to each port (or as many as `ulimit -n` allows); others are closed",
        ge=1,
    )
    head_seconds: float = key(
        10.0, "time limit for a request's headers to arrive, and for a TLS handshake", gt=0
    )
    body_seconds: float = key(
        60.0, "time limit for a request's body to arrive, and for its answer to be read", gt=0
    )

    @field_validator("cors_origins")
    @classmethod
    def _without_paths(cls, origins: List[str]) -> List[str]:
        for origin in origins:
            if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+", origin):
                raise ValueError(
                    f"{origin!r} is no origin; write scheme and host, as https://example.com"
                )
        return origins


class Policy(Section):
    versions: Union[Literal["all"], List[int], Dict[Literal["latest"], int]] = key(
        {"latest": 1}, "versions of a model to serve: {latest: N}, a list of numbers, or all"
    )
    aliases: Dict[str, int] = key(
        {}, "names for versions, which requests may use instead of numbers: {stable: 3}"
    )
    variant: str = key(
        "auto",
        "variant of the bundle that answers; auto: the fastest at batches that passed the gate, "
        "measured on this machine when the version is loaded; auto-single: the fastest at one text",
        common_for=SERVE,
    )


class Repository(Section):
    path: str = key(
        "models",
        "folder of models: MODEL/VERSION/ is a bundle, e.g. models/sst2/1 (VERSION/bundle "
        "works too); or a bundle, which is served as version 1 of one model",
        common_for=SERVE,
    )
    name: Optional[str] = key(
        None, "name of the model if path is a bundle (null: its folder's name)", common_for=SERVE
    )
    poll_seconds: float = key(
        2.0, "time between two searches for changes on disk (0: only on request)", ge=0
    )
    models: Dict[str, Policy] = key(
        {}, "policies of single models: {sst2: {versions: [3, 4], aliases: {stable: 3}}}"
    )
    default: Policy = Policy()  # of all other models

    def model(self) -> Optional[str]:
        """Name of the only model if `path` is a bundle; None if it is a folder of models."""
        path = Path(self.path)
        if not any((path / manifest).is_file() for manifest in MANIFESTS):
            return None
        path = path.resolve()
        # Training writes NAME/bundle.
        return self.name or (path.parent if path.name == "bundle" else path).name


class Batching(Section):
    batch_tokens: int = key(
        2048, "tokens of a batch; on CPUs more is hardly faster", common_for=SERVE, ge=16
    )
    max_wait_ms: float = key(
        4.0,
        "time that a free worker waits for its share of the texts",
        common_for=SERVE,
        ge=0,
    )
    queue_tokens: int = key(
        131072,
        "limit of tokens in the queue; beyond it requests are refused with 503 and Retry-After",
        common_for=SERVE,
        ge=16,
    )
    timeout_ms: float = key(
        30000.0, "time limit of requests that name none", common_for=SERVE, gt=0
    )


class Engine(Section):
    device: str = key("cpu", "device: cpu, gpu or gpu:N (needs paddlepaddle-gpu)", common_for=SERVE)
    precision: devices.Precision = key(
        "float32",
        "GPUs: precision of matrix products; int8 needs TensorRT and the variant int8-static",
    )
    tensorrt: devices.TensorRT = key(
        "off", "GPUs: auto compiles models with TensorRT where it is installed, which takes minutes"
    )
    workers: Optional[int] = key(
        None,
        "worker processes of each version (null: one for each processor, at most 8; one on GPUs)",
        common_for=SERVE,
        ge=1,
    )
    threads: Optional[int] = key(
        None,
        "threads of each worker (null: the processors divided among them)",
        common_for=SERVE,
        ge=1,
    )
    pin: bool = key(True, "bind each worker to processors that no other worker has")
    hang_seconds: float = key(
        10.0,
        "time limit of a batch: a worker is replaced if it exceeds this limit and three times the "
        "usual time of such a batch; below half of timeout_ms another worker can answer in time",
        gt=0,
    )
    heal_seconds: float = key(
        300.0,
        "time for which no worker of a model could be started, after which /v2/health/live answers "
        "503, so that the server is restarted from outside",
        gt=0,
    )

    @field_validator("tensorrt", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # as YAML reads a bare off

    @model_validator(mode="after")
    def _check_device(self) -> Engine:
        try:
            self.computes_on()
        except UserError as error:
            raise ValueError(f"engine: {error}") from None
        return self

    def computes_on(self) -> devices.Device:
        return devices.of(self.device, self.precision, self.tensorrt)


class Logs(Section):
    level: Literal["debug", "info", "warning", "error"] = key(
        "info", "least severe level that is shown"
    )
    format: Literal["json", "text"] = key(
        "json", "format of the log: json: one object a line; text: for terminals"
    )
    requests: bool = key(False, "log a line for each request")
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


X86 = """\
# A server on x86 processors. Every key is here with its default, so a shorter file does as well.
# Made by: python -m fleetbert.deploy.inference.settings > configs/serve/x86.yaml

"""

if __name__ == "__main__":
    print(X86 + yaml_text(Serve), end="")
