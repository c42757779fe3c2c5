"""The typed schema of every job, and the reading of a YAML file and key=value words.

A key exists once, here, with its type, default and meaning. An error names the key, the file and
line, and the nearest valid name. Modules are imported when a name of theirs is used: who answers
texts does not wait for the schemas of jobs.
"""
# ruff: noqa: F401  what the package offers

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetbert.config.callbacks import Callbacks
    from fleetbert.config.columns import Columns
    from fleetbert.config.compression import (
        CALIBRATED,
        SOFT,
        TRAINED,
        Calibration,
        Gate,
        PaddleSlim,
        Quantize,
        Selection,
        Tuning,
    )
    from fleetbert.config.distillation import Distill, Exits, SelfDistill
    from fleetbert.config.help import yaml_text, yaml_word
    from fleetbert.config.inputs import (
        Data,
        Model,
        check_long_texts,
        check_stride,
        read_as,
        reading_of,
    )
    from fleetbert.config.keys import flat, on_resume
    from fleetbert.config.loading import distills_itself, from_keys, load_as, parse_yaml
    from fleetbert.config.search import Budget, Compress
    from fleetbert.config.section import Section, key
    from fleetbert.config.task import Task
    from fleetbert.config.training import Config, Loss, Optimizer, Precision, Strategy, Trainer

_NAMES = {
    "callbacks": "Callbacks",
    "columns": "Columns",
    "compression": "CALIBRATED SOFT TRAINED Calibration Gate PaddleSlim Quantize Selection Tuning",
    "distillation": "Distill Exits SelfDistill",
    "help": "yaml_text yaml_word",
    "inputs": "Data Model check_long_texts check_stride read_as reading_of",
    "keys": "flat on_resume",
    "loading": "distills_itself from_keys load_as parse_yaml",
    "search": "Budget Compress",
    "section": "Section key",
    "task": "Task",
    "training": "Config Loss Optimizer Precision Strategy Trainer",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
