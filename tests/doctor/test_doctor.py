"""`fleetbert doctor`: all is well here, and faults that are put in are named."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import fake_card
import fresh
import paddle
import pytest

import fleetbert
from fleetbert.cli import doctor as command
from fleetbert.compat import cards, processor, versions
from fleetbert.doctor import card, machine, smoke, trial
from fleetbert.doctor.findings import Finding


def doctor(*words: str, **changes: str) -> tuple[int, dict[str, Finding]]:
    """Exit code and findings of the command, with other environment variables."""
    done = fresh.run("-m", "fleetbert.cli", "doctor", "--json", *words, **changes)
    assert done.stdout, done.stderr
    findings = [Finding(**found) for found in json.loads(done.stdout)]
    return done.returncode, {finding.check: finding for finding in findings}


@pytest.mark.slow
def test_everything_runs_here_and_nothing_is_left(tmp_path):
    code, found = doctor(TMPDIR=str(tmp_path))
    assert code == 0, found
    assert {f.check for f in found.values() if f.state == "ok"} >= {
        "Python", "packages", "processors", "memory", "descriptors", "home", "Paddle",
        "train float32", "quantize static", "quantize dynamic", "early exit", "train two ranks",
        "serve", *(["export ONNX"] if sys.version_info < (3, 13) else []),
    }  # fmt: skip
    assert found["train O1, O2"].state == found["engines on a GPU"].state == "not here"
    assert found["quantize QAT"].state == "skipped"
    assert found["quantize QAT"].remedy == "fleetbert doctor --all"
    state = "not here" if versions.is_paddle_3() else "skipped"
    assert found["parameter servers"].state == state
    assert found["train bfloat16"].state == ("ok" if processor.bfloat16() else "not here")
    assert list(tmp_path.iterdir()) == []


class TestFaults:
    @pytest.mark.parametrize(
        ("paddle", "check", "said"),
        [
            ("raise ImportError('libcudart.so: no such file')", "Paddle", "libcudart.so: no"),
            ("import os; os.abort()", "try", "exit code -6, before its first step"),
        ],
    )
    def test_paddle_that_is_there_and_does_not_run(self, tmp_path, paddle, check, said):
        (tmp_path / "paddle.py").write_text(paddle)
        code, found = doctor(PYTHONPATH=str(tmp_path))
        assert (code, found[check].state) == (2, "broken")
        assert said in found[check].observed
        assert "serve" not in found

    def test_a_home_that_cannot_be_written(self):
        code, found = doctor("--no-run", HOME="/proc")
        assert (code, found["home"].state) == (0, "not here")
        assert found["home"].observed.startswith("/proc cannot be written")
        assert "set HOME" in found["home"].remedy
        assert machine.home("/proc", "/proc").state == "broken"
        assert found["temporary folder"].state == "ok"

    def test_packages_that_are_missing_or_of_another_version(self):
        is_new = sys.version_info >= (3, 13)
        version, bounds = ("1.26.4", "<3,>=2.1") if is_new else ("2.1.0", "<2,>=1.22")

        def installed(name: str) -> str:
            if name in ("tokenizers", "starlette"):
                raise importlib.metadata.PackageNotFoundError(name)
            return version if name == "numpy" else importlib.metadata.version(name)

        found = {finding.check: finding for finding in machine.packages(installed)}
        assert found["packages"].state == "broken"
        assert "tokenizers is not installed" in found["packages"].observed
        assert f"numpy {version}, where it must be {bounds}" in found["packages"].observed
        assert f"'numpy{bounds}'" in found["packages"].remedy
        assert found["extra serve"].state == "not here"
        assert found["extra serve"].remedy == "pip install 'fleetbert[serve]'"

    def test_fleetbert_that_was_never_installed(self):
        def required(name: str) -> list[str]:
            raise importlib.metadata.PackageNotFoundError(name)

        (found,) = machine.packages(required=required)
        assert (found.state, found.remedy) == ("not here", "pip install .")

    def test_shared_memory_that_is_full_or_missing(self, monkeypatch, tmp_path, small_disk):
        monkeypatch.setattr(machine, "SHM", small_disk("1m"))
        found = {finding.check: finding for finding in machine.look()}["shared memory"]
        assert found.state == "broken"
        assert found.observed.endswith(" has 1 MiB free")
        assert machine.shared_memory(tmp_path / "none").state == "broken"
        assert machine.shared_memory(tmp_path).state == "ok"

    @pytest.mark.parametrize("version", [(3, 7, 9), (3, 14, 0)])
    def test_a_python_without_a_wheel(self, version):
        found = machine.python(version)
        assert found.state == "broken"
        assert "3.8 to 3.12" in found.remedy


class TestCards:
    @pytest.fixture
    def smi(self, tmp_path):
        """smi(lines) → an nvidia-smi that says them."""

        def make(said: str, code: int = 0) -> str:
            path = tmp_path / "nvidia-smi"
            path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {code}\n")
            path.chmod(0o755)
            return str(path)

        return make

    def test_none(self, tmp_path):
        assert machine.card(str(tmp_path / "nothing")).state == "not here"

    def test_one_that_the_wheel_has_no_kernels_for(self, smi, monkeypatch):
        monkeypatch.setattr(cards, "gpu_version", lambda: "2.6.2")
        found = machine.card(smi("NVIDIA H100 80GB HBM3, 550.54.15, 9.0, 81559 MiB"))
        assert found.state == "broken"
        assert "compute capability 9.0" in found.observed
        assert "6.1, 7.0, 7.5, 8.0, 8.6 only" in found.observed
        assert found.remedy.startswith("install paddlepaddle-gpu 3.3 for CUDA 12.6")

    def test_one_beside_the_wheel_for_cpus(self, smi):
        found = machine.card(smi("NVIDIA A10, 550.54.15, 8.6, 23028 MiB"))
        assert found.state == "broken"
        wheel = " 3.3 for CUDA 11.8" if versions.is_paddle_3() else "==2.6.2"
        assert f"paddlepaddle-gpu{wheel}" in found.remedy

    @pytest.mark.parametrize("capability", [(7, 5), (8, 6)])
    def test_mixed_precision_is_tried_as_the_card_has_it(self, monkeypatch, tmp_path, capability):
        def train(config):
            job = json.loads(config.read_text(encoding="utf-8"))
            tried.append(tuple(job["precision"].values()))
            return SimpleNamespace(metrics={"accuracy": 1.0}, summary={"texts_per_s": 900.0})

        tried: list[tuple[str, str]] = []
        cuda = paddle.device.cuda
        monkeypatch.setattr(paddle.device, "is_compiled_with_cuda", lambda: True)
        monkeypatch.setattr(cuda, "device_count", lambda: 1)
        monkeypatch.setattr(cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(fleetbert, "train", train)
        found = list(smoke.mixed_precision(tmp_path))
        assert [one.check for one in found] == ["train O1", "train O2", "train bfloat16"]
        expected = [("O1", "float16"), ("O2", "float16"), ("O1", "bfloat16")]
        assert tried == expected[: 3 if capability[0] == 8 else 2]
        assert [one.state for one in found] == ["ok", "ok", "not here" if len(tried) == 2 else "ok"]

    def test_a_driver_that_fails(self, smi):
        found = machine.card(smi("NVIDIA-SMI has failed: no driver", 9))
        assert (found.state, found.observed) == ("broken", "NVIDIA-SMI has failed: no driver")


@pytest.fixture
def tried(tiny_bundle, tmp_path):
    """A folder as `smoke` leaves it, with the tiny bundle."""
    shutil.copytree(tiny_bundle, tmp_path / "run" / "bundle")
    smoke.write_data(tmp_path)
    return tmp_path


class TestEnginesOnACard:
    """On a card that the CPU stands in for (`fake_card`)."""

    def test_each_is_compared_with_the_cpu(self, tried, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tried))
        created = fake_card.put_in(monkeypatch)
        found = {card.name(*engine): card.run(tried, *engine) for engine in card.ENGINES}
        assert all(name == finding.check for name, finding in found.items())
        for name in ("GPU float16", "GPU float16 TensorRT"):
            assert found[name].observed.startswith("100% of 80 answers are float32's, logits wi")
        assert sum(len(config.called("enable_tensorrt_engine")) for config in created) == 2
        lacking = {name: each.observed for name, each in found.items() if each.state != "ok"}
        assert lacking.pop("GPU bfloat16 TensorRT") == "TensorRT 8.5.1 has no bfloat16"
        assert list(lacking) == ["GPU int8 TensorRT", "GPU early exit float32",
                                 "GPU early exit float16"]  # fmt: skip
        assert "has no variant 'int8-static'; it has: float32" in lacking["GPU int8 TensorRT"]

    def test_what_fails_says_so(self, tried, monkeypatch):
        fake_card.put_in(monkeypatch, count=0)
        found = card.run(tried, "float32", "float16", "off")
        assert found.state == "not here"
        assert found.observed.startswith("device is gpu, but Paddle finds no GPU")
        fake_card.put_in(monkeypatch)
        monkeypatch.setattr(fake_card.RecordedConfig, "enable_use_gpu", None, raising=False)
        found = card.run(tried, "float32", "float32", "off")
        assert found.state == "broken"
        assert found.observed == "TypeError: 'NoneType' object is not callable"

    def test_a_process_that_ends_is_a_finding_and_the_next_is_tried(self, tried, monkeypatch):
        (tried / "paddle.py").write_text("import os; os.abort()")
        monkeypatch.setenv("PYTHONPATH", str(tried))
        monkeypatch.setattr(card, "ENGINES", card.ENGINES[:2])
        monkeypatch.setattr(trial, "served", lambda _, check, *words: Finding(check, "ok", words))
        *engines, server = trial.on_card(tried, has_card=True)
        assert [found.check for found in engines] == ["GPU float32", "GPU float16"]
        ended = "the process ended with exit code -6, before its first step"
        assert all(found.observed.startswith(ended) for found in engines)
        assert server.observed == ("engine.device=gpu", "engine.precision=float16")


def test_a_server_is_asked_over_http_and_grpc(tried):
    """The labels of a random network, twice: over HTTP and over gRPC."""
    texts = ["word1 word2 word3", "word60 word61 word62"]
    labels = [answer.label for answer in fleetbert.load(tried / "run" / "bundle")(texts)]
    found = trial.served(tried, "serve")
    assert found.observed == f"answered {labels * 2}, exit code 0"


def test_the_table_has_a_line_for_each_and_the_remedy_below(capsys):
    command.show(Finding("home", "broken", "/proc: no", "set HOME"))
    assert capsys.readouterr().out.splitlines() == [
        "broken    home              /proc: no",
        "                            → set HOME",
    ]


def test_variables_of_a_cluster_are_left_out(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "8")
    kept = trial.environment()
    assert "PADDLE_TRAINERS_NUM" not in kept
    assert Path(kept["PYTHONPATH"].split(os.pathsep)[0], "fleetbert", "doctor").is_dir()
