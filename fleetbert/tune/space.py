"""Which settings a search tries: `learning_rate=1e-5:1e-3:log,batch_size=16|32`."""

from __future__ import annotations

import json
from typing import Any, Dict, NamedTuple, Sequence, Union

import yaml

from fleetbert import config
from fleetbert.config.keys import fields, type_name
from fleetbert.config.names import SHORT, hint
from fleetbert.core import errors
from fleetbert.core.errors import UserError

# Keys of what trials are compared by.
OF_ALL = ("task.name", "data.dev", "trainer.best_metric", "output_dir")
FORM = "name=low:high, name=low:high:log or name=a|b|c"


class Choices(NamedTuple):
    values: Sequence[Any]


class Range(NamedTuple):
    """Both ends are in it. log: tried evenly by its logarithm."""

    low: float
    high: float
    is_integer: bool
    log: bool


Space = Dict[str, Union[Choices, Range]]


def parse(text: str, job: config.Config) -> Space:
    """The keys of a space, whole, each with what is tried. UserError for a key that there is not,
    and for values that the key does not take."""
    kinds = {name: type_name(field.annotation) for name, field in fields(config.Config)}
    space: Space = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        given, sign, values = (part.strip() for part in word.partition("="))
        name = SHORT.get(given, given)
        if not sign or not values:
            raise UserError(f"--space: {word!r} is not of the form {FORM}")
        if any(key.startswith(f"{name}.") for key in kinds):
            raise UserError(f"--space: {given} is a section; name a key of it, as {name}.KEY")
        if name in OF_ALL:
            raise UserError(
                f"--space: {name} has to be the same for all trials, or they cannot be compared; "
                "set it as a key"
            )
        if name not in kinds:
            raise UserError(f"--space: unknown key {given}{hint(given, [config.Config])}")
        if name in space:
            raise UserError(f"--space: {name} stands there twice; name it once")
        space[name] = _range(word, values, kinds[name]) if ":" in values else _choices(word, values)
    if not space:
        raise UserError(f"--space: is empty; name keys as {FORM}")
    for name, tried in space.items():
        ends = tried.values if isinstance(tried, Choices) else (tried.low, tried.high)
        for value in ends:
            with errors.renamed("argument:", "--space:"):
                of_trial(job, {name: value}, job.output_dir)
    return space


def _choices(word: str, values: str) -> Choices:
    try:
        chosen = [yaml.safe_load(value) for value in values.split("|")]
    except yaml.YAMLError:
        raise UserError(f"--space: {word!r} has a value that is not valid YAML") from None
    # YAML takes 1e-5 for a text.
    chosen = [_number(value) if isinstance(value, str) else value for value in chosen]
    if len({json.dumps(value) for value in chosen}) < 2:
        raise UserError(f"--space: {word!r} has one value; name two or more, or set it as a key")
    return Choices(chosen)


def _number(value: str) -> Any:
    try:
        return float(value)
    except ValueError:
        return value


def _range(word: str, values: str, kind: str) -> Range:
    low, high, *rest = values.split(":")
    is_integer = kind.startswith("int")
    try:
        ends = [int(end) if is_integer else float(end) for end in (low, high)]
    except ValueError:
        number = "an integer" if is_integer else "a number"
        raise UserError(f"--space: {word!r}: both ends have to be {number}") from None
    log = rest == ["log"]
    if rest and not log:
        raise UserError(f"--space: {word!r} is not of the form {FORM}")
    if not ends[0] < ends[1] or (log and ends[0] <= 0):
        more = " and above 0" if log else ""
        raise UserError(f"--space: {word!r}: the first end has to be below the second{more}")
    return Range(ends[0], ends[1], is_integer, log)


def of_trial(job: config.Config, values: dict[str, Any], folder: str) -> config.Config:
    """The job with these values of the space."""
    keys = config.flat(job.model_dump(exclude_defaults=True), config.Config)
    return config.from_keys(config.Config, {**keys, **values, "output_dir": folder})
