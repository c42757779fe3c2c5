"""The typed schema of every job, and the reading of a YAML file and key=value words.

A key exists once, here, with its type, default and meaning. An error names the key, the file and
line, and the nearest valid name.
"""
# ruff: noqa: F401  what the package offers

from __future__ import annotations

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
from fleetbert.config.keys import flat, on_resume
from fleetbert.config.loading import distills_itself, from_keys, load_as
from fleetbert.config.section import Section, key
from fleetbert.config.training import (
    Callbacks,
    Columns,
    Config,
    Data,
    Loss,
    Model,
    Optimizer,
    Precision,
    Strategy,
    Task,
    Trainer,
)
