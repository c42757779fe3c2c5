"""Who may load and unload: over real sockets, from this machine and from its other address."""

from __future__ import annotations

import socket

import fake_core
import grpc
import psutil
import pytest
import requests
from grpc_stub import make_stub
from served import serving

from fleetbert.deploy.inference.messages import Failure, Reason
from fleetbert.deploy.inference.protocol import inference_pb2 as pb
from fleetbert.deploy.inference.protocol.admin import Caller

LOAD = "/v2/repository/models/sst/load"
SST = pb.RepositoryModelLoadRequest(model_name="sst")  # unloads have the same fields
CODE = grpc.StatusCode


@pytest.fixture
def load(server):
    def call(data=None, **headers):
        before = len(server.core.calls)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://{server.http}{LOAD}"
        found = requests.post(url, data=data, headers=named, timeout=60)
        assert (len(server.core.calls) > before) is (found.status_code == 200)
        if found.status_code != 200:
            assert list(found.json()) == ["error"]
        return found

    return call


@pytest.mark.parametrize(
    ("data", "headers", "code", "words"),
    [
        (None, {}, 200, ""),
        (b"{}", {}, 200, ""),
        (None, {"content_type": "application/json"}, 200, ""),
        (b"{}", {"content_type": "application/JSON; charset=utf-8"}, 200, ""),
        # What a form can post.
        (b"{}", {"content_type": "text/plain"}, 415, "application/json"),
        (b"{}", {"content_type": "multipart/form-data; boundary=x"}, 415, "application/json"),
        # Pages of other sites.
        (None, {"origin": "http://evil.example"}, 403, "'http://evil.example'"),
        (None, {"origin": "null", "content_type": "application/json"}, 403, "'null'"),
        (None, {"origin": ""}, 403, "''"),
    ],
)
def test_this_machine_may_but_no_page_of_another_site(load, data, headers, code, words):
    found = load(data, **headers)
    assert found.status_code == code and words in found.text


def test_the_servers_own_page_may(load, server):
    assert load(origin=f"http://{server.http}").status_code == 200


def test_a_name_that_was_made_to_resolve_to_this_machine_is_none_of_its_own(load):
    found = load(origin="http://evil.example:8000", host="evil.example:8000")
    assert found.status_code == 403 and "not localhost" in found.json()["error"]
    for host in ("localhost:8000", "[::1]:8000", "127.8.0.1"):
        assert load(host=host, origin=f"http://{host}").status_code == 200
    for host in ("localhost.evil.example", "[::1", "10.0.0.1"):
        assert load(host=host).status_code == 403


@pytest.mark.parametrize("name", ["x-forwarded-for", "x-forwarded-proto", "forwarded", "via"])
def test_who_comes_through_a_proxy_is_elsewhere(load, server, channel, name):
    assert load(**{name: "10.0.0.1"}).status_code == 403
    call = make_stub(channel).RepositoryModelLoad
    assert call.future(SST, metadata=((name, "10.0.0.1"),)).code() is CODE.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("address", "here"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::ffff:10.0.0.1", False), ("", False)],
)  # fmt: skip
def test_addresses(address, here):
    Caller(address, {}).check("anyone")
    if here:
        Caller(address, {}).check("loopback")
    else:
        with pytest.raises(Failure, match="this machine only") as caught:
            Caller(address, {}).check("loopback")
        assert caught.value.reason is Reason.FORBIDDEN


def test_without_admins_there_is_no_load():
    with fake_core.serve(admins="nobody") as server, grpc.insecure_channel(server.grpc) as channel:
        stub = make_stub(channel)
        for call in ("load", "unload"):
            url = f"http://{server.http}/v2/repository/models/sst/{call}"
            assert requests.post(url, timeout=60).status_code == 404
            asked = getattr(stub, f"RepositoryModel{call.title()}").future(SST, timeout=60)
            assert asked.code() is CODE.UNIMPLEMENTED
        assert stub.ModelReady(pb.ModelReadyRequest(name="sst")).ready
        paths = requests.get(f"http://{server.http}/openapi.json", timeout=60).json()["paths"]
        assert "/v2/models/{model}/infer" in paths
        assert not any(path.endswith("load") for path in paths)
        assert server.core.calls == []


def other_address():
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    return None


@pytest.mark.skipif(other_address() is None, reason="this machine has loopback only")
@pytest.mark.parametrize("admin", ["null", "anyone"])
def test_by_default_other_machines_may_not(tmp_path, admin):
    """A connection to the machine's other address comes from there."""
    with serving(tmp_path, "listen.host=0.0.0.0", f"listen.admin={admin}") as served:
        host, port = other_address(), served.http.rpartition(":")[2]
        found = requests.post(f"http://{host}:{port}{LOAD}", timeout=60)
        assert found.status_code == {"null": 403, "anyone": 200}[admin]
        assert requests.get(f"http://{host}:{port}/metrics", timeout=60).status_code == 200
        target = f"{host}:{served.grpc.rpartition(':')[2]}"
        with grpc.insecure_channel(target) as channel:
            call = make_stub(channel).RepositoryModelLoad.future(SST, timeout=60)
            expected = {"null": CODE.PERMISSION_DENIED, "anyone": CODE.OK}
            assert call.code() is expected[admin]
