"""The Dockerfile and what starts the server for others (compose, systemd), as far as no container
engine is needed; tests/endurance/test_image.py builds and runs the image."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from deploy_files import FOLDER, ROOT, docker_steps, settings_by
from packaging.requirements import Requirement
from served import DEADLINE

from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference import command, settings


@pytest.fixture(scope="module")
def steps():
    return docker_steps()


def test_everything_that_is_copied_is_there(steps):
    sources = [word for name, words in steps if name == "COPY" for word in words.split()[:-1]]
    assert {"fleetbert", "deploy", "requirements.lock"} <= set(sources)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    sent = {word[1:].split("/")[0] for word in ignored if word.startswith("!")}
    for source in sources:
        assert (ROOT / source).exists() and source.split("/")[0] in sent, source


def test_it_runs_as_nobody_special_and_says_how_it_is(steps):
    names = [name for name, _ in steps]
    assert names[0] == "FROM"
    users = [words for name, words in steps if name == "USER"]
    assert users == ["10001"] and "--uid 10001" in " ".join(words for _, words in steps)
    last = names[names.index("USER") :]
    assert "RUN" not in last and last[-1] == "CMD"  # nothing is made as another user afterwards
    health = dict(steps)["HEALTHCHECK"]
    program = json.loads(health[health.index("CMD") + 3 :])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "healthcheck", "exec")
    assert "/v2/health/ready" in program[2]


def test_its_command_is_one_of_the_servers(steps):
    words = json.loads(dict(steps)["CMD"])  # exec form: a signal reaches the server
    section = settings_by(words)
    ports = dict(steps)["EXPOSE"].split()
    assert [str(section.listen.http_port), str(section.listen.grpc_port)] == ports
    assert section.repository.path == "/models"


def test_it_installs_the_project_elsewhere_than_it_runs(steps):
    """`python -m` puts the working folder first: sources there would hide the installed package."""
    folders = [(name, words) for name, words in steps if name in ("WORKDIR", "COPY")]
    before, after = [words for name, words in folders if name == "WORKDIR"]
    assert before != after
    last = folders[folders.index(("WORKDIR", after)) :]
    assert [words.split()[0] for name, words in last if name == "COPY"] == ["configs/serve"]


def test_what_the_server_imports_is_installed(steps):
    """What fleetbert's modules in both kinds of processes import, wherever in the file."""
    (install,) = [words for name, words in steps if name == "RUN" and "pip install" in words]
    assert install.endswith("""-c versions.txt ".[$EXTRAS]\"""")
    extras = set(dict(steps)["ARG"].partition("=")[2].split(","))
    needs = map(Requirement, metadata.requires("fleetbert"))
    named = {need.name.lower() for need in needs if wanted(need, extras)}
    code = (
        "import sys, zlib\nimport fleetbert.deploy.inference.ops.tracing, fleetbert.graph.weights\n"
        "import fleetbert.deploy.inference.server\n"
        "import fleetbert.deploy.inference.repository.repository\n"
        "import fleetbert.deploy.inference.workers.worker, fleetbert.engines.engine\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('fleetbert')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE
    )
    files = done.stdout.split()
    assert len(files) > 20
    standard = getattr(sys, "stdlib_module_names", None)
    if standard is None:
        pytest.skip("Python before 3.10 does not tell its own modules")
    for file in files:
        for name in imported(Path(file)) - standard - {"fleetbert"} - OPTIONAL:
            assert PACKAGES.get(name, name.replace("_", "-")).lower() in named, (file, name)


def wanted(need, extras):
    """Whether `pip install fleetbert[EXTRAS]` takes a requirement of fleetbert's."""
    return need.marker is None or any(need.marker.evaluate({"extra": name}) for name in extras)


# Imported where such a variant is opened, with a sentence where it is missing; and where a bundle
# gets its card, which no server writes.
OPTIONAL = {"onnxruntime", "paddlelite", "jinja2"}
# Where a package and its module have different names.
PACKAGES = {
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "opentelemetry": "opentelemetry-sdk",
    "paddle": "paddlepaddle",
    "pydantic_core": "pydantic",
    "yaml": "PyYAML",
}


def imported(path):
    """First names of what a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_compose_starts_the_trainer_and_the_server_as_they_are():
    found = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    server, trainer = found["server"], found["trainer"]
    section = settings_by(server["command"])
    inside = [int(port.rpartition(":")[2]) for port in server["ports"]]
    assert inside == [section.listen.http_port, section.listen.grpc_port]
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{section.listen.admin_port}"]}]
    assert int(server["stop_grace_period"].rstrip("s")) > section.listen.grace_seconds
    assert (FOLDER / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert trainer["command"][:4] == ["fleetbert", "train", "--recipe", "sst2"]
    recipe = str(ROOT / "configs" / "sst2.yaml")
    job = config.load_as(config.Config, recipe, trainer["command"][4:])
    assert job.output_dir.startswith("/models/") and "models:/models" in trainer["volumes"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path):
    """With the command of this environment in place of the one in /opt."""
    unit, here = tmp_path / "fleetbert.service", Path(sys.executable).with_name("fleetbert")
    text = (FOLDER / "fleetbert.service").read_text(encoding="utf-8")
    words = re.search("(?m)^ExecStart=(.*)$", text)[1].split()
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    assert words[:2] == ["/opt/fleetbert/bin/fleetbert", "serve"] and parser.parse_args(words[2:])
    assert "\nType=notify\n" in text  # the server says READY
    unit.write_text(text.replace(words[0], str(here)), encoding="utf-8")
    for check in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(["systemd-analyze", *check, unit], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr  # such as an unknown setting


def test_configs_are_valid_and_x86_has_every_key_as_the_schema_explains_it():
    configs = ROOT / "configs" / "serve"
    made = settings.X86 + config.yaml_text(settings.Serve)
    assert (configs / "x86.yaml").read_text(encoding="utf-8") == made
    assert config.load_as(settings.Serve, str(configs / "x86.yaml"), []) == settings.Serve()
    gpu = config.load_as(settings.Serve, str(configs / "gpu.yaml"), []).engine
    assert gpu.computes_on() == ("gpu", "float16", "off")
    with pytest.raises(UserError, match=r"engine: device is 'cuda'; choose cpu, gpu or gpu:N"):
        config.load_as(settings.Serve, str(configs / "gpu.yaml"), ["engine.device=cuda"])
