"""What is set before Paddle is imported."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from fresh import python

import fleetbert
from fleetbert.compat import environment
from fleetbert.core import files, limits
from fleetbert.core.errors import UserError

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
        "code = 'import fleetbert.compat.prepared, os; print(os.environ[\"OMP_NUM_THREADS\"])'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
    )
    done = python(launcher, OMP_NUM_THREADS=own, PADDLE_TRAINER_ID="0" if rank else None)
    expected = str(limits.read().processors) if threads == "all" else threads
    assert done.stdout == f"{expected}\n", done.stderr


def test_what_its_libraries_import_brings_no_warning():
    """PaddleNLP imports pip, after Paddle has imported distutils."""
    done = python("import fleetbert.compat.prepared, distutils.core, pip")
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
        monkeypatch.setattr(environment, "_is_prepared", False)
        environ = dict(variables)
        monkeypatch.setattr(os, "environ", environ)
        environment.prepare()
        return environ

    return call


PREPARED = {
    "MKL_DEBUG_CPU_TYPE": "7", "MKL_DYNAMIC": "FALSE", "OMP_NUM_THREADS": "6",
    "FLAGS_use_stride_kernel": "0", "GLOG_minloglevel": "1",
}  # fmt: skip
OWN = {
    "MKL_DEBUG_CPU_TYPE": "5", "MKL_DYNAMIC": "TRUE", "OMP_NUM_THREADS": "3",
    "FLAGS_use_stride_kernel": "1", "GLOG_v": "1",
}  # fmt: skip


@pytest.mark.parametrize(("given", "found"), [({}, PREPARED), (OWN, OWN)], ids=["unset", "own"])
def test_unset_variables_are_set_and_the_users_own_kept(prepared, given, found):
    assert prepared(**given) == found


def test_where_paddle_is_there_already_nothing_is_set_and_what_is_lost_is_said_once(
    prepared, monkeypatch
):
    prepared()
    monkeypatch.setitem(sys.modules, "paddle", sys)
    monkeypatch.setattr(environment, "_is_prepared", False)
    monkeypatch.setattr(environment, "started_with", lambda *_: False)  # pytest may have been
    os.environ.clear()
    os.environ["OMP_NUM_THREADS"] = "1"  # by Paddle
    with pytest.warns(RuntimeWarning) as warned:
        environment.prepare()
        environment.prepare()
    assert os.environ == {"OMP_NUM_THREADS": "1"}
    (said,) = [str(warning.message) for warning in warned]
    for name in environment.LOST:
        assert name in said


def test_with_the_variables_set_before_the_start_paddle_may_come_first():
    wanted = {
        **environment.mkl_settings(environment.cpuinfo()),
        **environment.thread_settings({}, limits.read().processors),
        **environment.CONTIGUOUS,
    }
    code = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "sys.modules['paddle'] = sys\n"
        "import fleetbert.compat.prepared"
    )
    for variables, error in ((wanted, ""), ({}, "FLAGS_use_stride_kernel")):
        done = python(code, **{**dict.fromkeys(environment.LOST), **variables})
        assert (done.returncode == 0) == (not error), done.stderr
        assert error in done.stderr


def test_import_of_fleetbert_loads_no_library_and_changes_nothing():
    done = python(
        "import os, sys; before = dict(os.environ); loaded = set(sys.modules)\n"
        "import fleetbert; assert dict(os.environ) == before\n"
        "files = [getattr(sys.modules[n], '__file__', '') for n in set(sys.modules) - loaded]\n"
        "print([file for file in files if 'site-packages' in str(file)])"
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


ROOT = Path(fleetbert.__file__).parent
IMPORTS_PADDLE = re.compile(r"^(import|from) (paddle|paddlenlp|paddle2onnx|paddleslim)\b", re.M)
# A process that imports a module and, at its first `import paddle`, tells whether it is prepared.
TELL = """\
import importlib, os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "paddle":
            ready = "zlib" in sys.modules and os.environ.get("FLAGS_use_stride_kernel") == "0"
            os._exit(0 if ready else 3)

sys.meta_path.insert(0, Finder())
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(4)
    code = os.WEXITSTATUS(os.waitpid(child, 0)[1])
    if code:
        print(name, {3: "is not prepared", 4: "imports no paddle"}.get(code, code))
"""


def test_every_module_is_prepared_before_it_imports_paddle():
    modules = [
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for path in sorted(ROOT.rglob("*.py"))
        if IMPORTS_PADDLE.search(path.read_text(encoding="utf-8"))
    ]
    assert "fleetbert.models.task_heads" in modules
    done = python(TELL, *modules, **dict.fromkeys(environment.LOST))
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_zlib_works_beside_paddle_and_one_process_takes_all_its_processors():
    code = (
        "import fleetbert.compat.prepared, sys; assert 'paddle' not in sys.modules\n"
        "import paddle, zlib, os\n"
        "data = bytes(range(256)) * 400\n"
        "assert zlib.decompress(zlib.compress(data)) == data\n"
        "print('threads', os.environ['OMP_NUM_THREADS'])\n"
    )
    done = python(code, OMP_NUM_THREADS=None)
    assert done.returncode == 0, done.stderr
    assert f"threads {limits.read().processors}" in done.stdout


def test_what_paddle_imports_for_others_waits_until_it_is_used():
    code = (
        "from fleetbert.compat import environment\n"
        "paddle = environment.import_paddle()\n"
        "import gc, sys, threading, httpx\n"
        "print(gc.isenabled(), [n for n in ('httpx._client', 'setuptools.command.build_ext')"
        " if n in sys.modules])\n"
        "names = []\n"
        "threads = [threading.Thread(target=lambda: names.append(httpx.Client.__name__))"
        " for _ in range(2)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "print(*names)\n"
        "print(paddle.utils.cpp_extension.CppExtension.__name__, hasattr(httpx, 'lost'))\n"
    )
    done = python(code)
    assert done.stdout == "True []\nClient Client\nCppExtension False\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_pages_that_only_the_import_of_paddle_needed_are_given_back():
    code = (
        "from fleetbert.compat import environment\n"
        "environment.give_back_code, give_back = lambda: None, environment.give_back_code\n"
        "paddle = environment.import_paddle()\n"
        "def megabytes():\n"
        "    words = open('/proc/self/status').read().split()\n"
        "    return int(words[words.index('RssFile:') + 1]) / 1024\n"
        "before = megabytes(); give_back(); after = megabytes()\n"
        "assert float(paddle.ones([8, 8]).matmul(paddle.ones([8, 8])).sum()) == 512\n"
        "print(before, after)\n"
    )
    done = python(code)
    before, after = map(float, done.stdout.split())
    assert after < 0.8 * before, done.stderr  # a half on 2.6.2, and 0.72 on 3.3.1


def test_a_home_that_cannot_be_written_is_no_trouble(tmp_path):
    """As in a container with --user. Root may write anywhere but there."""
    code = (
        "from fleetbert.core import log; log.start()\n"
        "import fleetbert.compat.paddlenlp, os; print(os.environ['HOME'])\n"
    )
    unset = dict.fromkeys(("XDG_CACHE_HOME", "PPNLP_HOME"))
    done = python(code, HOME="/dev/null", TMPDIR=str(tmp_path), **unset)
    assert done.returncode == 0, done.stderr
    own = tmp_path / f"fleetbert-home-{os.getuid()}"
    assert done.stdout.split() == [str(own)]
    assert done.stderr.count("HOME: /dev/null cannot be written (") == 1
    assert own.stat().st_mode & 0o077 == 0


def test_where_nothing_can_be_written_the_variables_are_named(monkeypatch):
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(UserError, match=r"HOME: /dev/null cannot be written .* set HOME or TMPDIR"):
        environment.home_settings()


def test_a_second_import_tells_why_the_first_one_failed(tmp_path):
    (tmp_path / "paddle.py").write_text("import os; os.mkdir(os.environ['HOME'] + '/once')\nlost")
    code = (
        "from fleetbert.compat import environment\n"
        "for _ in range(2):\n"
        "    try: environment.import_paddle()\n"
        "    except Exception as error: print(error)\n"
    )
    done = python(code, HOME=str(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.stdout.count("name 'lost' is not defined") == 2, done.stdout + done.stderr


def test_a_home_whose_folders_are_read_only_is_not_used(monkeypatch, tmp_path):
    """They are there, as in an image in which Paddle was imported once."""
    for name in environment.MADE_AT_IMPORT:
        (tmp_path / "home" / name).mkdir(parents=True)
    real = tempfile.TemporaryFile

    def read_only(dir):  # noqa: A002  root may write anywhere
        if tmp_path / "home" in Path(dir).parents:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(dir=dir)

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    own = tmp_path / f"fleetbert-home-{os.getuid()}"
    assert environment.home_settings()["HOME"] == str(own)


def test_a_user_without_a_home_gets_a_temporary_one(monkeypatch, tmp_path):
    """As of a uid that a container was given: no HOME, no entry in passwd."""

    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    own = tmp_path / f"fleetbert-home-{os.getuid()}"
    assert environment.home_settings() == {"HOME": str(own)}
    made = files.cached("a", lambda folder: (folder / "b").write_text("c"))
    assert (made / "b").read_text() == "c"
    assert not (tmp_path / "~").exists()


def test_a_home_of_ones_own_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert environment.home_settings() == {}


@pytest.mark.slow
def test_networks_need_no_paddlenlp_and_names_of_its_models_little_of_it():
    """Signals are left to Python, as by PaddleNLP itself."""
    code = (
        "import re, signal, sys\n"
        "from fleetbert.models import task_heads, weights\n"
        "from fleetbert.training import job\n"
        "print([name for name in sys.modules if name.startswith('paddlenlp')])\n"
        "from fleetbert.compat import paddlenlp as compat\n"
        "heavy = ('paddlenlp', 'paddlenlp.taskflow', 'pandas', 'sklearn', 'datasets', 'fastapi')\n"
        "print([name for name in (*heavy, 'jieba', 'scipy') if name in sys.modules])\n"
        "auto = compat.auto_classes()\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "caught = int(re.search('SigCgt:\\t(.*)', open('/proc/self/status').read())[1], 16)\n"
        "print([each.name for each in signal.Signals if caught >> each - 1 & 1 and each < 32])\n"
        "import paddlenlp\n"
        "print(paddlenlp.Taskflow.__name__)\n"
        "whole = paddlenlp.transformers\n"
        "print(auto == (whole.AutoTokenizer, whole.AutoModel))\n"
    )
    done = python(code)
    assert done.stdout == "[]\n[]\n[]\n['SIGINT']\nTaskflow\nTrue\n", done.stderr
