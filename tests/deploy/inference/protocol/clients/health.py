"""grpcio-health-checking: `health.py HOST:PORT` prints the statuses it saw as JSON."""

from __future__ import annotations

import json
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

words = health_pb2.HealthCheckResponse.ServingStatus
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = health_pb2_grpc.HealthStub(channel)
    saw = [
        words.Name(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status)
        for service in ("", "inference.GRPCInferenceService")
    ]
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    saw.append(words.Name(next(watch).status))
    watch.cancel()
    try:
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
    except grpc.RpcError as error:
        saw.append(error.code().name)
print(json.dumps(saw))
