"""The files that hold weights in a model's folder: safetensors, whole or sharded, in any floating
type; or PaddleNLP's. What cannot be read here is refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict

import numpy as np
import paddle
from safetensors import deserialize, safe_open
from safetensors.numpy import load_file

from fleetbert import encodings
from fleetbert.errors import UserError

Tensors = Dict[str, np.ndarray]

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PADDLENLP = "model_state.pdparams"
FLOATING = ("F64", "F32", "F16", "BF16")
LFS = b"version https://git-lfs"  # begins what stands for a file that was not downloaded


def read(folder: Path) -> Tensors:
    """The weights in a folder in float32, as its files name and lay them out, without buffers."""
    if (folder / WHOLE).is_file():
        tensors = _read_safetensors(folder / WHOLE)
    elif (folder / INDEX).is_file():
        tensors = _read_shards(folder / INDEX)
    elif (folder / PADDLENLP).is_file():
        _refuse_pointer(folder / PADDLENLP)
        try:
            tensors = paddle.load(str(folder / PADDLENLP), return_numpy=True)
        except Exception as error:  # Paddle raises many types
            raise UserError(f"its weights cannot be read: {error}") from error
    else:
        raise UserError(_what_to_do(folder))
    # position_ids is a buffer of old versions, not a weight.
    tensors = {n: array for n, array in tensors.items() if not n.endswith("position_ids")}
    for tensor, array in tensors.items():
        if not np.isfinite(array).all():
            raise UserError(
                f"{tensor} in its weights holds NaN or infinite values; take another copy of them"
            )
    return {name: array.astype(np.float32, copy=False) for name, array in tensors.items()}


def without_config(folder: Path) -> str:
    """What to do about a folder that has no config.json."""
    if (folder / "manifest.json").is_file():
        return (
            f"{folder} is a bundle, which is only served; name the folder `model` of the run that "
            "wrote it"
        )
    inner = sorted(path.parent for path in folder.glob("*/config.json"))
    if inner:
        return f"{folder} has no config.json, but {inner[0]} has one; name that folder"
    return (
        f"{folder} has no config.json, which says the model's shape; copy it from where the "
        "weights are from"
    )


def _read_safetensors(path: Path) -> Tensors:
    _refuse_pointer(path)
    try:
        with safe_open(path, "numpy") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the library raises types of its own
        raise UserError(f"its weights cannot be read: {path}: {error}") from error
    for name, kind in types.items():
        if kind not in FLOATING and not name.endswith("position_ids"):
            raise UserError(
                f"{name} in {path} is {kind}; weights of {', '.join(FLOATING)} are supported: take "
                "the model as it was before it was quantized"
            )
    if "BF16" not in types.values():
        return load_file(path)
    # NumPy has no bfloat16. It is the upper half of a float32.
    tensors: Tensors = {}
    for name, tensor in deserialize(path.read_bytes()):
        if tensor["dtype"] == "BF16":
            upper = np.frombuffer(tensor["data"], "<u2").astype(np.uint32)
            array = (upper << 16).view(np.float32)
        else:
            kind = tensor["dtype"]  # F32, or a buffer's I64
            array = np.frombuffer(tensor["data"], f"<{kind[0].lower()}{int(kind[1:]) // 8}")
        tensors[name] = array.reshape(tensor["shape"])
    return tensors


def _read_shards(index: Path) -> Tensors:
    try:
        shards = json.loads(encodings.read_text(index, "index of shards"))["weight_map"]
        names = sorted(set(shards.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of shards ({error!r}); copy it again") from error
    tensors: Tensors = {}
    for name in names:
        path = index.parent / name
        if Path(name).name != name or not path.is_file():
            raise UserError(f"{index} names the shard {name}, which is not beside it; copy it too")
        tensors.update(_read_safetensors(path))
    lost = sorted(set(shards) - set(tensors))
    if lost:
        raise UserError(f"{index} names {lost[0]}, but {shards[lost[0]]} lacks it; copy both again")
    return tensors


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise UserError(
                f"{path} is a pointer of Git LFS, not the file; run `git lfs pull` in its folder"
            )


def _what_to_do(folder: Path) -> str:
    if any(folder.glob("pytorch_model*.bin")):
        return (
            f"{folder} has its weights in pytorch_model.bin, which can run code when it is opened; "
            'convert it where torch is installed: `python -c "import glob, torch; from '
            "safetensors.torch import save_file; save_file({n: t.clone().contiguous() for f in "
            f"glob.glob('{folder}/pytorch_model*.bin') for n, t in torch.load(f, "
            f"map_location='cpu', weights_only=True).items()}}, '{folder}/{WHOLE}', "
            "metadata={'format': 'pt'})\"`"
        )
    for name, flag in (("tf_model.h5", "from_tf"), ("flax_model.msgpack", "from_flax")):
        if (folder / name).is_file():
            return (
                f"{folder} has its weights in {name}; convert it where transformers is installed: "
                '`python -c "from transformers import AutoModel; '
                f"AutoModel.from_pretrained('{folder}', {flag}=True).save_pretrained('{folder}')\"`"
            )
    if (folder / "adapter_config.json").is_file():
        return f"{folder} holds only an adapter; merge it into its model and save that"
    return (
        f"{folder} holds neither {WHOLE} (Hugging Face) nor {PADDLENLP} (PaddleNLP); save the "
        "model in one of these formats"
    )
