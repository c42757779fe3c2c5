"""Every option and key that a message names is one that its reader has."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path
from typing import Iterator

from fleetbert.bench import infer, serve, train
from fleetbert.cli import commands as cli
from fleetbert.config import compression, distillation, training
from fleetbert.config.keys import fields
from fleetbert.deploy.inference import settings

ROOT = Path(__file__).resolve().parents[1]
OPTION = re.compile(r"(?<![\w/-])--[a-z][\w-]*")
SHARED = {"--help", "--debug", "--version"}  # of every command, and of fleetbert itself
# Options of other programs, where a message says how to start them.
OTHERS = {
    "--no-deps": "pip",
    "--force-reinstall": "pip",
    "--query-gpu": "nvidia-smi",
    "--format": "nvidia-smi",
    "--shm-size": "docker",
    "--nproc_per_node": "paddle.distributed.launch",
    "--run_mode": "paddle.distributed.launch",
    "--with_gloo": "paddle.distributed.launch",
}
ASKING = ("ask", "evaluate", "predict")
JOBS = ("train", "launch", "quantize", "distill")
# Who reads the messages of a room: an option has to be one of each command of a `set`, and of one
# command of a `tuple`. The first that fits holds.
READERS: list[tuple[str, set[str] | tuple[str, ...]]] = [
    ("fleetbert/engines/evaluate.py", {"evaluate"}),
    ("fleetbert/engines/", set(ASKING)),
    ("fleetbert/cli/bundle_options.py", ASKING),
    ("fleetbert/cli/quantize.py", ("quantize",)),
    ("fleetbert/compression/distill/", ("distill", "train")),
    ("fleetbert/compression/", ("quantize", "export")),
    ("fleetbert/graph/", ("export",)),
    ("fleetbert/cli/checkpoint.py", ("checkpoint",)),
    ("fleetbert/training/", JOBS),
    ("fleetbert/config/", JOBS),
    ("fleetbert/launch/", JOBS),
    ("fleetbert/bench/", ("bench", "serve")),
    ("deploy/inference/", ("serve",)),
]
JOB = [training.Config]
QUANTIZE = [compression.Quantize, compression.Tuning]
DISTILL = [distillation.Distill, distillation.SelfDistill]
# Likewise the schemas whose keys a message may name.
SCHEMAS = [
    ("deploy/", [settings.Serve]),
    ("fleetbert/compression/distill/", [*DISTILL, *QUANTIZE]),
    ("fleetbert/compression/", [*QUANTIZE, *DISTILL]),
    ("fleetbert/launch/", JOB),
    ("fleetbert/", [*JOB, *QUANTIZE, *DISTILL, settings.Serve]),
]
# A section's name and a suffix that is no key: files, and attributes of traces.
NO_KEYS = {
    f"model.{suffix}"
    for suffix in (
        *("pdmodel", "pdiparams", "pdparams", "nb", "onnx", "json", "safetensors"),
        *("name", "version"),
    )
} | {"optimizer.pdopt", "data.pkl"}


def options_of(command: str) -> set[str]:
    parser = argparse.ArgumentParser(command)
    cli.COMMANDS[command][1].add_arguments(parser)
    if command == "bench":
        for module in (infer, serve, train):
            part = argparse.ArgumentParser(command)
            module.add_arguments(part)
            parser._actions += part._actions
        parser.add_argument("--json")
        parser.add_argument("--markdown")
    parsers = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers += action.choices.values()
    return {word for p in parsers for a in p._actions for word in a.option_strings}


OPTIONS = {command: options_of(command) for command in cli.COMMANDS}


def text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return None


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every string of a module that is not a docstring."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    passed = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, scopes) and node.body and isinstance(node.body[0], ast.Expr)
    }
    passed |= {
        id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in nodes:
        text = text_of(node)
        if text is not None and id(node) not in passed:
            yield node.lineno, text


def modules() -> dict[str, Path]:
    paths = [*(ROOT / "fleetbert").rglob("*.py"), *(ROOT / "deploy").rglob("*.py")]
    named = {path.relative_to(ROOT).as_posix(): path for path in paths if "_pb2" not in path.name}
    # fleetbert/deploy may be a link to deploy/; criteo_made has a parser of its own.
    return {
        name: path
        for name, path in named.items()
        if not name.startswith("fleetbert/deploy/") and not name.endswith("criteo_made.py")
    }


def wrong_options(name: str, text: str) -> list[str]:
    readers = next((readers for room, readers in READERS if name.startswith(room)), tuple(OPTIONS))
    known = [OPTIONS[command] for command in readers]
    allowed = set.intersection(*known) if isinstance(readers, set) else set.union(*known)
    return [word for word in OPTION.findall(text) if word not in allowed | SHARED | set(OTHERS)]


KEYS = {room: {key for schema in schemas for key, _ in fields(schema)} for room, schemas in SCHEMAS}
SECTIONS = sorted({key.split(".")[0] for key in KEYS["fleetbert/"] if "." in key})
KEY = re.compile(rf"(?<![\w./-])(?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+\b(?![\w/(])")


def wrong_keys(name: str, text: str) -> list[str]:
    known = KEYS[next(room for room in KEYS if name.startswith(room))]
    return [
        key
        for key in KEY.findall(text)
        if key not in known
        and not any(other.startswith(f"{key}.") for other in known)
        and ".".join(key.split(".")[:2]) not in NO_KEYS
    ]


def test_what_a_message_names_is_there():
    wrong = [
        f"{name}:{line}: {word}"
        for name, path in modules().items()
        for line, text in messages(path)
        for find in (wrong_options, wrong_keys)
        for word in find(name, text)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_search_finds_what_is_wrong():
    """The advice that quantize gave, a misspelt option, another command's, keys that are not."""
    assert wrong_options("fleetbert/engines/gate.py", "or --on-bad-line skip") == ["--on-bad-line"]
    assert wrong_options("fleetbert/compression/gate.py", "or --on-bad-line skip")
    assert wrong_options("fleetbert/launch/x.py", "see --max-restart") == ["--max-restart"]
    assert wrong_options("deploy/inference/x.py", "use --device cpu") == ["--device"]
    assert not wrong_options("fleetbert/engines/x.py", "use --device cpu, a--b, see --debug")
    assert wrong_keys("fleetbert/training/x.py", "set trainer.epoch") == ["trainer.epoch"]
    assert wrong_keys("fleetbert/compression/x.py", "set listen.http_port") == ["listen.http_port"]
    assert not wrong_keys("fleetbert/training/x.py", "trainer.epochs of model.pdmodel")
    assert len(list(modules())) > 150
