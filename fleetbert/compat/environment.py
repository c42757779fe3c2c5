"""What a process has to set before PaddlePaddle is imported: `prepare` does.

Commands call it first; the packages whose modules import Paddle import `compat.prepared`.

Everything here works around the native libraries inside the paddlepaddle 2.6.2 wheel.
Variables that the user has set are never changed, but for a HOME that cannot be written.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import platform
import signal
import site
import sys
import tempfile
import warnings
import zlib  # noqa: F401  libpaddle 2.6.2 exports its own zlib symbols: Python's must load first
from pathlib import Path
from types import ModuleType
from typing import MutableMapping

import fleetbert
from fleetbert.compat import deferred, signals, versions
from fleetbert.core import files, limits
from fleetbert.core.errors import UserError

log = logging.getLogger(__name__)


def mkl_settings(processors: str) -> dict[str, str]:
    """Variables that give Paddle's bundled MKL its fast path on AMD processors.

    That MKL chooses its kernels by vendor and takes a slow path on AMD (a 2048-cube matmul:
    62 GFLOP/s, with these variables 320). `processors` is what `cpuinfo` gives; on any other
    processor nothing is set.
    """
    if "AuthenticAMD" not in processors:
        return {}
    flags = next((line for line in processors.splitlines() if line.startswith("flags")), "").split()
    kind = "7" if "avx512f" in flags else "5" if "avx2" in flags else None
    return {"MKL_DEBUG_CPU_TYPE": kind, "MKL_DYNAMIC": "FALSE"} if kind else {}


def thread_settings(environ: MutableMapping[str, str], cpus: int) -> dict[str, str]:
    """OMP_NUM_THREADS so that the ranks of this machine share its processors evenly.

    Paddle itself sets it to 1 where it is unset.
    """
    return {"OMP_NUM_THREADS": str(max(1, cpus // local_ranks(environ)))}


def local_ranks(environ: MutableMapping[str, str]) -> int:
    """How many ranks paddle.distributed.launch started on this machine; 1 without it."""
    if environ.get("PADDLE_LOCAL_SIZE"):
        return int(environ["PADDLE_LOCAL_SIZE"])
    # With --backend gloo another launcher runs, which does not say.
    endpoints = environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
    endpoint_here = environ.get("PADDLE_CURRENT_ENDPOINT", "")
    if environ.get("TRAINING_ROLE") == "TRAINER" and not endpoint_here:  # with servers
        endpoint_here = endpoints[int(environ.get("PADDLE_TRAINER_ID", "0"))]
    host = endpoint_here.rpartition(":")[0]
    return max(1, sum(endpoint.rpartition(":")[0] == host for endpoint in endpoints))


def set_by_launcher(name: str) -> bool:
    """Whether paddle.distributed.launch, and not the user, gave this rank the variable `name`.

    The launcher imports Paddle, which sets OMP_NUM_THREADS to 1 for all that it starts.
    """
    return "PADDLE_TRAINER_ID" in os.environ and not started_with(name, os.getppid())


def started_with(name: str, process: int) -> bool:
    """Whether process number `process` was given the variable `name` when it was started; True
    where the system does not tell."""
    try:
        given = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return True
    return any(entry.startswith(f"{name}=".encode()) for entry in given.split(b"\0"))


def keep_large_blocks(largest: int = 1 << 30, free: int = (1 << 31) - 1) -> None:
    """Tell glibc to reuse blocks of up to `largest` bytes instead of returning them to the system,
    as long as at most `free` bytes at the end of its memory are unused.

    By default each large block becomes a mapping of its own, whose pages fault in anew. Paddle
    2.6.2's CPU allocator asks malloc for every large tensor: the gradient of a 30,522 x 384
    embedding takes 31 ms so, and 3 ms with the block kept. Without bounds this is for training,
    whose shapes come again and again; who answers would rather have some memory back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    trim_threshold, mmap_threshold = -1, -3  # names of glibc's malloc.h
    mallopt(mmap_threshold, largest)
    mallopt(trim_threshold, free)


def never_free(thing: object) -> None:
    """Keep an object even when Python ends, which drops what modules hold.

    Paddle 3.3.1 crashed at 3 of 100 ends of a forked process's forks, where predictors were closed.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def give_back_memory() -> None:
    """Give the pages of all free blocks, which `keep_large_blocks` keeps, back (glibc).

    For what allocates much between training's steps, whose blocks have other sizes.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_code(library: str = "libpaddle.so") -> None:
    """Give back the pages of a library's file that only its loading needed (Linux).

    The import of Paddle 2.6.2 reads 110 MB of it: the table of symbols, and the code that registers
    operators. Answering texts reads 20 to 25 MB of them again, from the page cache.
    """
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    for line in lines:
        addresses, access, _, _, _, *path = line.split(maxsplit=5)
        # Nothing was written to pages that cannot be: the file has all that is in them.
        if access == "r-xp" and path and Path(path[0]).name == library:
            start, end = (int(address, 16) for address in addresses.split("-"))
            dont_need = 4  # sys/mman.h
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), dont_need)


# Since 2.6 a transpose is a view, and whoever uses it copies element by element: 2.4 ms for the
# heads of 768 tokens, where a real transpose takes 0.15 ms. Training on the CPU gains 15 %.
CONTIGUOUS = {"FLAGS_use_stride_kernel": "0"}


# "New Executor is Running"; of a trainer of a parameter server four such lines after every step.
WITHOUT_CHATTER = {"GLOG_minloglevel": "1"}


# What Paddle 2.6.2 and PaddleNLP 2.8.1 make on import, and fail without.
MADE_AT_IMPORT = (
    ".cache/paddle/dataset",
    ".paddlenlp/models",
    ".paddlenlp/datasets",
    ".paddlenlp/packages",
)


def home_settings() -> dict[str, str]:
    """HOME for libraries that write into it when they are imported, where it cannot be written, as
    under `docker run --user`: a folder of this user's among the temporary ones. Else nothing.

    UserError where those cannot be written either, because of an OSError.
    """

    def make_folders(home: Path) -> None:
        for name in MADE_AT_IMPORT:
            (home / name).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=home / name).close()  # it may be there and read-only

    home = files.home()
    try:
        make_folders(home or files.NOWHERE)
        return {}
    except OSError as error:
        reason = f"{home} cannot be written ({error.strerror})" if home else "this user has none"
    try:
        other = Path(tempfile.gettempdir()) / f"fleetbert-home-{os.getuid()}"
        other.mkdir(mode=0o700, exist_ok=True)
        if other.stat().st_uid != os.getuid():  # /tmp is everyone's
            other = Path(tempfile.mkdtemp(prefix="fleetbert-home-"))
        make_folders(other)
    except OSError as error:
        raise UserError(
            f"HOME: {reason}, and Paddle and PaddleNLP keep files there; nor can a temporary "
            f"folder be written ({error.strerror or error}); set HOME or TMPDIR to one that can be"
        ) from None
    log.warning(f"HOME: {reason}; libraries keep their files in {other}")
    if home is None:
        return {"HOME": str(other)}
    # What is installed below the former one stays there, for the processes that we start too.
    return {"HOME": str(other), "PYTHONUSERBASE": site.getuserbase()}


def prepare() -> None:
    """Set the variables that are not set yet; warns, once, where paddle was imported before."""
    global _is_prepared, _import_error
    if _is_prepared:
        return
    _is_prepared = True
    threads = thread_settings(os.environ, limits.read().processors)
    values = {**mkl_settings(cpuinfo()), **threads, **CONTIGUOUS}
    if "paddle" in sys.modules:
        _tell_lost(values)
        return
    try:
        os.environ.update(home_settings())
    except UserError as error:  # a command that needs no Paddle works without these folders
        _import_error = error
    # Paddle imports distutils, and PaddleNLP 2.8.1 then pip, which brings setuptools' own.
    warnings.filterwarnings("ignore", "Setuptools is replacing distutils")
    if "GLOG_v" not in os.environ:  # of who wants to see them
        values.update(WITHOUT_CHATTER)
    for name, value in values.items():
        if name not in os.environ or set_by_launcher(name):
            os.environ[name] = value
    # scikit-learn's and joblib's imports set it to FALSE. Then libiomp5 waits for ever, in a forked
    # process, for threads that the process before had. With TRUE it does in a fork of a fork.
    os.environ.pop("KMP_INIT_AT_FORK", None)


_is_prepared = False
_import_error: Exception | None = None  # why Paddle cannot be imported

# What a process lacks whose Paddle came before the variable.
LOST = {
    "OMP_NUM_THREADS": "Paddle computes with one thread",
    "MKL_DEBUG_CPU_TYPE": "products of matrices take several times as long on this processor",
    "FLAGS_use_stride_kernel": "training on a CPU takes about a seventh longer",
}


def _tell_lost(values: dict[str, str]) -> None:
    process = os.getpid()
    late = [
        name
        for name in values
        if name in LOST
        and not (name in os.environ and started_with(name, process))
        # Paddle itself sets this one to 1.
        and (name != "OMP_NUM_THREADS" or os.environ.get(name, values[name]) != values[name])
    ]
    if late:
        words = "; ".join(f"{name}={values[name]} ({LOST[name]})" for name in late)
        warnings.warn(
            f"paddle was imported before fleetbert could prepare the process, too late for {words}."
            " Set them before Python starts, or call fleetbert.compat.environment.prepare() before"
            " `import paddle`",
            RuntimeWarning,
            stacklevel=2,
        )


def import_paddle() -> ModuleType:
    """`prepare`, then import paddle, silently; returns it.

    Paddle warns of every OMP_NUM_THREADS but 1, "if you use data parallel": that is about ranks
    that each take all processors, which `thread_settings` avoids. UserError for a version that
    nothing here was written for, and where no folder can be written. A failed import is not tried
    again: Python would tell of a "partially initialized module" then, not of the cause.
    """
    global _import_error
    versions.check()
    prepare()
    if _import_error is not None:
        raise _import_error
    output = io.StringIO()
    streams, ignored = contextlib.redirect_stderr(output), warnings.catch_warnings()
    with signals.wait_for_import(), streams, ignored, deferred.quick_import():
        warnings.simplefilter("ignore")  # a missing ccache
        try:
            import paddle  # here alone, after `prepare`
        except Exception as error:
            _import_error = error
            raise
    give_back_code()
    for line in output.getvalue().splitlines():
        if "OMP_NUM_THREADS" not in line:
            print(line, file=sys.stderr)
    module: ModuleType = paddle
    return module


def cpuinfo() -> str:
    """What Linux tells of the processors; "" elsewhere."""
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace") if path.exists() else ""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when process `parent`, which started it, ends (Linux)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended already
            os._exit(128 + signal.SIGKILL)


def machine(threads: int) -> dict[str, str | int | None]:
    """What measured figures depend on besides the engines."""
    lines = cpuinfo().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "processors": os.cpu_count(),
        "threads": threads,
        "fleetbert": fleetbert.__version__,
        "python": platform.python_version(),
    }
