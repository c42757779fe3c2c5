"""Makes the files of tiny tokenizers, and what transformers makes of texts with them, for
test_whole.py:

    .venv/bin/python tests/data/tokenizers/files/make.py tests/data/tokenizers/files CORPUS...
    .venv-bench/bin/python tests/data/tokenizers/files/make.py tests/data/tokenizers/files CORPUS...

CORPUS: text files to learn words from. The first makes the files; the second, which needs
sentencepiece beside transformers, what is expected of them.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

sys.path.append(str(Path(__file__).resolve().parents[3]))
from random_texts import digests, draw
from tokenizer_files import write

STRINGS = 3000
OUT, *CORPUS = map(Path, sys.argv[1:])
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LINES = [line for path in CORPUS for line in path.read_text().split("\n")[1:1500] if line]


def make_files():
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.write_text("\n".join(LINES))
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=str(Path(folder) / "m"), vocab_size=1500,
            character_coverage=0.98, hard_vocab_limit=False,
        )  # fmt: skip
        (OUT / "sentencepiece.bpe.model").write_bytes((Path(folder) / "m.model").read_bytes())
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(LINES, vocab_size=600, special_tokens=SPECIAL)
    bpe.save_model(str(OUT))


def main():
    if not (OUT / "sentencepiece.bpe.model").exists():
        make_files()
        return
    import transformers as hf

    chance = random.Random(0)
    texts = chance.sample([line for line in LINES if len(line) < 120], 60) + draw(120, 1)
    texts += ["", " ", "a", "  two  spaces  ", "word <mask> word", "Ünïcödé ﬁne"]
    plain = [text for text in texts if not any(token in text for token in SPECIAL)]
    pairs = [[a, b] for a, b in zip(plain[::7], plain[3::7])]
    found = {"texts": texts, "pairs": pairs}
    for name, kind in (
        ("roberta", hf.RobertaTokenizer),
        ("xlm-roberta", hf.XLMRobertaTokenizer),
        ("camembert", hf.CamembertTokenizer),
    ):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = kind.from_pretrained(write(Path(folder) / name, name))
            found[name] = [tokenizer(text)["input_ids"] for text in texts]
            found[f"{name} pairs"] = tokenizer(*map(list, zip(*pairs)))["input_ids"]
            found[f"{name} special"] = tokenizer.all_special_ids
            found[f"{name} strings"] = digests(tokenizer(draw(STRINGS, 2))["input_ids"])
            found[f"{name} pad"] = tokenizer.pad_token_id
    (OUT / "expected.json").write_text(json.dumps(found))


main()
