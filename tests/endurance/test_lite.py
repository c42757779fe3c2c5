"""`make endurance`: what `make test` has no time for of deploy/lite.

FLEETBERT_LITE_SECONDS (600) of each kind of fuzzing, FLEETBERT_LITE_RANDOM (100000) random texts
that are tokenized; FLEETBERT_SEED (0) sets what is fuzzed.
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
import pytest
from boards import write_bundle
from lite_serving import INFER, post, serving
from oip_cases import TEXT, body_of
from served import connect

SECONDS = int(os.environ.get("FLEETBERT_LITE_SECONDS", "600"))
RANDOM = os.environ.get("FLEETBERT_LITE_RANDOM", "100000")
SEED = int(os.environ.get("FLEETBERT_SEED", "0"))

pytestmark = pytest.mark.timeout(4 * 3600)


@pytest.fixture(scope="module")
def sanitized() -> lite_build.Build:
    return lite_build.build("sanitized")


@pytest.mark.parametrize("name", ["sanitized", "aarch64"])
def test_all_tests_of_the_programs(name):
    """With sanitizers, and all of them emulated."""
    lite_build.build(name)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/deploy/lite"]
    environ = {**os.environ, "FLEETBERT_LITE_BUILDS": name, "FLEETBERT_LITE_RANDOM": RANDOM}
    done = subprocess.run(
        command, cwd=lite_build.ROOT, env=environ, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0


@pytest.mark.parametrize("told", [{}, {"task": "question_answering", "labels": ["no_answer"]}])
def test_fuzzed_bodies_manifests_and_vocabularies(sanitized, tmp_path, told):
    bundle = write_bundle(tmp_path, targets=(sanitized.target,), **told)
    command = sanitized.command("fleetbert-lite-fuzz", bundle, SECONDS, SEED)
    done = subprocess.run(command, capture_output=True, text=True)  # it takes its time
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"[1-9]\d* of them answered.* [1-9]\d* of them opened", done.stdout)


HEAD = b"POST %s HTTP/1.1\r\nHost: a\r\n" % INFER.encode()
BODY = body_of(TEXT)
SEEDS = [
    b"%sContent-Length: %d\r\n\r\n%s" % (HEAD, len(BODY), BODY),
    b"%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (HEAD, len(BODY), BODY),
    b"GET /v2/models/model/versions/1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    b"HEAD /metrics HTTP/1.0\r\n\r\n",
]
PIECES = [
    b"\r\n", b"\r\n\r\n", b"\n", b":", b" ", b"\0", b"\xff", b"%00", b"%zz", b"/", b"//", b"..",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999\r\n", b"Content-Length: 18446744073709551616\r\n",
    b"Content-Encoding: gzip\r\n", b"Expect: 100-continue\r\n", b"Range: bytes=0-,5-1\r\n",
    b"Content-Type: multipart/form-data; boundary=a\r\n", b"--a\r\n", b"Connection: close\r\n",
    b"HTTP/1.1", b"HTTP/9.9", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"?a=b&c", b"X" * 9000,
    b"Inference-Header-Content-Length: 5\r\n", b"[" * 200,
]  # fmt: skip


def mutated(chance: random.Random) -> bytes:
    text = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randint(0, 5)):
        start, other = chance.randrange(len(text) + 1), chance.choice(SEEDS)
        end = start + chance.choice([0, 1, chance.randint(1, 16), len(text)])
        byte, rest = bytes([chance.randrange(256)]), other[chance.randrange(len(other)) :]
        text[start:end] = chance.choice([b"", byte, chance.choice(PIECES), rest])
    return bytes(text)


def answers(url: str, sent: bytes) -> bool:
    """Whether the server says anything to these bytes; it may close the connection."""
    with connect(url) as client, contextlib.suppress(OSError):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return client.recv(12).startswith(b"HTTP/1.1 ")
    return False


def test_fuzzed_bytes_on_a_socket(sanitized, tmp_path):
    """Whatever bytes come the server lives, and after them answers a right request."""
    bundle = write_bundle(tmp_path, targets=(sanitized.target,))
    chance = random.Random(SEED)
    sent = answered = 0
    words = ("--body-seconds=1", "--connections=64")
    with serving(sanitized, bundle, *words) as (url, process):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for _ in range(200):
                answered += answers(url, mutated(chance))
                sent += 1
            assert post(url, body_of(TEXT)).status_code == 200
            assert process.poll() is None
        process.terminate()
        assert process.wait(lite_build.DEADLINE) == 0  # no leak either
    print(f"{sent} connections, {answered} of them answered")
    assert answered
