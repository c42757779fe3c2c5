"""A client's stub of the server's gRPC service, made from its descriptor, and requests for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Mapping, Sequence

import grpc
from google.protobuf.message_factory import GetMessageClass

from fleetbert.deploy.inference.protocol import inference_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def make_stub(channel: grpc.Channel) -> SimpleNamespace:
    """Its attributes are the methods; works for channels of `grpc.aio` too."""

    def call(method):
        return channel.stream_stream if method.server_streaming else channel.unary_unary

    return SimpleNamespace(
        **{
            method.name: call(method)(
                f"/{SERVICE.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in SERVICE.methods
        }
    )


def typed(entry: Mapping[str, Any]) -> pb.ModelInferRequest.InferInputTensor:
    """An input as JSON has it, in the words of gRPC."""
    tensor = pb.ModelInferRequest.InferInputTensor(
        name=entry["name"], datatype=entry["datatype"], shape=entry["shape"]
    )
    if entry["datatype"] == "BYTES":
        tensor.contents.bytes_contents.extend(text.encode() for text in entry["data"])
    else:
        tensor.contents.int64_contents.extend(entry["data"])
    return tensor


def request_of(texts: Sequence[str], model: str = "sst", **rest: Any) -> pb.ModelInferRequest:
    entry = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return pb.ModelInferRequest(model_name=model, inputs=[typed(entry)], **rest)


def ask(address: str, *texts: str, **call: Any) -> pb.ModelInferResponse:
    """The answer of a server at host:port; `call`: as gRPC has it, such as timeout."""
    with grpc.insecure_channel(address) as channel:
        return make_stub(channel).ModelInfer(request_of(texts), **call)
