"""A finished model → a bundle, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from fleetbert import bundle as bundles
from fleetbert import config, files, tasks
from fleetbert.data import tokenizers
from fleetbert.errors import UserError
from fleetbert.export import from_paddle
from fleetbert.export.program import export_bundle
from fleetbert.models import heads, weights


def import_model(
    model: config.Model,
    path: Path,
    labels: Sequence[str] | None,
    pair: bool = False,
    max_length: int = 128,
) -> bundles.Bundle:
    """Write the model that `model.init` names as a bundle at `path`, with the variant float32. A
    folder with an exported program is the part of `from_paddle`.

    labels: in the order of the logits; None: `id2label` of its config.json. A classifier with one
    logit answers with it, a number; one whose config.json has the `problem_type` of several labels,
    with these. UserError if it has no head or one whose answers no task has, if the labels are not
    as many as the head has or are its own in another order, or if it has no positions for
    `max_length`.
    """
    program = from_paddle.find(Path(model.init))
    if program is not None:
        return from_paddle.import_program(program, model, path, labels, pair, max_length)
    source = weights.open_source(model)
    tensors = source.tensors or {}
    if "classifier.weight" in tensors:
        count = tensors["classifier.weight"].shape[1]
        task = _task(source, count, pair)
        known = _labels(source, count, labels)
        labels = known if tasks.get(task).least_labels else []
    elif any(name.startswith("cls.predictions.") for name in tensors):
        labels, task = [], "mlm"
    else:
        raise UserError(
            f"{source.name}: has no classifier, so it answers nothing; train one from it, with init"
        )
    positions = source.shape.get("max_position_embeddings", 512)
    if max_length > int(positions):
        raise UserError(f"max_length: {max_length} is more than {source.name}'s {positions}")
    tokenizer = tokenizers.open(source.tokenizer)
    outputs = tasks.get(task).outputs(labels)
    shape = weights.bert_config(source, outputs, tokenizer.vocab_size, tokenizer.pad_id)
    network = heads.build(task, shape)
    report = weights.load(network, source)
    if report.fresh and task != "mlm":
        raise UserError(f"{source.name}: has no weights for {', '.join(report.fresh)}")
    network.eval()
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return export_bundle(
            path,
            network,
            task=task,
            labels=labels,
            max_length=max_length,
            tokenizer=source.tokenizer,
            made_from=source.name,
        )


def _task(source: weights.Source, logits: int, pair: bool) -> str:
    """That of a classifier."""
    if source.problem_type == tasks.MULTI_LABEL.name:
        if pair:
            raise UserError(f"{source.name}: has several labels, which only single texts have")
        return tasks.MULTI_LABEL.name
    if source.problem_type == "regression" and logits > 1:
        raise UserError(
            f"{source.name}: its head gives {logits} numbers for each text, and a bundle's gives "
            "one; train one from its encoder: model.init"
        )
    kind = "regression" if logits == 1 else "classification"
    return f"pair_{kind}" if pair else kind


def _labels(source: weights.Source, count: int, given: Sequence[str] | None) -> list[str]:
    """The labels of a classifier with `count` logits; LABEL_0, ... where none are known, as in
    transformers."""
    known = list(source.head_labels) or [f"LABEL_{number}" for number in range(count)]
    if given is None:
        return known
    if len(given) != count:
        raise UserError(
            f"labels: {source.name} has {count} logits, and the labels "
            f"{weights.few(given) or 'none'}; give as many, in their order"
        )
    if list(given) != known and set(given) == set(known):
        raise UserError(
            f"labels: {weights.few(given)} is another order than that of {source.name}'s "
            f"id2label, {weights.few(known)}; leave labels out, or correct id2label"
        )
    return list(given)
