"""What several rooms test with."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny_job
from fp16sim import build
from hypothesis import HealthCheck, settings
from markupsafe import Markup
from matplotlib.figure import Figure
from tiny_bert import LABELS, VOCAB, make_network

import fleetbert.compat.prepared  # noqa: F401  before the first import of paddle
from fleetbert.compat import versions
from fleetbert.core import log
from fleetbert.reports import figures as report_figures

# What tests call directly speaks as a command does; caplog listens at the root logger.
log.start()
log.ROOT.propagate = True

# The same examples each time, and no limits of time, which a busy machine would not keep.
# HYPOTHESIS_SEARCH=1 looks for new ones.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=not os.environ.get("HYPOTHESIS_SEARCH"),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steady")

# In the background of a shell without job control Ctrl-C is ignored, and so it would be in all
# that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


TESTS = Path(__file__).parent

# Helpers that start, kill and time real processes, which a busy machine may spoil. A test of a
# module that uses one runs once more when it fails; what fails twice fails. The summary names both.
PROCESS_HELPERS = frozenset(
    ("launched", "lite_serving", "processes", "running_core", "served", "servers")
)

# Files that take long come first (`make test` keeps the order), so that no worker waits long for
# the others at the end. Those that wait more than they compute stand among others; the first of
# those that compile something spares it the others.
LONG = (
    "deploy/inference/repository/test_repository.py", "deploy/lite/test_lite_server.py",
    "deploy/inference/test_server.py", "export/test_lite.py", "doctor/test_doctor.py",
    "training/test_tasks.py", "examples/test_examples.py", "training/test_parameter_server.py",
    "training/test_two_ranks.py", "training/test_precision.py", "launch/test_ranks.py",
    "launch/test_launcher.py", "launch/test_train.py", "deploy/inference/workers/test_starts.py",
    "deploy/inference/test_answers.py", "deploy/inference/test_huge_texts.py",
    "compression/test_command.py", "compression/test_distill.py", "compression/test_early_exit.py",
    "api/test_api.py", "training/test_full_disk.py", "training/test_reader.py",
    "training/test_ctr.py", "data/test_cache.py", "deploy/lite/test_early_exit.py",
    "export/test_imported.py",
    "deploy/inference/protocol/test_slow_clients.py",
)  # fmt: skip


# What Paddle 3 has not, by the beginning of tests' names; they are skipped there.
PADDLE_2 = {
    "tests/export/test_lite": "Paddle Lite",
    "tests/deploy/lite/": "Paddle Lite",
    "tests/deploy/test_cpp": "a library that C++ programs link with",
    "tests/engines/test_lite": "Paddle Lite",
    "tests/examples/test_examples.py::test_bert_in_two_ranks_as_a_static_graph": "Fleet's programs",
    "tests/examples/test_examples.py::test_wide_and_deep": "clicks",
    "tests/examples/test_images.py::test_two_ranks_have_the_losses_of_one": "Fleet's programs",
    "tests/launch/test_launcher": "the parameter server",
    "tests/cli/test_cli.py::test_options_of_another_format_are_refused": "Paddle Lite",
    "tests/scoring/test_clusters": "the workers of .venv-cluster",
    "tests/training/test_ctr": "clicks",
    "tests/training/test_parameter_server": "the parameter server",
    "tests/training/test_sparse_table": "clicks",
}
# What paddle2onnx makes the models of, which has no wheel for Python 3.13.
ONNX = (
    "tests/bench/test_infer.py::test_all_variants_answer_alike",
    "tests/compression/test_activations.py::test_onnx_computes_the_formulas",
    "tests/compression/test_onnx",
    "tests/compression/test_selection.py::test_nothing_is_chosen_on_the_gates_texts",
    "tests/export/test_onnx",
    "tests/deploy/inference/repository/test_repository.py::test_auto_takes_the_fastest_that_can",
    "tests/deploy/inference/repository/test_variants.py::test_early_exit_is_served_where_its",
    "tests/deploy/inference/workers/test_batches.py::test_a_file_that_goes_away_while_it_is"
    "_opened_is_not_the_variants_fault[model.onnx",
    "tests/engines/test_engine.py::test_a_changed_weight_is_not_served",
    "tests/engines/test_engine.py::test_onnx_answers_like_paddle",
    "tests/examples/test_examples.py::test_formats",
    "tests/export/test_embedding.py::test_vectors_are_pooled_from_a_texts_own_tokens",
    "tests/cli/test_cli.py::test_evaluate_prints_a_table_or_one_line_of_json[onnx",
    "tests/cli/test_cli.py::test_export_adds_the_variant",
)
NO_ONNX = "paddle2onnx is not installed: it has wheels for Python 3.8 to 3.12"
HAS_ONNX = importlib.util.find_spec("paddle2onnx") is not None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if item.path.parent.name == "endurance":
            item.add_marker(pytest.mark.endurance)
    places = {TESTS / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))
    for item in items:
        if versions.is_paddle_3():
            for name, what in PADDLE_2.items():
                if item.nodeid.startswith(name):
                    item.add_marker(pytest.mark.skip(reason=f"{what}: on Paddle 2.6.2 only"))
        if not HAS_ONNX and item.nodeid.startswith(ONNX):
            item.add_marker(pytest.mark.skip(reason=NO_ONNX))
        used = {
            name
            for value in vars(item.module).values()
            for name in (getattr(value, "__module__", None), getattr(value, "__name__", None))
            if isinstance(name, str)
        }
        if used & PROCESS_HELPERS:
            item.add_marker(pytest.mark.flaky(reruns=1))


# How many tests the marks of a command left out, by mark; what runs them.
left_out: Counter[str] = Counter()
RUN_BY = {"slow": "make test-all", "endurance": "make endurance"}


def pytest_deselected(items) -> None:
    for item in items:
        for mark in RUN_BY:
            left_out[mark] += any(each.name == mark for each in item.iter_markers())


def pytest_sessionfinish(session) -> None:
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist's workers
        session.config.workeroutput["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    for mark, count in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        left_out[mark] = count  # each worker leaves out the same


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config) -> None:
    """Say last what was left out, and how many tests were skipped for which reason: by what command
    they can run, which a reason names in backquotes."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    for mark, count in left_out.items():
        if count:
            reporter.write_line(
                f"left out: {count} tests marked {mark}, which `{RUN_BY[mark]}` runs"
            )
    reasons: Counter[str] = Counter()
    commands: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", ()):
        reason = report.longrepr[2].replace("Skipped: ", "", 1)
        command = re.search("`([^`]+)`", reason)
        if command:
            commands[command[1]] += 1
        else:
            reasons[reason] += 1
    for reason, count in reasons.most_common():
        reporter.write_line(f"skipped: {count} tests: {reason}")
    for command, count in commands.most_common():
        reporter.write_line(f"skipped: {count} tests that can run after `{command}`")


@pytest.fixture(autouse=True)
def process_as_before():
    """What a test leaves changed does not reach the next one: how loggers speak, whether warnings
    do, who hears of signals. pytest's own handlers come and go meanwhile."""

    def own(logger: logging.Logger) -> list[logging.Handler]:
        return [each for each in logger.handlers if not is_pytests(each)]

    def is_pytests(handler: logging.Handler) -> bool:
        return type(handler).__module__.startswith("_pytest")

    named = logging.root.manager.loggerDict.items()
    found = {name: each for name, each in named if isinstance(each, logging.Logger)}
    levels = [(each, each.level) for each in (logging.root, *found.values())]
    loggers = [logging.root, *(each for name, each in found.items() if "fleetbert" in name)]
    spoke = [(each, each.propagate, each.disabled, own(each)) for each in loggers]
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    logging.captureWarnings(False)
    for logger, level in levels:
        if logger.level != level:
            logger.setLevel(level)
    for logger, propagate, disabled, handlers in spoke:
        logger.propagate, logger.disabled = propagate, disabled
        if own(logger) != handlers:
            logger.handlers[:] = [*handlers, *filter(is_pytests, logger.handlers)]
    for number, handler in heard.items():
        if signal.getsignal(number) is not handler is not None:
            signal.signal(number, handler)


def words_of(figure: Figure) -> Markup:
    """What stands in a figure, without the drawing."""
    texts = []
    for axes in figure.axes:
        texts += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        texts += axes.legend_.texts if axes.legend_ else []
    return Markup("<svg>{}</svg>").format(" ".join(text.get_text() for text in texts))


@pytest.fixture(scope="module", autouse=True)
def figures(request):
    """To draw a report takes longer than to train a tiny model or to quantize it. Modules that look
    at figures say DRAWN = True, and what is started as a process draws as ever."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "DRAWN", False):
            patch.setattr(report_figures, "svg", words_of)
        yield


@pytest.fixture(scope="session")
def tiny_vocab(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def fp16sim() -> dict[str, str]:
    """The environment of a process whose Paddle has the device fp16sim: half without a GPU."""
    reason = build.unusable()
    if reason:
        pytest.skip(reason)
    return {**os.environ, "CUSTOM_DEVICE_ROOT": str(build.build())}


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """A folder with the tables of `tiny_job.write_data`. Do not change it."""
    return tiny_job.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory) -> Path:
    """A folder of a tiny random encoder of sentences in Hugging Face format. Do not change it."""
    import tiny_bert

    folder = tmp_path_factory.mktemp("encoder") / "model"
    tiny_bert.write_encoder(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory, tiny_vocab) -> Path:
    """A bundle of a tiny random classifier with the variants float32 and, where paddle2onnx is
    installed, onnx. Do not change it."""
    from fleetbert.data.tokenizers import of_vocab
    from fleetbert.export.onnx import export_onnx
    from fleetbert.export.program import export_bundle

    path = tmp_path_factory.mktemp("tiny") / "bundle"
    export_bundle(
        path,
        make_network(),
        task="classification",
        labels=LABELS,
        max_length=64,
        tokenizer=of_vocab(tiny_vocab, True),
    )
    if HAS_ONNX:
        export_onnx(path)
    return path


@pytest.fixture(scope="session")
def fused(tmp_path_factory):
    """A tiny random classifier after Paddle's float32 passes, whose attention is two products and a
    softmax. Do not change it."""
    from fleetbert.export import program as export
    from fleetbert.graph.fuse import fuse, merge_transposes

    folder = tmp_path_factory.mktemp("float32")
    export.save_program(make_network(), folder)
    fused = fuse(folder)
    return fused._replace(program=merge_transposes(fused.program))


@pytest.fixture(scope="session")
def whole_program(tmp_path_factory) -> Path:
    """The program of a tiny random classifier."""
    from fleetbert.export import program as export

    path = tmp_path_factory.mktemp("whole")
    export.save_program(make_network(), path)
    return path


@pytest.fixture(scope="session")
def kept():
    """Two of four heads and 48 of 128 units in each of its two layers."""
    from fleetbert.compression.importance import Kept

    units = np.random.default_rng(0).permuted(np.tile(np.arange(128), (2, 1)), axis=1)
    return Kept(np.array([[0, 2], [1, 3]]), np.sort(units[:, :48], axis=1))


@pytest.fixture(scope="session")
def pruned_program(kept, tmp_path_factory) -> Path:
    """That of a classifier with only these."""
    from fleetbert.compression import prune
    from fleetbert.export import program as export

    path = tmp_path_factory.mktemp("pruned")
    export.save_program(prune.narrow(make_network(), kept), path)
    return path


@pytest.fixture
def copied_bundle(tiny_bundle, tmp_path) -> Path:
    """The tiny bundle, to be changed."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture
def edit_manifest(copied_bundle):
    """A function that changes the copied bundle's manifest: edit(lambda manifest: ...)."""

    def edit(change) -> Path:
        path = copied_bundle / "manifest.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        change(manifest)
        path.write_text(json.dumps(manifest), encoding="utf-8")
        return copied_bundle

    return edit


@pytest.fixture
def small_disk(tmp_path):
    """small_disk("128k") mounts a file system of that size, in `folder` or a new one."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = []

    def mount(size: str, folder: Path | None = None) -> Path:
        folder = folder or tmp_path / f"disk-{len(mounted)}"
        folder.mkdir(parents=True, exist_ok=True)
        if libc.mount(b"none", bytes(folder), b"tmpfs", 0, f"size={size}".encode()) != 0:
            pytest.skip("may not mount a small file system here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        assert libc.umount2(bytes(folder), 2) == 0
