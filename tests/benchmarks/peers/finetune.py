"""PyTorch and transformers, as their examples fine-tune: `finetune.py job.json answers.json`.

The peers' side of `tests/benchmarks/finetune.py`: transformers' tokenizer, heads and losses, random
order, padded to the longest text of the batch, AdamW with warm-up and linear decay. Of tags the
token that a word begins in learns, the others are -100. (With `is_split_into_words`, Unigram puts a
piece before each word, twice as many for characters, and that one would learn: F1 0.51, not more.)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import transformers
from train import build_optimizer, learn  # beside it
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

HEADS = {
    "multi_label_classification": "multi_label_classification",
    "pair_regression": "regression",
}
TAGS = "token_classification"


def encode(tokenizer, rows, job):
    """Token ids and targets of each row: for tags one of each token."""
    encoded = []
    for row in rows:
        texts, words = row["texts"], job["task"] == TAGS
        one = tokenizer(*texts, truncation=True, max_length=job["max_length"])
        target = row["target"]
        if words:
            tokens, target = tokens_of_words(one, row), [-100] * len(one["input_ids"])
            for tag, token in reversed([*zip(row["target"], tokens)]):
                if token is not None:  # where it is of several words, the first's
                    target[token] = tag
        encoded.append((one, target))
    return encoded


def tokens_of_words(one, row):
    """Of each word the number of the token that its first character is in, None behind the cut."""
    found = []
    for start, end in row["words"]:
        tokens = (one.char_to_token(place) for place in range(start, end))
        found.append(next((token for token in tokens if token is not None), None))
    return found


def collate(batch, tokenizer, job):
    inputs = tokenizer.pad([one for one, _ in batch], return_tensors="pt")
    targets = [target for _, target in batch]
    if job["task"] == TAGS:
        width = inputs["input_ids"].shape[1]
        targets = [target + [-100] * (width - len(target)) for target in targets]
    dtype = torch.long if job["task"] == TAGS else torch.float32
    return {**inputs, "labels": torch.tensor(targets, dtype=dtype)}


def answers(model, rows, tokenizer, job):
    """Of each row the logits; of tags the likeliest one's number of each word, 0 (O) of a word that
    has no token."""
    found = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(rows), 64):
            some = rows[start : start + 64]
            encoded = encode(tokenizer, some, job)
            inputs = collate(encoded, tokenizer, job)
            inputs.pop("labels")
            logits = model(**inputs).logits
            if job["task"] != TAGS:
                found += logits.tolist()
                continue
            for row, (one, _), best in zip(some, encoded, logits.argmax(-1)):
                tags, former = [], None
                for token in tokens_of_words(one, row):
                    tag = 0 if token is None else int(best[token])
                    # B-KIND is 2 k + 1 and I-KIND 2 k + 2: within a token a span goes on.
                    tags.append(tag + 1 if token == former and tag % 2 else tag)
                    former = token
                found.append(tags)
    model.train()
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["init"])
    made = AutoModelForSequenceClassification
    fields = {"num_labels": job["outputs"], "dtype": torch.float32}
    if job["task"] == TAGS:
        made = AutoModelForTokenClassification
    else:
        fields["problem_type"] = HEADS[job["task"]]
    model = made.from_pretrained(job["init"], **fields)
    model.train()

    loader = torch.utils.data.DataLoader(
        encode(tokenizer, job["train"], job),
        batch_size=job["batch_size"],
        shuffle=True,
        collate_fn=lambda batch: collate(batch, tokenizer, job),
    )
    job["total_steps"] = job["epochs"] * len(loader)
    optimizer, schedule = build_optimizer(model, job)
    began = time.perf_counter()
    for _ in range(job["epochs"]):
        for batch in loader:
            learn(model, batch, optimizer, schedule, 1.0)
    seconds = time.perf_counter() - began
    told = {"seconds": seconds, "answers": answers(model, job["dev"], tokenizer, job)}
    Path(sys.argv[2]).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
