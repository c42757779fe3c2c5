"""Token ids beside transformers', on whole data sets and 100,000 random Unicode strings.

    .venv-bench/bin/python tests/benchmarks/tokens.py DATA [--strings 100000] [--folder NAME=FOLDER]

In the peers' environment, with sentencepiece installed beside transformers. DATA: text files, whose
fields are taken apart at tabs. Byte-level BPE and Unigram are learned from them; WordPiece has
vocabularies given as `--folder wordpiece=FOLDER`, with vocab.txt and tokenizer_config.json. Any
other NAME opens FOLDER with that family's tokenizer, or by its tokenizer.json. Ends with 1 if an
id differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Callable

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

import random_texts  # noqa: E402
import sentencepiece  # noqa: E402
import transformers as hf  # noqa: E402
from tokenizers import ByteLevelBPETokenizer  # noqa: E402

from fleetbert.data import tokenizers  # noqa: E402

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
CLASSES: dict[str, Callable] = {
    "wordpiece": hf.BertTokenizer.from_pretrained,
    "roberta": hf.RobertaTokenizer.from_pretrained,
    "xlm-roberta": hf.XLMRobertaTokenizer.from_pretrained,
    "camembert": hf.CamembertTokenizer.from_pretrained,
}
SEED = 0
SHORT, LONG = 8, 512  # texts of a call: few are encoded by another way than many


def learn(lines: list[str], into: Path) -> dict[str, Path]:
    """Folders of the families with files learned from the lines."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(lines, vocab_size=12_000, special_tokens=SPECIAL, show_progress=False)
    (into / "roberta").mkdir()
    bpe.save_model(str(into / "roberta"))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(into / "m"), vocab_size=16_000,
        character_coverage=0.9995, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    for family in ("xlm-roberta", "camembert"):
        (into / family).mkdir()
        (into / family / "sentencepiece.bpe.model").write_bytes((into / "m.model").read_bytes())
    for family in ("roberta", "xlm-roberta", "camembert"):
        (into / family / "config.json").write_text(json.dumps({"model_type": family}))
    return {family: into / family for family in ("roberta", "xlm-roberta", "camembert")}


def count_differing(
    theirs: hf.PreTrainedTokenizerBase, ours: tokenizers.Tokenizer, texts: list[str]
) -> int:
    differing, at, batch = 0, 0, SHORT
    while at < len(texts):
        given, batch = texts[at : at + batch], LONG if batch == SHORT else SHORT
        at += len(given)
        wanted = theirs(given)["input_ids"]
        found = ours.encode(given, None, 1 << 20).ids
        for text, one, other in zip(given, wanted, found):
            if one != other.tolist():
                differing += 1
                if differing <= 3:
                    print(f"  {text!r}\n    transformers {one}\n    fleetbert    {other.tolist()}")
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--folder", action="append", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    hf.logging.set_verbosity_error()
    sources = {path: path.read_text("utf-8").split("\n") for path in arguments.data}
    texts = {
        str(path): [field for line in lines for field in line.split("\t") if field]
        for path, lines in sources.items()
    }
    texts["random strings"] = random_texts.draw(arguments.strings, SEED)
    worst = 0
    with tempfile.TemporaryDirectory() as made:
        lines = [line for one in sources.values() for line in one if line]
        folders = list(learn(random.Random(SEED).sample(lines, len(lines)), Path(made)).items())
        folders += [
            (one.partition("=")[0], Path(one.partition("=")[2])) for one in arguments.folder
        ]
        for name, folder in folders:
            theirs = CLASSES.get(name, hf.AutoTokenizer.from_pretrained)(str(folder))
            ours = tokenizers.open(tokenizers.find(folder))
            print(f"{name} {folder} ({ours.vocab_size} tokens, {type(ours).__name__})")
            for place, given in texts.items():
                differing = count_differing(theirs, ours, given)
                print(f"  {place}: {len(given)} texts, {differing} with other ids", flush=True)
                worst = max(worst, differing)
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
