"""Load and unload, the calls that change what is served: who may ask for them, and for what.

A web page that somebody on this machine looks at can post to it, too. So a call from a page of
another site is refused, and so is one whose Host is no name of this machine: a page can have its
own name resolved to any address (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from typing import Awaitable, Callable, Mapping, NamedTuple
from urllib.parse import urlsplit

from fleetbert.deploy.inference.messages import Failure, Reason, show
from fleetbert.deploy.inference.protocol import metadata
from fleetbert.deploy.inference.protocol.tensors import refuse
from fleetbert.deploy.inference.settings import Admins

# Of proxies: whoever asks is not the one at the other end of the connection.
FORWARDED = (
    "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
)  # fmt: skip
ONLY_HERE = (
    "load and unload are for this machine only; listen.admin=anyone, or a listen.admin_port, "
    "opens them"
)


class Caller(NamedTuple):
    """Who asks for a change: the address at the other end, and headers by lower-case name."""

    address: str
    headers: Mapping[str, str]

    def check(self, admins: Admins) -> None:
        """Failure FORBIDDEN unless one of `admins`, and no page of another site."""
        host, origin = self.headers.get("host"), self.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise _forbid(f"a page of {show(origin)} may not change what {show(host)} serves")
        if admins == "anyone":
            return
        if not _is_loopback(self.address) or any(name in self.headers for name in FORWARDED):
            raise _forbid(ONLY_HERE)
        if host is not None and not _names_this_machine(host):
            raise _forbid(f"Host is {show(host)}, which is not localhost; {ONLY_HERE}")


async def change(act: Callable[[str], Awaitable[None]], model: str, parameters: object) -> None:
    """Load or unload the model. Failure for a name that is a path, and for what is not offered."""
    metadata.check_name(model)
    if not isinstance(parameters, Mapping):
        raise refuse(f"parameters are {show(parameters)}; they have to be an object")
    for key in parameters:
        if key != "unload_dependents":  # a bundle has none
            raise refuse(
                f"parameter {show(key)} is not offered: a model is served as the server's "
                "settings say"
            )
    await act(model)


def _names_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    # With an IPv6 socket for both, IPv4's addresses look like ::ffff:127.0.0.1.
    return (getattr(client, "ipv4_mapped", None) or client).is_loopback


def _forbid(message: str) -> Failure:
    return Failure(Reason.FORBIDDEN, message)
