"""Learning from a few texts of each label (`task.few_shot`).

The classifier reads vectors, and its weights begin as the labels' centres: the means of the vectors
of their texts and of their names. A step moves each of its texts towards the centre of its label
and away from all others (NormFace, Wang et al. 2017), so that the cost grows with the texts and not
with their pairs. After the last step the weights are computed anew, from the vectors learned, and
from those of the texts of `data.unlabelled`. Vectors that were trained on are all but right, so the
temperature of the answers is fitted to texts that a second training leaves out.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import paddle

from fleetbert import config as schema
from fleetbert import tasks
from fleetbert.compat import environment
from fleetbert.core.errors import UserError
from fleetbert.data import folds
from fleetbert.data.split import Split, choose
from fleetbert.data.tokenizers import Encodings, Tokenizer
from fleetbert.models import sources, vectors
from fleetbert.models.task_heads import VectorClassifier, scale_outputs
from fleetbert.tasks import Metrics, unlabelled, vector_heads
from fleetbert.tasks.calibration import fit_temperature
from fleetbert.tasks.metrics import softmax
from fleetbert.training.callbacks.progress import Progress
from fleetbert.training.loop import Run
from fleetbert.training.strategies import set_device
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import TextTask, open_task

log = logging.getLogger(__name__)

LEAST_TEXTS = 2  # of a label
LEAST_UNLABELLED = 20  # for each label; fewer made answers worse
ENOUGH_LEFT_OUT = 200  # texts; with 77 the temperature was as far off as without any


class FewLabels(TextTask):
    """Classification whose network begins with the labels' centres. UserError for a label with too
    few texts.

    left_out: the number, from 0, of the part of the training texts that becomes `held`; None: no
    part. A part has the share `trainer.calibrate` of each label's texts.
    """

    network: VectorClassifier
    others: Encodings | None  # texts without labels

    def __init__(
        self,
        job: schema.Config,
        source: sources.Source,
        tokenizer: Tokenizer,
        labels: list[str],
        train: Split,
        dev: Split | None = None,
        left_out: int | None = None,
    ):
        counts = tasks.get(job.task.name).labels.counts(train.labels, labels)
        if counts.min() < LEAST_TEXTS:
            number = int(counts.argmin())
            raise UserError(
                f"{train.name}: has {counts[number]} text of the label {labels[number]!r}, and "
                f"task.few_shot needs {LEAST_TEXTS} of each; add one, or leave the label out"
            )
        self.left_out = left_out
        source = source.with_pooling(job.task.pooling, "task.pooling")
        super().__init__(job, source, tokenizer, labels, train, dev)
        self.others = None if self.job.data.unlabelled is None else self._read_others()
        self.network.eval()
        examples = self._examples(self.network)
        temperature = self.job.task.temperature
        self.network.set_head(vector_heads.centres(*examples, temperature))

    def hold_out(self, train: Split) -> tuple[Split, Split | None]:
        """A model that is kept learns from all texts."""
        if self.left_out is None:
            return train, None
        names = [self.labels[number] for number in train.labels]
        part_of = folds.stratified(names, _parts(self.job), self.job.trainer.seed)
        held = choose(train, np.flatnonzero(part_of == self.left_out))
        return choose(train, np.flatnonzero(part_of != self.left_out)), held

    def warnings(self) -> list[str]:
        warnings, least = super().warnings(), LEAST_UNLABELLED * len(self.labels)
        if self.others is not None and len(self.others.ids) < least:
            warnings.append(
                f"data.unlabelled: {len(self.others.ids)} texts may do harm; give {least} or more "
                f"for {len(self.labels)} labels, or leave the key out"
            )
        return warnings

    def finish(self, network: VectorClassifier) -> Metrics:
        self.complete(network)
        if self.job.trainer.calibrate:
            truth, logits = _left_out(self.job, self.labels)
            texts, labels = logits.shape
            # One text more, which has all labels alike: a few right answers are no certainty.
            shares = (texts * np.eye(labels)[truth] + 1 / labels) / (texts + 1)
            temperature = fit_temperature(shares, logits, softmax)
            scale_outputs(network, 1 / temperature)
            log.info(f"probabilities: temperature {temperature:.3f}, from {texts} texts left out")
        if self.dev is None:
            return {}
        with paddle.no_grad():
            batches = self.dev_batches()
            return self.evaluate([self.predict(network, self.dev_arrays(part)) for part in batches])

    def complete(self, network: VectorClassifier) -> None:
        """Compute the weights of a trained network's classifier, at a temperature that is right for
        no encoder in particular."""
        examples = self._examples(network)
        if self.others is None:
            head = vector_heads.of_texts(*examples)
        else:
            head = vector_heads.of_some_texts(*examples, self._vectors(network, self.others))
        network.set_head(head)

    def _examples(self, network: VectorClassifier) -> tuple[np.ndarray, np.ndarray, int]:
        """Vectors float32 [examples, hidden] of the training texts and of the labels' names that
        are words; their labels, int64 [examples]; the number of labels."""
        names = [name.replace("_", " ") for name in self.labels]
        words = [number for number, name in enumerate(names) if any(map(str.isalpha, name))]
        named = self.tokenizer.encode(
            [names[number] for number in words], None, self.job.data.max_length
        )
        parts = [self._vectors(network, some) for some in (self.train.encodings, named)]
        labels = np.concatenate([self.train.labels, np.array(words, np.int64)])
        return np.concatenate(parts), labels, len(names)

    def _vectors(self, network: VectorClassifier, encodings: Encodings) -> np.ndarray:
        return vectors.of(network, encodings, self.job.data.max_length, self.tokenizer.pad_id)

    def _read_others(self) -> Encodings:
        """UserError for texts with labels."""
        path, task = str(self.job.data.unlabelled), self.task
        examples = unlabelled.read_unlabelled(path, task, "data.unlabelled", self.job.data)
        labelled = [example for example in examples if example.label]
        if labelled:
            raise UserError(
                f"data.unlabelled: {path}:{labelled[0].line}: has the label "
                f"{labelled[0].label!r}, and labels are not read here; move such rows to "
                "data.train, or empty their column of labels"
            )
        texts = [example.text_a for example in examples]
        return self.tokenizer.encode(texts, None, self.job.data.max_length)


def _parts(job: schema.Config) -> int:
    return round(1 / job.trainer.calibrate)


def _left_out(job: schema.Config, labels: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Labels, int64 [texts], and logits, float32 [texts, labels], of training texts by trainings
    that leave them out: one part after the other, until there are enough."""
    truth, logits = np.zeros(0, np.int64), np.zeros((0, len(labels)), np.float32)
    for part in range(_parts(job)):
        if len(truth) >= ENOUGH_LEFT_OUT:
            break
        held, outputs = _train_without(job, labels, part)
        environment.give_back_memory()
        truth, logits = np.concatenate([truth, held.labels]), np.concatenate([logits, outputs])
    return truth, logits


def _train_without(job: schema.Config, labels: list[str], part: int) -> tuple[Split, np.ndarray]:
    """A part of the training texts, and its logits by a training without it."""
    task = open_task(job, kind=partial(FewLabels, left_out=part), labels=labels)
    assert isinstance(task, FewLabels) and task.held is not None
    texts = len(task.held.labels)
    log.info(f"trainer.calibrate: trains again with {texts} of the texts left out")
    run = Run(job, Single(set_device(job.trainer.device)), task)
    run.callbacks = [Progress()] if job.callbacks.progress else []
    run.train()  # writes nothing
    run.strategy.release()
    task.network.eval()
    task.complete(task.network)
    with paddle.no_grad():
        return task.held, task.outputs(task.network, task.held)
