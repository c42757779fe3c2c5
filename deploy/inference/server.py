"""The listening process: HTTP, gRPC and the core in one event loop, from start to end.

It opens its ports first and answers "not ready" while models load. SIGTERM or SIGHUP: not ready at
once, new requests get 503, those that were taken are answered, then it leaves. Engines run in
processes of the core's; this one imports no Paddle.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import resource
import signal
import socket
import sys
import threading
from typing import Any, Awaitable, Callable, Iterator, NamedTuple, NoReturn, Protocol

import psutil
import uvicorn
from starlette.types import ASGIApp

from fleetbert.core import extras
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference import settings
from fleetbert.deploy.inference.budget import Budget
from fleetbert.deploy.inference.messages import Core, State
from fleetbert.deploy.inference.ops import logs, memory, metrics, observe, output, pages, systemd
from fleetbert.deploy.inference.protocol import auth, connections, grpc_service, http
from fleetbert.deploy.inference.protocol.middleware import Middleware
from fleetbert.deploy.inference.protocol.tls import TlsConnection

WRITE_SECONDS = 2.0  # for the last answers, to clients that read
THREAD_SECONDS = 3.0  # for the last work of threads
OWN_DESCRIPTORS = 256  # for everything but connections


class Startable(Core, Protocol):
    """A core with a beginning and an end."""

    def start(self) -> None:
        """Begin to load what is to be served."""

    async def close(self, grace: float) -> None:
        """End all. It takes nothing more and is not ready; what was taken is answered first, for
        at most `grace` seconds."""


class _Http(uvicorn.Server):
    """Uvicorn without signal handlers of its own: this module has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Signals:
    """What the process was told: `first` is set by any signal, `second` by another one that asks to
    hurry. SIGHUP does not: a terminal that closes may send it twice."""

    def __init__(self) -> None:
        self.interrupted = False
        self.first, self.second = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup's wish is kept
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._note, number)

    def _note(self, number: int) -> None:
        self.interrupted |= number == signal.SIGINT
        if not self.first.is_set():
            self.first.set()
        elif number != signal.SIGHUP:
            self.second.set()

    def leave_at_once(self) -> NoReturn:
        """Without a farewell to anyone: workers first, they have no other end."""
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        print("stopped at once: what was taken is not answered", file=sys.stderr, flush=True)
        output.stop(0.2)
        os._exit(130 if self.interrupted else 143)

    def leave(self) -> None:
        """The end of Python waits for all threads, one of which may read from a disk that does not
        answer: it gets some seconds."""
        end = threading.Timer(THREAD_SECONDS, os._exit, [130 if self.interrupted else 0])
        end.daemon = True
        end.start()
        if self.interrupted:
            raise KeyboardInterrupt


async def serve(section: settings.Serve, make_core: Callable[[settings.Serve], Startable]) -> None:
    """Serve until a signal comes. UserError if it cannot begin; KeyboardInterrupt after Ctrl-C."""
    signals = _Signals()
    output.start()
    logs.start(section.logs)
    secrets = auth.Secrets(section.safety)
    tls = secrets.tls
    async with contextlib.AsyncExitStack() as stack:
        tracer = None
        if section.logs.otlp_endpoint is not None:
            extras.need("tracing", "logs.otlp_endpoint")
            from fleetbert.deploy.inference.ops.tracing import Tracer

            tracer = Tracer(section.logs.otlp_endpoint)
            stack.callback(tracer.close)
        core = make_core(section)
        observers: list[observe.Observer] = [observe.count]
        if section.logs.requests:
            observers.append(logs.note)
        if tracer is not None:
            observers.append(tracer.note)
        middleware = Middleware(
            secrets.keys, section.logs.requests, tracer, Budget(section.safety.max_waiting_bytes)
        )
        listen = section.listen
        ports = (listen.http_port, listen.grpc_port, listen.admin_port)
        safety = _fit_connections(section.safety, sum(port is not None for port in ports))
        apart = listen.admin_port is not None
        admins: settings.Admins = listen.admin or ("anyone" if apart else "loopback")
        elsewhere: settings.Admins = "nobody" if apart else admins
        listeners: list[Listener] = []
        for port, who, page in (
            (listen.http_port, elsewhere, not apart),
            (listen.admin_port, admins, True),
        ):
            if port is not None:
                app = http.app(
                    core,
                    safety,
                    admins=who,
                    middleware=middleware,
                    pages=pages.routes(core, page),
                    observers=observers,
                    batch_tokens=section.batching.batch_tokens,
                )
                listeners.append(await _open_http(app, listen, port, safety, tls))
        if listen.grpc_port is not None:
            server = grpc_service.Server(
                core,
                safety,
                listen,
                admins=elsewhere,
                middleware=middleware,
                observers=observers,
            )
            listeners.append(await _open_grpc(server, listen.host, listen.grpc_port, tls))
        if not listeners:
            raise UserError("listen.http_port and listen.grpc_port are both null: name a port")
        gc.freeze()  # what was imported stays: collections need not look at it
        core.start()
        for work in (memory.trim(), secrets.watch()):
            stack.callback(asyncio.create_task(work).cancel)
        try:
            write = _printer()
            await _first(_until(core.versions), signals.first)
            where = ", ".join(listener.address for listener in listeners)
            loading = _models(core, State.LOADING, State.QUEUED)
            serving = f"serving on {where}{'; loading ' if loading else ''}{loading}"
            write(f"{serving}\n")
            systemd.notify(f"READY=1\nSTATUS={serving}")
            await _first(_until(core.ready), signals.first)
            if core.ready():
                ready = f"ready: {_models(core, State.READY)}"
                write(f"{ready}\n")
                systemd.notify(f"STATUS={ready}")
            await signals.first.wait()
            systemd.notify("STOPPING=1\nSTATUS=answers what it has taken")
            logs.log.info("leaving", extra={"fields": {"grace_seconds": listen.grace_seconds}})
            await _first(_end(listeners, core, listen.grace_seconds), signals.second)
        except BaseException:
            await _end(listeners, core, 0.0)
            raise
        if signals.second.is_set():
            signals.leave_at_once()
        signals.leave()


def _printer() -> Callable[[str], None]:
    """Writes on stdout, which somebody may have tied to a pipe that nobody reads: nothing waits for
    it."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write() -> None:
        while True:
            os.write(1, lines.get().encode())

    threading.Thread(target=write, daemon=True).start()
    return lines.put


class Listener(NamedTuple):
    """A port: its address for people, how it is closed within so many seconds, and how clients are
    told before that their connections end."""

    address: str
    close: Callable[[float], Awaitable[None]]
    leave: Callable[[], object]


async def _open_http(
    app: ASGIApp, listen: settings.Listen, port: int, safety: settings.Safety, tls: auth.Tls | None
) -> Listener:
    opened = _bind(listen.host, port)
    kind = connections.protocol(safety, listen.age_seconds, listen.idle_seconds)

    def make(**words: Any) -> asyncio.Protocol:
        connection = kind(**words)
        return connection if tls is None else TlsConnection(connection, tls.context)

    config = uvicorn.Config(
        app,
        http=make,  # type: ignore[arg-type]  # it makes one
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=max(1, round(listen.idle_seconds)),
    )
    server = _Http(config)
    task = asyncio.create_task(server.serve(sockets=[opened]))
    watching = asyncio.create_task(connections.watch(server.server_state.connections, safety))

    async def close(seconds: float) -> None:
        config.timeout_graceful_shutdown = round(seconds)
        server.should_exit = True
        await task
        watching.cancel()

    def leave() -> None:
        kind.leaving = True
        for connection in server.server_state.connections:
            if isinstance(connection, connections.Connection):
                connection.leave()

    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.005)
    return Listener(f"http{'s' if tls else ''}://{_join(*opened.getsockname()[:2])}", close, leave)


async def _open_grpc(
    server: grpc_service.Server, host: str, port: int, tls: auth.Tls | None
) -> Listener:
    # gRPC's own message of a port in use says little; bound here first it is known to be free.
    probe = _bind(host, port)
    address = _join(*probe.getsockname()[:2])
    probe.close()
    try:
        if tls:
            bound = server.add_secure_port(address, tls.for_grpc())
        else:
            bound = server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        raise UserError(f"listen.grpc_port: {address} is not free to listen on; name another port")
    await server.start()
    return Listener(f"grpc{'s' if tls else ''}://{address}", server.stop, server.leave)


def _fit_connections(safety: settings.Safety, ports: int) -> settings.Safety:
    """With as many connections as descriptors allow, whose limit is raised as far as it may be;
    some are left for starting workers and reading models."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ports * safety.max_connections + OWN_DESCRIPTORS
    if limit < wanted and limit != resource.RLIM_INFINITY:
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    fitting = max(1, (limit - OWN_DESCRIPTORS) // max(1, ports))
    if limit == resource.RLIM_INFINITY or fitting >= safety.max_connections:
        return safety
    logs.log.warning(
        f"{limit} file descriptors (ulimit -n) allow {fitting} connections of each port, not "
        f"safety.max_connections, which is {safety.max_connections}"
    )
    return safety.model_copy(update={"max_connections": fitting})


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket; UserError if the port is taken or the address is not this machine's."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, number)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # "::" is IPv4 too, whatever the system's default
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            opened.bind(address)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise UserError(
            f"{_join(host, port)} cannot be listened on: {error.strerror}; name another port or "
            "host, or end what listens there"
        ) from None
    opened.setblocking(False)
    return opened


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _models(core: Core, *states: State) -> str:
    """Of these states: sst2 (3, 4), douban (1)"""
    chosen: dict[str, list[str]] = {}
    for version in core.versions():
        if version.state in states:
            chosen.setdefault(version.model, []).append(version.version)
    return ", ".join(f"{model} ({', '.join(versions)})" for model, versions in chosen.items())


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def _first(work: Awaitable[None], event: asyncio.Event) -> None:
    """Do the work unless the event comes first; its error is raised."""
    task, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for waited in (task, waiting):
            waited.cancel()


async def _end(listeners: list[Listener], core: Startable, grace: float) -> None:
    """Have the core answer what it took, then close the ports, when all is written."""
    for listener in listeners:
        listener.leave()
    await core.close(grace)
    await asyncio.gather(*(listener.close(WRITE_SECONDS) for listener in listeners))


metrics.REGISTRY.register(pages.Processes())
