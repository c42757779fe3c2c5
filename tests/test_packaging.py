"""What an installation contains: deploy/ as fleetbert.deploy, pages and schemas too; and what the
packages of each extra can do."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import fresh
import layers
import light
import numpy as np
import pytest
import requests
import served
import tiny_job
from packaging.requirements import Requirement

import fleetbert
from fleetbert import bundle as bundles
from fleetbert.client import Client
from fleetbert.core import extras

ROOT = Path(__file__).resolve().parents[1]
DATA = ("html", "j2", "css", "js", "proto", "typed", "yaml")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what a wheel of this tree contains."""
    folder = tmp_path_factory.mktemp("packaging")
    tree = folder / "tree"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("fleetbert", "deploy", "configs"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--target", folder / "site"]
    subprocess.run([*pip, *options, tree], check=True, timeout=480)
    return folder / "site"


def python(installed: Path, *words: str) -> str:
    """stdout of Python with the installation, elsewhere than in the checkout."""
    done = fresh.run(*words, cwd=installed.parent, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    recipes = {Path("recipes") / path for path in listed(ROOT / "configs")}
    assert Path("recipes/quantize/static.yaml") in recipes
    expected = listed(ROOT / "fleetbert") | {"deploy" / path for path in deploy} | recipes
    assert listed(installed / "fleetbert") == expected


def test_an_installation_runs_from_another_folder(installed):
    found = python(installed, "-c", "import fleetbert.deploy; print(fleetbert.deploy.__file__)")
    assert Path(found.strip()) == installed / "fleetbert" / "deploy" / "__init__.py"
    assert "--repository" in python(installed, "-m", "fleetbert.cli", "serve", "--help")
    assert "--repository" in python(installed, "-m", "fleetbert.deploy.inference", "--help")
    recipe = (ROOT / "configs" / "sst2.yaml").read_text(encoding="utf-8")
    assert python(installed, "-m", "fleetbert.cli", "recipes", "sst2") == recipe


def test_a_source_distribution_has_no_tests(installed, tmp_path):
    tree = installed.parent / "tree"
    (tree / "tests").mkdir(exist_ok=True)
    shutil.copy(__file__, tree / "tests")
    words = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", tmp_path]
    subprocess.run(words, cwd=tree, check=True, timeout=480)
    [listing] = tmp_path.rglob("SOURCES.txt")
    files = listing.read_text(encoding="utf-8").splitlines()
    assert "fleetbert/__init__.py" in files
    assert [name for name in files if name.startswith("tests")] == []


def test_an_editable_installation_finds_deploy_in_the_checkout(tmp_path):
    code = "import fleetbert.deploy.inference as room; print(room.__file__)"
    done = fresh.python(code, cwd=tmp_path, PYTHONPATH=None)
    assert Path(done.stdout.strip()) == ROOT / "deploy" / "inference" / "__init__.py"


needs_publish = pytest.mark.skipif(
    not (ROOT / ".venv-publish" / "stamp").exists(), reason="no .venv-publish: `make venv-publish`"
)


@pytest.mark.slow
@needs_publish
def test_the_site_has_every_page_and_needs_no_other_host(tmp_path):
    """Strict: a link or an anchor that leads nowhere fails."""
    command = [ROOT / ".ci" / "docs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    for page in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.zh-CN.md"):
        name = page.relative_to(ROOT).with_suffix("")
        folder = name.parent if name.name == "README" else name
        assert (tmp_path / folder / "index.html").is_file(), page
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"<(?:link|script|img)[^>]*(?:href|src)=.?https?://", home)
    (style,) = re.findall(r"assets/stylesheets/main[^\"' >]*", home)
    assert (tmp_path / style).is_file()


@pytest.mark.slow
@needs_publish
def test_a_release_is_complete_and_installs(tmp_path):
    """`make release` runs the checkers, and what it made, in empty environments."""
    dist = tmp_path / "dist"
    done = subprocess.run(
        ["make", "-o", "venv-publish", "release", f"DIST={dist}"],
        cwd=ROOT,
        env={**os.environ, "FLEETBERT_URL": "https://code.example/fleetbert"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    name = f"fleetbert-{fleetbert.__version__}"
    wheel, sdist, bom = (
        dist / f"{name}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".cdx.json")
    )
    assert set(dist.iterdir()) == {wheel, sdist, bom}
    with zipfile.ZipFile(wheel) as opened:
        about = email.message_from_bytes(opened.read(f"{name}.dist-info/METADATA"))
        assert f"{name}.dist-info/LICENSE" in opened.namelist()
    assert about["License"] == "Apache-2.0"
    assert "Typing :: Typed" in about.get_all("Classifier")
    assert about["Home-page"] == "https://code.example/fleetbert"
    page = about.get_payload()
    assert "](https://code.example/fleetbert/blob/main/docs/serve.md)" in page
    assert not re.search(r"\]\((?!https://)", page)
    made = json.loads(bom.read_text(encoding="utf-8"))
    assert made["metadata"]["component"]["name"] == "fleetbert"
    parts = {part["name"].lower() for part in made["components"]}
    assert {"paddlepaddle", "uvicorn"} <= parts and "pytest" not in parts


def write_reviews(path: Path, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    words = {1: ("dull", "boring", "lifeless"), 5: ("lovely", "wonderful", "moving")}
    with path.open("w", encoding="utf-8") as file:
        file.write("review,stars\n")
        for stars in random.choice((1, 5), rows).tolist():
            first, second = random.choice(words[stars], 2)
            place = random.integers(1000)
            file.write(f'"a {first}, {second} film, seen in cinema {place}",{stars}\n')


def uv_environ() -> dict[str, str]:
    """Variables with uv, of .ci/uv, on PATH, that asks the index which pip asks."""
    found = subprocess.run([ROOT / ".ci" / "uv", sys.executable], stdout=subprocess.PIPE, text=True)
    if found.returncode:
        pytest.skip("no uv: .ci/uv takes it from PyPI")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folders = (Path(found.stdout.strip()).parent, Path(sys.executable).parent)
    environ["PATH"] = os.pathsep.join([*map(str, folders), environ["PATH"]])
    words = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
        for value in re.findall(rf"(?m)^[^=]*\.{name}='(.*)'$", settings):
            environ[variable] = value
    return environ


@pytest.mark.slow
def test_the_guides_commands_lead_from_a_csv_to_an_answer_over_http(installed, tmp_path):
    """Those of docs/train.md, with the wheel alone in an empty folder."""
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    tree, dist = installed.parent / "tree", tmp_path / "dist"
    subprocess.run([*pip, "--wheel-dir", dist, tree], check=True, timeout=480)
    [wheel] = dist.iterdir()
    guide = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    block = re.search(r"in an empty folder:\n\n```\n(.*?)```", guide, re.DOTALL)[1]
    assert len(block.splitlines()) <= 8 and "'fleetbert[" in block
    *before, serve, curl = block.replace("'fleetbert[", f"'{wheel}[").splitlines()
    folder, environ = tmp_path / "empty", uv_environ()
    folder.mkdir()
    write_reviews(folder / "reviews.csv", 200, seed=1)
    write_reviews(folder / "others.csv", 100, seed=2)

    def bash(*lines: str) -> str:
        words = ["bash", "-ec", "\n".join(lines)]
        done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    bash(*before)
    assert bundles.read(folder / "models" / "reviews" / "1").variant("int8-static")
    activate = f"cd {folder}; {next(line for line in before if 'activate' in line)}"
    started = ["bash", "-ec", f"{activate}; exec {serve} {' '.join(served.PORTS)}"]
    server = served.Served(started, tmp_path, environ)
    try:
        server.wait_until_ready()
        answer = json.loads(bash(curl.replace("localhost:8000", server.http)))
        assert answer["answers"][0]["label"] == "5"
    finally:
        server.process.terminate()
        assert server.process.wait(served.DEADLINE) == 0


def test_the_tree_has_no_symbolic_links():
    for name in ("fleetbert", "deploy", "tests", "launch", "configs", "docs"):
        links = [path for path in (ROOT / name).rglob("*") if path.is_symlink()]
        assert not links, links


def refusal(purpose: str, extra: str) -> str:
    """What a message says of a missing extra; the packages that it names are left out."""
    return f"{purpose} needs what is not installed: pip install 'fleetbert[{extra}]'"


def named_alone(message: str) -> str:
    """The message without the packages in brackets."""
    before, _, after = message.strip().partition(" (")
    return before + after.partition(")")[2]


COMMAND = "from fleetbert.cli.main import main; main()"
# Answers; then prints what each refused call says.
ANSWER = """
import sys
import fleetbert
bundle = sys.argv[1]
print(fleetbert.load(bundle)(["word1 word2"])[0].label)
assert fleetbert.Client
for refused in (
    lambda: fleetbert.train([("a", "b")], init="random"),
    lambda: fleetbert.quantize(bundle),
    lambda: fleetbert.import_model(bundle),
):
    try:
        refused()
    except fleetbert.UserError as error:
        print(error)
"""


def test_fleetbert_alone_answers_and_names_the_extra_of_the_rest(tmp_path, tiny_bundle):
    environ = layers.environ(tmp_path / "site")
    done = fresh.python(ANSWER, str(tiny_bundle), **environ)
    assert done.returncode == 0, done.stderr
    label, *refused = done.stdout.splitlines()
    assert label
    assert [named_alone(message) for message in refused] == [
        refusal("training", "train"),
        refusal("quantization", "train"),
        refusal("the import of a model", "train"),
    ]
    done = fresh.python(COMMAND, "serve", "--repository", str(tmp_path), **environ)
    assert done.returncode == 2
    assert named_alone(done.stderr) == f"error: {refusal('the server', 'serve')}"


def test_serve_has_what_a_server_needs(tmp_path):
    light.make_bundle(tmp_path / "models" / "tiny" / "1")
    environ = layers.environ(tmp_path / "site", "serve")
    words = served.settings_of(tmp_path / "models")
    with served.serving(tmp_path, *words, command=served.LIGHT, environ=environ) as server:
        with Client(server.http) as client:
            assert client.infer("tiny", ["word1 word2"])[0].label
        assert requests.get(f"{server.http}/docs", timeout=60).ok
    with pytest.raises(AssertionError, match=re.escape(extras.command("tracing"))):
        key = "logs.otlp_endpoint=http://127.0.0.1:1"
        with served.serving(tmp_path, *words, key, command=served.LIGHT, environ=environ):
            pass


def test_train_has_what_training_needs(tmp_path, tiny_data):
    keys = {
        "trainer.max_steps": 2,
        "data.cache": str(tmp_path / "cache"),
        "callbacks.report": True,
        "callbacks.visualdl": True,
    }
    config = tmp_path / "job.json"
    config.write_text(json.dumps(tiny_job.values(tiny_data, tmp_path / "run", keys)))
    environ = layers.environ(tmp_path / "site", "train")
    done = fresh.python(COMMAND, "train", "--config", str(config), **environ)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    assert (tmp_path / "run" / "bundle" / "manifest.json").is_file()
    assert (done.stdout + done.stderr).count("pip install 'fleetbert[tracking]'") == 1


def test_modules_by_which_an_extra_is_missed_are_of_its_packages():
    for extra, modules in extras.MODULES.items():
        if extra in ("ray", "spark"):  # of `make venv-cluster`
            continue
        mine = layers.modules(layers.packages(extra) - layers.packages())
        assert set(modules) <= mine, extra


def test_the_lock_has_every_package_of_all():
    """`all` is what `make venv` has."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    needs = map(Requirement, metadata.requires("fleetbert"))
    wanted = {
        need.name.lower().replace("_", "-")
        for need in needs
        if need.marker is None or need.marker.evaluate({"extra": "all"})
    }
    assert wanted <= locked
