"""Helm's chart, the manifest that is made of it, and KServe's runtime: what Helm, Kubernetes'
schemas and KServe's classes accept, and a server that is started as they start it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import requests
import yaml
from deploy_files import FOLDER, ROOT, docker_steps, settings_by
from served import DEADLINE, SOON, serving, settings_of

from fleetbert.client import Client
from fleetbert.engines import answer as answers

BIN = ROOT / ".venv-clients" / "bin"
CLIENTS = Path(__file__).parent / "protocol" / "clients"
TEXTS = ["good good", "bad", "坏", "a text of more than sixteen characters"]  # as clients/asked.py
AUTOSCALED = {
    "image": "registry/me:1",
    "models": {"claim": "mine", "create": False},
    "settings": ["batching.max_wait_ms=2", "repository.default.variant=float32"],
    "autoscaling": {"enabled": True, "maxReplicas": 3, "queuedTokens": 8192},
    "probes": {"startup": {"failureThreshold": 600}},
}
needs_clients = pytest.mark.skipif(
    not (BIN / "python").exists(), reason="no .venv-clients here: run `make venv-clients`"
)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin"}
    words = [str(word) for word in words]
    return subprocess.run(words, capture_output=True, text=True, env=environ, timeout=DEADLINE)


def chart(values: object) -> subprocess.CompletedProcess[str]:
    done = run(BIN / "python", ROOT / ".ci" / "chart", json.dumps(values))
    if "No module named 'helm_python'" in done.stderr:
        pytest.skip("no Helm here: its library has no wheel for this processor")
    return done


def by_kind(text: str) -> dict[str, dict]:
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def validate(text: str, folder: Path) -> None:
    """By the schemas of Kubernetes."""
    (folder / "made.yaml").write_text(text, encoding="utf-8")
    done = run(BIN / "kubernetes-validate", "--strict", folder / "made.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") == len(by_kind(text))


@needs_clients
def test_the_manifest_is_the_chart_with_its_own_values():
    """Otherwise `.venv-clients/bin/python .ci/chart > deploy/inference/kubernetes.yaml`."""
    done = chart({})
    assert done.returncode == 0, done.stderr
    assert done.stdout == (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")


@needs_clients
def test_kubernetes_accepts_the_manifest(tmp_path):
    validate((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"), tmp_path)


@needs_clients
def test_values_are_where_they_belong(tmp_path):
    text = chart(AUTOSCALED).stdout
    validate(text, tmp_path)
    made = by_kind(text)
    assert set(made) == {"Deployment", "Service", "HorizontalPodAutoscaler"}
    deployment, scaler = made["Deployment"], made["HorizontalPodAutoscaler"]["spec"]
    assert "replicas" not in deployment["spec"]  # the autoscaler has them
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "mine"
    [container] = pod["containers"]
    assert container["image"] == "registry/me:1"
    assert container["startupProbe"]["failureThreshold"] == 600
    assert container["startupProbe"]["periodSeconds"] == 2  # as values.yaml has it
    section = settings_by(container["command"])
    assert section.batching.max_wait_ms == 2 and section.repository.default.variant == "float32"
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 3)
    assert scaler["metrics"][0]["pods"]["target"]["averageValue"] == "8192"


@needs_clients
@pytest.mark.parametrize("admin", [[], [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]])
def test_a_network_policy_closes_the_admin_port_to_all_but_those_named(tmp_path, admin):
    text = chart({"networkPolicy": {"enabled": True, "admin": admin}}).stdout
    validate(text, tmp_path)
    made = by_kind(text)
    template = made["Deployment"]["spec"]["template"]
    policy = made["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    [container] = template["spec"]["containers"]
    ports = {port["containerPort"]: port["name"] for port in container["ports"]}
    rules = [
        ([ports[port["port"]] for port in rule["ports"]], rule.get("from"))
        for rule in policy["ingress"]
    ]
    # A rule without `from` is for everyone.
    assert rules == [(["http", "grpc"], None), *([(["admin"], admin)] if admin else [])]


@needs_clients
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        ({"replicas": "3"}, "'/replicas': got string, want integer"),
        ({"autoscaling": {"queuedTokens": 0}}, "'/autoscaling/queuedTokens': minimum: got 0"),
        ({"networkPolicy": {"admin": [{}]}}, "'/networkPolicy/admin/0': minProperties: got 0"),
        ({"settings": ["--config"]}, "'/settings/0': '--config' does not match pattern"),
    ],
)
def test_wrong_values_are_named(values, sentence):
    done = chart(values)
    assert done.returncode == 1 and not done.stdout
    assert sentence in done.stderr


def runtime() -> dict:
    text = (FOLDER / "kserve.yaml").read_text(encoding="utf-8")
    return by_kind(text)["ClusterServingRuntime"]["spec"]


def words_of(container: dict) -> list[str]:
    """The command line of a container, of a service called sst2 where KServe fills in names."""
    words = [*container["command"], *container.get("args", ())]
    return [word.replace("{{.Name}}", "sst2") for word in words]


def deployed() -> dict:
    text = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    return by_kind(text)["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("pod", [deployed, runtime])
def test_pods_start_the_server_as_it_is(pod):
    """With its ports and probes, as the Dockerfile's user, with one folder that can be written."""
    steps = dict(docker_steps())
    pod = pod()
    [container] = pod["containers"]
    listen = settings_by(words_of(container)).listen
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {listen.http_port, listen.grpc_port} <= set(ports.values())
    for name in ("readinessProbe", "startupProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert ports.get(probe["port"], probe["port"]) == listen.http_port
        assert probe["path"] in ("/v2/health/ready", "/v2/health/live")
    user = {**pod, **container["securityContext"]}.get("runAsUser")
    assert str(user or pod["securityContext"]["runAsUser"]) == steps["USER"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"]: mount.get("readOnly") for mount in container["volumeMounts"]}
    home = re.search(r"HOME=(\S+)", steps["ENV"])[1]
    assert [path for path, read_only in mounts.items() if not read_only] == [home]
    stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod.get("terminationGracePeriodSeconds", 30) > stop + listen.grace_seconds


def test_the_manifest_fits_together():
    made = by_kind((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    template = made["Deployment"]["spec"]["template"]
    pod = template["spec"]
    [container] = pod["containers"]
    section = settings_by(container["command"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["admin"] == section.listen.admin_port
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(ports["admin"])
    targets = {port["targetPort"] for port in made["Service"]["spec"]["ports"]}
    assert targets == {"http", "grpc"}
    assert section.repository.path in {mount["mountPath"] for mount in container["volumeMounts"]}
    claim = pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == made["PersistentVolumeClaim"]["metadata"]["name"]


@needs_clients
def test_kserve_accepts_the_runtime_and_the_service(tmp_path):
    done = run(BIN / "python", CLIENTS / "kserve_models.py", FOLDER / "kserve.yaml")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stdout + done.stderr
    spec = runtime()
    pod = {"containers": spec["containers"], "volumes": spec["volumes"]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
    validate(yaml.safe_dump(document), tmp_path)
    text = (FOLDER / "kserve.yaml").read_text(encoding="utf-8")
    predictor = by_kind(text)["InferenceService"]["spec"]["predictor"]
    assert predictor["model"]["modelFormat"]["name"] == spec["supportedModelFormats"][0]["name"]
    assert predictor["model"]["protocolVersion"] in spec["protocolVersions"]
    listen = settings_by(words_of(spec["containers"][0])).listen
    assert spec["annotations"]["prometheus.kserve.io/port"] == str(listen.admin_port)
    # What KServe sends to where a container names no ports.
    assert (listen.http_port, spec["containers"][0]["name"]) == (8080, "kserve-container")


@pytest.fixture(scope="module")
def served(tiny_bundle, tmp_path_factory):
    """A server by the runtime's command line, of a folder as KServe fills it, without the port that
    KServe's clients do not know."""
    folder = tmp_path_factory.mktemp("kserve")
    mount = folder / "mnt" / "models"
    shutil.copytree(tiny_bundle, mount)
    words = words_of(runtime()["containers"][0])[3:]
    words = [word.replace("/mnt/models", str(mount)) for word in words]
    more = settings_of(mount, "listen.admin_port=null")
    with serving(folder, *more, command=[*SOON, *words]) as found:
        yield found


@pytest.mark.slow
@needs_clients
def test_the_autoscaler_reads_a_metric_that_the_server_has(served):
    made = by_kind(chart(AUTOSCALED).stdout)
    [metric] = made["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    text = requests.get(f"{served.http}/metrics", timeout=DEADLINE).text
    assert re.search(f'(?m)^{name}{{model="sst2",version="1"}} [0-9]', text)
    rules = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    [rule] = rules["rules"]["custom"]
    assert rule["seriesQuery"].partition("{")[0] == name


@pytest.mark.slow
@needs_clients
def test_kserves_clients_are_answered(served, tiny_bundle):
    with Client(served.http) as client:
        assert client.metadata("sst2")["versions"] == ["1"]
    address = served.http.partition("://")[2]
    script = CLIENTS / "kserve_client.py"
    done = run(BIN / "python", script, address, served.grpc, "sst2")
    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout)
    expected = answers.answer(answers.load(tiny_bundle), TEXTS)
    for found in (saw["http"], saw["grpc"]):
        assert [found[key] for key in ("live", "ready", "model_ready")] == [True] * 3
        for texts in (found["texts"], found["binary"]):
            assert texts["label"] == [answer.label for answer in expected]
            for row, answer in zip(texts["scores"], expected):
                assert row == pytest.approx(list(answer.scores.values()), abs=1e-5)
    assert saw["grpc"]["texts"]["version"] == "1"
    assert saw["repository"] == [True, True, "sst2"]
