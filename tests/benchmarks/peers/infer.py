"""PyTorch, ONNX Runtime and OpenVINO, each as its own manual says.

Runs in the peers' environment, without fleetbert: `infer.py job.json`, whose `peer` is one of
`OPENERS`. A command {"plan", "save"} answers the batches of that plan, as `infer_worker` does.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

# Python's standard library only, so that this environment can import it.
sys.path.append(str(Path(__file__).resolve().parents[3] / "fleetbert" / "bench"))
import worker


def collate(ids, first_lengths, indices, length, pad_id):
    """The texts `indices` as input_ids and token_type_ids, int64 [texts, length]."""
    input_ids = np.full((len(indices), length), pad_id, np.int64)
    token_type_ids = np.zeros_like(input_ids)
    for row, index in enumerate(indices):
        input_ids[row, : len(ids[index])] = ids[index]
        token_type_ids[row, first_lengths[index] : len(ids[index])] = 1
    return input_ids, token_type_ids


def inputs_of(input_ids, token_type_ids, pad_id):
    """What an ONNX model of fleetbert's takes, by name."""
    mask = (input_ids != pad_id).astype(np.int64)
    return {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": mask}


def open_onnxruntime(job):
    """All optimizations; the model may be quantized."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        job["model"], options, providers=["CPUExecutionProvider"]
    )

    def run(input_ids, token_type_ids):
        return session.run(["logits"], inputs_of(input_ids, token_type_ids, job["pad_id"]))[0]

    return run, f"ONNX Runtime {onnxruntime.__version__}", onnxruntime.__version__


def open_openvino(job):
    """`streams`: how many calls share the threads, each from a thread of its own."""
    import openvino

    streams = job.get("streams", 1)
    properties = {
        "INFERENCE_NUM_THREADS": job["threads"],
        "NUM_STREAMS": streams,
        "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "f32",  # of what is not quantized
    }
    compiled = openvino.Core().compile_model(job["model"], "CPU", properties)
    own = threading.local()  # a request takes one call at a time

    def run(input_ids, token_type_ids):
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        inputs = inputs_of(input_ids, token_type_ids, job["pad_id"])
        return own.request.infer(inputs)[compiled.output(0)].copy()

    version = openvino.__version__.split("-")[0]
    return run, f"OpenVINO {version}", version


def open_torch(job):
    """transformers' BertForSequenceClassification, eager."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(job["threads"])
    network = transformers.BertForSequenceClassification.from_pretrained(job["model"])
    network.eval()

    def run(input_ids, token_type_ids):
        ids = torch.from_numpy(input_ids)
        with torch.inference_mode():
            reply = network(
                input_ids=ids,
                attention_mask=(ids != job["pad_id"]).long(),
                token_type_ids=torch.from_numpy(token_type_ids),
            )
            return reply.logits.numpy()

    return run, f"PyTorch {torch.__version__}", torch.__version__


OPENERS = {
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    "torch": open_torch,
}


def open_for_texts(job):
    """An engine that takes texts, as whoever has to serve a model soon writes it: tokenized, padded
    to the longest and run together."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(job["vocab"], lowercase=job["lowercase"])
    tokenizer.enable_truncation(job["max_length"])
    tokenizer.enable_padding(pad_id=job["pad_id"])
    run, engine, version = OPENERS[job["peer"]](job)

    def answer(texts):
        encodings = tokenizer.encode_batch(texts)
        input_ids = np.array([encoding.ids for encoding in encodings], np.int64)
        token_type_ids = np.array([encoding.type_ids for encoding in encodings], np.int64)
        return run(input_ids, token_type_ids)

    return answer, engine, version


def softmax(logits):
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def main() -> None:
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with np.load(job["texts"]) as file:
        ids = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
        first_lengths = file["first_lengths"]
    name = job.get("peer", "onnxruntime")
    run, engine, version = OPENERS[name](job)
    channel.send(engine=engine, versions={name: version, "numpy": np.__version__})
    while True:
        command = channel.receive()
        logits = np.empty((len(ids), job["labels"]), np.float32)
        times = []
        clock = worker.Clock()
        clock.start()
        for indices, length in job["plans"][command["plan"]]:
            started = time.perf_counter()
            logits[indices] = run(*collate(ids, first_lengths, indices, length, job["pad_id"]))
            times.append(time.perf_counter() - started)
        clock.stop()
        if command["save"]:
            np.save(command["save"], logits)
        channel.send(
            seconds=clock.seconds,
            cpu_seconds=clock.cpu_seconds,
            peak_mb=worker.peak_mb(),
            times=times,
        )


if __name__ == "__main__":
    with contextlib.suppress(worker.Stop):
        main()
