"""The keys of a schema as text."""

from __future__ import annotations

import math
import textwrap

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fleetbert.config.keys import as_section, fields, rule, type_name

WIDTH = 100  # of a line
COLUMN = 32  # where comments begin in a YAML file


def help_text(schema: type[BaseModel]) -> str:
    """Every key with its type, default and meaning, one a line."""
    rows = [
        (name, type_name(field.annotation), field.default, field.description)
        for name, field in fields(schema)
    ]
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        f"  {name:<{width}}  {meaning} ({kind}; default {yaml_word(default)})"
        for name, kind, default, meaning in rows
    )


def common_text(schema: type[BaseModel], command: str) -> str:
    """The keys that people set with a command, each with its meaning and default."""
    rows = [
        (name, f"{field.description}{_default(field)}")
        for name, field in fields(schema)
        if command in (rule(field, "common_for") or ())
    ]
    width = max(len(name) for name, _ in rows)
    lines = []
    for name, meaning in rows:
        first, *rest = textwrap.wrap(meaning, WIDTH - width - 4, break_on_hyphens=False)
        lines.append(f"  {name:<{width}}  {first}")
        lines += [f"{'':{width + 4}}{line}" for line in rest]
    return "\n".join(lines)


def yaml_text(schema: type[BaseModel], indent: int = 0) -> str:
    """A YAML file in which every key has its default, with its meaning beside it."""
    lines: list[str] = []
    for name, field in schema.model_fields.items():
        section = as_section(field.annotation)
        if section is not None:
            lines += [""] * (not indent and bool(lines))
            lines += [f"{'':{indent}}{name}:", yaml_text(section, indent + 2).rstrip("\n")]
            continue
        value = f"{'':{indent}}{name}: {yaml_word(field.default)}"
        width = WIDTH - COLUMN - len("# ")
        meaning = textwrap.wrap(str(field.description), width, break_on_hyphens=False)
        for first, line in zip([value, *[""] * len(meaning)], meaning):
            lines.append(f"{first:<{COLUMN - 2}}  # {line}")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    explained = field.default is None and "(null: " in str(field.description)
    return "" if explained else f" (default {yaml_word(field.default)})"


def yaml_word(value: object) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).split("\n")[0]
