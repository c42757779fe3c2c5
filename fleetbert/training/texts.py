"""Training on texts: tokenized tables, the network and the objective of a task."""

from __future__ import annotations

import contextlib
import os
from functools import cached_property, partial
from pathlib import Path
from typing import Callable, Mapping, Sequence

import numpy as np
import paddle
from paddle import nn

from fleetbert import config as schema
from fleetbert import tasks
from fleetbert.bundle.manifest import is_integer
from fleetbert.core.errors import UserError
from fleetbert.data import api_docs, batching, cache, read, tokenizers, windows
from fleetbert.data.labels import explained
from fleetbert.data.split import Split, fingerprint, hold_out, tokenize
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.models import sources, task_heads, weights
from fleetbert.tasks import Arrays, Criterion, Metrics, Part, unlabelled
from fleetbert.tasks import loss as losses
from fleetbert.tasks.collect import Labelled
from fleetbert.tasks.evaluator import together
from fleetbert.training import checkpoint
from fleetbert.training.regularized import regularize
from fleetbert.training.strategies.single import Single
from fleetbert.training.trainable import Described, Trainable

# `data.cache: auto` caches tables of more bytes; 32 MiB are about 300,000 sentences.
LARGE = 32 << 20
# The share of texts that may be truncated without a word.
LARGEST_TRUNCATED = 0.05
# The share of the variance of lengths that labels may explain without a word.
LARGEST_EXPLAINED = 0.3
FEW_TEXTS = 64  # of a label: `task.few_shot` learns more from fewer

# Of the texts' targets, as `Labels.targets` gives them, and the network's outputs, float32 [texts,
# outputs].
Metric = Callable[[np.ndarray, np.ndarray], float]


def open_task(
    job: schema.Config,
    connected: Single | None = None,
    source: sources.Source | None = None,
    kind: Callable[..., TextTask] | None = None,
    labels: list[str] | None = None,
) -> TextTask:
    """Read and tokenize the texts, build the network and load its weights.

    connected: the strategy, whose ranks share the token cache. source, kind, labels: replace
    `job.model`, `TextTask` and the labels of the training texts.
    """
    source = _source(job) if source is None else source
    tokenizer = tokenizers.open(source.tokenizer)
    longest = source.shape.get("max_position_embeddings", 512)
    if job.data.max_length > longest:
        raise UserError(
            f"data.max_length: {job.data.max_length} is more than the positions that "
            f"{source.name} has ({longest})"
        )
    opened = open_splits(job, tokenizer, connected)
    task = tasks.get(job.task.name)
    if task.shape.pooled:
        source = source.with_pooling(job.task.pooling, "task.pooling")
    if labels is None:
        labels = _as_resumed(job, task.labels.labels_of(opened[0][1]))
    task.labels.check_labels(labels)
    if job.data.integer_labels and (others := [label for label in labels if not is_integer(label)]):
        raise UserError(
            f"data.integer_labels: the label {others[0]!r} is no integer of 64 bits; leave it out"
        )
    splits = [
        task.labels.with_targets(split, split_labels, labels) for split, split_labels in opened
    ]
    return (kind or TextTask)(job, source, tokenizer, labels, *splits)


def _source(job: schema.Config) -> sources.Source:
    """What `job.model` names, with the tokens that it asks for."""
    source, vocabulary = sources.open_source(job.model), job.model.vocabulary
    if vocabulary.data is None:
        return source
    path = str(job.data.train if vocabulary.data == "train" else vocabulary.data)
    texts = unlabelled.single_texts(path, tasks.get(job.task.name), job.data)
    return sources.trimmed(source, texts, vocabulary.keep)


def _as_resumed(job: schema.Config, labels: list[str]) -> list[str]:
    """Return the labels in the order of the resumed run, if it has the same labels."""
    checkpoints = Path(job.output_dir) / "checkpoints"
    state = checkpoint.state_to_resume(checkpoints, job.trainer.resume)
    if state is None:
        return labels
    former = state.get("labels", sorted(labels))  # runs before this key sorted numbers as text
    return list(former) if sorted(former) == sorted(labels) else labels


def open_splits(
    job: schema.Config, tokenizer: Tokenizer, connected: Single | None = None
) -> list[tuple[Split, list[str]]]:
    """Return the training texts, and the dev texts if there are any, each with their labels."""
    data, task = job.data, tasks.get(job.task.name)

    def tokenized(name: str, table: read.Table) -> tuple[Split, list[str]]:
        how = (task.shape.pair, task.shape.labelled, job.reading, task.answer.encode)
        return tokenize(name, table, tokenizer, *how)

    if data.builtin:
        tables = [read.Table(examples, []) for examples in api_docs.load()]
        names = ("api_docs train", "api_docs dev")
        return [tokenized(name, table) for name, table in zip(names, tables)]
    splits = []
    for path in (path for path in (data.train, data.dev) if path is not None):
        form = task.labels.table_format(path, data)
        if connected is None or connected.rank == 0:
            read.warn_of_pairs(path, form)
        folder = None if form.is_whole else cache_folder(job, path)
        if folder is None:
            splits.append(tokenized(path, read.read_as(path, form, data.on_bad_line)))
            continue
        how = (tokenizer.spec, task.shape.pair, job.reading, task.answer.encode)
        recipe = cache.Recipe(form, data.on_bad_line, *how)
        make = partial(cache.prepare, path, folder, recipe)
        splits.append(cache.load(path, make() if connected is None else connected.from_first(make)))
    return splits


def cache_folder(job: schema.Config, path: str) -> Path | None:
    """Return the folder of the token cache of a table; None: the tokens stay in memory."""
    if job.data.cache == "none":
        return None
    if job.data.cache != "auto":
        return Path(job.data.cache)
    with read.opened(path) as file:
        is_large = os.fstat(file.fileno()).st_size > LARGE
    return Path(job.output_dir) / "cache" if is_large else None


class TextTask(Trainable):
    """Any task on texts. metrics: custom ones, by name. held: texts held out for `calibration`."""

    labels: list[str]

    def __init__(
        self,
        job: schema.Config,
        source: sources.Source,
        tokenizer: Tokenizer,
        labels: list[str],
        train: Split,
        dev: Split | None = None,
    ):
        self.job, self.source, self.tokenizer, self.labels = job, source, tokenizer, labels
        self.task = tasks.get(job.task.name).of_width(source.shape["hidden_size"])
        train, self.held = self.hold_out(train)
        self.train, self.dev = train, dev
        self.objective = regularize(
            losses.of(self.task),
            job.loss,
            job.task.name,
            labels,
            self.task.labels.class_counts(train, labels) if labels else None,
            len(train.labels),
        )
        self.passes = self.objective.passes
        self.metrics: Mapping[str, Metric] = {}
        self.collector: Labelled = self.task.labels.collector(train, job, tokenizer)
        paddle.seed(job.trainer.seed)
        outputs = self.task.outputs(labels)
        shape = weights.bert_config(source, outputs, tokenizer.vocab_size, tokenizer.pad_id)
        self.network = task_heads.build(job.task.name, shape)
        self.loaded = weights.load(self.network, source, labels)
        if source.tensors is not None:
            self._init = weights.digest(source.tokenizer, source.tensors)
            # The network has a copy, and `notes` needs the classifier's only.
            heads = {n: each for n, each in source.tensors.items() if n.startswith("classifier.")}
            self.source = source._replace(tensors=heads)
        self.objective.prepare(self.network)

    def hold_out(self, train: Split) -> tuple[Split, Split | None]:
        """The texts to learn from, and those that calibrate the probabilities."""
        share = self.job.trainer.calibrate
        if not share:
            return train, None
        if not self.task.metrics.calibrates:
            raise UserError(
                f"trainer.calibrate: task.name: {self.task.name} gives no probabilities; leave it "
                "out"
            )
        return hold_out(train, share, self.job.trainer.seed)

    @cached_property
    def fingerprint(self) -> str:
        """The digest of the tokens and labels of the training texts."""
        return fingerprint(self.train)

    @cached_property
    def origins(self) -> dict[str, str]:
        origins = {"model.vocab": weights.digest(self.source.tokenizer)}
        if self.dev is not None:
            origins["data.dev"] = fingerprint(self.dev)
        if self.source.tensors is not None:
            origins["model.init"] = self._init
        return origins

    def notes(self) -> list[str]:
        notes = []
        for split in (self.train, self.held, self.dev):
            if split is not None:
                counts = split.counts()
                counted = [f"{counts['texts']} texts"]
                if truncated := counts["truncated"]:
                    counted.append(f"{truncated} truncated to {self.job.data.max_length} tokens")
                if counts["skipped_lines"]:
                    counted.append(f"{counts['skipped_lines']} bad lines skipped")
                notes.append(f"{split.name}: {', '.join(counted)}")
        if note := self.task.labels.describe(self.train.labels, self.labels):
            notes.append(note)
        name, loaded = self.source.name, self.loaded
        if loaded.fresh and self.source.tensors is not None:
            notes.append(f"{name}: no weights for {', '.join(loaded.fresh)}; they start fresh")
        if loaded.unused:
            notes.append(f"{name}: not needed: {', '.join(loaded.unused)}")
        if head := weights.describe_head(self.source, self.labels):
            notes.append(f"{name}: {head}")
        if self._has_few_labels:
            notes.append(
                f"{self.train.name}: {len(self.train.labels) / len(self.labels):.1f} texts a label "
                "are few; task.few_shot=true learns more from them (docs/few_labels.md)"
            )
        return notes

    @property
    def _has_few_labels(self) -> bool:
        """Whether `training.few_labels` could learn more of the texts."""
        is_single = self.task.shape.picks_label and not self.task.shape.pair and bool(self.labels)
        texts = len(self.train.labels)
        can = is_single and sources.is_of_vectors(self.source) and not self.job.task.few_shot
        return can and texts < FEW_TEXTS * len(self.labels)

    def warnings(self) -> list[str]:
        doubts = self.task.labels.doubts(self.train.labels, self.labels)
        warnings = [f"{self.train.name}: {warning}" for warning in doubts]
        by_length = self.job.data.batching == "bucket"
        if by_length and self.labels and self.task.shape.label == "name":
            lengths = np.asarray(self.train.encodings.lengths)
            share = explained(lengths, np.asarray(self.train.labels))
            if share > LARGEST_EXPLAINED:
                warnings.append(
                    f"{self.train.name}: the labels explain {share:.0%} of the variance of the "
                    "texts' lengths, so that batches of similar length hold mostly one label; "
                    "data.batching=pad mixes them"
                )
        truncated = self.train.encodings.truncated / max(1, len(self.train.labels))
        if self.job.data.long_texts != "head_tail" and truncated > LARGEST_TRUNCATED:
            positions = self.source.shape.get("max_position_embeddings", 512)
            longest = self.job.data.max_length
            remedies = [f"data.max_length up to {positions}"] if longest < positions else []
            if self.train.encodings.divided is None:
                which = "texts have more than"
                remedies.append("data.long_texts=windows")
            else:  # as a question beside a long context
                which = "texts that stand in each window have more than half of"
            remedy = "; set " + ", or ".join(remedies) if remedies else ""
            warnings.append(
                f"{self.train.name}: {truncated:.0%} of the {which} data.max_length: {longest} "
                f"tokens and lose their end{remedy}"
            )
        is_number = self.task.shape.labelled and not self.labels
        if self.dev is not None and is_number and (same := self.task.labels.alike(self.dev.labels)):
            warnings.append(f"{self.dev.name}: {same}; nothing is measured by it")
        if self.dev is not None and self.labels:
            counts = self.task.labels.counts(self.dev.labels, self.labels)
            lacking = [self.labels[n] for n in np.flatnonzero(counts == 0)]
            if lacking:
                warnings.append(
                    f"{self.dev.name}: has no text of {len(lacking)} of the {len(self.labels)} "
                    f"labels: {weights.few(lacking)}; nothing is measured of them"
                )
        return warnings

    def describe(self) -> Described:
        splits = {"train": self.train, "held": self.held, "dev": self.dev}
        known = {role: split for role, split in splits.items() if split is not None}
        return {
            "data": {role: {"file": split.name, **split.counts()} for role, split in known.items()},
            "fresh_weights": self.loaded.fresh,
            "unused_weights": self.loaded.unused,
        }

    def locate(self, indices: Sequence[int]) -> list[Described]:
        """Return file, line (from 1) and text of training texts.

        The text is None if the file cannot be read any more.
        """
        path, numbers = self.job.data.train, [int(self.collector.lines[i]) for i in indices]
        texts: Mapping[int, str] = {}
        if path is None:
            builtin = api_docs.load()[0]
            texts = {number: builtin[i].text_a for number, i in zip(numbers, indices)}
        else:
            with contextlib.suppress(UserError):  # it is gone, or another
                form = self.task.labels.table_format(path, self.job.data)
                texts = read.lines_at(path, numbers, form)
        return [{"file": self.train.name, "line": n, "text": texts.get(n)} for n in numbers]

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        return self.objective.loss(model, arrays)

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        return self.objective.again(model, arrays)

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        return self.objective.predict(network, arrays)

    def evaluate(self, parts: Sequence[Part]) -> Metrics:
        assert self.dev is not None
        truth = self.dev.labels
        room = self.task.room(len(truth), self.labels)
        metrics = self.task.metrics.evaluate_parts(parts, truth, self.labels, room)
        if self.metrics:
            outputs = together(parts, room)
            metrics.update({name: float(of(truth, outputs)) for name, of in self.metrics.items()})
        return metrics

    def criterion(self, metrics: Metrics) -> Criterion:
        return self.task.metrics.criterion(self.job.trainer.best_metric, metrics)

    def dev_batches(self) -> list[np.ndarray]:
        """Return the dev texts in batches of similar length."""
        return [] if self.dev is None else self._batches(self.dev)

    def dev_arrays(self, part: np.ndarray) -> Arrays:
        assert self.dev is not None
        return self._arrays(self.dev, part)

    def finish(self, network: nn.Layer) -> Metrics:
        """Complete the trained network; returns the dev metrics that this changes."""
        return {}

    def outputs(self, network: nn.Layer, split: Split) -> np.ndarray:
        """Return the network's outputs for all texts of a split, float32 [texts, outputs]."""
        parts = [self.predict(network, self._arrays(split, part)) for part in self._batches(split)]
        return together(parts, self.task.room(len(split.labels), self.labels))

    def _batches(self, split: Split) -> list[np.ndarray]:
        lengths = windows.row_tokens(split.encodings)
        allowed = tuple(range(1, int(lengths.max(initial=0)) + 1))
        return batching.plan_inference(lengths, self.job.data.eval_batch_tokens, allowed)

    def _arrays(self, split: Split, part: np.ndarray) -> Arrays:
        return self.tensors(self.task.labels.collector(split, self.job, self.tokenizer).whole(part))
