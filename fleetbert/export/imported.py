"""A finished model → a bundle, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from fleetbert import bundle as bundles
from fleetbert import config, files
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

    labels: in the order of the logits; None: `id2label` of its config.json. UserError if it has no
    head or one that does not choose a label, if the labels are not as many as the head has or are
    its own in another order, or if it has no positions for `max_length`.
    """
    program = from_paddle.find(Path(model.init))
    if program is not None:
        return from_paddle.import_program(program, model, path, labels, pair, max_length)
    source = weights.open_source(model)
    tensors = source.tensors or {}
    if "classifier.weight" in tensors:
        _refuse_other_answers(source, tensors["classifier.weight"].shape[1])
        labels = _labels(source, tensors["classifier.weight"].shape[1], labels)
        task = "pair_classification" if pair else "classification"
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
    shape = weights.bert_config(source, max(2, len(labels)), tokenizer.vocab_size, tokenizer.pad_id)
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


def _refuse_other_answers(source: weights.Source, count: int) -> None:
    """Its logits are to be one for each label, of which a text has one."""
    if source.problem_type == "regression" or count == 1:
        found = f"a number for each text ({count} logit{'s' * (count > 1)}; regression)"
    elif source.problem_type == "multi_label_classification":
        found = "several labels for a text (problem_type: multi_label_classification)"
    else:
        return
    raise UserError(
        f"{source.name}: its head gives {found}, and a bundle's gives each text one label; train "
        "one from its encoder: model.init"
    )


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
