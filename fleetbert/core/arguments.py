"""Checks the arguments of public functions by their annotations."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
from numbers import Integral, Real
from typing import Any, Callable, Iterable, Mapping, NamedTuple, TypeVar, cast

from fleetbert.core.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])


class WrongArgument(UserError, TypeError):
    """An argument of the wrong type."""


class Kind(NamedTuple):
    """What an annotation accepts, and the words for it."""

    words: str
    accepts: Callable[[Any], bool]


def _is_list(value: object) -> bool:
    """Whether it has elements. A DataFrame iterates over the names of its columns."""
    is_other = isinstance(value, (str, bytes, Mapping)) or hasattr(value, "columns")
    return isinstance(value, Iterable) and not is_other


def _is_number(value: object, of: type) -> bool:
    return isinstance(value, of) and not isinstance(value, bool)


def _are_functions(values: Iterable[object]) -> bool:
    return all(map(callable, values))


def _is_table(value: object) -> bool:
    is_table = isinstance(value, (os.PathLike, Iterable)) or hasattr(value, "to_dict")
    return is_table and not isinstance(value, bytes)


# By the annotation's text, which Python 3.8 cannot evaluate.
KINDS = {
    "None": Kind("None", lambda value: value is None),
    "bool": Kind("True or False", lambda value: isinstance(value, bool)),
    "int": Kind("an integer", lambda value: _is_number(value, Integral)),
    "float": Kind("a number", lambda value: _is_number(value, Real)),
    "str": Kind("a string", lambda value: isinstance(value, str)),
    "PathLike": Kind("a path", lambda value: isinstance(value, (str, os.PathLike)) and value != ""),
    "Table": Kind("a path, a list of rows, a DataFrame or a Dataset", _is_table),
    "Iterable[str]": Kind("a list of texts", _is_list),
    "Sequence[str]": Kind("a list of names", _is_list),
    "Described": Kind("a dict of descriptions", lambda value: isinstance(value, Mapping)),
    "Sequence[str | int]": Kind("a list of labels, in the logits' order", _is_list),
    "Sequence[Callback]": Kind(
        "a list of instances of fleetbert.Callback",
        lambda values: _is_list(values) and _are_functions(getattr(v, "close", 0) for v in values),
    ),
    "Mapping[str, Metric]": Kind(
        "a dict of functions",
        lambda value: isinstance(value, Mapping) and _are_functions(value.values()),
    ),
    "Sequence[Metric]": Kind(
        "a list of functions", lambda values: _is_list(values) and _are_functions(values)
    ),
}


def checked(function: Function) -> Function:
    """Make a function refuse an argument that its annotation does not accept: WrongArgument.

    An annotation is checked if each part of its union is a Literal or among `KINDS`.
    """
    signature = inspect.signature(function)
    kinds = {name: kinds_of(of.annotation) for name, of in signature.parameters.items()}

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        try:
            arguments = signature.bind(*values, **named).arguments
        except TypeError:  # one too many or too few: the call names the function too
            arguments = {}
        for name, value in arguments.items():
            if kinds[name] and not any(kind.accepts(value) for kind in kinds[name]):
                wanted = " or ".join(kind.words for kind in kinds[name])
                is_short = value is None or isinstance(value, (str, bytes, bool, int, float))
                shown = f"{value!r:.60}" if is_short else type(value).__name__
                raise WrongArgument(f"{name}: has to be {wanted}, not {shown}")
        return function(*values, **named)

    return cast(Function, call)


def kinds_of(annotation: object) -> list[Kind]:
    """The kinds of a union; none if one of its parts is not known."""
    if not isinstance(annotation, str):  # that of self is inspect.Parameter.empty
        return []
    parts = re.split(r" \| (?![^\[]*\])", annotation)
    literals = {part for part in parts if part.startswith("Literal[")}
    if not literals.union(KINDS).issuperset(parts):
        return []
    return [_choice(part) if part in literals else KINDS[part] for part in parts]


def _choice(literal: str) -> Kind:
    choices = ast.literal_eval(literal[len("Literal") :])
    return Kind(" or ".join(map(repr, choices)), lambda value: value in choices)
