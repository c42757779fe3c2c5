"""When AdamW moves only those rows of the words' table that training touches."""

from __future__ import annotations

import paddle
from paddle import nn

from fleetbert.compat import adamw
from fleetbert.models.bert import Embeddings
from fleetbert.training.strategies.single import Single


def choose(strategy: Single, watched: bool) -> None:
    """Let AdamW keep rows (`compat.touched_rows`) where it may; called before the first step.

    It may where one process trains on a CPU with oneDNN (ranks exchange whole gradients), and
    nothing else needs the table's gradient: no callback (`watched`), and no loss scale.
    """
    precision = strategy.precision
    if (
        type(strategy) is Single
        and isinstance(strategy.optimizer, adamw.AdamW)
        and precision.functions is not None
        and precision.factor == 1
        and not watched
    ):
        table = _table(strategy.task.network)
        if table is not None:
            strategy.words = precision.functions.words = strategy.optimizer.keep_rows(table)


def _table(network: nn.Layer) -> paddle.Tensor | None:
    """Return the table of words, if it learns and is worth it. None where a layer besides the
    lookup has it, as the head for masked words: then all rows have a gradient."""
    layers = network.sublayers(include_self=True)
    tables = [each.word_embeddings.weight for each in layers if isinstance(each, Embeddings)]
    if len(tables) != 1 or tables[0].stop_gradient or tables[0].size < adamw.SMALLEST:
        return None
    holders = [each for layer in layers for each in layer._parameters.values()]
    return tables[0] if sum(each is tables[0] for each in holders) == 1 else None
