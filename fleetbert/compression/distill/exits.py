"""A self-distillation job from its config to early-exit variants in the bundle."""

from __future__ import annotations

import contextlib
import functools
import logging
import tempfile
from pathlib import Path

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config as schema
from fleetbert import tasks
from fleetbert.compression import early_exit, selection
from fleetbert.compression.distill import exit_training, report
from fleetbert.compression.early_exit import Choice, Observed
from fleetbert.compression.gate import Gate, Sample
from fleetbert.compression.pipeline import Result
from fleetbert.compression.texts import draw, held_out
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.data import ragged
from fleetbert.engines import answer, engine, evaluate, exits
from fleetbert.engines.exit_heads import Tensors
from fleetbert.engines.exits import Settings
from fleetbert.tasks.unlabelled import read_unlabelled
from fleetbert.training.strategies import connect
from fleetbert.training.strategies.single import Single

log = logging.getLogger(__name__)

# Of a batch that heads learn from: about 32 texts of 32 tokens.
BATCH_TOKENS = 1024
# Groups are chosen by times of one thread, as each stream and each of a server's workers has.
THREADS = 1


def add_variants(job: schema.SelfDistill) -> list[Result]:
    """Train the heads and add a variant for each source where leaving early pays; returns those
    that were added. GateFailed for the first that loses more accuracy than
    gate.max_accuracy_drop, which is then not added.

    Ranks share the texts that heads learn from; the first one measures and adds, the others return
    nothing.
    """
    training = exit_training.training_job(job)
    strategy = connect(training)
    bundle = bundles.read(job.bundle)
    task = tasks.get(bundle.task.name)
    task.check_of_texts(str(bundle.root), "fleetbert distill")
    if task.shape.answers and not task.answer.doubt:
        raise UserError(
            f"distill.kind: self: {bundle.root} answers the task {task.name}, which does not say "
            "how sure an inner layer's answer is; make it fast with fleetbert quantize, method "
            "static"
        )
    head = task.answer.exit_head(job.distill.head)
    if job.distill.head not in (head, "pooled"):
        raise UserError(
            f"distill.head: {job.distill.head} answers once for each text, with labels or a number,"
            f" and {bundle.root} answers the task {task.name}; set it to pooled"
        )
    if job.distill.labels_weight and task.answer.doubt != "entropy":
        raise UserError(
            f"distill.labels_weight: {bundle.root} answers the task {task.name}, whose heads learn "
            "from the model's own answers; set it to 0"
        )
    names = job.sources
    if names is None:
        names = [name for name in ("float32", "int8-static") if name in bundle.names]
    for name in names:
        bundle.variant(name)
        if name != "float32":  # which the gate opens and verifies
            bundles.verify(bundle, name)
    with contextlib.ExitStack() as stack:
        for name in names if strategy.rank == 0 else ():
            stack.enter_context(bundles.writing(bundle.root, early_exit.variant_name(name)))
        return _add_variants(job, bundle, names, training, strategy)


def _add_variants(
    job: schema.SelfDistill,
    bundle: bundles.Bundle,
    names: list[str],
    training: schema.Config,
    strategy: Single,
) -> list[Result]:
    gate = Gate(bundle, job.gate, job.threads, columns=job.data)
    teacher = early_exit.open_source(bundle, "float32")
    _check_layers(job.distill.layers, len(teacher.layers))
    model = gate.model._replace(batch_tokens=BATCH_TOKENS)
    answers = model.task.answer
    head = answers.exit_head(job.distill.head)
    sample = None
    if not strategy.rank:
        sample = selection.open_sample(gate, job.selection, job.data.train, job.seed, "data.train")
    examples, labels = read_examples(job, model, teacher, strategy)
    learned = exit_training.train(
        training, strategy, job.distill, examples, labels, head, answers.doubt
    )
    trained: dict[int, Tensors] = dict(enumerate(learned, 1))
    if sample is None:
        return []
    results = []
    for name in names:
        source = teacher if name == "float32" else early_exit.open_source(bundle, name)
        results += _add(job, gate, sample, source, trained)
    return results


def read_examples(
    job: schema.SelfDistill, model: answer.Model, teacher: early_exit.Source, strategy: Single
) -> tuple[list[exit_training.Example], np.ndarray | None]:
    """This rank's part of each batch of texts that heads learn from, and the labels of the texts
    where the job needs them (int64 [texts]). Windows of long texts are texts here."""
    path = str(job.data.train)
    labels: np.ndarray | None = None
    if job.distill.labels_weight:
        table, labels, _ = evaluate.read_known(model, path, job.data)
    else:
        table = read_unlabelled(path, model.task, "data.train", job.data)
    most = len(table) - held_out(len(table), job.selection)
    chosen = draw(len(table), min(job.distill.texts, most), job.seed)
    labels = None if labels is None else labels[chosen]
    texts = model.task.labels.texts([table[number] for number in chosen])
    encodings = model.task.answer.encode(model.tokenizer, *texts, model.reading)
    rows = ragged.rows(encodings)
    batches = engine.in_batches(rows.texts, model.batch_tokens)
    run = early_exit.open_teacher(teacher, job.threads or engine.default_threads())
    log.info(f"computing the hidden states of {len(chosen)} texts")
    examples = []
    head = model.task.answer.exit_head(job.distill.head)
    if labels is not None and rows.layout is not None:
        labels = labels[rows.layout.text]
    with answer.progress(len(rows.texts.lengths)) as bar:
        for numbers, batch in batches:
            mine, share = exit_training.part_of(numbers, strategy.rank, strategy.world_size)
            padded = ragged.pad(batch, model.tokenizer.pad_id)
            input_ids, types, mask = (array[mine] for array in padded)
            real = mask > 0
            *states, logits = run(input_ids, types)
            if head == "tokens":
                logits = logits[exit_training.own_tokens(real)]
            read = [exit_training.read_by(head, state, real) for state in states]
            examples.append(
                exit_training.Example(numbers[mine], real, np.stack(read), logits, share)
            )
            bar.update(len(numbers))
    strategy.barrier()  # gradients wait 30 s at most
    return examples, labels


def _check_layers(layers: object, count: int) -> None:
    if not isinstance(layers, list):
        return
    ascending = layers == sorted(set(layers)) and len(layers) > 1 and layers[0] >= 1
    if not ascending or layers[-1] != count:
        raise UserError(
            f"distill.layers: {layers}; give the last layer of each group, ascending, at least two "
            f"and the last of them {count}, as [1, {count}]"
        )


def _add(
    job: schema.SelfDistill,
    gate: Gate,
    sample: Sample,
    source: early_exit.Source,
    trained: dict[int, Tensors],
) -> list[Result]:
    """Add the early-exit variant of `source`; none where that would not be faster than the source,
    unless the job names the groups. Groups and speed are chosen on `sample`."""
    target = early_exit.variant_name(source.name)
    bundle, pad_id = gate.bundle, gate.model.tokenizer.pad_id
    batch_tokens = job.distill.batch_tokens
    batches = list(engine.in_batches(sample.rows.texts, batch_tokens))
    log.info(f"{target}: measuring layers and heads on {sample.name}")
    with tempfile.TemporaryDirectory(prefix="fleetbert-exits-") as temporary:
        folder = Path(temporary)
        answers = gate.model.task.answer
        # A change is told in units of what float32's answers differ by.
        spread = exits.spread(sample.float32) if answers.doubt == "change" else 1.0
        head = answers.exit_head(job.distill.head)
        settings = Settings([], head, 0.0, pad_id, answers.doubt, spread)
        opened = early_exit.open_layers(source, folder, settings, THREADS)
        kind = bundle.variant(source.name).kind
        whole = engine.open_folder(kind, bundle.folder(source.name), "cpu", THREADS, pad_id=pad_id)
        observed = early_exit.observe(opened, whole, batches, sample, trained, source)
        right = gate.model.task.metrics.right(sample.truth, sample.float32)
        if sample.rows.layout is None:
            observed = observed._replace(reference=right)
        # What the source gains on these texts by chance is not for exits to lose.
        least = max(sample.float32_accuracy, report.by_layer(observed)[-1]) - gate.max_drop
        layers = job.distill.layers if isinstance(job.distill.layers, list) else None
        choice = early_exit.choose(observed, least, layers, job.distill.speed)
        log.info(
            f"{target}: groups end after layers {', '.join(map(str, choice.ends))}, speed "
            f"{choice.speed}: {choice.mean_layers:.2f} layers a text"
        )
        settings = settings._replace(ends=choice.ends, speed=choice.speed)
        early_exit.write(source, folder, settings, trained)
        chosen = engine.open_folder(engine.EARLY_EXIT, folder, "cpu", THREADS)
        of_texts = (sample.rows.texts, batch_tokens)
        faster = early_exit.times_faster(chosen, whole.run, *of_texts)
        at_speed_0 = functools.partial(chosen.run, speed=0.0)
        early = early_exit.times_faster(chosen, at_speed_0, *of_texts)
        # What is told of each speed comes from texts that chose nothing.
        accepting_batches = list(engine.in_batches(gate.rows.texts, gate.model.batch_tokens))
        accepting = early_exit.observe(opened, whole, accepting_batches, gate, trained, source, 0)
    log.info(f"{target}: {faster:.2f} times the texts/s of {source.name}")
    pays = faster > 1 and early_exit.saves(observed, choice)
    page = bundle.root / f"report-{target}.html"
    write_report = functools.partial(report.write, page, accepting, choice, target, gate, job)
    if layers is None and choice.accuracy - choice.margin >= least - 1e-9 and not pays:
        why = (
            f"{target} is not added: at the accuracy {least:.4f} that the gate asks for, no "
            f"exit makes {source.name} faster, which answers best as it is"
        )
        log.info(why)
        write_report(why)
        return []
    with bundles.adding(bundle.root, target) as new:
        variant = early_exit.write(source, new.folder, settings, trained)
        variant = gate.measure(variant, new.folder)
        (accuracy,) = variant.accuracy
        hint = "a smaller distill.speed lets fewer texts leave early"
        refused = gate.refusal(target, accuracy, hint, variant.alone_difference)
        if refused is None:
            known = {**evidence(accepting, choice), "times_faster": round(early, 3)}
            bundle = new.add(variant.model_copy(update=known))
            log.info(f"added {target} to {bundle.root}")
    write_report(None, accuracy.drop)
    if refused is not None:
        raise GateFailed(refused)
    return [Result(bundle, target, page)]


def evidence(observed: Observed, choice: Choice) -> dict[str, object]:
    """Entries of the manifest: accuracy after each layer if all texts left there, and what other
    values of speed give with the same groups."""
    return {
        "accuracy_by_layer": [round(value, 4) for value in report.by_layer(observed)],
        "by_speed": [
            bundles.SpeedPoint(
                speed=point.speed,
                accuracy=round(point.accuracy, 4),
                mean_layers=round(point.mean_layers, 3),
                mean_flops=round(point.mean_flops),
            )
            for point in report.curve(observed, choice)
        ],
    }
