"""Versions on disk: which are served, how they take over, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from array import array
from pathlib import Path
from typing import Callable

import light
import numpy as np
import pytest
import tiny_job
from light_worker import PARAMETERS, SINGLE_SPEEDS, SPEEDS
from prometheus_client import generate_latest
from running_core import (
    REAL_WORKER,
    RunningCore,
    gather,
    gone,
    light_workers,
    running,
    sample,
    wait_for,
    worker_processes,
)
from tiny_bert import LABELS, make_network

from fleetbert.core import files
from fleetbert.data.tokenizers import of_vocab
from fleetbert.deploy.inference.messages import Failure, Reason, Request, State
from fleetbert.deploy.inference.ops import metrics, observe
from fleetbert.deploy.inference.repository import index, loading, repository
from fleetbert.deploy.inference.repository.models import Model, Refusal, select
from fleetbert.deploy.inference.settings import Policy
from fleetbert.deploy.inference.workers import connection, frames, priority, process

MODEL = "tiny"
TEXTS = [f"word{number} word{number + 1} word{3 * number}" for number in range(12)]
KNOWN = [{"data": "dev.tsv", "n": 9, "accuracy": 1.0, "float32_accuracy": 1.0}]
POLL = 0.02
SEVERAL_LOOKS = 0.15
PRIORITIES = {"lower": priority.lower, "lowered": priority.lowered}
needs_priorities = pytest.mark.skipif(
    not priority.may_return(), reason="this user may not raise a priority again"
)


@pytest.fixture(scope="module", autouse=True)
def without_paddle():
    """Nor at low priorities: on a busy machine each version that is loaded or ends would wait."""
    with light_workers(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(priority, "lower", lambda _: None)
        patch.setattr(priority, "lowered", contextlib.nullcontext)
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Do not change it."""
    return light.make_bundle(tmp_path_factory.mktemp("light") / "bundle")


@pytest.fixture(scope="module")
def other_bundle(tmp_path_factory) -> Path:
    """A bundle with other weights. Do not change it."""
    return light.make_bundle(tmp_path_factory.mktemp("other") / "bundle", factor=2.0)


@pytest.fixture
def models(tmp_path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def start(models):
    """A function that starts a core over `models`, whose policy has these aliases."""
    with contextlib.ExitStack() as stack:

        def begin(wait=True, poll_seconds=POLL, variant="float32", **aliases) -> RunningCore:
            policy = {"variant": variant, "aliases": aliases}
            core = running(models, wait, poll_seconds=poll_seconds, default=policy)
            return stack.enter_context(core)

        yield begin


def put(bundle: Path, models: Path, version: int | str, model: str = MODEL) -> Path:
    """Copy a bundle to a version's place as a careful operator does, in one rename."""
    (models / model).mkdir(exist_ok=True)
    temporary = models / model / f".{version}.copying"
    shutil.copytree(bundle, temporary)
    return temporary.rename(models / model / str(version))


def states(core: RunningCore, model: str = MODEL) -> dict[str, State]:
    """Each version's state; empty while the model is unknown."""
    return {v.version: v.state for v in versions(core, model)}


def reason(core: RunningCore, version: str) -> str:
    """Why a version does not answer; empty while it is not known."""
    return "".join(one.reason for one in versions(core, MODEL) if one.version == version)


def versions(core: RunningCore, model: str) -> list:
    try:
        return core.do(core.repository.versions, model)
    except Failure as failure:
        assert failure.reason in (Reason.NOT_FOUND, Reason.UNAVAILABLE)
        return []


def wait_until_ready(core: RunningCore, version: str) -> None:
    wait_for(lambda: states(core).get(version) is State.READY, f"version {version}")


def refused() -> float:
    return sample("fleetbert_loads_total", model=MODEL, outcome="refused")


def edit(bundle: Path, change: Callable[[dict], object]) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, [7]),
        ({"versions": {"latest": 2}}, [7, 4]),
        ({"versions": "all"}, [7, 4, 3, 1]),
        ({"versions": [1, 4, 9]}, [4, 1]),
        ({"versions": {"latest": 1}, "aliases": {"stable": 3, "canary": 9}}, [7, 3]),
    ],
)
def test_a_policy_chooses(policy, expected):
    assert select(Policy(**policy), [1, 3, 4, 7]) == expected


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        ({"versions": "all"}, {"loading": {4}}, {1: "QUEUED", 3: "QUEUED", 4: "LOADING"}),
        ({}, {}, {1: "REPLACED", 3: "REPLACED", 4: "QUEUED"}),
        ({"versions": [3]}, {}, {1: "REPLACED", 3: "QUEUED", 4: "UNAVAILABLE"}),
        ({}, {"unloaded": True}, {1: "UNLOADED", 3: "UNLOADED", 4: "UNLOADED"}),
        ({}, {"refused": 4}, {1: "REPLACED", 3: "QUEUED", 4: "UNAVAILABLE"}),
    ],
)
def test_the_state_says_why_a_version_does_not_answer(policy, changes, expected):
    found = {number: index.VersionFolder(Path(str(number)), object(), ()) for number in (1, 3, 4)}
    number = changes.pop("refused", None)
    refused = {number: Refusal(found[number], "it is broken")} if number else {}
    model = Model("sst", Policy(**policy), True, on_disk=found, refused=refused, **changes)
    assert {number: model.state(number)[0].value for number in found} == expected


@pytest.fixture(params=["light", pytest.param("paddle", marks=pytest.mark.slow)])
def both_bundles(request, bundle, other_bundle, monkeypatch, tmp_path) -> tuple[Path, Path]:
    """Of light workers, and of real ones."""
    if request.param == "light":
        return bundle, other_bundle
    from fleetbert.export.program import export_bundle

    monkeypatch.setattr(process, "COMMAND", REAL_WORKER)
    vocab = of_vocab(request.getfixturevalue("tiny_vocab"), True)
    words = {"task": "classification", "labels": LABELS, "max_length": 64, "tokenizer": vocab}
    export_bundle(tmp_path / "other", make_network(seed=2), **words)
    return request.getfixturevalue("tiny_bundle"), tmp_path / "other"


def test_a_new_version_takes_over_under_load_and_nothing_fails(both_bundles, models, start):
    put(both_bundles[0], models, 1)
    core = start()
    [old_worker] = core.workers(MODEL)
    expected = {"1": core.ask(model=MODEL, texts=TEXTS).outputs["logits"]}
    seen = []

    async def keep_asking():
        while len(seen) < 20 or [v for v, _ in seen[-20:]].count("2") < 20:
            reply = await core.answer(Request(MODEL, texts=TEXTS))
            seen.append((reply.version, reply.outputs["logits"]))
            await asyncio.sleep(0.05)  # the processors are needed for loading, which comes last

    async def ask_with_many():
        return await gather(*(keep_asking() for _ in range(4)))

    load = core.submit(ask_with_many())
    wait_for(lambda: len(seen) > 20, "load")
    put(both_bundles[1], models, 2)
    assert load.result(120) == [None] * 4
    expected["2"] = core.ask(model=MODEL, texts=TEXTS).outputs["logits"]
    assert np.abs(expected["1"] - expected["2"]).max() > 0.1
    for version, logits in seen:
        np.testing.assert_allclose(logits, expected[version], atol=1e-4)
    assert {version for version, _ in seen} == {"1", "2"}
    wait_for(lambda: gone(old_worker), "the old worker's end")
    assert states(core) == {"1": State.REPLACED, "2": State.READY}
    # The old one comes back when the new one is taken away.
    shutil.rmtree(models / MODEL / "2")
    wait_for(lambda: states(core) == {"1": State.READY}, "the old version")
    again = core.ask(model=MODEL, texts=TEXTS).outputs["logits"]
    np.testing.assert_allclose(again, expected["1"], atol=1e-4)


@needs_priorities
def test_what_loads_and_what_ends_leaves_the_processors_to_those_who_answer(
    bundle, models, start, monkeypatch
):
    for name, real in PRIORITIES.items():
        monkeypatch.setattr(priority, name, real)
    ask, wait = connection.Worker.ask, subprocess.Popen.wait
    at_first, at_last = {}, {}

    async def note_first(self, frame, timeout):
        at_first.setdefault(self.process.pid, os.sched_getscheduler(self.process.pid))
        return await ask(self, frame, timeout)

    def note_last(self, timeout=None):
        at_last[self.pid] = os.getpriority(os.PRIO_PROCESS, self.pid)
        return wait(self, timeout)

    monkeypatch.setattr(connection.Worker, "ask", note_first)
    put(bundle, models, 1)
    core = start()
    [old] = core.workers(MODEL)
    monkeypatch.setattr(subprocess.Popen, "wait", note_last)
    put(bundle, models, 2)
    wait_for(lambda: old in at_last, "the old worker's end")
    [new] = core.workers(MODEL)
    assert (at_first[old], at_first[new]) == (os.SCHED_OTHER, os.SCHED_IDLE)
    usual = (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0) + process.NICENESS)
    assert (os.sched_getscheduler(new), os.getpriority(os.PRIO_PROCESS, new)) == usual
    assert at_last[old] == priority.LOWEST  # it gives its memory back


@needs_priorities
def test_a_new_version_has_run_the_batches_that_are_usual_before_it_is_asked(
    bundle, models, start, monkeypatch
):
    pack, run = frames.pack, []

    def note(head, *arrays):
        run.extend(head["batches"] if head["do"] == "open" else [])
        return pack(head, *arrays)

    put(bundle, models, 1)
    core = start()
    for texts in (5, 7, 5):
        core.ask(model=MODEL, texts=["word1 " * 12] * texts)
    monkeypatch.setattr(frames, "pack", note)
    put(bundle, models, 2)
    wait_until_ready(core, "2")
    assert [batch for batch in run if batch[0] > 1][:2] == [(5, 14), (7, 14)]


def test_versions_of_one_vocabulary_share_a_tokenizer(bundle, models, start, monkeypatch):
    real, made = loading.tokenizers.open, []

    def make(bundle):
        made.append(bundle.root.name)
        return real(bundle)

    monkeypatch.setattr(loading.tokenizers, "open", make)
    put(bundle, models, 1)
    core = start()
    put(bundle, models, 2)
    wait_until_ready(core, "2")
    assert made == ["1"]
    third = put(bundle, models, ".3")  # not looked at yet
    vocab = third / "vocab.txt"
    vocab.write_text(vocab.read_text() + "another\n")
    edit(third, lambda manifest: manifest["tokenizer"].update(sha256=files.sha256(vocab)))
    third.rename(models / MODEL / "3")
    wait_until_ready(core, "3")
    assert made == ["1", "3"]
    assert core.ask(model=MODEL, texts=["word1"]).version == "3"


def break_hash(bundle: Path) -> None:
    tiny_job.flip(bundle / "float32" / PARAMETERS)


def set_bias(bundle: Path, *values: float) -> None:
    """With a hash that fits, as a training leaves it that failed or was another model's."""
    path = bundle / "float32" / PARAMETERS
    path.write_bytes(path.read_bytes()[: -4 * len(values)] + array("f", values).tobytes())

    def accept(manifest):
        manifest["variants"][0]["files"][0]["sha256"] = files.sha256(path)

    edit(bundle, accept)


def break_manifest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    path.write_bytes(path.read_bytes()[:-100])


def rename_file(bundle: Path) -> None:
    """To a name that is no UTF-8."""

    def rename(manifest):
        manifest["variants"][0]["files"][0]["path"] = "float32/\udcff"

    edit(bundle, rename)


def test_broken_versions_are_refused_and_the_old_one_stays(bundle, models, start, tmp_path):
    put(bundle, models, 1)
    core = start()
    worker = core.workers(MODEL)
    cases = [
        (break_hash, "is not the file that was exported"),
        (lambda broken: set_bias(broken, np.nan), "NaN or infinity"),
        (break_manifest, "is not JSON"),
        (rename_file, r"\udcff"),
        (lambda broken: edit(broken, lambda m: m["task"]["labels"].append("4th")), "has 4 labels"),
        (
            lambda broken: set_bias(broken, 1.5, -2.5, 0.5),
            "answers its golden texts otherwise than where it was made",
        ),
        (
            lambda broken: (broken / "float32" / "alone").touch(),
            "answers a text alone and the same text among others differently",
        ),
    ]
    for number, (damage, message) in enumerate(cases, 2):
        broken = Path(shutil.copytree(bundle, tmp_path / f"broken-{number}"))
        damage(broken)
        put(broken, models, number)
        wait_for(lambda: message in reason(core, str(number)), message)  # noqa: B023
        assert core.ask(model=MODEL, texts=TEXTS).version == "1"
        failure = core.failure(model=MODEL, version=str(number), texts=TEXTS)
        assert failure.reason is Reason.UNAVAILABLE
        assert message in str(failure)
        assert json.dumps(str(failure), ensure_ascii=False).encode()  # protobuf takes it, too
    assert core.workers(MODEL) == worker
    assert core.do(core.repository.ready)
    before = refused()
    with pytest.raises(Failure, match="version 8 of model tiny is not served"):
        core.call(core.repository.load(MODEL))
    assert refused() > before  # it was tried again
    # Copied again, whole: taken up by itself.
    shutil.rmtree(models / MODEL / "4")
    put(bundle, models, 9)
    wait_until_ready(core, "9")


def test_models_are_unloaded_and_loaded_by_request(bundle, models, start):
    for name in (MODEL, "other"):
        put(bundle, models, 1, name)
    (models / MODEL / "latest").mkdir()  # no number: ignored
    (models / "not a model").mkdir()
    core = start()
    load, unload = core.repository.load, core.repository.unload
    [worker] = core.workers(MODEL)
    assert list(states(core)) == ["1"]
    away = shutil.move(models / MODEL, models.parent / "away")
    time.sleep(SEVERAL_LOOKS)
    for name, message in [(MODEL, "no version on disk"), ("nobody", "no model 'nobody'")]:
        with pytest.raises(Failure, match=message) as caught:
            core.call(load(name))
        assert caught.value.reason is Reason.NOT_FOUND
    with pytest.raises(Failure, match="no model 'nobody'"):
        core.call(unload("nobody"))
    core.call(unload(MODEL))
    assert gone(worker)
    assert core.failure(model=MODEL, texts=TEXTS).reason is Reason.UNAVAILABLE
    assert core.do(core.repository.ready)  # the other one answers
    # It stays so when its folder comes back.
    shutil.move(away, models / MODEL)
    wait_for(lambda: states(core) == {"1": State.UNLOADED}, "its folder")
    time.sleep(SEVERAL_LOOKS)
    assert core.workers(MODEL) == []
    core.call(load(MODEL))
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    for name in (MODEL, "other"):
        core.call(unload(name))
    assert not core.do(core.repository.ready)  # nothing is served


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [("mnt/models", "sst2", "sst2"), ("sst2", None, "sst2"), ("sst2/bundle", None, "sst2")],
)
def test_a_folder_that_is_a_bundle_is_one_model(
    bundle, other_bundle, tmp_path, path, name, expected
):
    folder = tmp_path / path
    shutil.copytree(bundle, folder)
    with running(folder, poll_seconds=POLL, name=name) as core:
        assert states(core, expected) == {"1": State.READY}
        before = core.ask(model=expected, texts=TEXTS).outputs["logits"]
        core.call(core.repository.unload(expected))
        core.call(core.repository.load(expected))
        shutil.rmtree(folder)
        shutil.copytree(other_bundle, folder)

        def changed() -> bool:
            logits = core.ask(model=expected, texts=TEXTS).outputs["logits"]
            return not np.array_equal(before, logits)

        wait_for(changed, "the other bundle")
        assert states(core, expected) == {"1": State.READY}


def test_several_versions_answer_by_number_and_alias(bundle, other_bundle, models, start):
    put(bundle, models, 3)
    (models / MODEL / "10").mkdir()
    shutil.copytree(other_bundle, models / MODEL / "10" / "bundle")
    core = start(stable=3)
    wait_for(lambda: set(states(core).values()) == {State.READY}, "both versions")
    assert list(states(core)) == ["3", "10"]  # by number
    for name, version, made in [("stable", "3", bundle), ("10", "10", other_bundle)]:
        reply = core.ask(model=MODEL, version=name, texts=TEXTS)
        assert reply.version == version
        np.testing.assert_allclose(reply.outputs["logits"], light.logits(made, TEXTS), atol=1e-5)
        assert core.do(core.repository.find, MODEL, name).version == version
    assert core.do(core.repository.find, MODEL, "3").aliases == ("stable",)
    assert core.ask(model=MODEL, texts=TEXTS).version == "10"


def test_a_version_that_is_still_being_copied_waits(bundle, models, start, monkeypatch, caplog):
    """And is told once where it is not whole for long."""
    core = start(wait=False)
    time.sleep(SEVERAL_LOOKS)
    assert not core.do(core.repository.ready)
    folder = models / MODEL / "1"
    folder.mkdir(parents=True)
    shutil.copy(bundle / "manifest.json", folder)  # the worst order
    wait_for(lambda: "missing" in reason(core, "1"), "a first look")
    assert "is not served" not in caplog.text
    monkeypatch.setattr(index, "INCOMPLETE_SECONDS", 0.0)
    wait_for(lambda: f"{folder} is not served: " in caplog.text, "a warning")
    time.sleep(SEVERAL_LOOKS)
    assert caplog.text.count("is not served") == 1
    before = refused()
    shutil.copytree(bundle, folder, dirs_exist_ok=True)
    wait_until_ready(core, "1")
    assert refused() == before


def empty(models: Path) -> None:
    """As an unmounted volume."""
    shutil.move(models / MODEL, models.parent / "away")


def rename_root(models: Path) -> None:
    models.rename(models.parent / "away")


@pytest.mark.parametrize("vanish", [empty, rename_root])
def test_a_model_that_disappears_goes_on_being_served(bundle, models, start, caplog, vanish):
    put(bundle, models, 1)
    core = start()
    [worker] = core.workers(MODEL)
    vanish(models)
    wait_for(lambda: "gone from" in caplog.text or "cannot be listed" in caplog.text, "a warning")
    time.sleep(SEVERAL_LOOKS)
    assert sum("gone from" in m or "cannot be listed" in m for m in caplog.messages) == 1
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    assert core.workers(MODEL) == [worker]
    assert states(core) == {"1": State.READY}
    assert core.do(core.repository.ready)


def test_what_cannot_be_read_for_a_while_keeps_its_model(bundle, models, start, monkeypatch):
    put(bundle, models, 1)
    core = start()
    [worker] = core.workers(MODEL)
    places = [".", MODEL, f"{MODEL}/1", f"{MODEL}/1/manifest.json", f"{MODEL}/1/vocab.txt"]
    methods = [("iterdir", Path.iterdir), ("stat", Path.stat), ("read_bytes", Path.read_bytes)]
    numbers = itertools.cycle([errno.EACCES, errno.EIO, errno.ESTALE])
    failed = set()
    for (place, (method, real)), number in zip(itertools.product(places, methods), numbers):

        def fail(path, *words, _told=(place, method), _real=real, _number=number, **options):
            if path == models / _told[0]:
                failed.add(_told)
                raise OSError(_number, os.strerror(_number), str(path))
            return _real(path, *words, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, fail)
            time.sleep(3 * POLL)
            assert core.ask(model=MODEL, texts=TEXTS).version == "1", (place, method)
            assert core.workers(MODEL) == [worker] and core.do(core.repository.ready)
    assert failed >= {
        (".", "iterdir"),
        (MODEL, "iterdir"),
        (MODEL, "stat"),
        (f"{MODEL}/1", "stat"),
        (f"{MODEL}/1/vocab.txt", "stat"),
    }
    time.sleep(SEVERAL_LOOKS)
    assert core.workers(MODEL) == [worker]


def fail_reading(models: Path, monkeypatch) -> None:
    """The listening process, when it checks hashes."""
    failures, real = iter([errno.EIO, errno.ESTALE, errno.ENOENT]), files.sha256

    def read(path):
        for number in failures:
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(files, "sha256", read)


def fail_opening(models: Path, monkeypatch, times: int = 2) -> None:
    """A worker, when it reads the bundle: too many symbolic links."""
    loop = models.parent / "loop"
    loop.symlink_to(loop)
    pack, left = frames.pack, [times]

    def send(head, *arrays):
        if head.get("do") == "open" and left[0]:
            left[0] -= 1
            head = {**head, "bundle": str(loop)}
        return pack(head, *arrays)

    monkeypatch.setattr(frames, "pack", send)


def end_workers(monkeypatch, times: int) -> list[int]:
    """So many as they open something, as for want of memory; returns their process ids."""
    real, ended = connection.Worker.open, []

    async def open_or_end(self, *words):
        if len(ended) < times:
            ended.append(self.process.pid)
            self.process.kill()
        return await real(self, *words)

    monkeypatch.setattr(connection.Worker, "open", open_or_end)
    return ended


def end_more_than_are_tried_at_once(models: Path, monkeypatch) -> None:
    end_workers(monkeypatch, 2 * repository.LOAD_TRIES)


@pytest.mark.parametrize(
    ("fail", "poll"),
    [
        (fail_reading, 0),
        (fail_reading, POLL),
        (fail_opening, 0),
        (end_more_than_are_tried_at_once, POLL),
    ],
)
def test_what_the_machine_refuses_is_tried_again(
    bundle, models, start, monkeypatch, caplog, fail, poll
):
    monkeypatch.setattr(repository, "FIRST_PAUSE", 0.05)
    put(bundle, models, 1)
    fail(models, monkeypatch)
    core = start(poll_seconds=poll)
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    pauses = [m.rsplit(" ", 2)[1] for m in caplog.messages if "tried again after" in m]
    assert pauses[:2] == ["0.05", "0.1"]


def test_a_worker_that_ends_while_it_opens_is_started_again(bundle, models, start, monkeypatch):
    put(bundle, models, 1)
    before, ended = refused(), end_workers(monkeypatch, 1)
    core = start()
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    assert len(ended) == 1
    assert core.workers(MODEL) == [worker.pid for worker in worker_processes()] != ended
    assert refused() == before


def test_a_repository_that_cannot_be_listed_at_the_start_is_looked_at_again(
    bundle, models, start, monkeypatch
):
    monkeypatch.setattr(repository, "FIRST_PAUSE", 0.05)
    put(bundle, models, 1)
    away = models.rename(models.parent / "away")
    core = start(wait=False, poll_seconds=0)
    time.sleep(SEVERAL_LOOKS)
    away.rename(models)  # mounted at last
    core.wait_until_ready()


def test_a_refused_version_whose_times_and_sizes_stay_is_tried_again(bundle, models, start):
    path = put(bundle, models, 1) / "float32" / PARAMETERS
    state, whole = path.stat(), path.read_bytes()
    break_hash(models / MODEL / "1")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    core = start(wait=False)
    wait_for(lambda: "is not the file that was exported" in reason(core, "1"), "the refusal")
    before = refused()
    time.sleep(SEVERAL_LOOKS)
    assert refused() == before  # what is wrong in itself is not tried again
    with path.open("r+b") as file:
        file.write(whole)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    core.wait_until_ready()


def test_load_looks_anew_where_nothing_seems_changed(
    bundle, other_bundle, models, start, monkeypatch
):
    """Some file systems of networks tell old attributes."""
    monkeypatch.setattr(index, "_sign", lambda _: ())
    folder = put(bundle, models, 1)
    core = start()
    [worker] = core.workers(MODEL)
    core.call(core.repository.load(MODEL))
    assert core.workers(MODEL) == [worker]
    shutil.rmtree(folder / "float32")
    shutil.copytree(other_bundle, folder, dirs_exist_ok=True)
    time.sleep(SEVERAL_LOOKS)
    assert core.workers(MODEL) == [worker]
    core.call(core.repository.load(MODEL))
    found = core.ask(model=MODEL, texts=TEXTS).outputs["logits"]
    np.testing.assert_allclose(found, light.logits(other_bundle, TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("wish", "chosen", "measured"),
    [("auto", "onnx", SPEEDS), ("auto-single", "float32", SINGLE_SPEEDS)],
)
def test_the_fastest_variant_answers_though_the_machine_refuses_it_for_a_moment(
    bundle, models, start, monkeypatch, wish, chosen, measured
):
    """What cannot be opened, or was never compared, is left out."""
    monkeypatch.setattr(repository, "FIRST_PAUSE", 0.05)
    folder = put(bundle, models, 1)
    light.add_variant(folder, "onnx", accuracy=KNOWN)
    light.add_variant(folder, "unmeasured")
    light.add_variant(folder, "broken", b"no numbers", accuracy=KNOWN)
    fail_opening(models, monkeypatch, 1)
    core = start(poll_seconds=0, variant=wish)
    version = core.do(core.repository.find, MODEL)
    assert version.variant == chosen
    speeds = {one.name: one.texts_per_s for one in version.variants}
    assert speeds == {**measured, "unmeasured": None, "broken": None}


@pytest.mark.slow
def test_auto_takes_the_fastest_that_can_be_trusted(tiny_bundle, models, start, monkeypatch):
    """Measured in a real worker."""
    monkeypatch.setattr(process, "COMMAND", REAL_WORKER)
    folder = put(tiny_bundle, models, 1)

    def add_broken(manifest):
        [onnx] = [one for one in manifest["variants"] if one["name"] == "onnx"]
        broken = {name: onnx[name] for name in ("files", "runs_on")}
        broken.update(name="broken", kind="paddle-inference", accuracy=KNOWN)
        manifest["variants"].append(broken)

    edit(folder, add_broken)
    core = start(poll_seconds=0, variant="auto")
    version = core.do(core.repository.find, MODEL)
    speeds = {one.name: one.texts_per_s for one in version.variants}
    assert speeds["broken"] is None
    assert version.variant == max(("float32", "onnx"), key=lambda name: speeds[name])
    assert core.ask(model=MODEL, texts=TEXTS).outputs["logits"].shape == (12, 3)


def test_what_leaves_takes_nothing_more(start):
    core = start(wait=False)
    core.call(core.repository.close(0))
    assert not core.do(core.repository.ready)
    for refused in (core.repository.load, core.repository.unload):
        with pytest.raises(Failure, match="leaving"):
            core.call(refused(MODEL))
    with pytest.raises(Failure, match="leaving"):
        core.do(core.repository.find, MODEL)
    assert "leaving" in str(core.failure(model=MODEL, texts=TEXTS))


def series(version: str) -> list[str]:
    found = generate_latest(metrics.REGISTRY).decode().splitlines()
    return [line for line in found if f'model="{MODEL}"' in line and f'version="{version}"' in line]


def test_metrics_forget_versions_that_are_gone(bundle, models, start, monkeypatch):
    monkeypatch.setattr(repository, "TOLD_SECONDS", 0.2)
    put(bundle, models, 101)
    core = start()

    def ask(version: str) -> None:
        assert core.ask(model=MODEL, texts=TEXTS).version == version
        observe.count(observe.Done("http", MODEL, version, "200", 0.1, ""))

    ask("101")
    at_first = len(series("101"))
    put(bundle, models, 102)
    wait_for(lambda: not series("101"), "one version's series")
    ask("102")
    assert len(series("102")) == at_first > 50
    before = refused()
    broken = put(bundle, models, 104, "broken")
    break_hash(broken)
    broken.rename(models / MODEL / "104")
    wait_for(lambda: refused() > before, "the refusal")
    shutil.rmtree(models / MODEL / "102")  # 101 comes back
    wait_until_ready(core, "101")
    ask("101")
    time.sleep(0.5)
    assert [line[-4:] for line in series("101") if "requests_total" in line] == [" 1.0"]
    assert len(series("101")) == at_first and not series("102") and not series("104")


def test_what_was_there_a_moment_ago_is_worth_another_try(
    bundle, models, start, monkeypatch, tmp_path
):
    """rm and cp of a version in service: clients try again at 503, not at 404."""
    put(bundle, models, 1)
    second = put(bundle, models, 2)
    core = start(old=7)
    put(bundle, models, 1, "refused")
    (models / "refused" / "1" / "vocab.txt").unlink()
    wait_for(lambda: states(core, "refused"))
    assert core.failure(model=MODEL, version="7", texts=TEXTS).reason is Reason.NOT_FOUND
    assert core.failure(model=MODEL, version="old", texts=TEXTS).reason is Reason.NOT_FOUND
    second.rename(tmp_path / "second")
    shutil.rmtree(models / "refused")
    wait_for(lambda: states(core) == {"1": State.READY})
    vanished = ({"model": MODEL, "version": "2"}, {"model": "refused"})
    for words in vanished:
        failure = core.failure(**words, texts=TEXTS)
        assert failure.reason is Reason.UNAVAILABLE and failure.retry_after == 1.0
        assert "it was there a moment ago" in str(failure)
    shutil.copytree(tmp_path / "second", second)
    wait_until_ready(core, "2")
    assert core.ask(model=MODEL, version="2", texts=TEXTS).version == "2"
    shutil.rmtree(second)
    monkeypatch.setattr(repository, "REPLACING_SECONDS", 0.2)
    wait_for(lambda: states(core) == {"1": State.READY})
    time.sleep(0.4)
    for words in vanished:
        assert core.failure(**words, texts=TEXTS).reason is Reason.NOT_FOUND


def test_before_the_first_look_no_model_is_unknown(bundle, models, start, monkeypatch):
    put(bundle, models, 1)
    look, begun = index.Index.look, threading.Event()

    def late(*arguments):
        begun.wait(60)
        return look(*arguments)

    monkeypatch.setattr(index.Index, "look", late)
    core = start(wait=False)
    try:
        failure = core.failure(model=MODEL, texts=TEXTS)
    finally:
        begun.set()
    assert failure.reason is Reason.UNAVAILABLE and failure.retry_after == 1.0
    core.wait_until_ready()
    assert core.failure(model="nobody", texts=TEXTS).reason is Reason.NOT_FOUND


def test_long_names_and_long_lists_are_told_short(bundle, models, start):
    put(bundle, models, 1)
    for number in range(30):
        (models / f"broken{number:02}" / "1").mkdir(parents=True)
    core = start(wait=False)
    wait_until_ready(core, "1")
    for words in ({"model": "x" * 60_000}, {"model": MODEL, "version": "y" * 60_000}):
        failure = core.failure(**words, texts=TEXTS)
        assert failure.reason is Reason.NOT_FOUND and len(str(failure)) < 400
