"""`fleetbert launch --print`: files for cluster managers, checked and, as far as that goes, run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import tiny_job
import yaml
from namespaces import two_hosts
from processes import DEADLINE, SCRIPT, kill

from fleetbert.launch import manifest

ROOT = Path(__file__).parents[2]
VALIDATE = ROOT / ".venv-clients" / "bin" / "kubernetes-validate"
WORDS = ("--config", "job.yaml", 'data.train=/data/a "b" $c.tsv')


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """printed(kind, *options, output_dir=…) → the file for launch/train.py."""
    monkeypatch.chdir(tmp_path)

    def call(kind: str, *options: str, output_dir: str = "/data/My_run") -> str:
        Path("job.yaml").write_text(f"output_dir: {output_dir}\n")
        options = ("--print", kind, "--ranks", "1", *options)
        code = commands.call("launch", *options, str(SCRIPT), *WORDS)
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return call


def pod_of(text: str) -> Any:
    """The template of the pods, wherever it is."""

    def search(value: Any) -> Any:
        if isinstance(value, dict) and "containers" in value.get("spec", {}):
            return value
        inner = value.values() if isinstance(value, dict) else value
        found = map(search, inner) if isinstance(value, (dict, list)) else ()
        return next(filter(None, found), None)

    return search(list(yaml.safe_load_all(text)))


@pytest.mark.parametrize("kind", ["kubernetes", "jobset", "paddlejob"])
def test_pods_are_valid_and_run_the_command(printed, kind, tmp_path):
    text = printed(kind, "--nodes", "3", "--max_restart", "4", "--image", "registry/me:1")
    documents = list(yaml.safe_load_all(text))
    assert {document["metadata"]["name"] for document in documents} == {"my-run"}
    pod = pod_of(text)
    container = pod["spec"]["containers"][0]
    assert container["name"] == "paddle"  # Kubeflow's operator looks for it
    assert container["image"] == "registry/me:1"
    assert container["args"][-4:] == [str(SCRIPT), *WORDS]
    environ = {item["name"]: item.get("value") for item in container["env"]}
    assert environ["PADDLE_NPROC_PER_NODE"] == "1" and environ["PADDLE_MAX_RESTART"] == "4"
    assert "restartPolicy" not in pod["spec"] or pod["spec"]["restartPolicy"] == "Never"
    if kind == "paddlejob":
        worker = documents[-1]["spec"]["paddleReplicaSpecs"]["Worker"]
        assert worker["replicas"] == 3 and "PADDLE_MASTER" not in environ
    else:
        assert environ["PADDLE_NNODES"] == "3"
        first = {"kubernetes": "my-run-0.my-run", "jobset": "my-run-node-0-0.my-run"}[kind]
        assert environ["PADDLE_MASTER"] == f"{first}:8090"
    if not VALIDATE.exists():
        pytest.skip("no .venv-clients here; `make venv-clients` makes it")
    standard = [document for document in documents if kind == "kubernetes"]
    standard.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **pod})
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(standard))
    words = [str(VALIDATE), "--strict", str(tmp_path / "pods.yaml")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" passed ") == len(standard)


def test_slurm_gets_a_script_that_bash_takes(printed, tmp_path):
    text = printed("slurm", "--nodes", "3", output_dir="out/7")
    assert "#SBATCH --nodes=3\n" in text and "#SBATCH --job-name=fleetbert-7\n" in text
    # A srun that shows its last arguments, in place of Slurm's.
    for name, line in (("srun", 'printf "%s\\n" "${@: -3}"'), ("scontrol", "echo first")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "5"}
    environ["SLURM_JOB_NODELIST"] = "n[1-3]"
    done = subprocess.run(["bash", "-eu"], input=text, env=environ, capture_output=True, text=True)
    assert done.stdout.splitlines() == list(WORDS), done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--print", "slurm"), "--print slurm: give --ranks, the processes of each machine"),
        (("--print", "slurm", "--ranks", "1", "--nodes", "0"), "--nodes 0: there has to be at"),
        (("--ranks", "1", "--nodes", "2"), "--nodes without --print: it is for the file that"),
        (("--ranks", "1", "--image", "x"), "--image without --print: it is for the file that"),
        (("--print", "jobset", "--ranks", "1"), "output_dir: output/x ends with its container;"),
    ],
)
def test_errors_are_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("output_dir: output/x\n")
    assert commands.call("launch", *words, str(SCRIPT), *WORDS) == 2
    assert sentence in capsys.readouterr().err


def test_scripts_of_others_have_a_name_and_no_output_dir(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    assert commands.call("launch", "--print", "kubernetes", "--ranks", "1", "mine.py", "a") == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text.split("---\n")[0])["metadata"]["name"] == "fleetbert"
    assert pod_of(text)["spec"]["containers"][0]["args"][-2:] == ["mine.py", "a"]


@pytest.mark.slow
def test_the_command_of_kubernetes_trains(tmp_path, tiny_data, here):
    """What a kubelet would start, on two hosts that know each other by their pods' names."""
    own = {"trainer.max_steps": 4, "model.dropout": 0.0}
    output = tmp_path / "output"
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, output, own)
    job = manifest.Job(2, 1, 0, "image", [str(SCRIPT), "--config", str(config)])
    container = pod_of(manifest.manifest("kubernetes", job))["spec"]["containers"][0]
    with two_hosts(tmp_path, ("fleetbert-0.fleetbert", "fleetbert-1.fleetbert")) as hosts:
        if not hosts:
            pytest.skip("network namespaces need root")
        started = []
        for number, host in enumerate(hosts):
            values = {item["name"]: item.get("value", "") for item in container["env"]}
            values.update(PADDLE_RANK=str(number), POD_IP=host.address)
            values.update(GLOO_SOCKET_IFNAME=host.interface, PADDLE_LOG_DIR=str(tmp_path / "log"))
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            words = [*host.prefix, *container["command"], *container["args"]]
            environ = {**os.environ, **values, "PATH": path}
            started.append(subprocess.Popen(words, env=environ, start_new_session=True))
        try:
            assert [process.wait(timeout=DEADLINE) for process in started] == [0, 0]
        finally:
            for process in started:
                kill(process)
    expected = tiny_job.losses(here(own))
    assert len(expected) == 4
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)
