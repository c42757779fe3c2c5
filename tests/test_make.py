"""`make test` itself: failures, second goes, a crash of pytest, skipped tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("venv", "venv-clients", "venv-publish", "packages", "packages-arm")
UP_TO_DATE = [word for target in TARGETS for word in ("-o", target)]

FAILS_FIRST = """
def test_fails_first(tmp_path_factory):
    seen = tmp_path_factory.getbasetemp().parent / "seen"
    first = not seen.exists()
    seen.touch()
    assert not first
"""


@pytest.fixture
def make_test(tmp_path):
    """make_test(*sources) runs `make test`, or another target, with files of tests; returns (exit
    code, output)."""

    def make(*sources: str, target: str = "test") -> tuple[int, str]:
        folder = tmp_path / "made"
        folder.mkdir()
        shutil.copy(ROOT / "tests" / "conftest.py", folder)
        for number, source in enumerate(sources):
            (folder / f"test_made_{number}.py").write_text(source)
        tests = f"-c pyproject.toml --basetemp {tmp_path}/base/x {folder}"
        (tmp_path / "base").mkdir()
        done = subprocess.run(
            [
                "make",
                *UP_TO_DATE,
                target,
                f"PYTHON={sys.executable}",
                "WORKERS=1",
                f"TESTS={tests}",
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=480,
        )
        return done.returncode, done.stdout

    return make


@pytest.mark.slow
def test_a_crash_of_pytest_fails(make_test):
    code, said = make_test(
        "import os, signal\n"
        "def test_passes(): pass\n"
        "def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "def test_never_runs(): pass\n"
    )
    assert code != 0, said
    assert "Segmentation fault" in said


def test_what_times_processes_runs_once_more_and_skipped_tests_are_told_last(make_test):
    code, said = make_test(
        "import processes" + FAILS_FIRST,
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_skipped(n): pytest.skip('needs g++: `sudo .ci/packages` installs it')\n"
        "def test_other(): pytest.skip('one processor')\n",
    )
    assert code == 0, said
    assert "1 passed, 3 skipped, 1 rerun" in said
    assert any(line.startswith("RERUN ") for line in said.splitlines()), said
    last = "skipped: 2 tests that can run after `sudo .ci/packages`"
    assert said.splitlines()[-1] == last, said


MARKED = """
import pytest
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.endurance
def test_long(): pass
@pytest.mark.endurance
@pytest.mark.slow
def test_both(): pass
def test_other(): pass
"""


@pytest.mark.parametrize(
    ("target", "passed", "left_out"),
    [
        ("test", 1, {"slow": 2, "endurance": 2}),
        pytest.param("test-all", 2, {"slow": 1, "endurance": 2}, marks=pytest.mark.slow),
    ],
)
def test_what_a_target_leaves_out_is_told_and_counted(make_test, target, passed, left_out):
    code, said = make_test(MARKED, target=target)
    assert code == 0, said
    assert f"{passed} passed" in said
    told = re.findall("left out: ([0-9]+) tests marked ([a-z]+), which `make", said)
    assert {mark: int(count) for count, mark in told} == left_out, said


@pytest.mark.slow
def test_what_fails_twice_fails_and_other_tests_run_once(make_test):
    code, said = make_test("import processes\ndef test_fails(): assert 0\n", FAILS_FIRST)
    assert code != 0
    assert "2 failed, 1 rerun" in said


def test_helpers_that_mean_a_second_go_exist():
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    names = conftest.split("PROCESS_HELPERS = frozenset(")[1].split(")")[0]
    helpers = [word.strip('"(), \n') for word in names.split(",")]
    assert len(helpers) > 3
    assert all((ROOT / "tests" / f"{name}.py").exists() for name in helpers)


def test_long_files_exist():
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    names = re.findall('"([^"]*)"', conftest.split("LONG = (")[1].split(")")[0])
    assert len(names) > 3
    assert all((ROOT / "tests" / name).is_file() for name in names)


def test_what_a_paddle_has_not_and_the_part_name_tests():
    """`make test-part` would fail of a test that is gone; a skip of one would be lost."""
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    skips = conftest.split("PADDLE_2 = {")[1].split("NO_ONNX")[0].replace('"\n    "', "")
    part = (ROOT / "tests" / "part.txt").read_text()
    names = [*re.findall(r'"(tests/[^"]*)"', skips), *re.findall("^tests/.*", part, re.M)]
    assert len(names) > 40
    for name in names:
        path, *inside = name.partition("[")[0].split("::")
        assert list((ROOT / path).parent.glob(Path(path).name + "*")), name
        text = (ROOT / path).read_text() if inside else ""
        assert all(re.search(f"(def|class) {one}", text) for one in inside), name


def test_help_lists_the_targets():
    listed = subprocess.run(
        ["make", "help"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert {"test", "test-all", "lint", "quickstart", "bench"} <= {
        line.split()[0] for line in listed.split("\n") if line
    }


@pytest.mark.parametrize(
    ("there", "part", "why"),
    [
        ({}, "", "this is neither Debian nor Ubuntu"),
        ({"id": "echo 1000"}, "", "`sudo .ci/packages` installs them"),
        ({"id": "echo 1000"}, "arm", "`sudo .ci/packages arm` installs them"),
        ({"id": "echo 0"}, "", "apt-get could not install them"),
    ],
)
def test_packages_that_cannot_be_installed_are_told_in_a_line(tmp_path, there, part, why):
    """On a machine with nothing but these commands, whose apt-get fails."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "mkdir", "touch", "grep", "timeout"):
        (tools / name).symlink_to(shutil.which(name))
    debian = {"apt-get": "exit 1", "dpkg": "exit 1", "dpkg-query": "exit 1"} if there else {}
    for name, line in {**debian, **there}.items():
        (tools / name).write_text(f"#!{shutil.which('bash')}\n{line}\n")
        (tools / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    command = shutil.copy(ROOT / ".ci" / "packages", tmp_path / ".ci")
    words = [shutil.which("bash"), command, *filter(None, [part])]
    done = subprocess.run(words, env={"PATH": str(tools)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = "qemu-user-static" if part else "chromium"
    assert re.search(f"Tests that need .*{wanted}.* are left out: {why}", done.stderr)
    assert len(done.stderr.splitlines()) == 1 + ("apt-get" in why), done.stderr
