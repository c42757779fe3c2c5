"""Folders of tiny encoders of every family, as transformers wrote them (models/families/make.py),
and what transformers computes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import numpy as np
import paddle
from safetensors.numpy import load_file, save_file

from fleetbert import config
from fleetbert.models import sources, task_heads, weights

FAMILIES = (
    "bert", "roberta", "camembert", "xlm-roberta", "ernie", "distilbert", "electra",
    "electra-small", "albert",
)  # fmt: skip
MADE = np.load(Path(__file__).with_name("models") / "families" / "families.npz")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS, HIDDEN = 30, 8


def files_of(family: str, head: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(config.json, tensors) of the family's classifier or its mlm."""
    fields = json.loads(str(MADE[f"{family}/{head}/config"]))
    flat, tensors = MADE[f"{family}/{head}/tensors"], {}
    for name, shape in json.loads(str(MADE[f"{family}/{head}/shapes"])).items():
        size = int(np.prod(shape))
        tensors[name], flat = flat[:size].reshape(shape), flat[size:]
    assert not len(flat)
    return fields, tensors


def pad_of(family: str) -> int:
    return int(MADE[f"{family}/ids"][-1, -1])


def write(folder: Path, family: str = "bert", head: str = "classifier") -> Path:
    """Its folder, with thirty words; that of padding where the family has it."""
    folder.mkdir(exist_ok=True)
    fields, tensors = files_of(family, head)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors")
    words = [*SPECIAL, *(f"word{number}" for number in range(WORDS - len(SPECIAL)))]
    words.insert(pad_of(family), words.pop(0))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Write model.safetensors again after change(tensors)."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_fields(folder: Path, **fields: Any) -> None:
    """Write config.json again with other fields; one that is None is left out."""
    path = folder / "config.json"
    changed = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({n: value for n, value in changed.items() if value is not None}))


def source_of(init: object, **settings: Any) -> sources.Source:
    return sources.open_source(config.Model(init=str(init), **settings))


def loaded(init: object, task: str = "classification", labels: int = 3, seed: int = 3):
    """(network, report) of weights that were loaded into a network with other weights."""
    source = source_of(init)
    paddle.seed(seed)
    network = task_heads.build(task, weights.bert_config(source, labels, WORDS))
    report = weights.load(network, source)
    network.eval()
    return network, report


def state(network) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.network.state_dict().items()}


def given(family: str) -> list[paddle.Tensor]:
    """The token ids and types that transformers was given."""
    return [paddle.to_tensor(MADE[f"{family}/{name}"]) for name in ("ids", "types")]
