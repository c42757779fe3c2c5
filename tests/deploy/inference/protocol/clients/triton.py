"""tritonclient, over http or grpc: `triton.py http|grpc HOST:PORT` prints what it saw as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np
from asked import IDS, TEXTS, listed

PROTOCOL, ADDRESS = sys.argv[1:]
if PROTOCOL == "http":
    import tritonclient.http as triton
else:
    import tritonclient.grpc as triton

client = triton.InferenceServerClient(ADDRESS)
NAMES = ("label", "scores", "logits", "exit_layer")


def ask(model, arrays, names=None, binary=True, **arguments):
    """Infer with NumPy arrays by name; binary tensors both ways or none (http only)."""
    options = {"binary_data": binary} if PROTOCOL == "http" else {}
    inputs = []
    for name, (array, datatype) in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **options)
        inputs.append(tensor)
    outputs = None
    if names is not None:
        outputs = [triton.InferRequestedOutput(name, **options) for name in names]
    result = client.infer(model, inputs, outputs=outputs, **arguments)
    return {name: listed(result.as_numpy(name)) for name in names or NAMES}


def response_of(call):
    """A call's answer, or what its exception says."""
    try:
        return call()
    except triton.InferenceServerException as error:
        return {"status": error.status(), "message": error.message()}


texts = {"text": (np.array(TEXTS, object), "BYTES")}
ids = {"input_ids": (np.array(IDS, np.int64), "INT64")}
ids32 = {"input_ids": (np.array(IDS, np.int32), "INT32")}
pair = {"text": texts["text"], "text_pair": texts["text"]}
as_json = {"as_json": True} if PROTOCOL == "grpc" else {}
saw = {
    "live": client.is_server_live(),
    "ready": client.is_server_ready(),
    "model_ready": client.is_model_ready("sst", "1"),
    "loading": client.is_model_ready("loading"),
    "server": client.get_server_metadata(**as_json),
    "model": client.get_model_metadata("sst", **as_json),
    "index": client.get_model_repository_index(**as_json),
    "statistics": client.get_inference_statistics("sst", "2", **as_json),
    "texts": ask("sst", texts, request_id="7"),
    "chosen": ask("sst", texts, ["label", "scores"]),
    "pairs": ask("pairs", pair),
    "ids": ask("sst", ids, model_version="stable"),
    "ids32": ask("sst", ids32, ["logits"]),
    "parameters": ask("sst", texts, ["label"], timeout=60_000_000, parameters={"speed": 0.25}),
    "full": response_of(lambda: ask("full", texts)),
    "nobody": response_of(lambda: ask("nobody", texts)),
    "wrong": response_of(lambda: ask("sst", {"text": (np.array([1]), "INT64")})),
    "compressed": None,
    "json": None,
}
if PROTOCOL == "http":
    saw["json"] = ask("sst", {**texts}, NAMES, binary=False)
    saw["compressed"] = [
        ask("sst", texts, request_compression_algorithm=one, response_compression_algorithm=one)
        for one in ("gzip", "deflate")
    ]
else:
    saw["compressed"] = [ask("sst", texts, compression_algorithm="gzip")]
client.unload_model("sst")
client.load_model("sst")
client.close()
print(json.dumps(saw))
