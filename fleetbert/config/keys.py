"""What a schema says of its keys: their names, their types, what a resumed run must keep."""

from __future__ import annotations

from typing import Any, Iterator, Literal, Mapping, Sequence, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

# Whether a resumed run must have the value of the run that it continues ("same") or not ("free").
OnResume = Literal["same", "free"]


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted name, pydantic field) of every key below `section`."""
    for name, field in section.model_fields.items():
        inner = as_section(field.annotation)
        if inner is None:
            yield prefix + name, field
        else:
            yield from fields(inner, f"{prefix}{name}.")


def as_section(annotation: object) -> type[BaseModel] | None:
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_section else None  # type: ignore[return-value]  # mypy sees no narrowing


def rule(field: FieldInfo, name: str) -> Any:
    """What `section.key` was given by this name; None of a field made without it."""
    extra = field.json_schema_extra
    return extra.get(name) if isinstance(extra, dict) else None


def on_resume(schema: type[BaseModel], name: str) -> OnResume:
    """The rule of the key with this dotted name. Of one that the schema does not have (a checkpoint
    may know others) it is that of the section it would be in."""
    section: Any = schema
    for part in name.split("."):
        field = section.model_fields.get(part)
        if field is None:
            break
        inner = as_section(field.annotation)
        if inner is None:
            return rule(field, "on_resume") or section.on_resume
        section = inner
    return section.on_resume


def flat(values: Mapping[str, object], schema: type[BaseModel] | None = None) -> dict[str, object]:
    """{"optimizer.learning_rate": 5e-5, ...} of nested values. The value of a key of `schema` stays
    whole, a mapping of labels too."""
    names = {name for name, _ in fields(schema)} if schema else set()
    return dict(_flat(values, names))


def _flat(
    values: Mapping[str, object], names: set[str], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for part, value in values.items():
        name = f"{prefix}{part}"
        if isinstance(value, Mapping) and name not in names:
            yield from _flat(value, names, f"{name}.")
        else:
            yield name, value


def split(name: str, schemas: Sequence[type[BaseModel]]) -> tuple[str, ...]:
    """The parts of a dotted name. What stands behind a key that maps labels is one label, whatever
    dots it has."""
    for schema in schemas:
        for key, field in fields(schema):
            if name.startswith(f"{key}.") and maps_labels(field.annotation):
                return (*key.split("."), name[len(key) + 1 :])
    return tuple(name.split("."))


def maps_labels(annotation: object) -> bool:
    """Whether a value of this type may be a mapping from labels (or other names that users choose)
    to plain values."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Union:
        return any(map(maps_labels, inner))
    return origin is dict and as_section(inner[1]) is None


def is_union(field: FieldInfo) -> bool:
    """Whether a key takes values of several types, besides null."""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Union else ()
    return len({*choices} - {type(None)}) > 1


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
