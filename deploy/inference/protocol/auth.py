"""Who may ask: API keys and certificates.

A key travels as `Authorization: Bearer KEY`, over gRPC as the metadata entry `authorization`. Only
digests of the keys are kept, and all of them are compared in constant time, so that neither a
wrong key's likeness to a right one nor its place in the file shows in the time of the answer.

The files are looked at each second: keys are revoked and certificates renewed while a server runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import ssl
from codecs import BOM_UTF8
from pathlib import Path

import grpc

from fleetbert.core.errors import UserError
from fleetbert.deploy.inference import settings

log = logging.getLogger("fleetbert.serve")

SHORTEST_KEY = 16
WATCH_SECONDS = 1.0  # between two looks at the files


class Keys:
    def __init__(self, keys: list[str]):
        self._digests = [_digest(key) for key in keys]

    def known(self, authorization: str | None) -> bool:
        """Whether the header's value holds one of the keys."""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        is_known = False
        for digest in self._digests:
            is_known |= hmac.compare_digest(digest, given)
        return is_known and scheme.lower() == "bearer"

    def become(self, other: Keys) -> None:
        """Hold the other's keys from now on."""
        self._digests = other._digests


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(section: settings.Safety) -> Keys | None:
    """The keys of safety.api_key_file; None where the key is not set: anyone may ask."""
    path = section.api_key_file
    if path is None:
        return None
    text = _read(path, "safety.api_key_file").decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines()]
    keys = {line: number for number, line in enumerate(lines, 1) if line and line[0] != "#"}
    if not keys:
        raise UserError(f"safety.api_key_file {path} holds no key: write one a line")
    for key, number in keys.items():
        if not (key.isascii() and key.isprintable()):
            raise UserError(
                f"{path}:{number}: a key that no header can carry; use ASCII letters and digits, "
                "and save the file as UTF-8"
            )
        if len(key) < SHORTEST_KEY:
            raise UserError(
                f"{path}:{number}: a key of {len(key)} characters can be guessed; take at "
                f"least {SHORTEST_KEY}, e.g. from `openssl rand -hex 32`"
            )
    return Keys(list(keys))


class Tls:
    """A certificate and its key, checked: for both protocols. `context` is that of connections
    that begin now."""

    def __init__(self, certificate: str, key: str):
        self._pair = _read(key, "safety.tls_key"), _read(certificate, "safety.tls_certificate")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.context.load_cert_chain(certificate, key)
        except (ssl.SSLError, ValueError) as error:
            raise UserError(
                f"safety.tls_certificate {certificate} and safety.tls_key {key} are not a PEM "
                f"certificate and its key without a password ({error})"
            ) from None

    def for_grpc(self) -> grpc.ServerCredentials:
        """Credentials that follow `become`."""
        shown = self._pair

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            if self._pair == shown:
                return None
            shown = self._pair
            return grpc.ssl_server_certificate_configuration([shown])

        first = grpc.ssl_server_certificate_configuration([shown])
        return grpc.dynamic_ssl_server_credentials(first, changed)

    def become(self, other: Tls) -> None:
        """Show the other's certificate from now on, to new connections."""
        self.context, self._pair = other.context, other._pair


def read_tls(section: settings.Safety) -> Tls | None:
    """UserError if only one of the two files is named, or they do not fit."""
    certificate, key = section.tls_certificate, section.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "tls_certificate" if certificate is None else "tls_key"
        raise UserError(f"safety.{missing} is missing: TLS needs a certificate and its key")
    return Tls(certificate, key)


def _read(path: str, name: str) -> bytes:
    """Without a byte order mark, which gRPC does not take."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{name} {path}: cannot be read: {error.strerror}") from None
    return content[len(BOM_UTF8) :] if content.startswith(BOM_UTF8) else content


class Secrets:
    """The keys and the certificate of the settings, taken anew when their files change."""

    def __init__(self, section: settings.Safety):
        self._section = section
        self._key_files = (section.api_key_file,)
        self._tls_files = (section.tls_certificate, section.tls_key)
        self._used = {paths: _contents(paths) for paths in (self._key_files, self._tls_files)}
        self.keys, self.tls = read_keys(section), read_tls(section)

    async def watch(self) -> None:
        """Until cancelled. What is written is taken when it stayed the same for a look, so that a
        certificate and its key may be replaced one after the other."""
        loop = asyncio.get_running_loop()
        before = dict(self._used)
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for paths in self._used:
                # Not in the loop: a network's file system may hang.
                now = await loop.run_in_executor(None, _contents, paths)
                if now == before[paths] != self._used[paths]:
                    self._used[paths] = now
                    self._take(paths)
                before[paths] = now

    def _take(self, paths: tuple[str | None, ...]) -> None:
        try:
            if paths is self._key_files:
                keys = read_keys(self._section)
                if self.keys and keys:
                    self.keys.become(keys)
            else:
                tls = read_tls(self._section)
                if self.tls and tls:
                    self.tls.become(tls)
        except UserError as error:
            log.warning(f"what was read before stays in use: {error}")
        else:
            log.info(f"taken anew, as it changed: {', '.join(filter(None, paths))}")


def _contents(paths: tuple[str | None, ...]) -> list[bytes | str | None]:
    """Of each file; in its place the error why it cannot be read."""
    contents: list[bytes | str | None] = []
    for path in paths:
        try:
            contents.append(Path(path).read_bytes() if path is not None else None)
        except OSError as error:
            contents.append(str(error))
    return contents
