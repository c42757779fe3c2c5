"""The pages for people and for Prometheus: as a browser without a network sees them."""

from __future__ import annotations

import json
import shutil

import fake_core
import pytest
import requests
from browser import Browser
from prometheus_client.parser import text_string_to_metric_families
from served import REAL, ask, serving, settings_of

from fleetbert.engines import answer as answers

TEXT = "word1 word2 字3"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("fake")) as served:
        yield served


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("browser"))
    try:
        yield opened
    finally:
        opened.close()


def samples(url):
    """{(name, labels): value} of /metrics."""
    reply = requests.get(f"{url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=1.0.0;q=0.8", "application/openmetrics-text"),
        ("*/*", "text/plain; version=0.0.4"),
    ],
)
def test_metrics_come_as_the_scraper_accepts(server, accept, kind):
    reply = requests.get(f"{server.http}/metrics", headers={"accept": accept})
    assert reply.headers["content-type"].startswith(kind)
    assert reply.text.endswith("# EOF\n") is ("openmetrics" in kind)


def test_metrics_count_requests_and_processes(server):
    def count(code):
        labels = {"code": code, "model": "sst" if code == "200" else "", "protocol": "http"}
        labels["version"] = "2" if code == "200" else ""
        return samples(server.http).get(("fleetbert_requests_total", *sorted(labels.items())), 0)

    before = count("200"), count("404")
    assert ask(server.http, "good").status_code == 200
    assert ask(server.http, "good", model="none").status_code == 404
    assert (count("200"), count("404")) == (before[0] + 1, before[1] + 1)
    found = samples(server.http)
    assert found["fleetbert_resident_bytes", ("role", "listen")] > 1e6
    assert found["fleetbert_cpu_seconds", ("role", "listen")] > 0
    assert found["fleetbert_processes", ("role", "listen")] == 1


def test_status_has_models_and_totals(server):
    ask(server.http, "good")  # there are no latencies before the first
    before = requests.get(f"{server.http}/status").json()
    ask(server.http, "good")
    after = requests.get(f"{server.http}/status").json()
    assert sum(after["requests"].values()) == sum(before["requests"].values()) + 1
    assert after["latency"][-1] == [None, before["latency"][-1][1] + 1]
    assert after["time"] > before["time"] and after["ready"] is True
    versions = {model["name"]: model["versions"] for model in after["models"]}
    assert [version["state"] for version in versions["sst"]] == ["READY", "READY", "LOADING"]
    assert versions["sst"][0]["aliases"] == ["stable"]


@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/docs"])
def test_pages_are_for_reading(server, path):
    reply = requests.post(server.http + path)
    assert reply.status_code == 405
    assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert "use GET" in reply.json()["error"]
    heads = [requests.head(server.http + path) for _ in range(3)]
    assert all(head.status_code == 200 and head.content == b"" for head in heads)
    numbers = {head.headers["x-request-id"] for head in heads}
    assert len(numbers) == 3 and not any("," in number for number in numbers)


def test_no_file_but_its_own_is_given(server):
    for path in ("/docs/", "/docs/swagger-ui.js.map", "/docs/..%2f..%2f__init__.py"):
        assert requests.get(server.http + path).status_code == 404


ID = "document.getElementById"


@pytest.mark.slow
def test_a_text_is_answered_in_a_browser(tiny_bundle, tmp_path, browser):
    shutil.copytree(tiny_bundle, tmp_path / "models" / "tiny" / "7")
    expected = answers.answer(answers.load(tiny_bundle), [TEXT])[0]
    with serving(tmp_path, *settings_of(tmp_path / "models"), command=REAL) as served:
        browser.open(f"{served.http}/")
        browser.wait_for("document.querySelector('#model option') !== null")
        assert browser.run(f"{ID}('state').textContent") == "ready"
        assert browser.run(f"{ID}('model').value") == "tiny/versions/7"
        # nothing waits in the queue, and its axis has three numbers all the same
        axes = "document.querySelectorAll('#charts svg')"
        axis = f"[...{axes}].map((c) => [...c.querySelectorAll('text')].map((t) => t.textContent))"
        assert [found[:3] for found in browser.run(axis)][-1] == ["0", "0.5", "1"]
        browser.run("window.option = document.querySelector('#model option'); 0")
        browser.run(f"{ID}('text').value = {TEXT!r}")
        browser.run(f"{ID}('ask').click()")
        browser.wait_for(f"!{ID}('answer').hidden")
        assert browser.run(f"{ID}('label').textContent") == expected.label
        best = max(expected.scores.values())
        assert f"{100 * best:.2f} %" in browser.run(f"{ID}('scores').innerText")
        assert "after layer 2 of 2" in browser.run(f"{ID}('how').textContent")
        # Counts change; the list of models, which may be open, stays.
        browser.wait_for(f"{ID}('models').innerText.includes(', 1 texts answered')")
        assert browser.run("document.querySelector('#model option') === window.option")
        table = browser.run("document.querySelector('tr.chosen').innerText")
        assert table.startswith("float32")
        for _ in range(5):
            ask(served.http, TEXT, model="tiny")
        # the answers arrive in the figures, and a line is drawn
        browser.wait_for("document.querySelectorAll('svg path.c0').length >= 3")
        browser.check(served.http)


def test_a_link_may_bring_a_text_and_markup_stays_text(server, browser):
    browser.open(f"{server.http}/?model=sst&text=good+%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
    browser.wait_for(f"!{ID}('answer').hidden")
    assert "<img" in browser.run(f"{ID}('text').value")
    assert browser.run("document.images.length") == 0
    browser.check(server.http)


@pytest.mark.slow
def test_answers_of_all_kinds_are_shown(server, browser):
    """Characters beyond JavaScript's units, and markup in a text, which stays text."""
    browser.open(f"{server.http}/")
    browser.wait_for("document.querySelector('#model option') !== null")
    # tags in colour
    text = "\U0001f600 Ann Lee of <b>Oslo</b> met Bo"
    kinds = {"Ann Lee": "per", "Oslo": "loc", "Bo": "per"}
    spans = [
        {"start": text.index(own), "end": text.index(own) + len(own), "kind": kind, "score": 0.9}
        for own, kind in kinds.items()
    ]
    found = {"outputs": [{"name": "spans", "data": [json.dumps(spans)]}]}
    browser.run(f"showAnswer({json.dumps(found)}, 5, {json.dumps(text)}); 0")
    shown = browser.run(
        "[...document.querySelectorAll('#spans mark')].map((m) => [m.firstChild.textContent,"
        " m.lastChild.textContent, getComputedStyle(m).backgroundColor])"
    )
    assert [one[:2] for one in shown] == [list(one) for one in kinds.items()]
    colours = [one[2] for one in shown]
    assert colours[0] == colours[2] != colours[1] and "rgba(0, 0, 0, 0)" not in colours
    assert browser.run("document.querySelectorAll('#spans b').length") == 0
    # labels with bars
    labels = ["negative", "positive", "无"]  # of the model that is chosen
    found = {"outputs": [{"name": "labels", "data": [json.dumps(labels[1:])]},
                         {"name": "scores", "data": [0.1, 0.9, 0.6]}]}  # fmt: skip
    browser.run(f"{ID}('model').value = 'sst/versions/2'; 0")
    browser.run(f"showAnswer({json.dumps(found)}, 5, 'good'); 0")
    assert browser.run(f"{ID}('spans').hidden") is True
    assert browser.run(f"{ID}('label').textContent") == "positive, 无"
    rows = browser.run(
        "[...document.querySelectorAll('#scores tr')].map((r) => [r.cells[0].textContent,"
        " r.querySelector('.bar div').style.width])"
    )
    assert rows == [["positive", "90%"], ["无", "60%"], ["negative", "10%"]]
    # two texts are compared by their vectors
    browser.run(f"{ID}('model').value = 'vectors/versions/1'; {ID}('answer').hidden = true; 0")
    browser.run(f"{ID}('model').dispatchEvent(new Event('change')); 0")
    assert browser.run(f"{ID}('pair').hidden") is False
    browser.run(f"{ID}('text').value = 'good'; {ID}('text-pair').value = 'bad'; 0")
    browser.run(f"{ID}('ask').click()")
    browser.wait_for(f"!{ID}('answer').hidden")
    one, other = fake_core.vectors_of(["good", "bad"])
    assert browser.run(f"{ID}('label').textContent") == f"similarity {one @ other:.4f}"
    # only a version that fails is red
    states = ("READY", "QUEUED", "REPLACED", "UNLOADED", "UNAVAILABLE")
    told = {"reason": "why", "aliases": [], "variants": [], "labels": ["a"], "outputs": []}
    versions = [{"version": str(n), "state": state, **told} for n, state in enumerate(states)]
    show = f"showModels([{{name: 'one', versions: {json.dumps(versions)}}}])"
    shown = "[...document.querySelectorAll('#models :is(.pill, .reason)')].map((e) => e.className)"
    tones = ["pill good", "pill busy", "pill ", "pill ", "pill bad", "reason"]
    assert browser.run(f"({show}, {shown})") == tones
    browser.check(server.http)


@pytest.mark.slow
def test_the_calls_are_shown_without_a_network(server, browser):
    browser.open(f"{server.http}/docs")
    browser.wait_for("document.querySelectorAll('.opblock').length >= 10")
    shown = browser.run("document.body.innerText").replace("\u200b", "")
    assert "/v2/models/{model}/infer" in shown
    browser.check(server.http)
