"""Folders of tiny tokenizers of byte-level BPE and Unigram, and what transformers makes of texts
with them (data/tokenizers/files/make.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

FILES = Path(__file__).with_name("data") / "tokenizers" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text())
FAMILIES = ("roberta", "xlm-roberta", "camembert")


def write(folder: Path, family: str) -> Path:
    """A folder of the family, without tokenizer.json."""
    folder.mkdir()
    names = ("vocab.json", "merges.txt") if family == "roberta" else ("sentencepiece.bpe.model",)
    for name in names:
        shutil.copyfile(FILES / name, folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder
