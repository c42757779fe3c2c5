"""PyTorch and transformers, as articles fine-tune BERT with them.

Random order, padded to the longest of the batch, AdamW with warm-up and linear decay; float32, or
torch.autocast's bfloat16 (`bfloat16`); or texts of like length together, as transformers' Trainer
has it (`grouped`); or by torch.compile (`compiled`).
Runs in the peers' environment, without fleetbert: `train.py job.json`. The token ids and the
initial weights are those of the other side.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import batches  # the files beside this one
import numpy as np
import torch
import transformers
from infer import worker
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification
from transformers.trainer_pt_utils import LengthGroupedSampler


class Texts(torch.utils.data.Dataset):
    def __init__(self, path: Path):
        with np.load(path) as file:
            ids, self.first_lengths = file["ids"], file["first_lengths"]
            self.ids = np.split(ids, np.cumsum(file["lengths"])[:-1])
            self.labels = file["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return self.ids[number], self.first_lengths[number], self.labels[number]


def collate(texts, pad_id):
    ids, first_lengths, labels = zip(*texts)
    lengths = np.array([[len(one)] for one in ids])
    longest = int(lengths.max())
    arrays = batches.collate(ids, first_lengths, range(len(ids)), longest, pad_id)
    input_ids, token_type_ids = map(torch.from_numpy, arrays)
    return {
        "input_ids": input_ids,
        "attention_mask": torch.from_numpy((np.arange(longest) < lengths).astype(np.int64)),
        "token_type_ids": token_type_ids,
        "labels": torch.tensor([int(label) for label in labels]),
    }


def build_optimizer(model, job):
    """AdamW that spares biases and LayerNorm, and its schedule."""
    spared = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    names = {id(parameter) for parameter in spared}
    decayed = [p for p in model.parameters() if id(p) not in names]
    settings = job["optimizer"]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": settings["weight_decay"]},
            {"params": spared, "weight_decay": 0.0},
        ],
        lr=settings["learning_rate"],
        betas=(settings["beta1"], settings["beta2"]),
        eps=settings["epsilon"],
    )
    warmup = round(settings["warmup_ratio"] * job["total_steps"])
    if settings["schedule"] == "constant":
        return optimizer, transformers.get_constant_schedule_with_warmup(optimizer, warmup)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, job["total_steps"])
    return optimizer, schedule


def learn(model, batch, optimizer, schedule, norm, bfloat16=False):
    """A step."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        loss = model(**batch).loss
    loss.backward()
    if norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    loss.item()


def evaluate(model, loader):
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for batch in loader:
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(-1) == labels).sum())
            total += len(labels)
    model.train()
    return right / total


def main() -> None:
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(job["folder"])
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    transformers.logging.set_verbosity_error()

    train, dev = Texts(folder / "train.npz"), None
    sampler = None
    if job["grouped"]:
        lengths = [len(ids) for ids in train.ids]
        sampler = LengthGroupedSampler(job["batch_size"], lengths=lengths)
    loader = DataLoader(
        train,
        batch_size=job["batch_size"],
        shuffle=sampler is None,
        sampler=sampler,
        collate_fn=lambda texts: collate(texts, job["pad_id"]),
    )
    if (folder / "dev.npz").is_file():
        dev = DataLoader(Texts(folder / "dev.npz"), batch_size=64, collate_fn=loader.collate_fn)
    model = BertForSequenceClassification.from_pretrained(
        folder / "initial", num_labels=job["labels"], dtype=torch.float32
    )
    model.train()
    job["total_steps"] = min(job["max_steps"] or sys.maxsize, job["epochs"] * len(loader))
    optimizer, schedule = build_optimizer(model, job)
    if job["compiled"]:
        model = torch.compile(model, dynamic=True)
    segments = worker.Segments(channel)
    channel.send(
        total_steps=job["total_steps"],
        engine=f"PyTorch {torch.__version__.split('+')[0]}"
        + ", bfloat16" * job["bfloat16"]
        + ", grouped" * job["grouped"]
        + ", compiled" * job["compiled"],
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
    )
    step = 0
    while step < job["total_steps"]:
        batches = iter(loader)
        for _ in range(min(len(loader), job["total_steps"] - step)):
            segments.before_step()
            batch = next(batches)
            norm = job["optimizer"]["max_grad_norm"]
            learn(model, batch, optimizer, schedule, norm, job["bfloat16"])
            segments.after_step(len(batch["labels"]), int(batch["attention_mask"].sum()))
            step += 1
        if dev is not None:
            segments.dev.append(evaluate(model, dev))
    segments.send_report()


if __name__ == "__main__":
    with contextlib.suppress(worker.Stop):
        main()
