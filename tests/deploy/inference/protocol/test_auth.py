"""Keys, certificates and the port for admins, over both protocols."""

from __future__ import annotations

import hmac
import shutil
import ssl
import subprocess

import grpc
import pytest
import requests
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_stub import make_stub
from served import DEADLINE, ask, serving

from fleetbert.client import Client, ServerError
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference.protocol import auth
from fleetbert.deploy.inference.protocol import inference_pb2 as pb
from fleetbert.deploy.inference.settings import Safety

KEYS = ["first-key-0123456789", "second-key-0123456789"]


@pytest.fixture(scope="module")
def guarded(certificate, tmp_path_factory):
    """A server with keys, TLS and a port for admins; its files are as Windows writes them."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text("# clients\n" + "\n".join(KEYS) + "\n")
    for path in certificate:
        lines = path.read_bytes().replace(b"\n", b"\r\n")
        (folder / path.name).write_bytes(b"\xef\xbb\xbf" + lines + b"\r\n# the end\r\n")
    words = [f"safety.api_key_file={folder / 'keys'}", "listen.admin_port=0"]
    cert, key = (folder / path.name for path in certificate)
    words += [f"safety.tls_certificate={cert}", f"safety.tls_key={key}"]
    with serving(folder, *words) as served:
        yield served


@pytest.fixture
def session(certificate):
    with requests.Session() as opened:
        opened.verify = str(certificate[0])
        opened.trust_env = False  # REQUESTS_CA_BUNDLE would be believed instead
        yield opened


@pytest.fixture
def stub(guarded, certificate):
    credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
    with grpc.secure_channel(guarded.grpc, credentials) as channel:
        yield make_stub(channel), channel


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_http_wants_a_key_but_for_health(guarded, session):
    assert guarded.http.startswith("https://")
    for path in ("/v2/health/live", "/v2/health/ready", "/health", "/openapi.json", "/docs"):
        assert session.get(guarded.http + path).status_code == 200
    values = ("Bearer wrong", f"Bearer {KEYS[0]}x", KEYS[0], f"Basic {KEYS[0]}", b"Bearer \xff")
    for headers in ({}, *({"authorization": value} for value in values)):
        for path in ("/v2", "/v2/models/sst", "/nothing"):
            reply = session.get(guarded.http + path, headers=headers)
            assert reply.status_code == 401 and "Bearer" in reply.headers["www-authenticate"]
            assert reply.json()["error"].startswith("authorization: ")
    for key in KEYS:
        assert session.get(f"{guarded.http}/v2", headers=bearer(key)).status_code == 200
    assert session.get(f"{guarded.admin}/metrics").status_code == 401


def test_grpc_wants_a_key_but_for_health(guarded, stub):
    service, channel = stub
    request = pb.ModelReadyRequest(name="sst")
    assert service.ServerReady(pb.ServerReadyRequest(), timeout=DEADLINE).ready
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE).status == 1
    for metadata in ((), tuple(bearer("wrong").items())):
        call = service.ModelReady.future(request, metadata=metadata, timeout=DEADLINE)
        assert call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "authorization: " in call.details()
    metadata = tuple(bearer(KEYS[1]).items())
    assert service.ModelReady(request, metadata=metadata, timeout=DEADLINE).ready


def test_without_tls_nothing_is_said(guarded):
    address = guarded.http.partition("://")[2]
    reply = requests.get(f"http://{address}/v2/health/live")
    assert reply.status_code == 400 and "https://" in reply.json()["error"]
    guarded.wait_for(lambda: "plain HTTP" in guarded.log)
    with pytest.raises(requests.exceptions.SSLError):  # not signed by anyone known
        requests.get(f"https://{address}/v2/health/live")
    with grpc.insecure_channel(guarded.grpc) as channel:
        call = make_stub(channel).ServerLive.future(pb.ServerLiveRequest(), timeout=DEADLINE)
        assert call.code() is grpc.StatusCode.UNAVAILABLE


def test_admins_have_a_port_of_their_own(guarded, session, stub):
    session.headers.update(bearer(KEYS[0]))
    calls = [("GET", "/metrics"), ("GET", "/status"), ("GET", "/"),
             ("POST", "/v2/repository/models/sst/load"),
             ("POST", "/v2/repository/models/sst/unload")]  # fmt: skip
    assert guarded.admin != guarded.http
    for method, path in calls:
        assert session.request(method, guarded.http + path).status_code == 404
        assert session.request(method, guarded.admin + path).status_code == 200
    assert ask(guarded.admin, "good", verify=session.verify, headers=bearer(KEYS[0])).ok
    paths = session.get(f"{guarded.http}/openapi.json").json()["paths"]
    assert not any(path.endswith("load") for path in paths)
    request = pb.RepositoryModelUnloadRequest(model_name="sst")
    key = tuple(bearer(KEYS[0]).items())
    call = stub[0].RepositoryModelUnload.future(request, metadata=key, timeout=DEADLINE)
    assert call.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_client_takes_a_certificate_and_wants_a_key(guarded, certificate):
    with Client(guarded.http, verify=str(certificate[0])) as client:
        assert client.ready()
        with pytest.raises(ServerError, match="authorization") as caught:
            client.infer("sst", ["good"])
    assert caught.value.status == 401


@pytest.mark.parametrize("entry", ["machine 127.0.0.1", "default"])
def test_the_key_given_wins_over_netrc(guarded, certificate, tmp_path, monkeypatch, entry):
    (tmp_path / "netrc").write_text(f"{entry} login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with Client(guarded.http, api_key=KEYS[0], verify=str(certificate[0])) as client:
        assert client.infer("sst", ["good"])[0].label == "positive"
        assert client.metadata("sst")["name"] == "sst"


def test_every_key_is_compared_in_constant_time(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("\n".join(KEYS))
    keys = auth.read_keys(Safety(api_key_file=str(tmp_path / "keys")))
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(a)) or real(a, b))
    for key, known in ((KEYS[0], True), (KEYS[1], True), ("", False), ("x" * 10_000, False)):
        assert keys.known(f"Bearer {key}") is known
    assert compared == [32] * 8  # all of them each time, and digests only
    assert keys.known(None) is False


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "holds no key"),
        ("# none\n\n", "holds no key"),
        ("short\n", "keys:1: a key of 5 char"),
        (f"{KEYS[0]}\n{KEYS[1]}\0\n", "keys:2: a key that no header can carry"),
        (f"{KEYS[0]}é\n", "keys:1: a key that no header can carry"),
    ],
)
def test_files_of_keys_that_cannot_be(tmp_path, text, part):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(UserError, match=part):
        auth.read_keys(Safety(api_key_file=str(tmp_path / "keys")))
    with pytest.raises(UserError, match="cannot be read"):
        auth.read_keys(Safety(api_key_file=str(tmp_path / "none")))


def test_a_file_of_keys_as_windows_writes_it(tmp_path):
    (tmp_path / "keys").write_bytes(
        b"\xef\xbb\xbf" + f"{KEYS[0]}\r\n\r\n  # clients\r\n{KEYS[1]} \r\n".encode()
    )
    keys = auth.read_keys(Safety(api_key_file=str(tmp_path / "keys")))
    assert [keys.known(f"Bearer {key}") for key in (*KEYS, "# clients", "")] == [True, True, 0, 0]


def common_name(port: str, folder) -> str:
    """Of the certificate that host:port shows."""
    host, number = port.rpartition("://")[2].split(":")
    pem = ssl.get_server_certificate((host, int(number)))
    (folder / "shown.pem").write_text(pem)
    shown = ssl._ssl._test_decode_cert(str(folder / "shown.pem"))["subject"]
    return dict(entry for (entry,) in shown)["commonName"]


@pytest.mark.filterwarnings("ignore:Unverified HTTPS")
def test_keys_and_certificates_are_taken_anew(certificate, tmp_path):
    keys, cert, key = tmp_path / "keys", tmp_path / "cert.pem", tmp_path / "key.pem"
    keys.write_text(f"{KEYS[0]}\n")
    shutil.copy(certificate[0], cert)
    shutil.copy(certificate[1], key)
    words = [f"safety.api_key_file={keys}"]
    words += [f"safety.tls_certificate={cert}", f"safety.tls_key={key}"]
    with serving(tmp_path, *words) as served, requests.Session() as session:
        session.verify = session.trust_env = False  # it changes

        def statuses() -> list[int]:
            return [session.get(f"{served.http}/v2", headers=bearer(k)).status_code for k in KEYS]

        assert statuses() == [200, 401]
        keys.write_text(f"{KEYS[1]}\n")
        served.wait_for(lambda: statuses() == [401, 200])
        stub_key = tuple(bearer(KEYS[0]).items())
        credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
        with grpc.secure_channel(served.grpc, credentials) as channel:
            call = make_stub(channel).ServerMetadata.future(
                pb.ServerMetadataRequest(), metadata=stub_key, timeout=DEADLINE
            )
            assert call.code() is grpc.StatusCode.UNAUTHENTICATED
        keys.write_text("short\n")
        served.wait_for(lambda: "stays in use" in served.log)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=renewed", "-keyout", key, "-out", cert],
            check=True, capture_output=True,
        )  # fmt: skip
        for port in (served.http, served.grpc):
            served.wait_for(lambda port=port: common_name(port, tmp_path) == "renewed")
        key.write_text("no key")
        served.wait_for(lambda: served.log.count("stays in use") == 2)
        for port in (served.http, served.grpc):
            assert common_name(port, tmp_path) == "renewed"
        assert statuses() == [401, 200]
        warnings = [line for line in served.lines() if line["level"] == "warning"]
        assert len(warnings) == 2


def test_certificates_that_cannot_be(certificate, tmp_path):
    cert, key = map(str, certificate)
    none = str(tmp_path / "none")
    for named, words in (
        ({"tls_certificate": cert}, r"safety\.tls_key is missing"),
        ({"tls_key": key}, r"safety\.tls_certificate is missing"),
        ({"tls_certificate": cert, "tls_key": none}, "none: cannot be read"),
        ({"tls_certificate": key, "tls_key": cert}, "are not a PEM certificate and its key"),
    ):
        with pytest.raises(UserError, match=words):
            auth.read_tls(Safety(**named))
