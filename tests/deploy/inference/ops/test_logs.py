"""What the server writes about requests: lines with their numbers, and traces."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import grpc
import pytest
import requests
from grpc_stub import ask as ask_grpc
from grpc_stub import make_stub, request_of
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from served import DEADLINE, ask, connect, read_all, serving

from fleetbert.deploy.inference.ops import logs
from fleetbert.deploy.inference.settings import Logs

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextlib.contextmanager
def collecting(port=0):
    """(endpoint, spans): an OpenTelemetry collector that keeps the spans it is sent."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def collector():
    with collecting() as found:
        yield found


def test_a_line_for_each_request_with_its_number(tmp_path):
    with serving(tmp_path, "logs.requests=true") as served:
        good = ask(served.http, "good", headers={"x-request-id": "mine-1"})
        bad = ask(served.http, "good", model="none")
        odd = ask(served.http, "good", headers={"x-request-id": "a b" * 100})
        broken = ask(served.http, "good", model="broken", headers={"x-request-id": "mine-2"})
        ask_grpc(served.grpc, "good", metadata=(("x-request-id", "mine-3"),), timeout=DEADLINE)
        requests.get(f"{served.http}/v2/health/live")
        served.wait_for(lambda: served.log.count('"request"') >= 6)
        lines = served.lines()
    assert good.headers["x-request-id"] == "mine-1"
    assert re.fullmatch("[0-9a-f]{16}", bad.headers["x-request-id"])
    assert re.fullmatch("[0-9a-f]{16}", odd.headers["x-request-id"])
    assert broken.status_code == 500 and "secret" not in broken.text
    told = {line["request_id"]: line for line in lines if line["message"] == "request"}
    first = told["mine-1"]
    assert first["method"] == "POST /v2/models/sst/infer" and first["code"] == "200"
    assert (first["model"], first["version"], first["texts"]) == ("sst", "2", 1)
    assert (first["queue_ms"], first["compute_ms"]) == (12.5, 250.0)
    assert first["ms"] > 0 and first["level"] == "info" and first["protocol"] == "http"
    second = told[bad.headers["x-request-id"]]
    assert second["code"] == "404" and "no model 'none'" in second["error"]
    third = told["mine-3"]
    assert (third["protocol"], third["code"], third["texts"]) == ("grpc", "OK", 1)
    assert third["method"] == "/inference.GRPCInferenceService/ModelInfer"
    # what failed inside stands in the log, under the same number, and nowhere else
    inside = [line for line in lines if "a secret of the inside" in line.get("exception", "")]
    assert inside and {line["request_id"] for line in inside} == {"mine-2"}


def test_a_name_that_is_no_utf8_is_a_line_like_any_other(capsys):
    logs.start(Logs())
    logs.log.warning("%s", os.fsdecode(b"m\xff"), extra={"fields": {"texts": 1}})
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == r"m\udcff"


def test_text_for_terminals(capsys):
    logs.start(Logs(format="text", level="warning"))
    logs.log.info("not shown")
    try:
        raise ValueError("an inside")
    except ValueError:
        logs.log.warning("something", extra={"fields": {"model": "sst"}}, exc_info=True)
    output = capsys.readouterr().err
    assert re.match(r"\d\d:\d\d:\d\d warning something model=sst\n    Traceback", output)
    assert "not shown" not in output and "ValueError: an inside" in output


@pytest.mark.parametrize("form", ["text", "json"])
def test_clients_write_no_line_and_command_no_terminal(tmp_path, form):
    forged = "\n12:00:00 error forged code=200 \x1b[2J\x9b2J\u202e\u2028"
    with serving(tmp_path, "logs.requests=true", f"logs.format={form}") as served:
        requests.get(f"{served.http}/v2/models/{quote(forged)}")
        ask(served.http, "good", model=quote(forged))
        ask(served.http, "good", headers={"x-request-id": "\x9b2J", "content-encoding": "\x9b2J"})
        with connect(served.http) as client:
            client.sendall(b"PURGE /%0a%1b HTTP/1.1\r\nhost: \x9b\r\nconnection: close\r\n\r\n")
            read_all(client)
        with grpc.insecure_channel(served.grpc) as channel, pytest.raises(grpc.RpcError):
            make_stub(channel).ModelInfer(request_of(["good"], forged), timeout=DEADLINE)
        served.wait_for(lambda: served.log.count('"ms":' if form == "json" else " ms=") >= 5)
        log = served.log
    assert all(line.isprintable() for line in log.split("\n"))
    assert "forged" in log and not re.search(r"^12:00", log, re.MULTILINE)
    if form == "text":
        assert 'method="GET /v2/models/\\n12:00:00 error forged code=200 \\u001b[2J' in log


def test_traces_are_sent_with_the_clients_as_parent(tmp_path, collector):
    endpoint, spans = collector
    parent = f"00-{TRACE}-{PARENT}-01"
    with serving(tmp_path, f"logs.otlp_endpoint={endpoint}") as served:
        requests.get(f"{served.http}/v2/health/ready", headers={"traceparent": parent})  # a probe
        ask(served.http, "good", headers={"traceparent": parent})
        ask_grpc(served.grpc, "good", metadata=(("traceparent", parent),), timeout=DEADLINE)
        ask(served.http, "good", model="full", headers={"traceparent": parent})
        assert served.end() == 0  # what is left is sent at the end
        # requests are not written unless asked for
        assert [line["message"] for line in served.lines()] == ["leaving"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    by_name = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    infer = "POST /v2/models/sst/infer"
    rpc = "/inference.GRPCInferenceService/ModelInfer"
    assert set(by_name) == {infer, rpc, "POST /v2/models/full/infer", "queue", "compute"}
    for name in (infer, rpc):
        (root,) = by_name[name]
        assert root.parent_span_id.hex() == PARENT
        inner = {s.name: s for s in spans if s.parent_span_id == root.span_id}
        assert set(inner) == {"queue", "compute"}
        compute, queue = inner["compute"], inner["queue"]
        assert compute.end_time_unix_nano - compute.start_time_unix_nano == 250_000_000
        assert queue.end_time_unix_nano == compute.start_time_unix_nano
        values = {one.key: one.value for one in root.attributes}
        assert values["model.name"].string_value == "sst" and values["texts"].int_value == 1
    (failed,) = by_name["POST /v2/models/full/infer"]
    assert "is full" in failed.status.message


def test_a_collector_that_is_away_keeps_nobody_and_is_a_line(tmp_path):
    with collecting() as (endpoint, _):
        pass
    often = {"OTEL_BSP_SCHEDULE_DELAY": "100"}  # milliseconds
    with serving(tmp_path, f"logs.otlp_endpoint={endpoint}", environ=often) as served:
        for _ in range(5):
            assert ask(served.http, "good").status_code == 200
            time.sleep(0.3)
        served.wait_for(lambda: "traces are dropped" in served.log)
        with collecting(int(endpoint.split(":")[2].split("/")[0])):
            served.wait_for(lambda: ask(served.http, "good") and "sent again" in served.log)
            assert served.end() == 0
        told = [line["message"].partition(":")[0] for line in served.lines()]
    assert told == ["traces are dropped", "traces are sent again", "leaving"]


def test_tracing_is_imported_only_when_asked_for():
    code = (
        "import sys, json\nimport fleetbert.deploy.inference.server\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = json.loads(done.stdout)
    assert not {"opentelemetry", "tokenizers", "matplotlib", "onnxruntime"} & set(names)
    assert not {"paddle", "paddlenlp", "paddleslim"} & set(names)
