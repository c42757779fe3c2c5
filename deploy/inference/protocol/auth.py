"""Who may ask: API keys and certificates.

A key travels as `Authorization: Bearer KEY`, over gRPC as the metadata entry `authorization`. Only
digests of the keys are kept, and all of them are compared in constant time, so that neither a
wrong key's likeness to a right one nor its place in the file shows in the time of the answer.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from pathlib import Path

import grpc

from fleetbert.core.errors import UserError
from fleetbert.deploy.inference import settings

SHORTEST_KEY = 16


class Keys:
    def __init__(self, keys: list[str]):
        self._digests = [_digest(key) for key in keys]

    def known(self, authorization: str | None) -> bool:
        """Whether the header's value holds one of the keys."""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found and scheme.lower() == "bearer"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(section: settings.Safety) -> Keys | None:
    """The keys of safety.api_key_file; None where the key is not set: anyone may ask."""
    path = section.api_key_file
    if path is None:
        return None
    lines = _read(path, "safety.api_key_file").decode("utf-8", "replace").splitlines()
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise UserError(f"safety.api_key_file {path} holds no key: write one a line")
    for number, line in enumerate(lines, 1):
        if line.strip() in keys and len(line.strip()) < SHORTEST_KEY:
            raise UserError(
                f"{path}:{number}: a key of {len(line.strip())} characters can be guessed; take at "
                f"least {SHORTEST_KEY}, e.g. from `openssl rand -hex 32`"
            )
    return Keys(keys)


class Tls:
    """A certificate and its key, checked: for both protocols."""

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
        return grpc.ssl_server_credentials([self._pair])


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
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{name} {path}: cannot be read: {error.strerror}") from None
