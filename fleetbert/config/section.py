"""What every section of every schema is made of."""

from __future__ import annotations

import os
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from fleetbert.config.help import type_name


def key(default: Any, text: str, **limits: Any) -> Any:
    """One key of the schema: its default and what it means (shown by --help)."""
    return Field(default, description=text, **limits)


def below_home(text: str) -> str:
    """A path whose `~` is the user's home, as in a shell, which leaves it alone behind key=."""
    return os.path.expanduser(text)  # noqa: PTH111  a text, perhaps no path


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would take for something else, and the system not at all."""
        kind = type_name(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and kind.split(" ")[0] in ("int", "float"):
            raise PydanticCustomError("bool", "Input should be a number")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise PydanticCustomError("text", "Input should hold no NUL and no half character")
        if not isinstance(value, str):
            return value
        path = below_home(value)
        if path.split("/")[0] == "~":
            raise PydanticCustomError(
                "home", "Input should name the whole path: ~ has no home here"
            )
        return path
