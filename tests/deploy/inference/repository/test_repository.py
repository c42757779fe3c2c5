"""Versions on disk: which are served, how they take over, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from prometheus_client import generate_latest
from running_core import RunningCore, command, gather, gone, sample, wait_for
from tiny_bert import LABELS, make_network

from fleetbert import files
from fleetbert.data.tokenizers import of_vocab
from fleetbert.deploy.inference.messages import Failure, Reason, Request, State
from fleetbert.deploy.inference.ops import metrics, observe
from fleetbert.deploy.inference.repository import index, loading, repository
from fleetbert.deploy.inference.repository.repository import select
from fleetbert.deploy.inference.settings import Policy
from fleetbert.deploy.inference.workers import pool, priority, process

MODEL = "tiny"
TEXTS = [f"word{number} word{number + 1} word{3 * number}" for number in range(12)]


@pytest.fixture(scope="module")
def other_bundle(tiny_vocab, tmp_path_factory) -> Path:
    """A bundle like `tiny_bundle` with other weights. Do not change it."""
    from fleetbert.export.program import export_bundle

    path = tmp_path_factory.mktemp("other") / "bundle"
    export_bundle(
        path,
        make_network(seed=2),
        task="classification",
        labels=LABELS,
        max_length=64,
        tokenizer=of_vocab(tiny_vocab, True),
    )
    return path


@pytest.fixture
def models(tmp_path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def start(models):
    """A function that starts a core over `models`: start({"latest": 1}, stable=2, ...)."""
    running = []

    def begin(versions=None, wait=True, **aliases) -> RunningCore:
        models.mkdir(exist_ok=True)
        policy = {"versions": versions or {"latest": 1}, "aliases": aliases}
        core = RunningCore(
            {
                "repository": {
                    "path": str(models),
                    "poll_seconds": 0.05,
                    "default": {**policy, "variant": "float32"},
                },
                "engine": {"workers": 1, "threads": 1},
                "batching": {"timeout_ms": 120_000},
            }
        )
        running.append(core)
        if wait:
            core.wait_until_ready()
        return core

    yield begin
    for core in running:
        core.close()


def put(bundle: Path, models: Path, version: int | str, model: str = MODEL) -> Path:
    """Copy a bundle to a version's place as a careful operator does, in one rename."""
    (models / model).mkdir(parents=True, exist_ok=True)
    temporary = models / model / f".{version}.copying"
    shutil.copytree(bundle, temporary)
    return temporary.rename(models / model / str(version))


def states(core: RunningCore, model: str = MODEL) -> dict[str, State]:
    """Each version's state; empty while the model is unknown."""
    try:
        return {v.version: v.state for v in core.do(core.repository.versions, model)}
    except Failure as failure:
        assert failure.reason is Reason.NOT_FOUND
        return {}


def reason(core: RunningCore, version: str) -> str:
    """Why a version does not answer; empty while it is not known."""
    try:
        found = core.do(core.repository.versions, MODEL)
    except Failure:
        return ""
    return "".join(one.reason for one in found if one.version == version)


def refused() -> float:
    return sample("fleetbert_loads_total", model=MODEL, outcome="refused")


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


def test_a_new_version_takes_over_under_load_and_nothing_fails(
    tiny_bundle, other_bundle, models, start
):
    put(tiny_bundle, models, 1)
    core = start()
    [old_worker] = core.workers(MODEL)
    expected = {"1": core.ask(model=MODEL, texts=TEXTS).outputs["logits"]}
    seen = []

    async def keep_asking():
        while len(seen) < 20 or [v for v, _ in seen[-20:]].count("2") < 20:
            reply = await core.answer(Request(MODEL, texts=TEXTS))
            seen.append((reply.version, reply.outputs["logits"]))
            await asyncio.sleep(0.1)  # the processors are needed for loading, which comes last

    async def ask_with_many():
        return await gather(*(keep_asking() for _ in range(4)))

    load = core.submit(ask_with_many())
    wait_for(lambda: len(seen) > 50, "load")
    put(other_bundle, models, 2)
    assert load.result(120) == [None] * 4
    expected["2"] = core.ask(model=MODEL, texts=TEXTS).outputs["logits"]
    assert np.abs(expected["1"] - expected["2"]).max() > 0.1
    for version, logits in seen:
        np.testing.assert_allclose(logits, expected[version], atol=1e-4)
    assert {version for version, _ in seen} == {"1", "2"}
    wait_for(lambda: gone(old_worker), "the old worker's end")
    assert states(core) == {"1": State.UNAVAILABLE, "2": State.READY}
    # The old one comes back when the new one is taken away.
    shutil.rmtree(models / MODEL / "2")
    wait_for(lambda: states(core) == {"1": State.READY}, "the old version")
    np.testing.assert_allclose(
        core.ask(model=MODEL, texts=TEXTS).outputs["logits"], expected["1"], atol=1e-4
    )


@pytest.mark.skipif(not priority.may_return(), reason="this user may not raise a priority again")
def test_what_loads_beside_another_version_begins_where_processors_are_idle(
    tiny_bundle, models, start, monkeypatch
):
    ask, found = pool.Worker.ask, {}

    async def note(self, frame, timeout):
        found.setdefault(self.process.pid, os.sched_getscheduler(self.process.pid))
        return await ask(self, frame, timeout)

    monkeypatch.setattr(pool.Worker, "ask", note)
    put(tiny_bundle, models, 1)
    core = start()
    [old] = core.workers(MODEL)
    put(tiny_bundle, models, 2)
    wait_for(lambda: states(core).get("2") is State.READY, "the new version")
    [new] = core.workers(MODEL)
    assert (found[old], found[new]) == (os.SCHED_OTHER, os.SCHED_IDLE)
    usual = (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0) + process.NICENESS)
    threads = [thread.id for thread in psutil.Process(new).threads()]
    assert {(os.sched_getscheduler(t), os.getpriority(os.PRIO_PROCESS, t)) for t in threads} == {
        usual
    }


def test_a_version_that_ends_gives_its_memory_back_at_the_lowest_priority(
    tiny_bundle, models, start, monkeypatch
):
    wait, found = subprocess.Popen.wait, {}

    def note(self, timeout=None):
        found[self.pid] = os.getpriority(os.PRIO_PROCESS, self.pid)
        return wait(self, timeout)

    put(tiny_bundle, models, 1)
    core = start()
    [old] = core.workers(MODEL)
    monkeypatch.setattr(subprocess.Popen, "wait", note)
    put(tiny_bundle, models, 2)
    wait_for(lambda: old in found, "the old worker's end")
    assert found[old] == priority.LOWEST


@pytest.mark.skipif(not priority.may_return(), reason="this user may not raise a priority again")
def test_a_new_version_has_run_the_batches_that_are_usual_before_it_is_asked(
    tiny_bundle, models, start, monkeypatch
):
    pack, run = pool.frames.pack, []

    def note(head, *arrays):
        run.extend(head["batches"] if head["do"] == "open" else [])
        return pack(head, *arrays)

    put(tiny_bundle, models, 1)
    core = start()
    for texts in (5, 7, 5):
        core.ask(model=MODEL, texts=["word1 " * 12] * texts)
    monkeypatch.setattr(pool.frames, "pack", note)
    put(tiny_bundle, models, 2)
    wait_for(lambda: states(core).get("2") is State.READY, "the new version")
    assert [batch for batch in run if batch[0] > 1][:2] == [(5, 14), (7, 14)]  # safe lengths


def test_versions_of_one_vocabulary_share_a_tokenizer(tiny_bundle, models, start, monkeypatch):
    real, made = loading.tokenizers.open, []

    def make(bundle):
        made.append(bundle.root.name)
        return real(bundle)

    monkeypatch.setattr(loading.tokenizers, "open", make)
    put(tiny_bundle, models, 1)
    core = start()
    put(tiny_bundle, models, 2)
    wait_for(lambda: states(core).get("2") is State.READY, "a version of the same vocabulary")
    assert made == ["1"]
    third = put(tiny_bundle, models, ".3")  # not looked at yet
    vocab = third / "vocab.txt"
    vocab.write_text(vocab.read_text() + "another\n")
    manifest = json.loads((third / "manifest.json").read_text())
    manifest["tokenizer"]["sha256"] = files.sha256(vocab)
    (third / "manifest.json").write_text(json.dumps(manifest))
    third.rename(models / MODEL / "3")
    wait_for(lambda: states(core).get("3") is State.READY, "a version of another vocabulary")
    assert made == ["1", "3"]
    assert core.ask(model=MODEL, texts=["word1"]).version == "3"


def break_hash(bundle: Path) -> None:
    path = bundle / "float32" / "model.pdiparams"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def break_weights(bundle: Path) -> None:
    """A weight that is NaN, with a hash that fits: what a failed training leaves."""
    path = bundle / "float32" / "model.pdiparams"
    path.write_bytes(path.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    accept_weights(bundle)


def change_weights(bundle: Path) -> None:
    """Weights of another model, with a hash that fits: all workers answer alike, and wrong."""
    path = bundle / "float32" / "model.pdiparams"
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[-12:] = np.array([1.5, -2.5, 0.5], "<f4").view(np.uint8)  # the classifier's bias
    path.write_bytes(data.tobytes())
    accept_weights(bundle)


def accept_weights(bundle: Path) -> None:
    path = bundle / "float32" / "model.pdiparams"
    manifest = json.loads((bundle / "manifest.json").read_text())
    [file] = [f for f in manifest["variants"][0]["files"] if f["path"].endswith("pdiparams")]
    file["sha256"] = files.sha256(path)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def break_manifest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    path.write_bytes(path.read_bytes()[:-100])


def break_labels(bundle: Path) -> None:
    """One label more than the model has logits."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["task"]["labels"].append("one more")
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_broken_versions_are_refused_and_the_old_one_stays(tiny_bundle, models, start, tmp_path):
    put(tiny_bundle, models, 1)
    core = start()
    worker = core.workers(MODEL)
    cases = [
        (break_hash, "is not the file that was exported"),
        (break_weights, "NaN or infinity"),
        (break_manifest, "is not JSON"),
        (break_labels, "has 4 labels"),
        (change_weights, "answers its golden texts otherwise than where it was made"),
    ]
    for number, (damage, message) in enumerate(cases, 2):
        broken = Path(shutil.copytree(tiny_bundle, tmp_path / f"broken-{number}"))
        damage(broken)
        put(broken, models, number)
        wait_for(lambda: message in reason(core, str(number)), message)  # noqa: B023
        assert core.ask(model=MODEL, texts=TEXTS).version == "1"
        failure = core.failure(model=MODEL, version=str(number), texts=TEXTS)
        assert failure.reason is Reason.UNAVAILABLE
        assert message in str(failure)
    assert core.workers(MODEL) == worker
    assert core.do(core.repository.ready)
    before = refused()
    with pytest.raises(Failure, match="version 6 of model tiny is not served"):
        core.call(core.repository.load(MODEL))
    assert refused() > before  # it was tried again
    # Copied again, whole: taken up by itself.
    shutil.rmtree(models / MODEL / "4")
    put(tiny_bundle, models, 7)
    wait_for(lambda: states(core).get("7") is State.READY, "version 7")


def test_a_file_whose_name_is_no_utf8_is_told(tiny_bundle, models, start):
    """Its reason can be put into JSON and protobuf."""
    folder = put(tiny_bundle, models, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["variants"][0]["files"][0]["path"] = "float32/\udcff"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    core = start(wait=False)
    wait_for(lambda: r"\udcff" in reason(core, "1"), "the reason")
    failure = core.failure(model=MODEL, texts=TEXTS)
    assert json.dumps(str(failure), ensure_ascii=False).encode()


def test_a_worker_that_is_killed_while_it_opens_is_started_again(tiny_bundle, models, start):
    put(tiny_bundle, models, 1)
    before = refused()
    core = start(wait=False)
    first = wait_for(workers_of_this_process, "a worker")[0]
    first.kill()
    core.wait_until_ready()
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    assert first.pid not in core.workers(MODEL)
    assert refused() == before


def workers_of_this_process() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "inference.worker" in " ".join(command(child))]


def test_models_are_unloaded_and_loaded_by_request(tiny_bundle, models, start):
    put(tiny_bundle, models, 1)
    (models / MODEL / "latest").mkdir()  # no number: ignored
    (models / "not a model").mkdir()
    core = start()
    assert list(states(core)) == ["1"]
    [worker] = core.workers(MODEL)
    core.call(core.repository.unload(MODEL))
    assert gone(worker)
    assert core.failure(model=MODEL, texts=TEXTS).reason is Reason.UNAVAILABLE
    assert states(core) == {"1": State.UNAVAILABLE}
    core.call(core.repository.load(MODEL))
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    for call in (core.repository.load, core.repository.unload):
        with pytest.raises(Failure, match="no model 'other'") as failure:
            core.call(call("other"))
        assert failure.value.reason is Reason.NOT_FOUND


def test_several_versions_answer_by_number_and_alias(tiny_bundle, other_bundle, models, start):
    put(tiny_bundle, models, 3)
    (models / MODEL / "10").mkdir()
    shutil.copytree(other_bundle, models / MODEL / "10" / "bundle")
    core = start({"latest": 1}, stable=3)
    wait_for(lambda: set(states(core).values()) == {State.READY}, "both versions")
    assert list(states(core)) == ["3", "10"]  # by number
    asked = {name: core.ask(model=MODEL, version=name, texts=TEXTS) for name in ("stable", "10")}
    assert [reply.version for reply in asked.values()] == ["3", "10"]
    assert core.ask(model=MODEL, texts=TEXTS).version == "10"
    assert np.abs(asked["stable"].outputs["logits"] - asked["10"].outputs["logits"]).max() > 0.1


def test_a_version_that_is_still_being_copied_waits(tiny_bundle, models, start):
    core = start(wait=False)
    folder = models / MODEL / "1"
    folder.mkdir(parents=True)
    shutil.copy(tiny_bundle / "manifest.json", folder)  # the worst order
    wait_for(lambda: "missing" in reason(core, "1"), "a first look")
    before = refused()
    shutil.copytree(tiny_bundle, folder, dirs_exist_ok=True)
    wait_for(lambda: states(core) == {"1": State.READY}, "version 1")
    assert refused() == before


def empty(models: Path) -> None:
    """As an unmounted volume."""
    shutil.move(models / MODEL, models.parent / "away")


def rename_root(models: Path) -> None:
    models.rename(models.parent / "away")


@pytest.mark.parametrize("vanish", [empty, rename_root])
def test_a_model_that_disappears_goes_on_being_served(tiny_bundle, models, start, caplog, vanish):
    put(tiny_bundle, models, 1)
    core = start()
    [worker] = core.workers(MODEL)
    vanish(models)
    wait_for(lambda: "gone from" in caplog.text or "cannot be listed" in caplog.text, "a warning")
    time.sleep(0.3)  # several looks
    assert sum("gone from" in m or "cannot be listed" in m for m in caplog.messages) == 1
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    assert core.workers(MODEL) == [worker]
    assert states(core) == {"1": State.READY}
    assert core.do(core.repository.ready)


def test_a_model_that_was_unloaded_stays_so_when_its_folder_comes_back(tiny_bundle, models, start):
    put(tiny_bundle, models, 1)
    put(tiny_bundle, models, 1, "other")
    core = start()
    shutil.move(models / MODEL, models.parent / "away")
    time.sleep(0.3)
    with pytest.raises(Failure, match="no version on disk") as caught:
        core.call(core.repository.load(MODEL))
    assert caught.value.reason is Reason.NOT_FOUND
    core.call(core.repository.unload(MODEL))
    assert core.workers(MODEL) == []
    assert core.do(core.repository.ready)  # the other one answers
    shutil.move(models.parent / "away", models / MODEL)
    wait_for(lambda: states(core) == {"1": State.UNAVAILABLE}, "its folder")
    time.sleep(0.3)
    assert core.workers(MODEL) == []
    core.call(core.repository.load(MODEL))
    assert core.ask(model=MODEL, texts=TEXTS).version == "1"
    for name in (MODEL, "other"):
        core.call(core.repository.unload(name))
    assert not core.do(core.repository.ready)  # nothing is served


def test_a_repository_without_models_is_not_ready(tiny_bundle, models, start):
    put(tiny_bundle, models, 1, ".hidden")
    core = start(wait=False)
    time.sleep(0.3)
    assert not core.do(core.repository.ready)
    put(tiny_bundle, models, 1)
    core.wait_until_ready()


def test_what_cannot_be_read_for_a_while_keeps_its_model(tiny_bundle, models, start, monkeypatch):
    put(tiny_bundle, models, 1)
    core = start()
    [worker] = core.workers(MODEL)
    places = [".", MODEL, f"{MODEL}/1", f"{MODEL}/1/manifest.json", f"{MODEL}/1/vocab.txt"]
    methods = [("iterdir", Path.iterdir), ("stat", Path.stat), ("read_bytes", Path.read_bytes)]
    failed = set()
    for number, place, (method, real) in itertools.product(
        [errno.EACCES, errno.EIO, errno.ESTALE], places, methods
    ):

        def fail(path, *words, _told=(number, place, method), _real=real, **options):
            if path == models / _told[1]:
                failed.add(_told)
                raise OSError(_told[0], os.strerror(_told[0]), str(path))
            return _real(path, *words, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, fail)
            time.sleep(0.15)  # two looks
            assert core.ask(model=MODEL, texts=TEXTS).version == "1", (number, place, method)
            assert core.workers(MODEL) == [worker] and core.do(core.repository.ready)
    assert {told[1:] for told in failed} >= {
        (".", "iterdir"),
        (MODEL, "iterdir"),
        (MODEL, "stat"),
        (f"{MODEL}/1", "stat"),
        (f"{MODEL}/1/vocab.txt", "stat"),
    }
    time.sleep(0.2)
    assert core.workers(MODEL) == [worker]


def fail_reading(models: Path, monkeypatch, times: int) -> None:
    """The listening process, when it checks hashes."""
    failures, real = iter([errno.EIO, errno.ESTALE, errno.ENOENT] * times), files.sha256

    def read(path):
        for number in failures:
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(files, "sha256", read)


def open_another(path: Path, monkeypatch, times: int) -> None:
    """A worker opens the bundle at `path` instead, so many times."""
    pack, left = pool.frames.pack, [times]

    def send(head, *arrays):
        if head.get("do") == "open" and left[0]:
            left[0] -= 1
            head = {**head, "bundle": str(path)}
        return pack(head, *arrays)

    monkeypatch.setattr(pool.frames, "pack", send)


def fail_opening(models: Path, monkeypatch, times: int) -> None:
    """A worker, when it reads the bundle: too many symbolic links."""
    loop = models.parent / "loop"
    loop.symlink_to(loop)
    open_another(loop, monkeypatch, times)


def lose_program(models: Path, monkeypatch, times: int) -> None:
    """The repository goes away while Paddle opens the program of a bundle that was read."""
    away = models.parent / "away"
    shutil.copytree(models / MODEL / "1", away)
    (away / "float32" / "model.pdmodel").unlink()
    open_another(away, monkeypatch, times)


def end_workers(models: Path, monkeypatch, times: int) -> None:
    """As for want of memory, more often than is tried at once."""
    real, left = pool.Worker.open, [times * repository.LOAD_TRIES]

    async def open_or_end(self, *words):
        if left[0]:
            left[0] -= 1
            self.process.kill()
        return await real(self, *words)

    monkeypatch.setattr(pool.Worker, "open", open_or_end)


@pytest.mark.parametrize(
    ("fail", "poll"),
    [(fail_reading, 0), (fail_reading, 0.05), (fail_opening, 0), (lose_program, 0),
     (end_workers, 0.05)],
)  # fmt: skip
def test_what_the_machine_refuses_is_tried_again(
    tiny_bundle, models, monkeypatch, caplog, fail, poll
):
    monkeypatch.setattr(repository, "FIRST_PAUSE", 0.05)
    put(tiny_bundle, models, 1)
    fail(models, monkeypatch, 2)
    core = RunningCore(settings(models, poll_seconds=poll, default={"variant": "float32"}))
    try:
        core.wait_until_ready()
        assert core.ask(model=MODEL, texts=TEXTS).version == "1"
        pauses = [m.rsplit(" ", 2)[1] for m in caplog.messages if "tried again after" in m]
        assert pauses[:2] == ["0.05", "0.1"]
    finally:
        core.close()


def test_a_repository_that_cannot_be_listed_at_the_start_is_looked_at_again(
    tiny_bundle, models, monkeypatch
):
    monkeypatch.setattr(repository, "FIRST_PAUSE", 0.05)
    core = RunningCore(settings(models, poll_seconds=0, default={"variant": "float32"}))
    try:
        time.sleep(0.3)
        put(tiny_bundle, models, 1)  # mounted at last
        core.wait_until_ready()
    finally:
        core.close()


def test_a_refused_version_whose_times_and_sizes_stay_is_tried_again(tiny_bundle, models, start):
    folder = put(tiny_bundle, models, 1)
    path = folder / "float32" / "model.pdiparams"
    state, whole = path.stat(), path.read_bytes()
    break_hash(folder)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    core = start(wait=False)
    wait_for(lambda: "is not the file that was exported" in reason(core, "1"), "the refusal")
    before = refused()
    time.sleep(0.3)
    assert refused() == before  # what is wrong in itself is not tried again
    with path.open("r+b") as file:
        file.write(whole)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    core.wait_until_ready()


def test_load_looks_anew_where_nothing_seems_changed(
    tiny_bundle, other_bundle, models, start, monkeypatch
):
    """Some file systems of networks tell old attributes."""
    monkeypatch.setattr(index, "_sign", lambda _: ())
    folder = put(tiny_bundle, models, 1)
    core = start()
    [worker] = core.workers(MODEL)
    before = core.ask(model=MODEL, texts=TEXTS).outputs["logits"]
    core.call(core.repository.load(MODEL))
    assert core.workers(MODEL) == [worker]
    shutil.rmtree(folder / "float32")
    shutil.copytree(other_bundle, folder, dirs_exist_ok=True)
    time.sleep(0.2)
    assert core.workers(MODEL) == [worker]
    core.call(core.repository.load(MODEL))
    assert np.abs(core.ask(model=MODEL, texts=TEXTS).outputs["logits"] - before).max() > 0.1


def test_a_variant_that_the_machine_refuses_for_a_moment_is_not_left_out(
    tiny_bundle, models, monkeypatch
):
    monkeypatch.setattr(repository, "FIRST_PAUSE", 0.05)
    put(tiny_bundle, models, 1)
    fail_opening(models, monkeypatch, 1)
    core = RunningCore(settings(models, poll_seconds=0))
    try:
        core.wait_until_ready()
        speeds = [v.texts_per_s for v in core.do(core.repository.find, MODEL).variants]
        assert len(speeds) == 2 and None not in speeds
    finally:
        core.close()


def settings(models: Path, **options) -> dict:
    return {
        "repository": {"path": str(models), **options},
        "engine": {"workers": 1, "threads": 1},
    }


def test_auto_takes_the_fastest_that_can_be_trusted(tiny_bundle, models, monkeypatch):
    """Measured in a real worker; what cannot be opened, or was never compared, is left out."""
    folder = put(tiny_bundle, models, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    onnx = next(v for v in manifest["variants"] if v["name"] == "onnx")
    onnx = {name: onnx[name] for name in ("kind", "files", "runs_on")}
    unknown = {**onnx, "name": "unmeasured"}
    known = [{"data": "dev.tsv", "n": 9, "accuracy": 1.0, "float32_accuracy": 1.0}]
    broken = {**onnx, "name": "broken", "kind": "paddle-inference", "accuracy": known}
    manifest["variants"] += [unknown, broken]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    core = RunningCore(settings(models, poll_seconds=0))
    try:
        core.wait_until_ready()
        version = core.do(core.repository.find, MODEL)
        speeds = {v.name: v.texts_per_s for v in version.variants}
        assert speeds["unmeasured"] is speeds["broken"] is None
        assert version.variant == max(("float32", "onnx"), key=lambda name: speeds[name])
        assert core.ask(model=MODEL, texts=TEXTS).outputs["logits"].shape == (12, 3)
    finally:
        core.close()


def test_what_leaves_takes_nothing_more(models):
    core = RunningCore(settings(models))
    core.call(core.repository.close(0))
    assert not core.do(core.repository.ready)
    for refused in (core.repository.load, core.repository.unload):
        with pytest.raises(Failure, match="leaving"):
            core.call(refused(MODEL))
    with pytest.raises(Failure, match="leaving"):
        core.do(core.repository.find, MODEL)
    assert "leaving" in str(core.failure(model=MODEL, texts=TEXTS))
    core.close()


def series(version: str) -> list[str]:
    found = generate_latest(metrics.REGISTRY).decode().splitlines()
    return [line for line in found if f'model="{MODEL}"' in line and f'version="{version}"' in line]


def test_metrics_forget_versions_that_are_gone(tiny_bundle, models, start, monkeypatch):
    monkeypatch.setattr(repository, "TOLD_SECONDS", 0.2)
    put(tiny_bundle, models, 101)
    core = start()

    def ask(version: str) -> None:
        assert core.ask(model=MODEL, texts=TEXTS).version == version
        observe.count(observe.Done("http", MODEL, version, "200", 0.1, ""))

    ask("101")
    at_first = len(series("101"))
    put(tiny_bundle, models, 102)
    wait_for(lambda: not series("101"), "one version's series")
    ask("102")
    assert len(series("102")) == at_first > 50
    before = refused()
    broken = put(tiny_bundle, models, 104, "broken")
    break_hash(broken)
    broken.rename(models / MODEL / "104")
    wait_for(lambda: refused() > before, "the refusal")
    shutil.rmtree(models / MODEL / "102")  # 101 comes back
    wait_for(lambda: states(core).get("101") is State.READY, "the first version")
    ask("101")
    time.sleep(0.5)
    assert [line[-4:] for line in series("101") if "requests_total" in line] == [" 1.0"]
    assert len(series("101")) == at_first and not series("102") and not series("104")


def test_what_was_there_a_moment_ago_is_worth_another_try(
    tiny_bundle, models, start, monkeypatch, tmp_path
):
    """rm and cp of a version in service: clients try again at 503, not at 404."""
    put(tiny_bundle, models, 1)
    second = put(tiny_bundle, models, 2)
    core = start(old=7)
    put(tiny_bundle, models, 1, "refused")
    (models / "refused" / "1" / "vocab.txt").unlink()
    wait_for(lambda: states(core, "refused"))
    assert core.failure(model=MODEL, version="7", texts=TEXTS).reason is Reason.NOT_FOUND
    assert core.failure(model=MODEL, version="old", texts=TEXTS).reason is Reason.NOT_FOUND
    second.rename(tmp_path / "second")
    shutil.rmtree(models / "refused")
    wait_for(lambda: states(core) == {"1": State.READY})
    for words in ({"model": MODEL, "version": "2"}, {"model": "refused"}):
        failure = core.failure(**words, texts=TEXTS)
        assert failure.reason is Reason.UNAVAILABLE and failure.retry_after == 1.0
        assert "it was there a moment ago" in str(failure)
    shutil.copytree(tmp_path / "second", second)
    wait_for(lambda: states(core).get("2") is State.READY)
    assert core.ask(model=MODEL, version="2", texts=TEXTS).version == "2"
    shutil.rmtree(second)
    monkeypatch.setattr(repository, "REPLACING_SECONDS", 0.2)
    wait_for(lambda: states(core) == {"1": State.READY})
    time.sleep(0.5)
    for words in ({"model": MODEL, "version": "2"}, {"model": "refused"}):
        assert core.failure(**words, texts=TEXTS).reason is Reason.NOT_FOUND


def test_before_the_first_look_no_model_is_unknown(tiny_bundle, models, start, monkeypatch):
    put(tiny_bundle, models, 1)
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


def test_long_names_and_long_lists_are_told_short(tiny_bundle, models, start):
    put(tiny_bundle, models, 1)
    core = start()
    for number in range(30):
        (models / f"broken{number:02}" / "1").mkdir(parents=True)
    wait_for(lambda: states(core, "broken29"))
    for words in ({"model": "x" * 60_000}, {"model": MODEL, "version": "y" * 60_000}):
        failure = core.failure(**words, texts=TEXTS)
        assert failure.reason is Reason.NOT_FOUND and len(str(failure)) < 400
