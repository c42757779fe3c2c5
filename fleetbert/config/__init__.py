"""The typed schema of every job, and how a YAML file and key=value words become one.

A key exists once, here, with its type, default and meaning; `help_text` prints them. What is
wrong with a file is said with the key, the file and line, and the nearest valid name.
"""
# ruff: noqa: F401  what the package offers

from __future__ import annotations

from fleetbert.config.compression import (
    CALIBRATED,
    SOFT,
    TRAINED,
    Calibration,
    Gate,
    Prune,
    Quantize,
    Selection,
    SoftLabels,
    Tuning,
)
from fleetbert.config.distillation import (
    Distill,
    Distillation,
    Exits,
    SelfDistill,
    Student,
    Texts,
)
from fleetbert.config.help import help_text, yaml_text, yaml_word
from fleetbert.config.keys import fields, flat, on_resume
from fleetbert.config.loading import distills_itself, from_keys, load, load_as
from fleetbert.config.section import Section, key
from fleetbert.config.training import (
    Callbacks,
    Config,
    Data,
    Loss,
    Model,
    Optimizer,
    Precision,
    Profiler,
    Strategy,
    Task,
    Trainer,
    WideDeep,
)
