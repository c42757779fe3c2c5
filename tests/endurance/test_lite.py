"""`make endurance`: what `make test` has no time for of deploy/lite.

FLEETBERT_LITE_SECONDS (600) of each kind of fuzzing, FLEETBERT_LITE_RANDOM (100000) random texts;
FLEETBERT_SEED (0) sets what is drawn.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import time

import lite_build
import lite_tokens
import pytest
from boards import write_bundle
from lite_serving import INFER, LENGTH, post, serving
from oip_cases import REFUSED, TEXT, body_of, raw_texts, with_binary, without

SECONDS = int(os.environ.get("FLEETBERT_LITE_SECONDS", "600"))
RANDOM = int(os.environ.get("FLEETBERT_LITE_RANDOM", "100000"))
SEED = int(os.environ.get("FLEETBERT_SEED", "0"))
CHUNK = 5000  # texts in a run of the program

pytestmark = pytest.mark.timeout(4 * 3600)


@pytest.fixture(scope="module")
def sanitized() -> lite_build.Build:
    return lite_build.build("sanitized")


@pytest.mark.parametrize("name", ["sanitized", "aarch64"])
def test_all_tests_of_the_programs(name):
    """With sanitizers, and all of them emulated."""
    lite_build.build(name)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/deploy/lite"]
    environ = {**os.environ, "FLEETBERT_LITE_BUILDS": name}
    done = subprocess.run(
        command, cwd=lite_build.ROOT, env=environ, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0


@pytest.mark.parametrize("lowercase", [True, False], ids=["lower", "cased"])
@pytest.mark.parametrize("name", ["here", "aarch64"])
def test_tokens(name, lowercase, tmp_path):
    programs = lite_build.build(name)
    texts = lite_tokens.random_texts(RANDOM, SEED + lowercase)
    for start in range(0, len(texts), CHUNK):
        some = texts[start : start + CHUNK]
        path = lite_tokens.write_vocabulary(tmp_path / "vocab.txt", some)
        found = lite_tokens.ids_of(programs, path, some, lowercase, 128)
        lite_tokens.same(found, lite_tokens.expected(path, some, lowercase, 128), some)


def test_fuzzed_bodies_manifests_and_vocabularies(sanitized, tmp_path):
    bundle = write_bundle(tmp_path, targets=(sanitized.target,))
    command = sanitized.command("fleetbert-lite-fuzz", bundle, SECONDS, SEED)
    done = subprocess.run(command, capture_output=True, text=True)  # it takes its time
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"[1-9]\d* of them answered.* [1-9]\d* of them opened", done.stdout)


def raw_requests() -> list[bytes]:
    """Requests as bytes, most of them right."""
    body, length = with_binary((without(TEXT, "data"), raw_texts(TEXT["data"])))
    binary = f"{LENGTH}: {length}\r\n".encode()
    bodies = [(body_of(TEXT), b""), (body, binary)]
    bodies += [(one, b"") for one, _ in REFUSED.values() if len(one) < 3000]
    post = b"POST %s HTTP/1.1\r\nHost: a\r\n" % INFER.encode()
    found = [
        b"%s%sContent-Length: %d\r\n\r\n%s" % (post, extra, len(one), one) for one, extra in bodies
    ]
    half = len(body_of(TEXT)) // 2
    chunks = [body_of(TEXT)[:half], body_of(TEXT)[half:], b""]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    found.append(b"%sTransfer-Encoding: chunked\r\n\r\n%s" % (post, coded))
    for path in (b"/v2", b"/metrics", b"/v2/health/ready", b"/v2/models/model/versions/1"):
        found.append(b"GET %s HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n" % path)
    found.append(b"HEAD /v2 HTTP/1.0\r\n\r\n")
    return found


PIECES = [
    b"\r\n", b"\r\n\r\n", b"\n", b":", b" ", b"\0", b"\xff", b"%00", b"%zz", b"/", b"//", b"..",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999\r\n", b"Content-Length: 18446744073709551616\r\n",
    b"Content-Encoding: gzip\r\n", b"Expect: 100-continue\r\n", b"Range: bytes=0-,5-1\r\n",
    b"Content-Type: multipart/form-data; boundary=a\r\n", b"--a\r\n", b"Connection: close\r\n",
    b"HTTP/1.1", b"HTTP/9.9", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"?a=b&c", b"X" * 9000,
    b"Inference-Header-Content-Length: 5\r\n", b"[" * 200,
]  # fmt: skip


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    text = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(0, 5)):
        start, other = chance.randrange(len(text) + 1), chance.choice(seeds)
        end = chance.choice([start, start + 1, start + chance.randint(1, 16), len(text)])
        text[start:end] = chance.choice(
            [
                b"",
                bytes([chance.randrange(256)]),
                chance.choice(PIECES),
                text[chance.randrange(len(text) + 1) :][: chance.randint(0, 64)],
                other[chance.randrange(len(other)) :],
            ]
        )
    return bytes(text)


def answers(host: str, port: int, sent: bytes) -> bool:
    """Whether the server says anything to these bytes; it may close the connection."""
    with socket.create_connection(
        (host, port), timeout=lite_build.DEADLINE
    ) as client, contextlib.suppress(OSError):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return client.recv(12).startswith(b"HTTP/1.1 ")
    return False


def test_fuzzed_bytes_on_a_socket(sanitized, tmp_path):
    """Whatever bytes come the server lives, and after them answers a right request."""
    bundle = write_bundle(tmp_path, targets=(sanitized.target,))
    chance, seeds = random.Random(SEED), raw_requests()
    sent = answered = 0
    words = ("--body-seconds=1", "--connections=64")
    with serving(sanitized, bundle, *words) as (url, process):
        host, port = url.split("//")[1].split(":")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for _ in range(200):
                answered += answers(host, int(port), mutated(chance, seeds))
                sent += 1
            assert post(url, body_of(TEXT)).status_code == 200
            assert process.poll() is None
        process.terminate()
        assert process.wait(lite_build.DEADLINE) == 0  # no leak either
    print(f"{sent} connections, {answered} of them answered")
    assert answered
