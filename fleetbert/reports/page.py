"""One builder of HTML reports: a page is data, sections of parts, and opens without a network.

A room says what stands in a section (texts, tiles, tables, heat maps, figures); page.html.j2 and
page.css are the only HTML and style. Consecutive parts of one kind stand beside each other.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence, Union

import jinja2
import yaml
from markupsafe import Markup

from fleetbert.core.files import replacing, writing
from fleetbert.core.quantities import number, percent
from fleetbert.reports import figures

FOLDER = Path(__file__).parent


class Text(NamedTuple):
    """A paragraph. style: "" for the text itself, "muted" for a remark, "card" for what a reader
    has to see first."""

    text: str
    style: str = ""


class Verbatim(NamedTuple):
    """Lines as they are, such as YAML."""

    text: str


class Tile(NamedTuple):
    """A headline figure."""

    title: str
    value: str
    note: str = ""


class Table(NamedTuple):
    """A row's first cell is its name. total: a last row that sums up the others. words: cells hold
    words: they begin at the left, and long ones wrap."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    total: Sequence[str] = ()
    words: bool = False


class HeatMap(NamedTuple):
    """A confusion matrix. counts: (labels, labels), a row for each true label; coloured by the
    share of the row."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]
    note: str = ""


class Figure(NamedTuple):
    title: str
    drawing: figures.Drawing
    note: str = ""


class Details(NamedTuple):
    """Parts behind a title that opens."""

    title: str
    parts: Sequence[Part]
    open: bool = False


class Section(NamedTuple):
    """Left out where it has no parts; the first may do without a title."""

    title: str
    parts: Sequence[Part]


Part = Union[Text, Verbatim, Tile, Table, HeatMap, Figure, Details]


def write(path: Path, title: str, kind: str, note: str, sections: Sequence[Section]) -> None:
    """Write the page to `path`; a reader sees the old page or the new. kind: what sort of report it
    is, in the browser's title; note: below the heading."""
    environment = jinja2.Environment(
        autoescape=True,  # labels and file names are the user's
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number, percent=percent, groups=_groups, svg=figures.svg, zip=zip
    )
    template = environment.from_string((FOLDER / "page.html.j2").read_text(encoding="utf-8"))
    html = template.render(
        css=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        title=title,
        kind=kind,
        note=note,
        sections=[section for section in sections if section.parts],
    )
    with writing(path), replacing(path) as stream:
        stream.write(html.encode("utf-8"))


def how_it_was_made(
    config: Mapping[str, Any], facts: str, of: Mapping[str, object], *others: Details
) -> Section:
    """A report's last section: the job's config, `others`, and versions or the machine under the
    title `facts`, a line each."""
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    lines = "\n".join(f"{name} {value}" for name, value in of.items())
    parts = [Details("Config", [Verbatim(text)]), *others]
    return Section("How it was made", [*parts, Details(facts, [Verbatim(lines)], open=True)])


def _groups(parts: Sequence[Part]) -> Iterator[tuple[str, list[Part]]]:
    """Consecutive parts that stand beside each other, with the name of their kind; tables and heat
    maps are of one kind."""

    def kind(part: Part) -> str:
        return "Table" if isinstance(part, HeatMap) else type(part).__name__

    for name, group in itertools.groupby(parts, key=kind):
        yield name, list(group)
