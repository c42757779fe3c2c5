"""KServe's clients: `kserve_client.py HTTP_ADDRESS GRPC_ADDRESS` prints what they saw as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

HTTP, GRPC = sys.argv[1:]
TEXTS = ["good good", "bad", "坏", "a text of more than sixteen characters"]
IDS = [[2, 7, 3], [2, 3, 0]]


def texts(binary):
    tensor = InferInput("text", [len(TEXTS)], "BYTES")
    tensor.set_data_from_numpy(np.array(TEXTS, object), binary_data=binary)
    return tensor


def ids(binary):
    tensor = InferInput("input_ids", [2, 3], "INT64")
    tensor.set_data_from_numpy(np.array(IDS, np.int64), binary_data=binary)
    return tensor


def plain(response):
    found = {"id": response.id, "version": response.model_version}
    for output in response.outputs:
        array = output.as_numpy()
        if array.dtype == np.object_:
            array = np.array([t.decode() if isinstance(t, bytes) else t for t in array])
        found[output.name] = array.tolist()
    return found


async def over_http():
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        base = f"http://{HTTP}"

        async def ask(tensor, **rest):
            request = InferRequest("sst", [tensor], request_id="7", **rest)
            return plain(await client.infer(base, request, model_name="sst"))

        return {
            "live": await client.is_server_live(base),
            "ready": await client.is_server_ready(base),
            "model_ready": await client.is_model_ready(base, "sst"),
            "loading": await client.is_model_ready(base, "loading"),
            "texts": await ask(texts(False)),
            "binary": await ask(texts(True), parameters={"binary_data_output": True}),
            "ids": await ask(ids(False)),
            "binary_ids": await ask(ids(True)),
        }


async def over_grpc():
    async with InferenceGRPCClient(GRPC) as client:

        async def ask(tensor, **rest):
            return plain(await client.infer(InferRequest("sst", [tensor], "7", **rest)))

        found = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model_ready": await client.is_model_ready("sst"),
            "loading": await client.is_model_ready("loading"),
            "texts": await ask(texts(False)),
            "binary": await ask(texts(True)),
            "ids": await ask(ids(False)),
            "binary_ids": await ask(ids(True)),
        }
    async with grpc.aio.insecure_channel(GRPC) as channel:  # what the client has no method for
        stub = GRPCInferenceServiceStub(channel)
        loaded = await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="sst"))
        request = pb.RepositoryModelUnloadRequest(model_name="sst")
        unloaded = await stub.RepositoryModelUnload(request)
    return {**found, "repository": [loaded.isLoaded, unloaded.isUnloaded, loaded.model_name]}


async def main():
    print(json.dumps({"http": await over_http(), "grpc": await over_grpc()}))


asyncio.run(main())
