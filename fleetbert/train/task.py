"""What is learned: texts, network, loss and how answers are judged.

`Task` is all that the loop, the strategies and the callbacks ask for: they train anything that has
it, and tests/train/train_resnet.py trains images. What a job reads before its first step and
writes after its last one (`train.job`) is of texts.
"""

from __future__ import annotations

import os
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Protocol, Sequence

import numpy as np
import paddle
import paddle.nn.functional as F

from fleetbert import config as schema
from fleetbert.data import api_docs, batching, cache, read, tokenizers
from fleetbert.data.split import Split, fingerprint, renumbered, tokenize
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.errors import UserError
from fleetbert.models import bert, weights
from fleetbert.tasks import collect, metrics
from fleetbert.tasks.collect import Arrays

if TYPE_CHECKING:
    from fleetbert.train.strategies import Single

# `data.cache: auto` caches tables of more bytes; 32 MiB are about 300,000 sentences.
LARGE = 32 << 20


class Task(Protocol):
    """What can be trained. An example is a text, an image, ...; examples have numbers from 0.

    Training and evaluation arrays are the task's own affair but for `n_texts`, the examples in
    them, and `n_tokens`, their tokens (0 where there are none): progress and speeds count these.
    """

    network: Any  # nn.Layer

    @property
    def fingerprint(self) -> str:
        """Of the training data: a run does not go on with other data."""

    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """The examples of each optimizer step of an epoch, the same whenever it is called."""

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, mine: slice
    ) -> list[Arrays]:
        """This rank's share (`mine`) of a step's examples, which are cut into `parts`, in each of
        which a rank needs something: the losses of all parts add up to the step's mean."""

    # A task whose network also computes with rows of a table that a rank cannot hold has them as
    # `rows` (`train.rows.Rows`), and in its arrays `ids`, of those that they need.

    # With `data.num_workers` a task also has a `collector`, which can be sent to another process
    # and whose `micro_batches` give what `tensors` then turns into this one's.

    def loss(self, model: Any, arrays: Arrays) -> paddle.Tensor:
        """A float32 scalar. `model` is called like `network`; it may wait for other ranks."""

    def dev_batches(self) -> Sequence[np.ndarray]:
        """The examples to evaluate on in batches, which ranks share out; may be empty."""

    def dev_arrays(self, part: np.ndarray) -> Arrays:
        """One of these batches for `predict`."""

    def predict(self, network: Any, arrays: Arrays) -> dict[str, np.ndarray]:
        """The answers to one batch, to be sent between ranks."""

    def judge(self, answers: list[dict[str, np.ndarray]]) -> dict[str, Any]:
        """Figures from the answers to all batches, in any order; with `loss`, and with what
        `trainer.best_metric` names if that is to count."""

    def locate(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Where training examples come from and what they are, for bad_steps.jsonl."""

    def describe(self) -> dict[str, Any]:
        """What summary.json says of the data and the initial weights."""


def open_task(
    job: schema.Config,
    connected: Single | None = None,
    source: weights.Source | None = None,
    kind: Callable[..., TextTask] | None = None,
    labels: list[str] | None = None,
) -> TextTask:
    """Read and tokenize the texts, build the network, load its weights. Where there are ranks
    (`connected`) they share what is cached of the texts. `source`, `kind` and `labels` take the
    places of what `job.model`, `job.task` and the training texts say."""
    source = weights.open_source(job.model) if source is None else source
    tokenizer = tokenizers.open(source.tokenizer)
    if job.data.max_length > int(source.shape.get("max_position_embeddings", 512)):  # type: ignore[call-overload]
        raise UserError(
            f"data.max_length: {job.data.max_length} is more than the positions that "
            f"{source.name} has ({source.shape.get('max_position_embeddings', 512)})"
        )
    opened = open_splits(job, tokenizer, connected)
    if labels is None:
        labels = opened[0][1]
        if job.task.name != "mlm" and len(labels) < 2:
            raise UserError(
                f"data.train: has the label {labels[0]!r} only; at least two are needed"
            )
    splits = [renumbered(split, own, labels) for split, own in opened]
    if kind is None:
        kind = MaskedWords if job.task.name == "mlm" else Classification
    return kind(job, source, tokenizer, labels, *splits)


def open_splits(
    job: schema.Config, tokenizer: Tokenizer, connected: Single | None = None
) -> list[tuple[Split, list[str]]]:
    """The training texts, and the dev texts if there are any, each with the labels in it."""
    data = job.data
    mlm, pair = job.task.name == "mlm", job.task.name == "pair_classification"
    if data.builtin:
        tables = [read.Table(examples, []) for examples in api_docs.load()]
        names = ("api_docs train", "api_docs dev")
        return [
            tokenize(name, table, tokenizer, pair, not mlm, data.max_length)
            for name, table in zip(names, tables)
        ]
    found = []
    for path in (path for path in (data.train, data.dev) if path is not None):
        if mlm:
            form = read.texts_format(path)
        else:
            form = read.table_format(path, pair=pair, labelled=True)
        folder = cache_folder(job, path)
        if folder is None:
            table = read.read_as(path, form, data.on_bad_line)
            found.append(tokenize(path, table, tokenizer, pair, not mlm, data.max_length))
            continue
        recipe = cache.Recipe(
            form,
            data.on_bad_line,
            tokenizer.spec,
            pair,
            data.max_length,
        )
        make = partial(cache.prepare, path, folder, recipe)
        found.append(cache.load(path, make() if connected is None else connected.from_first(make)))
    return found


def cache_folder(job: schema.Config, path: str) -> Path | None:
    """Where the tokens of a table are kept; None: in memory."""
    wanted = job.data.cache
    if wanted == "none":
        return None
    if wanted != "auto":
        return Path(wanted)
    with read.opened(path) as file:
        is_large = os.fstat(file.fileno()).st_size > LARGE
    return Path(job.output_dir) / "cache" if is_large else None


class TextTask:
    """What tasks on texts have in common: their data and how it becomes batches."""

    collects: type[collect.Labelled]  # what makes arrays of texts

    def __init__(
        self,
        job: schema.Config,
        source: weights.Source,
        tokenizer: Tokenizer,
        labels: list[str],
        train: Split,
        dev: Split | None = None,
    ):
        self.job, self.source, self.tokenizer, self.labels = job, source, tokenizer, labels
        self.train, self.dev = train, dev
        self.collector = self.collects(train, job, tokenizer)
        paddle.seed(job.trainer.seed)
        shape = weights.bert_config(source, max(2, len(labels)), tokenizer.vocab_size)
        self.network = bert.build(job.task.name, shape)
        self.loaded = weights.load(self.network, source)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the training texts and labels as tokens: what data a run has seen."""
        return fingerprint(self.train)

    def notes(self) -> list[str]:
        """What was read and loaded, where a user would want to know."""
        found = []
        for split in (self.train, self.dev):
            if split is not None:
                counts = split.counts()
                notes = [f"{counts['texts']} texts"]
                if counts["cut"]:
                    notes.append(f"{counts['cut']} cut to {self.job.data.max_length} tokens")
                if counts["skipped_lines"]:
                    notes.append(f"{counts['skipped_lines']} bad lines skipped")
                found.append(f"{split.name}: {', '.join(notes)}")
        name, loaded = self.source.name, self.loaded
        if loaded.fresh and self.source.tensors is not None:
            found.append(f"{name}: no weights for {', '.join(loaded.fresh)}; they start fresh")
        if loaded.unused:
            found.append(f"{name}: not needed: {', '.join(loaded.unused)}")
        return found

    def describe(self) -> dict[str, Any]:
        splits = {"train": self.train, "dev": self.dev}
        return {
            "data": {
                role: {"file": split.name, **split.counts()}
                for role, split in splits.items()
                if split is not None
            },
            "fresh_weights": self.loaded.fresh,
            "unused_weights": self.loaded.unused,
        }

    def plan(self, epoch: int) -> batching.Plan:
        return self.collector.plan(epoch)

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, mine: slice
    ) -> list[Arrays]:
        found = self.collector.micro_batches(indices, epoch, parts, mine)
        return [self.tensors(arrays) for arrays in found]

    def tensors(self, arrays: Arrays) -> Arrays:
        """What `collector` gives, as Paddle's tensors."""
        inputs = {name: paddle.to_tensor(array) for name, array in arrays["inputs"].items()}
        labels, weight = (paddle.to_tensor(arrays[name]) for name in ("labels", "weight"))
        return {**arrays, "inputs": inputs, "labels": labels, "weight": weight}

    def locate(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Where training texts stand and what they are: file, line (from 1) and the line's text.

        The text is None where the file cannot be read any more.
        """
        numbers = [int(self.train.lines[index]) for index in indices]
        if self.job.data.train is None:
            builtin = api_docs.load()[0]
            texts = {number: builtin[i].text_a for number, i in zip(numbers, indices)}
        else:
            texts = read.lines_at(self.job.data.train, numbers)
        return [{"file": self.train.name, "line": n, "text": texts.get(n)} for n in numbers]

    def loss(self, model: Any, arrays: Arrays) -> paddle.Tensor:
        raise NotImplementedError

    def predict(self, network: Any, arrays: Arrays) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def judge(self, answers: list[dict[str, np.ndarray]]) -> dict[str, Any]:
        raise NotImplementedError

    def dev_batches(self) -> list[np.ndarray]:
        """The dev texts in batches of like length."""
        if self.dev is None:
            return []
        return batching.plan_inference(
            self.dev.encodings.lengths,
            self.job.data.eval_batch_tokens,
            tuple(range(1, self.job.data.max_length + 1)),
        )

    def dev_arrays(self, part: np.ndarray) -> Arrays:
        assert self.dev is not None
        collector = self.collects(self.dev, self.job, self.tokenizer)
        ones = np.ones(len(part), np.float32)
        return self.tensors(collector.arrays(part, ones, part, -1, False))


class Classification(TextTask):
    """A label for each text or pair of texts; cross entropy."""

    collects = collect.Labelled

    def loss(self, model: Any, arrays: Arrays) -> paddle.Tensor:
        """Weighted sum of the texts' cross entropies, a float32 scalar."""
        logits = model(**arrays["inputs"])
        losses = F.cross_entropy(logits.astype("float32"), arrays["labels"], reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()

    def predict(self, network: Any, arrays: Arrays) -> dict[str, np.ndarray]:
        logits = network(**arrays["inputs"]).astype("float32").numpy()
        return {"texts": arrays["texts"], "logits": logits}

    def judge(self, answers: list[dict[str, np.ndarray]]) -> dict[str, Any]:
        """Accuracy, mean loss, macro F1, the table by class and the confusion matrix."""
        assert self.dev is not None
        logits = np.zeros((len(self.dev.labels), len(self.labels)), np.float32)
        for answer in answers:
            logits[answer["texts"]] = answer["logits"]
        return metrics.judge(self.dev.labels, logits, self.labels)


class MaskedWords(TextTask):
    """Masked language model: the hidden words are predicted; cross entropy over them."""

    collects = collect.Masked

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        # The pooler gives the loss nothing: data parallel must not wait for its gradients.
        for weight in self.network.network.bert.pooler.parameters():
            weight.stop_gradient = True

    loss = Classification.loss

    def predict(self, network: Any, arrays: Arrays) -> dict[str, np.ndarray]:
        logits = network(**arrays["inputs"]).astype("float32")
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
        right = logits.argmax(-1) == arrays["labels"]
        counts = arrays["weight"].numpy() > 0
        return {"losses": losses.numpy()[counts], "right": right.numpy()[counts]}

    def judge(self, answers: list[dict[str, np.ndarray]]) -> dict[str, Any]:
        """Mean loss and accuracy over the dev texts' masked words; `n` counts the words."""
        losses = np.concatenate([answer["losses"] for answer in answers])
        right = np.concatenate([answer["right"] for answer in answers])
        if not len(losses):
            raise UserError("data.dev: no text of it has a word to mask")
        return {"n": len(losses), "loss": float(losses.mean()), "accuracy": float(right.mean())}
