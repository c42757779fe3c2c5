"""What every section of every schema is made of."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Optional, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from fleetbert.config.keys import OnResume, maps_labels, type_name
from fleetbert.core.files import below_home


def key(
    default: Any,
    text: str,
    *,
    common_for: Sequence[str] = (),
    on_resume: Optional[OnResume] = None,
    **limits: Any,
) -> Any:
    """One key of the schema: its default and what it means.

    common_for: commands whose --help shows it, being one that people set; --help-all shows all.
    on_resume: None: as its section has it. limits: pydantic's.
    """
    rules: JsonDict = {"common_for": list(common_for), "on_resume": on_resume}
    return Field(default, description=text, json_schema_extra=rules, **limits)


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    # For the keys that have no rule of their own. A key that nobody thought about is "same".
    on_resume: ClassVar[OnResume] = "same"

    @field_validator("*", mode="before")
    @classmethod
    def _is_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would convert, and texts that the system does not take. A text
        where a list is meant is its only entry."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and type_name(annotation).split(" ")[0] in ("int", "float"):
            raise PydanticCustomError("bool", "Input should be a number")
        if isinstance(value, dict) and maps_labels(annotation):
            return {_label(name): inner for name, inner in value.items()}
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise PydanticCustomError("text", "Input should hold no NUL and no half character")
        if not isinstance(value, str):
            return value
        path = below_home(value)
        if path.split("/")[0] == "~":
            raise PydanticCustomError(
                "home", "Input should name the whole path: ~ has no home here"
            )
        return [path] if type_name(annotation).startswith("list of ") else path


def _label(name: object) -> str:
    """A label as tables write it."""
    if isinstance(name, bool) or not isinstance(name, (str, int, float)):
        raise PydanticCustomError(
            "label",
            "Input should have those labels in quotes that YAML takes for something else "
            "(yes, no, on, off, true, null, dates)",
        )
    return str(name)
