"""A YAML file and key=value words, or keyword arguments → a typed job."""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from pathlib import Path
from typing import (
    Any,
    Dict,
    Literal,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fleetbert.config import recipes
from fleetbert.config.distillation import Distill, SelfDistill
from fleetbert.config.help import yaml_word
from fleetbert.config.keys import fields, flat, is_union, split, type_name
from fleetbert.config.names import hint
from fleetbert.config.section import Section
from fleetbert.config.training import Config
from fleetbert.core import charset
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home

Job = TypeVar("Job", bound=Section)
Names = Tuple[str, ...]

# Where a key stands that is in no file.
COMMAND_LINE, ARGUMENT = "command line", "argument"


class Document(NamedTuple):
    """Values that are not checked yet; `places` tells where each key stands, e.g. "a.yaml, line 3".

    `name` is said of what stands nowhere.
    """

    name: str
    values: Dict[str, object]
    places: Dict[Names, str]


def load_as(schema: type[Job], path: str, overrides: Sequence[str]) -> Job:
    """The job in the YAML file `path`, changed by words `section.key=value`.

    Raises UserError that names the key, where it stands and what would be valid.
    """
    return _checked(schema, _read(path, overrides, schema))


def from_keys(schema: type[Job], keys: Mapping[str, object], path: str | None = None) -> Job:
    """The job of keys as Python has them, dotted (`{"trainer.epochs": 3}`) or nested
    (`{"trainer": {"epochs": 3}}`), which change the YAML file `path` if there is one.

    Raises UserError as `load_as` does.
    """
    document = Document("arguments", {}, {}) if path is None else _read_yaml(path)
    for name, value in flat(keys, schema).items():
        if isinstance(value, Mapping):
            value = {_label(label): inner for label, inner in value.items()}
        _put(document, split(name, [schema]), value, ARGUMENT, name)
    return _checked(schema, document)


def _label(label: object) -> object:
    """A label of Python's or NumPy's as tables write it: True is `true`."""
    label = label.item() if hasattr(label, "item") else label
    return json.dumps(label) if isinstance(label, bool) else label


def distills_itself(path: str, overrides: Sequence[str]) -> bool:
    """Whether a distillation job is a SelfDistill; else it is a Distill. UserError for a kind that
    is in neither."""
    section = _read(path, overrides, Distill, SelfDistill).values.get("distill")
    kind = section.get("kind", "student") if isinstance(section, dict) else "student"
    if kind not in ("student", "theseus", "self"):
        raise UserError(f"distill.kind: name student, theseus or self, not {kind}")
    return bool(kind == "self")


def output_dir(path: str, overrides: Sequence[str]) -> str:
    """The `output_dir` of a job of any kind, of which nothing else is checked."""
    return below_home(str(_read(path, overrides, Config).values.get("output_dir", "output")))


def _checked(schema: type[Job], document: Document) -> Job:
    try:
        return schema.model_validate(document.values)
    except ValidationError as error:
        raise UserError(_explain(error, schema, document)) from error


def _read(path: str, overrides: Sequence[str], *schemas: type[Section]) -> Document:
    """What the YAML file says, changed by the overrides, whose keys are of one of the schemas."""
    kinds = {name: field.annotation for schema in schemas for name, field in fields(schema)}
    document = _read_yaml(path)
    for word in overrides:
        # Bytes that the locale has no letters for stand as half characters.
        if re.search("[\udc80-\udcff]", word):
            _check_letters(word, COMMAND_LINE)
        name, sign, text = word.partition("=")
        if not sign:
            raise UserError(f"{COMMAND_LINE}: {word!r} is not of the form key=value")
        try:
            value = text if _is_text(text, kinds.get(name)) else yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UserError(f"{COMMAND_LINE}: the value of {word!r} is not valid YAML") from error
        _put(document, split(name, schemas), value, COMMAND_LINE, repr(word))
    return document


def _check_letters(value: str, where: str) -> None:
    """UserError for letters of which this locale can make no file's name."""
    if sys.getfilesystemencoding() != "utf-8" and not value.isascii():
        raise UserError(
            f"{where}: {value!a} has letters that this locale lacks; set LC_ALL=C.UTF-8 and "
            "start the same command again"
        )


def _is_text(word: str, kind: object) -> bool:
    """Whether what stands behind key= is meant as it stands, for a key of this kind; else YAML
    reads it, to which `run #3` is "run", 0755 a number and `off` false. Quotes are YAML's."""
    choices = get_args(kind) if get_origin(kind) is Union else (kind,)
    if any(get_origin(choice) is Literal and word in get_args(choice) for choice in choices):
        return True
    empty = ("", "null", "Null", "NULL", "~") if type(None) in choices else ("",)
    return str in choices and word.strip() not in empty and not re.fullmatch("(['\"]).*\\1", word)


def _read_yaml(path: str) -> Document:
    if path == os.devnull:  # a command without a file
        return Document(COMMAND_LINE, {}, {})
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if "\0" in path:
            reason = "its name holds a NUL character"
        name = recipes.named(path)
        hint = f"; `fleetbert recipes {name} > {Path(path).name}` writes it" if name else ""
        raise UserError(f"config {path}: cannot be read: {reason}{hint}") from error
    text = charset.decode(data, lambda line: f"config {path}, line {line}: the config")
    document = parse_yaml(text, f"config {path}", path, "output_dir: output")
    for token in [] if text.isascii() else yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.ScalarToken):
            _check_letters(token.value, f"config {path}, line {token.start_mark.line + 1}")
    return document


def parse_yaml(
    text: str, title: str, name: str, example: str, loader: Any = yaml.SafeLoader
) -> Document:
    """The keys of a YAML text, maybe none. UserError, which begins with `title`, where it is no
    YAML, holds no keys (`example` has one), or one twice, of which PyYAML would take the last."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = error.problem or "cannot be parsed"
        line = error.problem_mark.line if error.problem_mark else 0
        if "::" in "".join(text.splitlines()[line : line + 1]):
            problem += '; an address of IPv6 has to be quoted: "::"'
        raise UserError(f"{title}{where}: not valid YAML: {problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # also a date or a number that cannot be
        raise UserError(f"{title}: not valid YAML: {str(error)[:80]}") from error
    except RecursionError as error:
        raise UserError(f"{title}: is nested too deeply") from error
    if node is None:
        return Document(name, {}, {})
    if not isinstance(values, dict):
        raise UserError(f"{title}: must hold keys, like `{example}`")
    document = Document(name, values, {})
    try:
        _note_places(node, (), document)
    except RecursionError as error:
        raise UserError(f"{title}: a section holds itself") from error
    return document


def _note_places(node: yaml.Node, prefix: Names, document: Document) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for name_node, value_node in node.value:
        names = (*prefix, str(name_node.value))
        where = f"{document.name}, line {name_node.start_mark.line + 1}"
        if names in document.places:
            raise UserError(f"{where}: key {'.'.join(names)} stands here a second time")
        document.places[names] = where
        _note_places(value_node, names, document)


def _put(document: Document, names: Names, value: object, where: str, word: str) -> None:
    """Set a key; `where` it was given and in what `word` are for messages."""
    section = document.values
    for number, name in enumerate(names[:-1], 1):
        inner = section.get(name)
        if inner is None:  # a section without keys
            inner = section[name] = {}
        if not isinstance(inner, dict):
            raise UserError(f"{where}: {word}: {name} is a single value, not a section")
        document.places.setdefault(names[:number], where)
        section = inner
    section[names[-1]] = value
    document.places[names] = where


def _explain(error: ValidationError, schema: type[Section], document: Document) -> str:
    problems, places = [], document.places
    unions = {tuple(n.split(".")): f.annotation for n, f in fields(schema) if is_union(f)}
    seen: set[Names] = set()
    for problem in error.errors():
        names = tuple(str(part) for part in problem["loc"] if not isinstance(part, int))
        message = problem["msg"]
        union = next((key for key in unions if names[: len(key)] == key != names), None)
        if union is not None:  # a problem for each of its types, the first with the whole value
            if union in seen:
                continue
            seen.add(union)
            names, message = union, f"Input should be {type_name(unions[union])}"
        if problem["type"] == "value_error":  # from _keys_agree: "dotted.key: what is wrong"
            dotted, _, message = str(problem["ctx"]["error"]).partition(": ")
            names = tuple(dotted.split("."))
        where = places.get(names)
        if where is None:
            where = next((places[names[:n]] for n in (2, 1) if names[:n] in places), document.name)
        name = ".".join(names)
        if problem["type"] == "extra_forbidden":
            problems.append(f"{where}: unknown key {name}{_hint(name, problem, where, schema)}")
        elif problem["type"] == "model_type":
            problems.append(f"{where}: {name} is a section and must hold keys")
        elif problem["type"] == "value_error":
            problems.append(f"{where}: {name}: {message}")
        else:
            shown = yaml_word(problem["input"])[:60]
            hint = "; put quotes around it" if _needs_quotes(problem) else ""
            problems.append(
                f"{where}: {name}: {message[0].lower()}{message[1:]}, not {shown}{hint}"
            )
    return "; ".join(problems)


def _needs_quotes(problem: ErrorDetails) -> bool:
    """Whether YAML took a text for something else."""
    kinds = (bool, int, float, datetime.date)
    return problem["type"] == "string_type" and isinstance(problem["input"], kinds)


def _hint(name: str, problem: ErrorDetails, where: str, schema: type[Section]) -> str:
    """What was meant by an unknown key, or by the first key below an unknown section."""
    value = problem["input"]
    while isinstance(value, dict) and value:
        part, value = next(iter(value.items()))
        name = f"{name}.{part}"
    shown = where == COMMAND_LINE and not isinstance(value, (dict, list))
    return hint(name, [schema], yaml_word(value) if shown else None, where == ARGUMENT)
