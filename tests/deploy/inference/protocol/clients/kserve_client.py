"""KServe's clients: `kserve_client.py HTTP_ADDRESS GRPC_ADDRESS MODEL [UNREADY_MODEL...]` prints
what they saw as JSON. The model is unloaded and loaded at the end."""

from __future__ import annotations

import asyncio
import json
import sys

import grpc
import numpy as np
from asked import IDS, TEXTS, listed
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

HTTP, GRPC, MODEL, *UNREADY = sys.argv[1:]


async def ask(client, server, name, datatype, array, binary):
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    if not server:
        response = await client.infer(InferRequest(MODEL, [tensor], "7"))
    else:
        parameters = {"binary_data_output": True} if binary else {}
        request = InferRequest(MODEL, [tensor], "7", parameters=parameters)
        response = await client.infer(*server, request, model_name=MODEL)
    found = {output.name: listed(output.as_numpy()) for output in response.outputs}
    return {"id": response.id, "version": response.model_version, **found}


async def saw(client, *server):
    """server: the address, which the client for REST is told each time."""
    texts = (client, server, "text", "BYTES", np.array(TEXTS, object))
    ids = (client, server, "input_ids", "INT64", np.array(IDS, np.int64))
    return {
        "live": await client.is_server_live(*server),
        "ready": await client.is_server_ready(*server),
        "model_ready": await client.is_model_ready(*server, MODEL),
        "unready": [await client.is_model_ready(*server, name) for name in UNREADY],
        "texts": await ask(*texts, False),
        "binary": await ask(*texts, True),
        "ids": await ask(*ids, False),
        "binary_ids": await ask(*ids, True),
    }


async def main():
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        found = {"http": await saw(client, f"http://{HTTP}")}
    async with InferenceGRPCClient(GRPC) as client:
        found["grpc"] = await saw(client)
    async with grpc.aio.insecure_channel(GRPC) as channel:  # what the client has no method for
        stub = GRPCInferenceServiceStub(channel)
        unload = pb.RepositoryModelUnloadRequest(model_name=MODEL)
        unloaded = await stub.RepositoryModelUnload(unload)
        loaded = await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=MODEL))
    found["repository"] = [loaded.isLoaded, unloaded.isUnloaded, loaded.model_name]
    print(json.dumps(found))


asyncio.run(main())
