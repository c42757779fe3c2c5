"""The report of an audit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.core.quantities import number
from fleetbert.labelling import confident
from fleetbert.reports import page
from fleetbert.reports.page import Section, Table, Text, Tile

if TYPE_CHECKING:
    from fleetbert.labelling.audit import Audit

MOST_ISSUES = 200  # shown
MOST_PAIRS = 30
LONGEST = 160  # characters of a text


def write_report(path: Path, job: config.Config, audit: Audit) -> None:
    examples = {example.line: example for example in audit.table.examples}
    kinds = Counter(issue.kind for issue in audit.issues)
    tiles = [Tile("texts", number(len(examples)), f"{len(audit.labels)} labels")]
    tiles += [Tile(kind, number(count), "rows") for kind, count in kinds.most_common()]
    rows = []
    for issue in audit.issues[:MOST_ISSUES]:
        example = examples.get(issue.line)
        text, label = ("", "") if example is None else (example.text_a, example.label or "")
        text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        worth = f"{issue.worth:.3f}"
        rows.append(
            [number(issue.line), issue.kind, worth, label, issue.suggestion, issue.reason, text]
        )
    columns = ["line", "what", "worth", "label", "suggestion", "reason", "text"]
    note = "worth, from 0 to 1: how much a look at the row should bring."
    if len(rows) < len(audit.issues):
        note += f" issues.tsv has all {number(len(audit.issues))}."
    page.write(
        path,
        title=str(job.data.train),
        kind="audit",
        note="the most worthwhile first; the table itself was not changed",
        sections=[
            Section("", tiles),
            Section(
                "Rows to look at",
                [Table(columns, rows, note, words=True)] if rows else [Text("None.")],
            ),
            Section("Labels", _labels(audit)),
            page.how_it_was_made(job.model_dump(mode="json"), "Machine", environment.machine(1)),
        ],
    )


def _labels(audit: Audit) -> list[page.Part]:
    """What confident learning says of each label, and of pairs of labels."""
    joint = confident.joint(audit.given, audit.probabilities)
    texts, right = joint.sum(1), np.diagonal(joint)
    share = 1 - right / np.maximum(texts, 1)
    order = np.argsort(-share, kind="stable").tolist()
    rows = [
        [audit.labels[place], number(round(texts[place])), f"{100 * share[place]:.1f} %"]
        for place in order[:MOST_PAIRS]
    ]
    outside = joint - np.diag(right)
    pairs = np.argsort(-outside, axis=None, kind="stable")[:MOST_PAIRS]
    places = [divmod(int(pair), len(audit.labels)) for pair in pairs]
    confused = [
        [audit.labels[given], audit.labels[true], number(round(outside[given, true]))]
        for given, true in places
        if outside[given, true] >= 1
    ]
    parts: list[page.Part] = [Table(["label", "texts", "probably wrong"], rows)]
    if confused:
        parts.append(Table(["given", "probably", "texts"], confused, words=True))
    return parts
