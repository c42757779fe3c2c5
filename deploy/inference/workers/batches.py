"""What a worker does with each frame: open a variant, warm it, measure it, fork, answer a batch."""

from __future__ import annotations

import gc
import os
import socket
import time
from typing import Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compat import messages
from fleetbert.core.device import Device
from fleetbert.core.errors import UserError, of_system
from fleetbert.data import ragged
from fleetbert.data.ragged import Texts
from fleetbert.deploy.inference.workers import frames, priority
from fleetbert.deploy.inference.workers.fork_server import fork_worker
from fleetbert.deploy.inference.workers.frames import Head
from fleetbert.engines import engine as engines
from fleetbert.engines.engine import ANY_TOKEN, Engine, Shapes
from fleetbert.graph import groups
from fleetbert.graph import program as programs

ROUNDS = 5  # of a measurement; the fastest counts
MEASURE_SECONDS = 1.5  # after so many no further round begins


class Opened(NamedTuple):
    """A variant."""

    engine: Engine
    layers: int


class Worker:
    """The variants that were opened, and the answers to each kind of frame."""

    def __init__(
        self,
        channel: socket.socket,
        forking: socket.socket | None = None,
        opened: Mapping[str, Opened] | None = None,
    ):
        """channel: of frames. forking, opened: see `worker.main`."""
        self.channel, self.forking = channel, forking
        self.opened = dict(opened or {})

    def open(self, head: Head) -> Head:
        """Open a variant, whose hashes the parent checks, and run each batch (texts, length) once.

        oneDNN keeps its weights and primitives for each thread anew, so the batches have to be
        run by the thread that answers later; `aside` is only for what comes before.
        """
        begin = time.monotonic()
        opened = self.opened.get(head["variant"])
        if opened is None:
            opened = priority.call(lambda: _open(head)) if head["aside"] else _open(head)
        done = time.monotonic()
        self.opened[head["variant"]] = opened
        self.warm(head)
        return {
            "layers": opened.layers,
            "open_seconds": done - begin,
            "warm_seconds": time.monotonic() - done,
        }

    def warm(self, head: Head) -> Head:
        """Run each of the batches (texts, length) once."""
        self.opened[head["variant"]].engine.warm_up(head["batches"])
        return {}

    def fork(self, head: Head) -> Head:
        """Fork a worker, on the processors `processors`, that has opened what this one has: they
        share that memory until one of them writes there."""
        assert self.forking is not None
        sockets, parent = (self.channel, self.forking), os.getppid()
        gc.freeze()  # see `fork_server.main`
        processors = head["processors"]
        return {"pid": fork_worker(self.forking, sockets, parent, processors, self.opened)}

    def measure(self, head: Head) -> Head:
        """Texts a second of each variant through all layers, in batches of one shape, run in turns,
        so that a busy moment hurts all alike."""
        texts, length = head["shape"]
        batch = ragged.uniform(texts, length, ANY_TOKEN)
        best = {name: float("inf") for name in self.opened}
        begin = time.monotonic()
        for number in range(ROUNDS + 1):
            for name, opened in self.opened.items():
                start = time.monotonic()
                opened.engine.run(batch, speed=0.0)
                if number:  # the first one warms
                    best[name] = min(best[name], time.monotonic() - start)
            if number and time.monotonic() - begin > MEASURE_SECONDS:
                break
        return {"texts_per_s": {name: texts / took for name, took in best.items()}}

    def run(self, head: Head, body: bytes) -> bytes:
        """Logits float32 [texts, labels] in the order of the texts (of networks that answer each
        token, [tokens, labels] of all texts), and int32 [texts] the layers that they left after.
        In the head: seconds in the engine, and the rows and lengths of what it was given."""
        texts = frames.unpack_texts(head, body)
        engine, all_layers = self.opened[head["variant"]]
        logits: list[np.ndarray] = [np.empty(0)] * len(texts.lengths)
        layers = np.empty(len(texts.lengths), frames.INT)
        shapes: Shapes = []
        seconds = 0.0
        for speed, chosen, part in _by_speed(head["speeds"], texts):
            begin = time.monotonic()
            answers = list(engine.run_all(part, speed, head["batch_tokens"], shapes))
            seconds += time.monotonic() - begin
            for answer in answers:
                numbers = chosen[answer.numbers]
                for number, row in zip(numbers.tolist(), answer.outputs):
                    logits[number] = row
                # 0: this engine's texts go through all layers
                layers[numbers] = answer.layer or all_layers
        return frames.pack({"seconds": seconds, "shapes": shapes}, *logits, layers)


def serve(worker: Worker) -> None:
    """Answer frames until the parent closes the socket."""
    buffer = bytearray()
    while data := worker.channel.recv(1 << 20):
        buffer += data
        for head, body in frames.take(buffer):
            try:
                answer = _answer(worker, head, body)
            except Exception as error:
                failed = of_system(error) or messages.is_out_of_memory(error)
                sentence = f"{type(error).__name__}: {messages.first_line(error)}"
                answer = frames.pack({"error": sentence, "of_system": failed})
            worker.channel.sendall(answer)


def _answer(worker: Worker, head: Head, body: bytes) -> bytes:
    if head["do"] == "run":
        return worker.run(head, body)
    acts = (worker.open, worker.warm, worker.measure, worker.fork)
    act = {act.__name__: act for act in acts}[head["do"]]
    return frames.pack(act(head))


def _open(head: Head) -> Opened:
    """What goes wrong here because the bundle's files are not as they were when the parent read it
    (a repository that goes away, a copy under way) has an OSError as its cause."""
    try:
        bundle = bundles.read(head["bundle"])
    except UserError as error:
        raise error from OSError()
    variant = head["variant"]
    options = {name: head[name] for name in ("threads", "pad_id", "batch_tokens")}
    device = Device(*head["device"])
    # A file that the manifest does not list was never there.
    listed = [file.path for variant in bundle.manifest.variants for file in variant.files]
    try:
        engine = engines.open(bundle, variant, device, verify=False, **options)
    except FileNotFoundError as error:
        if str(error.filename).endswith(tuple(listed)):
            raise
        raise UserError(f"variant {variant}: there is no {error.filename}") from None
    except Exception as error:
        if messages.cannot_open(error, listed):
            raise error from OSError()
        raise
    if engine.early_exit is not None:
        return Opened(engine, engine.early_exit.ends[-1])
    folder = bundle.folder(variant)
    program = next(iter(folder.glob("*.pdmodel")), bundle.folder("float32") / "model.pdmodel")
    return Opened(engine, groups.count_layers(programs.read(program)))


def _by_speed(
    speeds: Sequence[float | None] | None, texts: Texts
) -> Iterator[tuple[float | None, np.ndarray, Texts]]:
    """Each speed that texts of a batch ask for, and which of them do, with their numbers; None: the
    variant's own."""
    if speeds is None:
        yield None, np.arange(len(texts.lengths)), texts
        return
    for speed in dict.fromkeys(speeds):
        chosen = np.array([number for number, wanted in enumerate(speeds) if wanted == speed])
        yield speed, *next(texts.parts([chosen]))
