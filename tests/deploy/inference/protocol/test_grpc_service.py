"""Every gRPC call of the contract, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import fake_core
import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_stub import make_stub

import fleetbert
from fleetbert.deploy.inference.protocol import grpc_service
from fleetbert.deploy.inference.protocol import inference_pb2 as pb
from fleetbert.tasks.metrics import softmax

TEXTS = ["good good", "bad", "a text of more than sixteen characters"]
CODE = grpc.StatusCode


@pytest.fixture
def stub(channel):
    return make_stub(channel)


def raw_texts(texts):
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def text_input(texts, name="text", typed=True):
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype="BYTES", shape=[len(texts)])
    if typed:
        tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    return tensor


def request_of(texts, model="sst", **rest):
    return pb.ModelInferRequest(model_name=model, inputs=[text_input(texts)], **rest)


def decode(response):
    """The outputs of a response: lists of strings, arrays of their shape."""
    found = {}
    for output, raw in zip(response.outputs, response.raw_output_contents):
        assert not output.HasField("contents")
        if output.datatype == "BYTES":
            texts, position = [], 0
            while position < len(raw):
                (length,) = struct.unpack_from("<I", raw, position)
                texts.append(raw[position + 4 : position + 4 + length].decode())
                position += 4 + length
            assert list(output.shape) == [len(texts)]
            found[output.name] = texts
        else:
            dtype = {"FP32": "<f4", "INT32": "<i4"}[output.datatype]
            found[output.name] = np.frombuffer(raw, dtype).reshape(output.shape)
    assert len(response.outputs) == len(response.raw_output_contents)
    return found


def check_answer(response, texts):
    found = decode(response)
    logits = fake_core.logits_of(texts)
    assert list(found) == ["label", "scores", "logits", "exit_layer"]
    np.testing.assert_array_equal(found["logits"], logits)
    np.testing.assert_array_equal(found["scores"], softmax(logits).astype(np.float32))
    assert found["label"] == [fake_core.LABELS[row] for row in logits.argmax(axis=1)]
    np.testing.assert_array_equal(found["exit_layer"], np.arange(1, len(texts) + 1))


def refused(call, request, **arguments):
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=60, **arguments)
    return caught.value


def test_health_and_metadata_of_the_server(server, stub):
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    found = stub.ServerMetadata(pb.ServerMetadataRequest())
    assert (found.name, found.version) == ("fleetbert", fleetbert.__version__)
    extensions = ["binary_tensor_data", "parameters", "model_repository", "statistics"]
    assert list(found.extensions) == extensions
    server.core.is_ready = False
    try:
        assert not stub.ServerReady(pb.ServerReadyRequest()).ready
        assert stub.ServerLive(pb.ServerLiveRequest()).live
    finally:
        server.core.is_ready = True


@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [
        ("sst", "", True),
        ("sst", "1", True),
        ("sst", "stable", True),
        ("sst", "3", False),
        ("loading", "", False),
        ("sst", "4", None),
        ("nobody", "", None),
    ],
)
def test_readiness_of_models(stub, model, version, ready):
    request = pb.ModelReadyRequest(name=model, version=version)
    metadata = pb.ModelMetadataRequest(name=model, version=version)
    if ready is None:
        assert refused(stub.ModelReady, request).code() is CODE.NOT_FOUND
        assert refused(stub.ModelMetadata, metadata).code() is CODE.NOT_FOUND
        return
    assert stub.ModelReady(request).ready is ready
    if ready:
        assert stub.ModelMetadata(metadata).name == model
    else:
        assert refused(stub.ModelMetadata, metadata).code() is CODE.UNAVAILABLE


def test_model_metadata(stub):
    found = stub.ModelMetadata(pb.ModelMetadataRequest(name="pairs"))
    assert (found.name, list(found.versions), found.platform) == (
        "pairs",
        ["1"],
        "paddle_inference",
    )
    assert [(t.name, t.datatype, list(t.shape)) for t in found.inputs] == [
        ("text", "BYTES", [-1]),
        ("text_pair", "BYTES", [-1]),
        ("input_ids", "INT64", [-1, -1]),
        ("token_type_ids", "INT64", [-1, -1]),
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in found.outputs] == [
        ("label", "BYTES", [-1]),
        ("scores", "FP32", [-1, 3]),
        ("logits", "FP32", [-1, 3]),
        ("exit_layer", "INT32", [-1]),
    ]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(("version", "number"), [("", "2"), ("stable", "1")])
def test_inference_on_texts(server, stub, raw, version, number):
    request = request_of(TEXTS, model_version=version, id="七")
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(raw_texts(TEXTS))
    response, call = stub.ModelInfer.with_call(request, timeout=60)
    check_answer(response, TEXTS)
    assert (response.model_name, response.model_version, response.id) == ("sst", number, "七")
    assert response.parameters["cut"].int64_param == 1
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
        if raw:
            dtype = "<i8" if datatype == "INT64" else "<i4"
            request.raw_input_contents.append(array.astype(dtype).tobytes())
        elif datatype == "INT64":
            tensor.contents.int64_contents.extend(array.ravel())
        else:
            tensor.contents.int_contents.extend(array.ravel())
    found = decode(stub.ModelInfer(request, timeout=60))
    assert list(found) == ["logits"]
    np.testing.assert_array_equal(found["logits"], fake_core.logits_of_ids(ids, types))


def test_inference_on_pairs(stub):
    request = request_of(["good", "bad"], model="pairs")
    request.inputs.append(text_input(["bad", "bad"], "text_pair"))
    check_answer(stub.ModelInfer(request, timeout=60), ["goodbad", "badbad"])


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        ("full", CODE.UNAVAILABLE, "the queue of model full is full"),
        ("late", CODE.DEADLINE_EXCEEDED, "the timeout of 10 ms has passed"),
        ("broken", CODE.INTERNAL, "the server failed"),
        ("loading", CODE.UNAVAILABLE, "not ready"),
        ("nobody", CODE.NOT_FOUND, "there is no model 'nobody'"),
    ],
)
def test_failures_have_their_codes(server, stub, model, code, words):
    error = refused(stub.ModelInfer, request_of(["good"], model))
    assert error.code() is code
    assert words in error.details()
    assert "secret" not in error.details()
    wait = dict(error.trailing_metadata()).get("grpc-retry-pushback-ms")
    assert wait == ("2500" if model == "full" else None)
    known = "" if model in ("nobody", "loading") else model
    assert server.done[-1][:4] == ("grpc", known, "1" if known else "", code.name)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is empty"), (" \t\u3000", "is empty"), ("a\0b", "holds a NUL character")],
)
@pytest.mark.parametrize("raw", [False, True])
def test_what_is_no_text_is_refused_with_its_index(stub, raw, text, words):
    request = request_of(["good", text])
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(raw_texts(["good", text]))
    error = refused(stub.ModelInfer, request)
    assert error.code() is CODE.INVALID_ARGUMENT
    assert error.details() == f"text 1 of input 'text' {words}"


def test_a_method_that_is_not_there(channel):
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelConfig")
    assert refused(call, b"").code() is CODE.UNIMPLEMENTED


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


def test_a_cancelled_call_cancels_its_request(server, stub):
    before = server.core.cancelled
    asked = len(server.core.requests)
    call = stub.ModelInfer.future(request_of(["good"], "slow"))
    fake_core.wait_for(lambda: len(server.core.requests) > asked)
    call.cancel()
    fake_core.wait_for(lambda: server.core.cancelled == before + 1)
    fake_core.wait_for(lambda: server.done[-1].code == "CANCELLED")


def test_a_passed_deadline_cancels_its_request(server, stub):
    before = server.core.cancelled
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request_of(["good"], "slow"), timeout=2)
    assert caught.value.code() is CODE.DEADLINE_EXCEEDED
    fake_core.wait_for(lambda: server.core.cancelled == before + 1)
    assert stub.ServerLive(pb.ServerLiveRequest()).live


def test_statistics(stub):
    (found,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="sst", version="2")).model_stats
    assert (found.name, found.version, found.last_inference) == ("sst", "2", 1700000000000)
    assert (found.inference_count, found.execution_count) == (7, 3)
    stats = found.inference_stats
    assert (stats.success.count, stats.success.ns) == (2, 100)
    assert (stats.compute_infer.ns, stats.compute_input.ns) == (80, 0)
    assert (found.batch_stats[0].batch_size, found.batch_stats[0].compute_infer.count) == (4, 2)
    assert len(stub.ModelStatistics(pb.ModelStatisticsRequest()).model_stats) > 9
    error = refused(stub.ModelStatistics, pb.ModelStatisticsRequest(name="nobody"))
    assert error.code() is CODE.NOT_FOUND


def test_repository(server, stub):
    index = stub.RepositoryIndex(pb.RepositoryIndexRequest()).models
    states = {(m.name, m.version): (m.state, m.reason) for m in index}
    assert states["gone", "1"] == ("UNAVAILABLE", "its golden batch was wrong")
    assert states["sst", "3"] == ("LOADING", "")
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
    ("model", "code"),
    [
        ("nobody", CODE.NOT_FOUND),
        ("gone", CODE.UNAVAILABLE),
        ("../sst", CODE.NOT_FOUND),
        ("", CODE.NOT_FOUND),
        ("sst\n", CODE.NOT_FOUND),
    ],
)
def test_loads_that_are_refused(server, stub, model, code):
    before = list(server.core.calls), len(server.core.looked_for)
    error = refused(stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name=model))
    assert error.code() is code
    assert server.core.calls == before[0]
    assert len(server.core.looked_for) == before[1] + model.isalpha()  # no path is looked for


def test_a_load_with_parameters_is_refused(stub):
    request = pb.RepositoryModelLoadRequest(model_name="sst")
    request.parameters["file:1/model"].bytes_param = b"x"
    error = refused(stub.RepositoryModelLoad, request)
    assert error.code() is CODE.INVALID_ARGUMENT
    assert "'file:1/model'" in error.details()


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


def test_without_admin_there_is_no_load():
    with fake_core.serve(admins="nobody") as server, grpc.insecure_channel(server.grpc) as channel:
        stub = make_stub(channel)
        assert stub.ModelReady(pb.ModelReadyRequest(name="sst")).ready
        for call, request in (
            (stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="sst")),
            (stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name="sst")),
        ):
            assert refused(call, request).code() is CODE.UNIMPLEMENTED
        assert server.core.calls == []


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


def test_a_burst_of_calls_is_answered(server):
    """gRPC's own limits would end some of them at random."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(server.grpc, options)) for _ in range(10)
        ]
        stubs = [make_stub(channel) for channel in channels]
        texts = ["good" * (number % 7 + 1) for number in range(3000)]
        waiting = [
            stubs[number % len(stubs)].ModelInfer.future(request_of([text]), timeout=120)
            for number, text in enumerate(texts)
        ]
        for text, answer in zip(texts, waiting):
            check_answer(answer.result(), [text])
