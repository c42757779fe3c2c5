"""`make endurance`: minutes of steady load on a server whose versions change, whose workers are
killed, whose certificate rotates, and whom others send huge texts, bursts, and requests behind
which they end their side. No answer may be wrong, and no good request may fail but by 503.

FLEETBERT_SOAK_MINUTES (10) sets how long, FLEETBERT_SEED (0) what is sent.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import shutil
import ssl
import subprocess
import threading
import time
from collections import Counter

import grpc
import numpy as np
import psutil
import pytest
import requests
from grpc_stub import make_stub, request_of
from served import REAL, connect, exchange, serving, settings_of
from tiny_bert import LABELS, WORDS, make_network

from fleetbert.data.tokenizers import of_vocab
from fleetbert.deploy.inference.settings import Safety
from fleetbert.engines import answer as answers
from fleetbert.export.program import export_bundle

MINUTES = float(os.environ.get("FLEETBERT_SOAK_MINUTES", "10"))
SEED = int(os.environ.get("FLEETBERT_SEED", "0"))
RELOAD_SECONDS, KILL_SECONDS = 20, 30
ROTATE_SECONDS = 10
CLIENTS = 6
PAUSE = 0.03  # of a client between its requests: steady, not as fast as it goes
HUGE_SECONDS, BURST_SECONDS = 5, 30
BURST, CHANNELS = 3000, 10
FLAT = 1.2
SAME = 1e-3  # of logits: batches of other shapes round otherwise, other weights are far away
HUGE = [" word1", "a", "\u0301\u0302", "\x01", "字", ".", "\U0001f600"]
HEAD = "POST /v2/models/tiny/infer HTTP/1.1\r\nhost: x\r\n"


class Authority:
    """Signs certificates for localhost; `path` is its own, which clients believe."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "ca.pem"
        folder.mkdir()
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        self._run(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"
        )
        self.context = ssl.create_default_context(cafile=str(self.path))
        self.renew()

    def renew(self):
        """Replace cert.pem and key.pem, one after the other; the new serial number."""
        self._run("req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout new.key -out new.csr")
        self._run("x509 -req -in new.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
                  "-extfile names -out new.pem")  # fmt: skip
        (self.folder / "new.key").replace(self.folder / "key.pem")
        (self.folder / "new.pem").replace(self.folder / "cert.pem")
        return (self.folder / "ca.srl").read_text().strip()

    def session(self):
        session = requests.Session()
        session.verify, session.trust_env = str(self.path), False
        return session

    def _run(self, words):
        subprocess.run(
            ["openssl", *words.split()], cwd=self.folder, check=True, capture_output=True
        )


class Soak:
    """What the threads share."""

    def __init__(self, served, texts, expected, authority):
        self.served, self.texts, self.expected = served, texts, expected
        self.authority = authority
        self.end = time.monotonic() + 60 * MINUTES
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.versions: set[str] = set()
        self.lock = threading.Lock()

    def going(self) -> bool:
        return time.monotonic() < self.end and not self.wrong

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.going() and time.monotonic() < until:
            time.sleep(0.1)

    def note(self, word: str) -> None:
        with self.lock:
            self.counts[word] += 1

    def check(self, status: int, body: dict, chosen: list[int]) -> None:
        """A good request's answer: right for the version that gave it, or a counted 503."""
        if status != 200:
            self.note(str(status))
            if status != 503:
                self.wrong.append(f"{status}: {body}")
            return
        self.note("200")
        self.versions.add(body["model_version"])
        (logits,) = (o for o in body["outputs"] if o["name"] == "logits")
        self.compare(body["model_version"], chosen, np.reshape(logits["data"], logits["shape"]))

    def compare(self, version: str, chosen: list[int], logits: np.ndarray) -> None:
        apart = np.abs(logits - self.expected[int(version) % 2][chosen]).max()
        if not apart < SAME:
            self.wrong.append(f"version {version}, texts {chosen}: logits are {apart} apart")


def ask(soak, number):
    chance = random.Random(SEED * 1000 + number)
    with soak.authority.session() as session:
        while soak.going():
            chosen = chance.sample(range(len(soak.texts)), chance.choice([1, 1, 2, 8]))
            data = [soak.texts[n] for n in chosen]
            tensor = {"name": "text", "shape": [len(data)], "datatype": "BYTES", "data": data}
            try:
                reply = session.post(
                    f"{soak.served.http}/v2/models/tiny/infer",
                    json={"inputs": [tensor]},
                    timeout=120,
                )
                soak.check(reply.status_code, reply.json(), chosen)
            except requests.RequestException as error:
                soak.wrong.append(f"a good request failed: {error!r}")
            time.sleep(PAUSE)


def reload(soak, bundles, models):
    number = 1
    while soak.going():
        soak.pause(RELOAD_SECONDS)
        number += 1
        shutil.copytree(bundles[number % 2], models / ".new")
        (models / ".new").rename(models / str(number))
        soak.note("published")
        while soak.going() and str(number) not in soak.versions:
            time.sleep(0.1)
            with soak.authority.session() as session:
                url = f"{soak.served.http}/v2/repository/index"
                index = session.post(url, timeout=120).json()
            (found,) = [one for one in index if one["version"] == str(number)] or [{}]
            if "lost" in found.get("reason", ""):
                soak.wrong.append(f"version {number} is refused: {found['reason']}")
        if str(number) in soak.versions:
            soak.note("taken over")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(models / str(number - 2))


def kill(soak):
    """The oldest worker: one that answers. (A version whose worker dies while it is loaded is
    refused, which is right, and would end the changes of versions here.)"""
    while soak.going():
        soak.pause(KILL_SECONDS)
        with contextlib.suppress(psutil.Error, ValueError):
            min(soak.served.workers(), key=lambda worker: worker.create_time()).kill()
            soak.note("killed")


def send_huge(soak):
    """Seven megabytes in a few kilobytes, of clients that hang up."""
    chance = random.Random(SEED)
    while soak.going():
        texts = [WORDS[0] + unit * (1_000_000 // len(unit.encode())) for unit in HUGE]
        tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
        body = gzip.compress(json.dumps({"inputs": [tensor]}).encode(), 1)
        head = f"{HEAD}content-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n"
        context = soak.authority.context
        with context.wrap_socket(connect(soak.served.http), server_hostname="localhost") as one:
            one.sendall(head.encode() + body)
            time.sleep(chance.random())
        soak.note("huge")
        time.sleep(HUGE_SECONDS)


def rotate(soak):
    """New connections show the new certificate; those that are open go on."""
    while soak.going():
        serial, since = soak.authority.renew(), time.monotonic()
        shown = ""
        while shown != serial and time.monotonic() < since + 60:
            with soak.authority.context.wrap_socket(
                connect(soak.served.http), server_hostname="localhost"
            ) as one:
                shown = one.getpeercert()["serialNumber"]
            time.sleep(0.5)
        if shown != serial:
            soak.wrong.append(f"certificate {serial} is not shown")
        soak.note("rotated")
        soak.pause(ROTATE_SECONDS)


def half_close(soak):
    """Clients that end their sending side behind the request, TLS's or TCP's. An answer that takes
    long may be lost, as nothing tells them from clients that have gone; none may be wrong."""
    chance = random.Random(SEED + 1)
    while soak.going():
        number = chance.randrange(len(soak.texts))
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [soak.texts[number]]}
        body = json.dumps({"inputs": [tensor]}).encode()
        sent = f"{HEAD}content-length: {len(body)}\r\n\r\n".encode() + body
        with connect(soak.served.http) as one:
            got = exchange(one, soak.authority.context, sent, chance.choice(["tls", "tcp"]))
        head, _, rest = got.partition(b"\r\n\r\n")
        soak.note("half-closed" if got else "half-closed, lost")
        if got:
            soak.check(int(head.split()[1]), json.loads(rest), [number])
        time.sleep(10 * PAUSE)


def burst(soak):
    """Thousands of gRPC calls at once: each is answered, or refused as the queue is full."""
    credentials = grpc.ssl_channel_credentials(soak.authority.path.read_bytes())
    channels = [grpc.secure_channel(soak.served.grpc, credentials) for _ in range(CHANNELS)]
    stubs = [make_stub(channel) for channel in channels]
    while soak.going():
        texts = [soak.texts[number % len(soak.texts)] for number in range(BURST)]
        requests = [request_of([text], "tiny", outputs=[{"name": "logits"}]) for text in texts]
        calls = [
            stubs[number % CHANNELS].ModelInfer.future(request, timeout=110)
            for number, request in enumerate(requests)
        ]
        for number, call in enumerate(calls):
            try:
                reply = call.result()
            except grpc.RpcError as error:
                soak.note(error.code().name)
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    soak.wrong.append(f"of a burst: {error.code()}: {error.details()}")
                continue
            soak.note("OK")
            found = np.frombuffer(reply.raw_output_contents[0], np.float32)
            soak.compare(reply.model_version, [number % len(soak.texts)], found)
        soak.pause(BURST_SECONDS)
    for channel in channels:
        channel.close()


ACTORS = (kill, send_huge, burst, rotate, half_close)


def memory(served) -> int:
    """Bytes of the listening process."""
    return psutil.Process(served.process.pid).memory_info().rss


@pytest.mark.timeout(60 * MINUTES + 900)
def test_a_server_under_load_changes_and_attacks(tiny_bundle, tiny_vocab, tmp_path, capfd):
    second = tmp_path / "second"
    export_bundle(second, make_network(seed=2), task="classification", labels=LABELS,
                  max_length=64, tokenizer=of_vocab(tiny_vocab, True))  # fmt: skip
    bundles = [second, tiny_bundle]  # of even and of odd versions
    chance = random.Random(SEED)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 40))) for _ in range(200)]
    expected = [
        np.concatenate([answers.compute_logits(model, [text], None).values for text in texts])
        for model in map(answers.load, bundles)
    ]  # of each text by itself
    assert np.abs(expected[0] - expected[1]).max() > 100 * SAME  # a mix-up would show
    models = tmp_path / "models" / "tiny"
    shutil.copytree(tiny_bundle, models / "1")
    words = settings_of(
        tmp_path / "models", "repository.poll_seconds=0.5", "engine.workers=2",
        "batching.timeout_ms=110000", "logs.requests=true",
    )  # fmt: skip
    authority = Authority(tmp_path / "tls")
    words += [f"safety.tls_certificate={authority.folder / 'cert.pem'}"]
    words += [f"safety.tls_key={authority.folder / 'key.pem'}"]
    with serving(tmp_path, *words, command=REAL) as served:
        soak = Soak(served, texts, expected, authority)
        threads = [threading.Thread(target=ask, args=(soak, n)) for n in range(CLIENTS)]
        threads += [threading.Thread(target=reload, args=(soak, bundles, models))]
        threads += [threading.Thread(target=act, args=(soak,)) for act in ACTORS]
        idle = memory(served)
        for thread in threads:
            thread.start()
        samples = []
        while soak.going():
            samples.append(memory(served))
            time.sleep(1)
        for thread in threads:
            thread.join()
        metrics = authority.session().get(f"{served.http}/metrics", timeout=120).text
        assert served.end() == 0, served.log[-(1 << 16) :]
    # What stays between bursts: on a busy machine the calls of one wait for most of its pause.
    quarter = len(samples) // 4
    early, late = (
        float(np.percentile(part, 10)) for part in (samples[quarter:][:quarter], samples[-quarter:])
    )
    with capfd.disabled():
        figures = [round(size / 1e6) for size in (idle, early, late, max(samples))]
        print(f"\n{dict(soak.counts)}; MB at first, in two quarters, at most: {figures}")
    assert soak.wrong == []
    assert all(soak.counts[done] > 0 for done in ("OK", "huge", "rotated", "half-closed"))
    assert soak.counts["200"] > 100
    swaps = soak.counts["taken over"]
    assert swaps >= soak.counts["published"] - 1  # the last one may be under way
    assert swaps >= int(60 * MINUTES / RELOAD_SECONDS) // 4
    assert ("fleetbert_worker_restarts_total" in metrics) == (soak.counts["killed"] > 0)
    if MINUTES >= 5:  # before that the allocators still fill
        assert late <= FLAT * early
    assert max(samples) <= 2 * idle + Safety().max_waiting_bytes
