"""What an installation contains: deploy/ as fleetbert.deploy, pages and schemas too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = ("html", "j2", "css", "js", "proto", "typed")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what a wheel of this tree contains."""
    folder = tmp_path_factory.mktemp("packaging")
    tree = folder / "tree"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("fleetbert", "deploy"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--target", folder / "site"]
    subprocess.run([*pip, *options, tree], check=True, timeout=480)
    return folder / "site"


def python(installed: Path, *words: str) -> str:
    """stdout of Python with the installation, elsewhere than in the checkout."""
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=installed.parent,
        env=environ,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=480,
    ).stdout


def listed(package: Path) -> set[Path]:
    """The modules and data of a package in the checkout or in an installation."""
    kinds = ("py", "pyi", *DATA)
    return {path.relative_to(package) for kind in kinds for path in package.rglob(f"*.{kind}")}


def test_a_wheel_has_all_modules_and_data(installed):
    deploy = {path for path in listed(ROOT / "deploy") if path.parts[0] != "lite"}
    assert {
        Path("inference/ops/page/page.html"),
        Path("inference/protocol/inference.proto"),
    } <= deploy
    expected = listed(ROOT / "fleetbert") | {"deploy" / path for path in deploy}
    assert listed(installed / "fleetbert") == expected


def test_an_installation_runs_from_another_folder(installed):
    found = python(installed, "-c", "import fleetbert.deploy; print(fleetbert.deploy.__file__)")
    assert Path(found.strip()) == installed / "fleetbert" / "deploy" / "__init__.py"
    assert "--repository" in python(installed, "-m", "fleetbert.cli", "serve", "--help")
    assert "--repository" in python(installed, "-m", "fleetbert.deploy.inference", "--help")


def test_an_editable_installation_finds_deploy_in_the_checkout(tmp_path):
    code = "import fleetbert.deploy.inference as room; print(room.__file__)"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environ,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert Path(done.stdout.strip()) == ROOT / "deploy" / "inference" / "__init__.py"


def test_the_tree_has_no_symbolic_links():
    for name in ("fleetbert", "deploy", "tests", "launch", "configs", "docs"):
        links = [path for path in (ROOT / name).rglob("*") if path.is_symlink()]
        assert not links, links
