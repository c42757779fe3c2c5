"""A client's stub of the server's gRPC service, made from its descriptor."""

from __future__ import annotations

from types import SimpleNamespace

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
