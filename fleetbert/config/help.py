"""The keys of a schema as text."""

from __future__ import annotations

import yaml
from pydantic import BaseModel

from fleetbert.config.keys import fields, type_name


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


def yaml_word(value: object) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
