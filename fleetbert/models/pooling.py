"""How a folder of sentence-transformers makes a vector of a text's tokens.

Its modules.json lists the encoder, whose files are beside it or below (`0_Transformer`), and what
comes after it: `1_Pooling`, mostly `2_Normalize`. Folders of other libraries have none of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

from fleetbert.core import charset
from fleetbert.core.errors import UserError

log = logging.getLogger(__name__)

POOLINGS = ("mean", "cls")
DEFAULT = "mean"
# Of a config.json: how a classifier pools that reads vectors. ModernBERT's files have it too.
OF_CLASSIFIER = "classifier_pooling"
# By the flags of 1_Pooling/config.json. A vector of length 1 does not tell a mean from a sum.
FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
PASSED_OVER = ("Transformer", "Pooling", "Normalize")  # modules


def encoder(folder: Path) -> Path:
    """The encoder's folder: itself, or `0_Transformer` and the like of older versions."""
    if (folder / "config.json").is_file():
        return folder
    return folder / (_places(folder).get("Transformer") or "")


def _root(folder: Path) -> Path:
    """Where the modules of an encoder's folder are: itself, or the folder above."""
    above = folder.resolve().parent
    with contextlib.suppress(UserError):  # another program's modules.json
        if _places(above).get("Transformer") == folder.resolve().name:
            return above
    return folder


def _places(folder: Path) -> dict[str, str | None]:
    """The folder below of each kind of module."""
    return {_kind(module): module.get("path") for module in _modules(folder)}


def read(folder: Path) -> str | None:
    """One of POOLINGS, or what stands there instead; None in a folder that says nothing."""
    root = _root(folder)
    path = root / (_places(root).get("Pooling") or "1_Pooling") / "config.json"
    if not path.is_file():
        return None
    fields = charset.read_json(path, "configuration")
    chosen = [name for name, value in fields.items() if value is True and "pooling_mode" in name]
    if isinstance(fields.get("pooling_mode"), str):  # of newer versions
        chosen = [f"pooling_mode_{fields['pooling_mode']}"]
    return ", ".join(FLAGS.get(name, _short(name)) for name in chosen) or DEFAULT


def check(chosen: str | None, of_folder: str | None, where: str, key: str) -> str:
    """What is wanted, or else what was found at `where`; UserError if it is none of POOLINGS."""
    pooling = chosen or of_folder or DEFAULT
    if pooling not in POOLINGS:
        choose = " or ".join(POOLINGS)
        if chosen:
            raise UserError(f"{key} is {chosen!r}; choose {choose}")
        raise UserError(f"{where}: its vectors are pooled by {of_folder}; name {key} {choose}")
    return pooling


def check_modules(folder: Path) -> None:
    """UserError if a folder has layers after the pooling, which would be left out."""
    more = [kind for kind in map(_kind, _modules(_root(folder))) if kind not in PASSED_OVER]
    if more:
        raise UserError(
            f"{folder}: has a module {more[0]} after its encoder, which no vector here goes "
            "through; choose a model without it"
        )


def warn_of_texts(folder: Path, lowercase: bool) -> None:
    """Warn of what sentence-transformers does to texts before its tokenizer, and nothing here does.
    lowercase: the tokenizer does it."""
    path = folder / "sentence_bert_config.json"
    if _fields(path).get("do_lower_case") and not lowercase:
        log.warning(
            f"{path}: says do_lower_case: true, and the tokenizer keeps capital letters; give "
            "texts in lower case to have the vectors of sentence-transformers"
        )
    path = _root(folder) / "config_sentence_transformers.json"
    fields = _fields(path)
    prompts = fields.get("prompts")
    name = fields.get("default_prompt_name")
    prompt = prompts.get(name) if isinstance(prompts, dict) and name else None
    if prompt:
        log.warning(
            f"{path}: puts {prompt!r} before each text (default_prompt_name: {name}); give texts "
            "that begin so to have the vectors of sentence-transformers"
        )


def longest(folder: Path) -> int | None:
    """The tokens that sentence-transformers takes of a text; None where the folder does not say."""
    tokens = _fields(folder / "sentence_bert_config.json").get("max_seq_length")
    return tokens if isinstance(tokens, int) else None


def _fields(path: Path) -> dict[str, Any]:
    return charset.read_json(path, "configuration") if path.is_file() else {}


def _modules(folder: Path) -> list[dict[str, Any]]:
    """The modules of a folder's modules.json; [] without one."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules: list[dict[str, Any]] = json.loads(charset.read_text(path, "list of modules"))
        for module in modules:
            _kind(module)
        return modules
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: is no list of modules ({error!r})") from None


def _kind(module: dict[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]


def write(folder: Path, pooling: str, width: int) -> None:
    """What `read` reads, and sentence-transformers opens."""
    flags = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    fields = {"word_embedding_dimension": width, **{flags[p]: p == pooling for p in POOLINGS}}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(zip(("", "1_Pooling", "2_Normalize"), PASSED_OVER))
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")


def _short(name: str) -> str:
    return name.replace("pooling_mode_", "").replace("_tokens", "").replace("_token", "")
