"""A worker process: opens a bundle's variants and answers batches, one after another.

`process.py` starts it with the number of a socket's descriptor, the parent's process id and its
processors. It reads frames (frames.py) from the socket and answers each with one. It ends with its
parent, however that ends, and leaves Ctrl-C and SIGTERM to it. A last word `early` says that nobody
waits for the processors: then it imports Paddle before it is told what to open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from fleetbert.compat import environment
from fleetbert.deploy.inference.workers import priority

if TYPE_CHECKING:
    import numpy as np

    from fleetbert.engines.engine import Engine

ROUNDS = 5  # of a measurement; the fastest counts
MEASURE_SECONDS = 1.5  # after so many no further round begins
MEASURED_SHAPE = (8, 64)  # texts, length


class Worker:
    """The engines that were opened, and the answers to each kind of frame."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.layers: dict[str, int] = {}  # of each engine's model

    def open(self, head: dict[str, Any]) -> dict[str, Any]:
        """Open a variant, whose hashes the parent checks, and run each batch (texts, length) once.

        oneDNN keeps its weights and primitives for each thread anew, so the batches have to be
        run by the thread that answers later; `aside` is only for what comes before.
        """
        begin = time.monotonic()
        opened, layers = priority.call(lambda: _open(head)) if head["aside"] else _open(head)
        done = time.monotonic()
        self.engines[head["variant"]] = opened
        self.layers[head["variant"]] = layers
        self.warm(head)
        return {
            "layers": layers,
            "open_seconds": done - begin,
            "warm_seconds": time.monotonic() - done,
        }

    def warm(self, head: dict[str, Any]) -> dict[str, Any]:
        """Run each of the batches (texts, length) once."""
        self.engines[head["variant"]].warm_up(head["batches"])
        return {}

    def run(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Logits float32 [texts, labels] in the order of the texts, and int32 [texts] the layers
        that they left after."""
        import numpy as np

        from fleetbert.data.batching import SAFE_LENGTHS, collate
        from fleetbert.data.tokenizers import Encodings
        from fleetbert.deploy.inference.workers import frames

        ids, lengths, first_lengths = frames.unpack_texts(head, body)
        texts = np.split(ids, np.cumsum(lengths)[:-1])
        encodings = Encodings(texts, first_lengths, 0, lengths)
        logits = np.empty((0, 0))
        layers = np.empty(len(texts), frames.INT)
        seconds = 0.0
        for speed, chosen in _by_speed(head["speeds"], len(texts)):
            batch = collate(
                encodings,
                chosen,
                packed=False,
                max_length=SAFE_LENGTHS[-1],
                pad_id=head["pad_id"],
                round_to=SAFE_LENGTHS,
            )
            begin = time.monotonic()
            parts = list(
                self.engines[head["variant"]].run_all(
                    [(np.array(chosen), batch)], speed, batch.input_ids.size
                )
            )
            seconds += time.monotonic() - begin
            for part in parts:
                if not logits.size:
                    logits = np.empty((len(texts), part.outputs.shape[1]), frames.FLOAT)
                logits[part.numbers] = part.outputs
                # 0: this engine's texts go through all layers
                layers[part.numbers] = part.layer or self.layers[head["variant"]]
        return {"seconds": seconds}, [logits, layers]

    def measure(self, head: dict[str, Any]) -> dict[str, Any]:
        """Texts a second of each variant through all layers, run in turns, so that a busy moment
        hurts all alike."""
        batch = _uniform_batch(MEASURED_SHAPE[0], min(MEASURED_SHAPE[1], head["longest"]))
        best = {name: float("inf") for name in self.engines}
        begin = time.monotonic()
        for number in range(ROUNDS + 1):
            for name, opened in self.engines.items():
                start = time.monotonic()
                opened.run(batch, speed=0.0)
                if number:  # the first one warms
                    best[name] = min(best[name], time.monotonic() - start)
            if number and time.monotonic() - begin > MEASURE_SECONDS:
                break
        return {"texts_per_s": {name: MEASURED_SHAPE[0] / took for name, took in best.items()}}


def main(descriptor: int, parent: int, processors: list[int], early: bool) -> None:
    environment.die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if processors:  # before Paddle is imported, whose threads inherit it
        os.sched_setaffinity(0, processors)
    channel = socket.socket(fileno=descriptor)
    if early:
        from fleetbert.compat import paddle_inference

        with contextlib.suppress(Exception):  # who opens a variant that needs it will say why
            paddle_inference.import_inference()
    with contextlib.suppress(ConnectionError):
        _serve(channel)
    os._exit(0)  # without Paddle's teardown


def _serve(channel: socket.socket) -> None:
    from fleetbert.deploy.inference.workers import frames

    worker = Worker()
    held = bytearray()
    while data := channel.recv(1 << 20):  # nothing: the parent has closed
        held += data
        for head, body in frames.take(held):
            try:
                answer = _answer(worker, head, body)
            except Exception as error:
                answer = frames.pack({"error": _sentence(error)})
            channel.sendall(answer)


def _sentence(error: Exception) -> str:
    """Paddle's errors are pages long; the first line says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = next((line for line in lines if line.strip("-")), "")
    return f"{type(error).__name__}: {said}"


def _answer(worker: Worker, head: dict[str, Any], body: bytes) -> bytes:
    from fleetbert.deploy.inference.workers import frames

    if head["do"] == "run":
        found, arrays = worker.run(head, body)
        return frames.pack(found, *arrays)
    act = {"open": worker.open, "warm": worker.warm, "measure": worker.measure}[head["do"]]
    return frames.pack(act(head))


def _open(head: dict[str, Any]) -> tuple[Engine, int]:
    """The engine, and how many layers the model has."""
    from fleetbert import bundle as bundles
    from fleetbert.engines import engine
    from fleetbert.graph import groups
    from fleetbert.graph import program as programs

    bundle = bundles.read(head["bundle"])
    opened = engine.open(
        bundle, head["variant"], device=head["device"], threads=head["threads"], verify=False
    )
    if opened.early_exit is not None:
        return opened, opened.early_exit.ends[-1]
    folder = bundle.folder(head["variant"])
    program = next(iter(folder.glob("*.pdmodel")), bundle.folder("float32") / "model.pdmodel")
    return opened, groups.count_layers(programs.read(program))


def _by_speed(
    speeds: list[float | None] | None, texts: int
) -> Iterator[tuple[float | None, Sequence[int]]]:
    """Each speed that texts of a batch ask for, and which of them do; None: the variant's own."""
    if speeds is None:
        yield None, range(texts)
        return
    for speed in dict.fromkeys(speeds):
        yield speed, [number for number, found in enumerate(speeds) if found == speed]


def _uniform_batch(texts: int, length: int) -> Any:
    """A batch of one token id that every vocabulary has."""
    import numpy as np

    from fleetbert.data.batching import Batch

    ids = np.ones((texts, length), np.int64)
    order = np.arange(texts)
    return Batch(ids, np.zeros_like(ids), None, None, order * length, order, texts * length)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        [int(number) for number in sys.argv[3].split(",") if number],
        early="early" in sys.argv[4:],
    )
