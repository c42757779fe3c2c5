"""What is set before Paddle is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fleetbert.compat import environment

AMD_512 = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2 avx avx2 avx512f avx512vl\n"
AMD_2 = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2 avx avx2\n"
AMD_OLD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2\n"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx avx2 avx512f\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nFeatures\t: fp asimd\n"


@pytest.mark.parametrize(
    ("cpuinfo", "kind"),
    [(AMD_512, "7"), (AMD_2, "5"), (AMD_OLD, None), (INTEL, None), (ARM, None), ("", None)],
    ids=["amd-avx512", "amd-avx2", "amd-old", "intel", "arm", "unknown"],
)
def test_mkl_is_sped_up_on_amd_only(cpuinfo, kind):
    expected = {"MKL_DEBUG_CPU_TYPE": kind, "MKL_DYNAMIC": "FALSE"} if kind else {}
    assert environment.mkl_settings(cpuinfo) == expected


@pytest.mark.parametrize(
    ("local", "cpus", "threads"),
    [(None, 8, "8"), ("", 8, "8"), ("1", 8, "8"), ("2", 8, "4"), ("3", 8, "2"), ("4", 2, "1")],
)
def test_ranks_share_the_processors(local, cpus, threads):
    environ = {} if local is None else {"PADDLE_LOCAL_SIZE": local}
    assert environment.thread_settings(environ, cpus)["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("current", "endpoints", "ranks"),
    [
        ("127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", 3),
        ("10.0.0.2:1", "10.0.0.1:1,10.0.0.1:2,10.0.0.1:3,10.0.0.2:1,10.0.0.2:2", 2),
        ("10.0.0.2:1", "", 1),
    ],
)
def test_ranks_on_other_machines_do_not_count(current, endpoints, ranks):
    environ = {"PADDLE_CURRENT_ENDPOINT": current, "PADDLE_TRAINER_ENDPOINTS": endpoints}
    assert environment.local_ranks(environ) == ranks


@pytest.mark.parametrize(
    ("rank", "own", "threads"),
    [(True, None, "all"), (True, "1", "1"), (False, None, "1"), (False, "1", "1")],
)
def test_what_the_launcher_sets_is_not_the_users_wish(rank, own, threads):
    """A rank whose parent, like the launcher, came to have OMP_NUM_THREADS=1 by itself."""
    launcher = (
        "import os, subprocess, sys\n"
        "os.environ['OMP_NUM_THREADS'] = '1'\n"
        "code = 'import fleetbert, os; print(os.environ[\"OMP_NUM_THREADS\"])'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environ.update({"PADDLE_TRAINER_ID": "0"} if rank else {})
    environ.update({"OMP_NUM_THREADS": own} if own else {})
    done = subprocess.run(
        [sys.executable, "-c", launcher], capture_output=True, text=True, env=environ
    )
    expected = str(len(os.sched_getaffinity(0))) if threads == "all" else threads
    assert done.stdout == f"{expected}\n", done.stderr


def test_what_its_libraries_import_brings_no_warning():
    """PaddleNLP imports pip, after Paddle has imported distutils."""
    done = subprocess.run(
        [sys.executable, "-c", "import fleetbert, distutils.core, pip"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def prepared(monkeypatch):
    """prepared(**variables) → the environment after `prepare` on an AMD with 6 processors."""

    def call(**variables: str) -> dict[str, str]:
        monkeypatch.setattr(environment, "keep_large_blocks", lambda: None)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
        monkeypatch.setattr(environment.Path, "exists", lambda path: True)
        monkeypatch.setattr(environment.Path, "read_text", lambda path, **_: AMD_512)
        monkeypatch.delitem(sys.modules, "paddle", raising=False)
        environ = dict(variables)
        monkeypatch.setattr(os, "environ", environ)
        environment.prepare()
        return environ

    return call


def test_unset_variables_are_set(prepared):
    assert prepared() == {
        "MKL_DEBUG_CPU_TYPE": "7",
        "MKL_DYNAMIC": "FALSE",
        "OMP_NUM_THREADS": "6",
        "FLAGS_use_stride_kernel": "0",
    }


def test_the_users_own_values_are_kept(prepared):
    own = {
        "MKL_DEBUG_CPU_TYPE": "5",
        "MKL_DYNAMIC": "TRUE",
        "OMP_NUM_THREADS": "3",
        "FLAGS_use_stride_kernel": "1",
    }
    assert prepared(**own) == own


def test_nothing_is_set_once_paddle_is_there(prepared, monkeypatch):
    import paddle

    prepared()
    monkeypatch.setitem(sys.modules, "paddle", paddle)
    os.environ.clear()
    environment.prepare()
    assert os.environ == {}


@pytest.fixture(scope="module")
def fresh_process():
    """What a process says in which fleetbert comes before paddle, and zlib after both."""
    code = (
        "import fleetbert, sys; assert 'paddle' not in sys.modules\n"
        "import paddle, zlib, os\n"
        "data = bytes(range(256)) * 400\n"
        "assert zlib.decompress(zlib.compress(data)) == data\n"
        "print('threads', os.environ['OMP_NUM_THREADS'])\n"
    )
    variables = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS",)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables
    )


def test_zlib_works_beside_paddle(fresh_process):
    assert fresh_process.returncode == 0, fresh_process.stderr


def test_one_process_takes_all_its_processors(fresh_process):
    assert f"threads {len(os.sched_getaffinity(0))}" in fresh_process.stdout
