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

OUT, *CORPUS = map(Path, sys.argv[1:])
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LINES = [line for path in CORPUS for line in path.read_text().split("\n")[1:1500] if line]
ALPHABETS = [
    (0x20, 0x7F), (0x80, 0x250), (0x250, 0x600), (0x300, 0x370), (0x600, 0x3000), (0x3000, 0x3100),
    (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0x10000), (0x1F300, 0x1F700), (0x0, 0x21),
]  # fmt: skip


def draw(count, seed):
    chance = random.Random(seed)

    def part():
        if chance.random() < 0.3:
            return chance.choice(
                ["  ", " ", "\n", "\t", "\u3000", "\u200b", "ﬁ", "①", "naïve", "don't"]
            )
        first, end = chance.choice(ALPHABETS)
        return "".join(chr(chance.randrange(first, end)) for _ in range(chance.randint(1, 6)))

    return ["".join(part() for _ in range(chance.randint(1, 12))) for _ in range(count)]


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
    pairs = [[a, b] for a, b in zip(texts[::7], texts[3::7])]
    found = {"texts": texts, "pairs": pairs}
    for name, kind in (
        ("roberta", hf.RobertaTokenizer),
        ("xlm-roberta", hf.XLMRobertaTokenizer),
        ("camembert", hf.CamembertTokenizer),
    ):
        with tempfile.TemporaryDirectory() as folder:
            files = (
                ("vocab.json", "merges.txt") if name == "roberta" else ("sentencepiece.bpe.model",)
            )
            for file in files:
                (Path(folder) / file).write_bytes((OUT / file).read_bytes())
            tokenizer = kind.from_pretrained(folder)
            found[name] = [tokenizer(text)["input_ids"] for text in texts]
            found[f"{name} pairs"] = [tokenizer(*pair)["input_ids"] for pair in pairs]
            found[f"{name} special"] = tokenizer.all_special_ids
            found[f"{name} pad"] = tokenizer.pad_token_id
    (OUT / "expected.json").write_text(json.dumps(found))


main()
