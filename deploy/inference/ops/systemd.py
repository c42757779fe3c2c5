"""What systemd is told by services of Type=notify: the protocol of its man page sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger("fleetbert.serve")


def notify(words: str) -> None:
    """Send e.g. READY=1 to who started this process; nothing where that is not systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address[0] == "@":  # abstract: no file
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(words.encode(), address)
    except OSError as error:
        log.warning(f"systemd was not told {words}: {error.strerror}")
