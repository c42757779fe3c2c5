"""The keys of a schema as text."""

from __future__ import annotations

from typing import Iterator, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo


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


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted name, pydantic field) of every key below `section`."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def yaml_word(value: object) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True).split("\n")[0]


def type_name(annotation: object) -> str:
    """An annotation as a reader of YAML would say it: `int | null`, `list of str`, `a | b`."""
    origin, choices = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, choices))
    if origin is Union:
        null = ["null"] * (type(None) in choices)
        return " | ".join([type_name(c) for c in choices if c is not type(None)] + null)
    if origin is list:
        return f"list of {type_name(choices[0])}"
    if origin is dict:
        return f"{{{type_name(choices[0])}: {type_name(choices[1])}}}"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
