"""grpc.health.v1, beside the inference protocol."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, AsyncIterator

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from fleetbert.deploy.inference.messages import Core, Failure, Reason, show

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
WATCH_SECONDS = 0.5  # how often a health watch looks

Context = Any  # grpc has no types
Message = Any


class Health:
    """grpc.health.v1: serving while every model that is to be served is ready."""

    def __init__(self, core: Core):
        self._core = core
        self.leaving = asyncio.Event()

    async def check(self, request: health_pb2.HealthCheckRequest, _: Context) -> Message:
        """The state now; NOT_FOUND for a service that this server has not."""
        if request.service not in ("", SERVICE):
            raise Failure(Reason.NOT_FOUND, f"there is no service {show(request.service)}")
        return self._response(request.service)

    async def watch(self, data: bytes, context: Context) -> AsyncIterator[bytes]:
        """The state now and whenever it changes, until the server leaves."""
        try:
            request = health_pb2.HealthCheckRequest.FromString(data)
        except DecodeError:
            words = "the message is no HealthCheckRequest"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        last = None
        while True:
            leaving = self.leaving.is_set()  # before the status: the last one told is the last
            response = self._response(request.service).SerializeToString()
            if response != last:
                yield response
                last = response
            if leaving:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.leaving.wait(), WATCH_SECONDS)

    def _response(self, service: str) -> Message:
        words = health_pb2.HealthCheckResponse
        if service not in ("", SERVICE):
            status = words.SERVICE_UNKNOWN
        elif self._core.ready() and not self.leaving.is_set():
            status = words.SERVING
        else:
            status = words.NOT_SERVING
        return words(status=status)
