"""A finished model → a bundle, without training."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Sequence

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.core import charset, files, task_names
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import conll, tokenizers, windows
from fleetbert.data import labels as labels_of
from fleetbert.export import from_paddle
from fleetbert.export.program import export_bundle
from fleetbert.models import pooling as pooling_of
from fleetbert.models import sources, task_heads, weights
from fleetbert.models.network import Fields
from fleetbert.tasks import NO_ANSWER

LONGEST = 512  # tokens of a text, where nobody says how many
SHORTEST = 4  # as `data.max_length` has it

log = logging.getLogger(__name__)

SETFIT_HEAD = "model_head.pkl"


def import_model(
    model: config.Model,
    path: Path,
    labels: Sequence[str | int] | None,
    pair: bool = False,
    max_length: int | None = None,
    task: str | None = None,
    pooling: str | None = None,
    long_texts: str = "cut",
    stride: int | None = None,
) -> bundles.Bundle:
    """Write the model that `model.init` names as a bundle at `path`, with the variant float32. A
    folder with an exported program is the part of `from_paddle`.

    max_length: None: what the folder of sentence-transformers says, else LONGEST, and no more than
    the positions that the model has.
    labels: in the order of the logits; None: `id2label` of its config.json. A token classifier
    answers with spans, a model for questions with a part of the context. A classifier with one
    logit answers with it, a number; one whose config.json has the `problem_type` of several labels,
    with these. An encoder of a sentence-transformers folder, and any where the task is embedding,
    answers with vectors, pooled as that folder says or `pooling`.
    long_texts, stride: as the keys of `data`.
    UserError if it has no head or one whose answers no task has, if the labels are not as many as
    the head has or are its own in another order, or if it has no positions for `max_length`.
    """
    named = task_names.all_that(lambda shape: shape.imports)
    if task is not None and task not in named:
        choices = "; ".join(f"{name} for {task_names.SHAPES[name].imports}" for name in named)
        raise UserError(
            f"task: {task!r} follows from the model's head; leave it out, or name {choices}"
        )
    if max_length is not None and max_length < SHORTEST:
        raise UserError(f"max_length: is {max_length}; it has to be at least {SHORTEST}")

    def read_by(task: str, max_length: int) -> Reading:
        try:
            config.check_long_texts(task, long_texts)
            config.check_stride(stride, max_length, long_texts)
        except ValueError as error:
            raise UserError(str(error)) from None
        return config.reading_of(task, max_length, long_texts, stride)

    names = None if labels is None else labels_of.given(labels)
    log.info(f"{model.init}: reading the model")
    program = from_paddle.find(Path(model.init))
    if program is not None:
        if task is not None:
            raise UserError(
                f"task: {program} is a program, which answers what it was exported with; leave "
                "task out, or name a folder with weights"
            )

        def answers(fields: Fields, count: int) -> tuple[str, list[str]]:
            known = sources.head_labels(fields, count)
            kind = _task(str(program), fields.get("problem_type"), count, pair)
            return kind, _labels(str(program), kind, fields, known, count, names)

        with files.writing(path):
            return from_paddle.import_program(program, model, path, answers, max_length, read_by)
    source = sources.open_source(model)
    tensors = source.tensors or {}
    has_classifier = "classifier.weight" in tensors
    is_finder = "ForQuestionAnswering" in source.architecture
    if task is None and not (has_classifier or is_finder) and sources.is_of_vectors(source):
        if source.folder and (source.folder / SETFIT_HEAD).is_file():
            raise UserError(
                f"{source.name}: its classifier is {SETFIT_HEAD}, SetFit's, which is not read; "
                f"train one from it, with model.init, or name the task {tasks.EMBEDDING.name} for "
                "its vectors"
            )
        task = tasks.EMBEDDING.name
    if task is not None and (names or pair):
        raise UserError(f"{'labels' if names else 'pair'}: task: {task} needs none; leave it out")
    shapes = task_names.SHAPES
    if pooling is not None and task is None:
        raise UserError(f"pooling: is of vectors; name task: {tasks.EMBEDDING.name} too")
    if pooling is not None and task is not None and not shapes[task].pooled:
        tells = shapes[task].tells
        raise UserError(f"pooling: is of vectors, and {task} tells {tells}; leave it out")
    if task is not None and shapes[task].pooled:
        source, names = source.with_pooling(pooling, "pooling"), []
    elif task is not None:
        count = tensors["classifier.weight"].shape[1] if has_classifier else 0
        if count != (takes := shapes[task].outputs):
            raise UserError(
                f"{source.name}: its head gives {count} numbers, and {task} takes {takes}; train "
                f"one from it, with model.init and task.name: {task}"
            )
        names = []
    elif is_finder:
        task = tasks.QUESTION_ANSWERING.name
        if names not in (None, [], [NO_ANSWER]):
            raise UserError(
                f"labels: {source.name} finds answers in contexts; leave labels out, or give "
                f"{NO_ANSWER} if it was trained on questions without an answer too"
            )
        names = names or []
    elif has_classifier:
        count = tensors["classifier.weight"].shape[1]
        tagger = "ForTokenClassification" in source.architecture
        if tagger and pair:
            raise UserError(f"pair: {source.name} tags the tokens of single texts; leave it out")
        kind = tasks.TOKEN_CLASSIFICATION.name if tagger else None
        task = kind or _task(source.name, source.problem_type, count, pair)
        path_of_fields = source.folder and source.folder / "config.json"
        fields = charset.read_json(path_of_fields, "configuration") if path_of_fields else {}
        names = _labels(source.name, task, fields, source.head_labels, count, names)
        if tagger:
            names = _tags(source.name, names)
        if count == 1 and (activation := _activation(fields)):
            log.warning(
                f"{source.name}: CrossEncoder.predict answers with {activation} of the number that "
                "the bundle answers with; the order is the same, a threshold is not"
            )
    elif any(name.startswith("cls.predictions.") for name in tensors):
        names, task = [], tasks.MASKED_WORDS.name
    else:
        raise UserError(
            f"{source.name}: has no classifier, so it answers nothing; train one from it, with "
            f"init, or name the task {tasks.EMBEDDING.name} for its vectors"
        )
    positions = int(source.shape.get("max_position_embeddings", LONGEST))
    if max_length is None:
        wanted = pooling_of.longest(source.folder) if source.folder is not None else None
        max_length = min(positions, wanted or LONGEST)
    if max_length > positions:
        raise UserError(f"max_length: {max_length} is more than {source.name}'s {positions}")
    reading = read_by(task, max_length)
    tokenizer = tokenizers.open(source.tokenizer)
    windows.encode(tokenizer, ["a"], None, reading)  # UserError where it only cuts
    outputs = tasks.get(task).of_width(source.shape["hidden_size"]).outputs(names)
    shape = weights.bert_config(source, outputs, tokenizer.vocab_size, tokenizer.pad_id)
    if tasks.get(task).shape.answers:  # every weight is loaded: nothing has to be drawn before
        shape = dataclasses.replace(shape, initializer_range=0.0)
    network = task_heads.build(task, shape)
    report = weights.load(network, source)
    if report.fresh and tasks.get(task).shape.answers:
        raise UserError(f"{source.name}: has no weights for {', '.join(report.fresh)}")
    network.eval()
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return export_bundle(
            path,
            network,
            task=task,
            labels=names,
            max_length=max_length,
            tokenizer=source.tokenizer,
            made_from=source.name,
            reading=reading,
        )


def _activation(fields: Fields) -> str | None:
    """The function that a config.json of sentence-transformers' CrossEncoder puts after its one
    logit; None where it names none that changes it."""
    inner = fields.get("sentence_transformers")
    chosen = inner.get("activation_fn") if isinstance(inner, dict) else None
    path = chosen or fields.get("sbert_ce_default_activation_function") or "Identity"
    name = str(path).rpartition(".")[2]
    return None if name == "Identity" else name


def _task(name: str, problem_type: str | None, logits: int, pair: bool) -> str:
    if problem_type == tasks.MULTI_LABEL.shape.problem_type:
        if pair:
            raise UserError(f"{name}: has several labels, which only single texts have")
        return tasks.MULTI_LABEL.name
    if problem_type == tasks.REGRESSION.shape.problem_type and logits > 1:
        raise UserError(
            f"{name}: its head gives {logits} numbers for each text, and a bundle's gives "
            "one; train one from its encoder: model.init"
        )
    if logits == 1:
        return (tasks.PAIR_REGRESSION if pair else tasks.REGRESSION).name
    return (tasks.PAIR_CLASSIFICATION if pair else tasks.CLASSIFICATION).name


def _tags(name: str, labels: Sequence[str]) -> list[str]:
    """The tags of a tagger: a label without a prefix, as those of parts of speech, goes on where
    the word before has it too, as transformers' pipeline reads it."""
    if all(label == f"LABEL_{number}" for number, label in enumerate(labels)):
        raise UserError(
            f"labels: {name} has no id2label, which names the tags of its {len(labels)} logits; "
            "give labels, such as O B-PER I-PER, in the logits' order"
        )
    return [
        label if label == "O" or label.partition("-")[0] in conll.PREFIXES else f"I-{label}"
        for label in labels
    ]


def _labels(
    name: str,
    task: str,
    fields: Fields,
    known: Sequence[str],
    count: int,
    given: Sequence[str] | None,
) -> list[str]:
    """The labels of a classifier with `count` logits. known: those that its config.json (`fields`)
    names; where it names none, LABEL_0, ..., as in transformers. UserError where it names some and
    not all."""
    named = fields.get("id2label") or fields.get("label2id")
    if given is None and named and not known and tasks.get(task).shape.least_labels:
        raise UserError(
            f"labels: the id2label of {name} names not each of its {count} logits once: "
            f"{json.dumps(named, ensure_ascii=False)[:200]}; give labels, in the logits' order, or "
            "correct id2label"
        )
    known = list(known) or [f"LABEL_{number}" for number in range(count)]
    if given is None:
        given = known
    elif len(given) != count:
        raise UserError(
            f"labels: {name} has {count} logits, and the labels "
            f"{weights.few(given) or 'none'}; give as many, in their order"
        )
    if list(given) != known and set(given) == set(known):
        raise UserError(
            f"labels: {weights.few(given)} is another order than that of {name}'s "
            f"id2label, {weights.few(known)}; leave labels out, or correct id2label"
        )
    return list(given) if tasks.get(task).shape.least_labels else []
