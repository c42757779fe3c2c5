"""What methods that train have in common: a bundle's float32 program becomes a network, learns on
with the trainer of any job, and gives its parameters back under the program's names."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import numpy as np
import paddle

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.compression import from_program
from fleetbert.compression.work import Work
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data import split as splits
from fleetbert.data.split import Split
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.engines import engine
from fleetbert.engines.alike import LARGEST_DIFFERENCE, at_tokens, random_batch
from fleetbert.models import sources, task_heads, weights
from fleetbert.tasks import loss as losses
from fleetbert.training import job as training
from fleetbert.training.loop import Run
from fleetbert.training.strategies import connect
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import Arrays, TextTask, open_task


class Tuned(TextTask):
    """Any task; the loss may listen to the model as it was, the teacher.

    Without a table to evaluate on, a part of the training texts is held out for that.
    """

    job: config.Tuning
    teacher: paddle.nn.Layer | None = None

    def __init__(
        self,
        job: config.Tuning,
        source: sources.Source,
        tokenizer: Tokenizer,
        labels: list[str],
        train: Split,
        dev: Split | None = None,
    ):
        if dev is None:
            groups = tasks.get(job.task.name).labels.groups(train)
            train, dev = splits.hold_out(train, job.held_out, job.trainer.seed, groups)
        super().__init__(job, source, tokenizer, labels, train, dev)

    def loss(self, model: paddle.nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """The task's own; with a teacher (1 - weight) of it, and weight of that against the
        teacher's outputs; a float32 scalar."""
        if self.teacher is None:
            return super().loss(model, arrays)
        settings, objective = self.job.distill, losses.of(self.task)
        outputs = model(**arrays["inputs"]).astype("float32")
        with paddle.no_grad():
            known = self.teacher(**arrays["inputs"]).astype("float32")
        soft = objective.of_teacher(outputs, known, arrays, settings.temperature)
        assert settings.weight is not None  # `training_job` gives it
        if settings.weight == 1:
            return soft
        return (1 - settings.weight) * objective.of_outputs(outputs, arrays) + (
            settings.weight * soft
        )


def training_job(job: config.Quantize, bundle: bundles.Bundle) -> config.Tuning:
    """The training that a job asks for; it names the very weights it starts from.

    The gate's texts never choose the best step: where they are data.dev, that is left out.
    """
    sha256 = next(f.sha256 for f in bundle.variant(job.source).files if "pdiparams" in f.path)
    longest = bundle.max_length
    if job.data.max_length > longest and "max_length" in job.data.model_fields_set:
        raise UserError(
            f"data.max_length: {job.data.max_length} is more than the {longest} tokens that "
            f"{bundle.root} takes; lower it or leave it out"
        )
    data = job.data.model_copy(
        update={
            **config.read_as(bundle.reading.within(job.data.max_length)),
            "dev": None if _is_gate_data(job) else job.data.dev,
        }
    )
    init = f"{bundle.root}/{job.source} ({sha256[:16]})"
    soft = job.distill.weight
    if soft is None:
        soft = config.SOFT[job.method] if tasks.get(bundle.task.name).shape.picks_label else 0.0
    fields = {
        "distill": job.distill.model_copy(update={"weight": soft}),
        "task": task_of(bundle),
        "data": data,
        "model": config.Model(init=init, vocab=str(bundle.vocab_path), dropout=job.dropout),
    }
    shared = set(config.Tuning.model_fields) & set(config.Quantize.model_fields)
    return config.Tuning(**{**{name: getattr(job, name) for name in shared}, **fields})


def task_of(bundle: bundles.Bundle) -> config.Task:
    """The task of a job that trains what a bundle has."""
    shape, reading = tasks.get(bundle.task.name).shape, bundle.reading
    pools = reading.long_texts == "windows" and not shape.pooled and not shape.per_token
    windows = reading.pool if pools else None
    return config.Task(name=bundle.task.name, pooling=bundle.task.pooling, windows=windows)


def _is_gate_data(job: config.Quantize) -> bool:
    """Whether data.dev has the very texts of gate.data."""
    if job.data.dev is None:
        return False
    try:
        return files.sha256(job.data.dev) == files.sha256(str(job.gate.data))
    except OSError:
        return False  # whoever reads them says what is wrong


# Makes of a task's network what is to be trained: (task, the network as it was, the strategy).
Change = Callable[[Tuned, paddle.nn.Layer, Single], None]


def train(work: Work, change: Change) -> paddle.nn.Layer | None:
    """Train the work's source after `change`; the network of the best step, in evaluation mode.

    None on ranks other than the first.
    """
    job = training_job(work.job, work.bundle)
    best: paddle.nn.Layer | None = None

    def open_trainable(settings: config.Tuning, connected: Single) -> Tuned:
        return open_tuned(settings, connected, work.bundle, work.job.source, change)

    def take(run: Run, summary: training.Summary) -> None:
        """The network, where a run's results would be written."""
        nonlocal best
        best = run.task.network
        best.set_state_dict(training.best_weights(run))
        training.write_summary(run, summary)
        best.eval()

    training.train_with(connect(job), job, open_trainable, take)
    return best


def open_tuned(
    job: config.Tuning, connected: Single, bundle: bundles.Bundle, variant: str, change: Change
) -> Tuned:
    """The task of a bundle's float32 variant, after `change` made of its network what is to be
    trained; the teacher is the network as it was, in evaluation mode."""
    source = from_program.open_bundle(bundle, job.model.dropout or 0.0, variant)
    task = open_task(job, connected, source, Tuned, list(bundle.task.labels))
    assert isinstance(task, Tuned)
    check(task.network, bundle, variant)
    teacher = task_heads.build(job.task.name, task.network.network.config)
    weights.load(teacher, source)
    teacher.eval()
    change(task, teacher, connected)
    if job.distill.weight:
        task.teacher = teacher
    return task


def check(network: paddle.nn.Layer, bundle: bundles.Bundle, variant: str) -> None:
    """UserError unless the network, not changed yet, answers like the bundle's program."""
    vocab_size = min(100, network.network.config.vocab_size)
    pad_id = network.network.config.pad_token_id
    folder = bundle.folder(variant)
    program = engine.open_folder(engine.FLOAT32, folder, "cpu", 1, pad_id=pad_id)
    ids, types = random_batch(np.random.default_rng(0), (4, 16), vocab_size, pad_id)
    outputs = answers(network, {"input_ids": ids, "token_type_ids": types})
    logits = at_tokens(outputs, ids != pad_id)
    difference = float(np.abs(logits - program(ids, types, pad_id=pad_id)).max())
    if not difference <= LARGEST_DIFFERENCE:
        raise UserError(
            f"{bundle.root}: {variant} is not a BERT as training exports it: a network with its "
            f"weights answers otherwise (logits differ by {difference:.3g}); choose method: static"
        )


def answers(network: paddle.nn.Layer, batch: dict[str, np.ndarray]) -> np.ndarray:
    """The network's logits without dropout, as the served program has to give them."""
    network.eval()
    with paddle.no_grad():
        logits: np.ndarray = network(*(paddle.to_tensor(batch[n]) for n in engine.INPUTS)).numpy()
    return logits


def parameters(network: paddle.nn.Layer, names: from_program.Names) -> dict[str, np.ndarray]:
    """The network's parameters under the program's names."""
    state = network.network.state_dict()
    return {name: state[network_name].numpy() for name, network_name in names.parameters.items()}


def beside_network(
    variant: bundles.Variant, folder: Path, network: paddle.nn.Layer, work: Work
) -> bundles.Variant:
    """The variant with the largest difference of logits between it and the trained network."""
    pad_id = network.network.config.pad_token_id
    served = engine.open_folder(variant.kind, folder, "cpu", work.gate.threads, pad_id=pad_id)
    differences = []
    for feeds in work.gate.few(16):
        difference = abs(served(*feeds.values()) - answers(network, feeds))
        if work.gate.model.task.shape.per_token:  # of padding they say nothing
            difference = difference[feeds["attention_mask"] > 0]
        differences.append(difference.max())
    return variant.model_copy(update={"max_difference_to_network": float(max(differences))})
