"""Every gRPC call of the contract, over real sockets."""

from __future__ import annotations

import asyncio

import fake_core
import grpc
import numpy as np
import pytest
import requests
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_stub import SERVICE, make_stub, request_of
from oip_answers import CODE, FAILURES, READINESS, TEXTS, check_outputs, outputs_of, read_raw
from oip_cases import raw_texts

from fleetbert.deploy.inference.protocol import grpc_service
from fleetbert.deploy.inference.protocol import inference_pb2 as pb


@pytest.fixture
def stub(channel):
    return make_stub(channel)


def check_answer(response, expected):
    assert len(response.outputs) == len(response.raw_output_contents)
    found = {}
    for output, raw in zip(response.outputs, response.raw_output_contents):
        assert not output.HasField("contents")
        assert list(output.shape) == list(expected[output.name].shape)
        found[output.name] = read_raw(output.datatype, raw)
    check_outputs(found, expected)


def refused(call, request, **arguments):
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=60, **arguments)
    return caught.value


def test_health_of_the_server(server, stub):
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    server.core.is_ready = False
    try:
        assert not stub.ServerReady(pb.ServerReadyRequest()).ready
        assert stub.ServerLive(pb.ServerLiveRequest()).live
    finally:
        server.core.is_ready = True


@pytest.mark.parametrize(
    ("path", "method", "words"),
    [
        ("", "ServerMetadata", {}),
        ("models/pairs", "ModelMetadata", {"name": "pairs"}),
        ("models/sst/versions/stable", "ModelMetadata", {"name": "sst", "version": "stable"}),
        ("models/stats", "ModelStatistics", {}),
        ("models/sst/stats", "ModelStatistics", {"name": "sst"}),
        ("models/sst/versions/2/stats", "ModelStatistics", {"name": "sst", "version": "2"}),
    ],
)
def test_what_is_told_is_what_http_tells(server, stub, path, method, words):
    told = requests.get(f"http://{server.http}/v2/{path}", timeout=60).json()
    found = getattr(stub, method)(getattr(pb, f"{method}Request")(**words))
    assert found == ParseDict(told, type(found)(), ignore_unknown_fields=True)
    assert found.ByteSize() > 0


def test_the_config_is_what_http_tells(server, stub):
    url = f"http://{server.http}/v2/models/pairs/versions/1/config"
    found = stub.ModelConfig(pb.ModelConfigRequest(name="pairs", version="1")).config
    assert found == ParseDict(requests.get(url, timeout=60).json(), pb.ModelConfig())


@pytest.mark.parametrize(("model", "version", "ready"), READINESS)
def test_readiness_of_models(stub, model, version, ready):
    words = {"name": model, "version": version}
    asked = stub.ModelReady.future(pb.ModelReadyRequest(**words))
    assert asked.code() is (CODE.NOT_FOUND if ready is None else CODE.OK)
    if ready is not None:
        assert asked.result().ready is ready
    code = {True: CODE.OK, False: CODE.UNAVAILABLE, None: CODE.NOT_FOUND}[ready]
    assert stub.ModelMetadata.future(pb.ModelMetadataRequest(**words)).code() is code
    assert stub.ModelConfig.future(pb.ModelConfigRequest(**words)).code() is code
    if model == "nobody":
        assert stub.ModelStatistics.future(pb.ModelStatisticsRequest(**words)).code() is code


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(("version", "number"), [("", "2"), ("stable", "1")])
def test_inference_on_texts(server, stub, raw, version, number):
    request = request_of(TEXTS, model_version=version, id="七")
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(raw_texts(TEXTS))
    response, call = stub.ModelInfer.with_call(request, timeout=60)
    check_answer(response, outputs_of(fake_core.logits_of(TEXTS)))
    assert (response.model_name, response.model_version, response.id) == ("sst", number, "七")
    assert [response.parameters[name].int64_param for name in ("truncated", "cut")] == [1, 1]
    assert "bundle" not in response.parameters  # a version that a user put there has none
    trailing = dict(call.trailing_metadata())
    assert (float(trailing["x-queue-time"]), float(trailing["x-inference-time"])) == (12.5, 250)
    assert server.done[-1][:4] == ("grpc", "sst", number, "OK")
    assert (server.done[-1].texts, server.done[-1].id) == (3, "七")


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("datatype", ["INT64", "INT32"])
def test_inference_on_ids(stub, raw, datatype):
    ids, types = np.array([[2, 7, 3], [2, 3, 0]]), np.array([[0, 0, 1], [0, 1, 0]])
    request = pb.ModelInferRequest(model_name="sst", outputs=[{"name": "logits"}])
    for name, array in (("input_ids", ids), ("token_type_ids", types)):
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        dtype, field = {
            "INT64": ("<i8", tensor.contents.int64_contents),
            "INT32": ("<i4", tensor.contents.int_contents),
        }[datatype]
        if raw:
            request.raw_input_contents.append(array.astype(dtype).tobytes())
        else:
            field.extend(array.ravel())
    expected = {"logits": fake_core.logits_of_ids(ids, types)}
    check_answer(stub.ModelInfer(request, timeout=60), expected)


@pytest.mark.parametrize(("model", "_", "code", "words"), FAILURES)
def test_failures_have_their_codes(server, stub, model, _, code, words):
    error = refused(stub.ModelInfer, request_of(["good"], model))
    assert error.code() is code
    assert words in error.details()
    assert "secret" not in error.details()
    wait = dict(error.trailing_metadata()).get("grpc-retry-pushback-ms")
    assert wait == ("2500" if model == "full" else None)
    known = "" if model in ("nobody", "loading") else model
    assert server.done[-1][:4] == ("grpc", known, "1" if known else "", code.name)


def test_a_stream_is_answered_in_order_and_an_error_ends_nothing(server, stub):
    models = ["sst", "full", "sst", "broken", "nobody", "sst"] * 20  # more than STREAMED
    asked = [
        request_of(["good" * (number % 5 + 1)], model, id=str(number))
        for number, model in enumerate(models)
    ]
    answers = list(stub.ModelStreamInfer(iter(asked), timeout=60))
    words = {"full": "is full", "broken": "the server failed", "nobody": "there is no model"}
    for number, (model, answer) in enumerate(zip(models, answers)):
        assert answer.infer_response.id == str(number)
        if model == "sst":
            assert not answer.error_message
            logits = fake_core.logits_of(["good" * (number % 5 + 1)])
            check_answer(answer.infer_response, outputs_of(logits))
        else:
            assert words[model] in answer.error_message and "secret" not in answer.error_message
    assert len(answers) == len(models)


def test_a_stream_that_is_cancelled_cancels_its_requests(server, stub):
    before, asked = server.core.cancelled, len(server.core.requests)
    call = stub.ModelStreamInfer(iter([request_of(["good"], "slow")] * 5))
    fake_core.wait_for(lambda: len(server.core.requests) == asked + 5)
    call.cancel()
    fake_core.wait_for(lambda: server.core.cancelled == before + 5)


def test_reflection_tells_the_services(channel):
    """What grpcurl asks for."""
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "inference.GRPCInferenceService" in database.get_services()
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    assert [method.name for method in service.methods] == [
        method.name for method in SERVICE.methods
    ]
    assert pool.FindMessageTypeByName("inference.ModelInferRequest").fields_by_name["inputs"]


def test_unknown_parameters_are_named(stub):
    request = request_of(["good"])
    request.parameters["sp\u00e9d"].double_param = 0.5
    _, call = stub.ModelInfer.with_call(request, timeout=60)
    assert dict(call.trailing_metadata())["x-unknown-parameters"] == r"'sp\xe9d'"
    request = request_of(["good"])
    request.inputs[0].parameters["content_type"].string_param = "base64"
    _, call = stub.ModelInfer.with_call(request, timeout=60)
    named = dict(call.trailing_metadata())["x-unknown-parameters"]
    assert named == "'content_type' of inputs[0]"


def test_parameters_reach_the_core(server, stub):
    def ask(**parameters):
        request = request_of(["good"])
        for key, (kind, value) in parameters.items():
            setattr(request.parameters[key], kind, value)
        stub.ModelInfer(request)
        return server.core.requests[-1]

    request = ask(timeout=("int64_param", 1500000), speed=("double_param", 0.25))
    assert (request.timeout, request.speed) == (1.5, 0.25)
    assert ask(timeout=("uint64_param", 1000000)).timeout == 1
    assert ask(speed=("string_param", "0.5")).speed == 0.5
    assert ask().timeout is None


@pytest.mark.parametrize(
    ("microseconds", "low", "high"),
    [(1500000, 1.5, 1.5), (0, 10, 62), (2**62, 10, 62), (None, 10, 62)],
)
def test_the_sooner_of_deadline_and_timeout_holds(server, stub, microseconds, low, high):
    request = request_of(["good"])
    if microseconds is not None:
        request.parameters["timeout"].int64_param = microseconds
    stub.ModelInfer(request, timeout=60)
    assert low <= server.core.requests[-1].timeout <= high


@pytest.mark.parametrize("seconds", [1, None])
def test_a_call_that_is_cancelled_or_late_cancels_its_request(server, stub, seconds):
    before, asked = server.core.cancelled, len(server.core.requests)
    call = stub.ModelInfer.future(request_of(["good"], "slow"), timeout=seconds)
    fake_core.wait_for(lambda: len(server.core.requests) > asked)
    if seconds is None:
        call.cancel()
    assert call.code() is (CODE.DEADLINE_EXCEEDED if seconds else CODE.CANCELLED)
    fake_core.wait_for(lambda: server.core.cancelled == before + 1)
    fake_core.wait_for(lambda: server.done[-1].code == "CANCELLED")


def test_repository(server, stub):
    index = stub.RepositoryIndex(pb.RepositoryIndexRequest())
    told = requests.post(f"http://{server.http}/v2/repository/index", timeout=60).json()
    assert index == ParseDict({"models": told}, pb.RepositoryIndexResponse())
    ready = stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True)).models
    assert {m.state for m in ready} == {"READY"}
    loaded = stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="sst"))
    assert (loaded.model_name, loaded.isLoaded) == ("sst", True)
    # KServe's clients have the model's name where Triton's have the repository's
    unload = pb.RepositoryModelUnloadRequest(repository_name="sst")
    unload.parameters["unload_dependents"].bool_param = False
    assert stub.RepositoryModelUnload(unload).isUnloaded
    assert server.core.calls[-2:] == [("load", "sst"), ("unload", "sst")]


@pytest.mark.parametrize(
    ("model", "parameters", "code"),
    [
        ("nobody", (), CODE.NOT_FOUND),
        ("gone", (), CODE.UNAVAILABLE),
        ("../sst", (), CODE.NOT_FOUND),
        ("sst\n", (), CODE.NOT_FOUND),
        ("sst", ["file:1/model"], CODE.INVALID_ARGUMENT),
    ],
)
def test_loads_that_are_refused(server, stub, model, parameters, code):
    before = list(server.core.calls), len(server.core.looked_for)
    request = pb.RepositoryModelLoadRequest(model_name=model)
    for key in parameters:
        request.parameters[key].bytes_param = b"x"
    error = refused(stub.RepositoryModelLoad, request)
    assert error.code() is code
    assert all(repr(key) in error.details() for key in parameters)
    assert server.core.calls == before[0]
    # no path is looked for
    assert len(server.core.looked_for) == before[1] + (model in ("nobody", "gone"))


def test_health_service_follows_readiness(server, channel):
    health = health_pb2_grpc.HealthStub(channel)
    words = health_pb2.HealthCheckResponse
    for service in ("", "inference.GRPCInferenceService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request).status == words.SERVING
    unknown = health_pb2.HealthCheckRequest(service="other")
    assert refused(health.Check, unknown).code() is CODE.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=fake_core.DEADLINE)
    try:
        assert next(watch).status == words.SERVING
        server.core.is_ready = False
        assert next(watch).status == words.NOT_SERVING
        assert health.Check(health_pb2.HealthCheckRequest()).status == words.NOT_SERVING
        server.core.is_ready = True
        assert next(watch).status == words.SERVING
    finally:
        server.core.is_ready = True
        watch.cancel()
    other = health.Watch(unknown, timeout=fake_core.DEADLINE)
    assert next(other).status == words.SERVICE_UNKNOWN
    other.cancel()


def test_a_health_watch_does_not_hold_up_the_end():
    async def run():
        calls = grpc_service.Server(fake_core.FakeCore(), fake_core.SAFETY)
        port = calls.add_insecure_port("127.0.0.1:0")
        await calls.start()
        words = health_pb2.HealthCheckResponse
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == words.SERVING
            grace = 100 * fake_core.DEADLINE
            await asyncio.wait_for(calls.stop(grace), fake_core.DEADLINE)
            assert (await watch.read()).status == words.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF

    asyncio.run(run())
