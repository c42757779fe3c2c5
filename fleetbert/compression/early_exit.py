"""Early-exit variants: the program of a variant, cut into groups of layers, with heads between.

The heads learn from the float32 program's hidden states, and are measured on those of each source.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compression import paired
from fleetbert.compression.gate import Sample, in_turns
from fleetbert.core.errors import UserError
from fleetbert.data.packing import packed_layout
from fleetbert.data.ragged import Texts
from fleetbert.engines import engine, exit_heads, exits, predictor
from fleetbert.engines.early_exit import EarlyExitEngine, open_variant
from fleetbert.engines.exits import Settings
from fleetbert.export.program import versions
from fleetbert.graph import groups, int8, weights
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import FIRST, first_token_only
from fleetbert.graph.fuse import fuse, merge_transposes
from fleetbert.graph.smooth import SMOOTH

# Thresholds that are tried, and drawn in the report; steps of 0.1 miss good ones.
SPEEDS = tuple(round(0.02 * step, 2) for step in range(1, 50))
TIMED = 3  # passes over the texts
# Groups are chosen among all ways to cut up to so many layers; of more, even ones only.
ALL_CUTS = 12
# Times the least cost that counts as hardly more: putting texts together anew between groups is not
# in the cost, and a text alone pays a call for each group.
NEARLY = 1.03


class Source(NamedTuple):
    """A variant's fused program for x86, its parameters, and the variables that layers give."""

    name: str
    program: programs.ProgramDesc
    quantized: dict[str, weights.Quantized]
    others: programs.Parameters
    layers: list[str]
    logits: str


class Observed(NamedTuple):
    """Answers to texts with known labels: truth int64 [texts]; predicted int64 and doubt
    (uncertainty, 0 to 1) [layers, texts], of each layer's head and at last of the program itself;
    flops float64 [layers, texts], spent until then (`count_flops`); seconds that a layer takes for
    all texts, and a group beside its layers, if its head may let texts leave. reference: bool
    [texts], which of them float32 answers right; None: choices are taken at their word.

    Of other tasks than of one label: accuracy: the task's figure where texts left after these
    layers, int64 [texts], from 1; error: the standard error of what is lost then against the last
    layer, where the figure is one of sums over texts (`Evaluator.sums`). Where the doubt compares
    two heads (numbers, vectors): outputs float32 [layers, texts, outputs], and settings: how it is
    computed; `doubt` is not used then.
    """

    truth: np.ndarray
    predicted: np.ndarray
    doubt: np.ndarray
    flops: np.ndarray
    layer_seconds: float
    group_seconds: float
    reference: np.ndarray | None = None
    outputs: np.ndarray | None = None
    accuracy: Callable[[np.ndarray], float] | None = None
    error: Callable[[np.ndarray], float] | None = None
    settings: Settings | None = None

    def accuracy_at(self, layer: np.ndarray) -> float:
        """0 to 1, if texts left after these layers, int64 [texts], from 1."""
        if self.accuracy is not None:
            return self.accuracy(layer)
        predicted = self.predicted[layer - 1, np.arange(self.texts)]
        return float((predicted == self.truth).mean())

    @property
    def texts(self) -> int:
        return self.doubt.shape[1]

    def doubt_after(self, ends: Sequence[int], number: int) -> np.ndarray:
        """The doubt of each text after the group of that number, [texts]."""
        if self.settings is None or self.outputs is None:
            return self.doubt[ends[number] - 1]
        former = self.outputs[ends[number - 1] - 1] if number else None
        return exits.doubt(self.settings, self.outputs[ends[number] - 1], former)


class Choice(NamedTuple):
    """ends: the last layer of each group; accuracy 0 to 1 at that speed; cost: seconds for all
    texts by the times that were observed; mean_layers that a text goes through, and the flops of
    its layers in the mean; margin: a standard error of what is lost against float32."""

    ends: list[int]
    speed: float
    accuracy: float
    cost: float
    mean_layers: float
    mean_flops: float
    margin: float = 0.0


def open_source(bundle: bundles.Bundle, name: str) -> Source:
    """The program of the variant `name`; UserError if it cannot be cut into layers."""
    variant = bundle.variant(name)
    folder = bundle.folder(name)
    if variant.kind == "paddle-inference":
        fused = fuse(folder)
        program = first_token_only(merge_transposes(fused.program))
        quantized: dict[str, weights.Quantized] = {}
        others = fused.parameters
    elif variant.kind == engine.INT8:
        program = programs.read(folder / "x86.pdmodel")
        quantized, others = weights.load(folder)
    else:
        raise UserError(
            f"sources: the variant {name} of {bundle.root} is of kind {variant.kind}; name float32 "
            "or one that computes in int8, as int8-static does"
        )
    layers = groups.layer_outputs(program)
    if len(layers) < 2 or len(layers) != groups.count_layers(program):
        raise UserError(
            f"early exit needs two encoder layers or more, and the variant {name} of "
            f"{bundle.root} has {len(layers)}"
        )
    (logits,) = programs.output_names(program)
    return Source(name, program, quantized, others, layers, logits)


def write(
    source: Source, folder: Path, settings: Settings, trained: dict[int, exit_heads.Tensors]
) -> bundles.Variant:
    """Write the variant's files; see `engines.exits`."""
    for end, program in groups.cut_groups(source.program, settings.ends):
        programs.write(folder / exits.program_name(end), program)
    weights.save(folder, source.quantized, source.others)
    exit_heads.save(folder, {end: trained[end] for end in settings.ends[:-1]})
    exits.save_settings(folder, settings)
    return bundles.EarlyExitVariant(
        name=variant_name(source.name),
        made_from=source.name,
        runs_on=["x86"],
        versions=versions(),
        **settings._asdict(),
    )


def variant_name(source: str) -> str:
    """early-exit-float32, early-exit-int8; of others the source's name after early-exit-."""
    return "early-exit-" + ("int8" if source == "int8-static" else source)


def open_teacher(source: Source, threads: int) -> predictor.Predict:
    """What gives of token ids and types every inner layer's output, and at last the logits."""
    outputs = [*source.layers[:-1], source.logits]
    program = programs.cut(source.program, engine.INPUTS, outputs)
    return predictor.open_as_it_is(program, source.others, threads)


def open_layers(source: Source, folder: Path, settings: Settings, threads: int) -> EarlyExitEngine:
    """The source with every layer a group of its own and no heads, written to `folder`. settings:
    with the padding, and how doubt is told."""
    ends = list(range(1, len(source.layers) + 1))
    settings = settings._replace(ends=ends, speed=0.0)
    write(source, folder, settings, {end: {} for end in ends})
    return open_variant(folder, engine.Options(threads=threads))


def observe(
    opened: EarlyExitEngine,
    whole: engine.Engine,
    batches: Sequence[tuple[np.ndarray, Texts]],
    sample: Sample,
    trained: dict[int, exit_heads.Tensors],
    source: Source,
    timed: int = TIMED,
) -> Observed:
    """Have all heads answer all texts of a sample, in these batches, and time layers and heads
    beside the whole program.

    opened: the source with every layer a group, as `open_layers` gives it. timed: passes; 0: the
    times that are told are those of one that warms up.
    """
    settings, task = opened.early_exit, sample.model.task
    count, tokens = len(opened.groups), sample.rows.texts.lengths
    doubt = np.zeros((count, len(tokens)))
    outputs = [task.room(len(tokens), sample.model.labels) for _ in range(count)]
    times = []
    for _ in range(1 + timed):  # the first warms up
        split = alone = 0.0
        for numbers, batch in batches:
            started = time.perf_counter()
            whole.run(batch)
            alone += time.perf_counter() - started
            started = time.perf_counter()
            at = packed_layout(batch.lengths)
            state = None
            for layer, group in enumerate(opened.groups, 1):
                state = group(state, batch, at)
                if layer == count:
                    answers = opened.last(state, at)
                else:
                    answers = exit_heads.KINDS[settings.head](trained[layer], state, at)
                doubt[layer - 1, numbers] = exits.doubt(settings, answers, answers)
                outputs[layer - 1][numbers] = answers
            split += time.perf_counter() - started
        times.append((alone, split))
    alone, split = (min(seconds) for seconds in zip(*times[min(1, timed) :]))
    one_label, change = settings.doubt == "entropy", settings.doubt == "change"
    one_label = one_label and sample.rows.layout is None
    observed = Observed(
        sample.truth,
        np.array([rows.argmax(1) for rows in outputs] if one_label else []),
        doubt,
        count_flops(source, tokens),
        alone / count,
        max(0.0, split - alone) / max(1, count - 1),
        outputs=np.array(outputs) if change else None,
        settings=settings if change else None,
    )
    return observed if one_label else _with_figure(observed, sample, outputs)


def _with_figure(observed: Observed, sample: Sample, outputs: Sequence[np.ndarray]) -> Observed:
    """With the task's figure, of each layer's raw outputs [texts, ...]; where texts are divided,
    their windows leave one by one, and `observed` is of windows."""
    metrics, texts = sample.model.task.metrics, np.arange(observed.texts)
    if (layout := sample.rows.layout) is not None:
        pool, rows_of = sample.model.task.answer.pool, np.stack(outputs)
        return observed._replace(
            accuracy=lambda layer: sample.metric(
                sample.of_texts(pool(rows_of[layer - 1, texts], layout))
            )
        )
    layers = np.stack([sample.of_texts(rows) for rows in outputs])
    every = (metrics.sums(sample.truth, rows, sample.model.labels) for rows in layers)
    sums = [rows for rows in every if rows is not None]
    if not sums or len(sums[0]) != len(texts):  # a figure of all texts together, or of queries
        return observed._replace(accuracy=lambda layer: sample.metric(layers[layer - 1, texts]))
    each = np.stack(sums)
    return observed._replace(
        accuracy=lambda layer: metrics.of_sums(each[layer - 1, texts].sum(0)),
        error=lambda layer: paired.error_of_sums(metrics.of_sums, each[-1], each[layer - 1, texts]),
    )


def count_flops(source: Source, tokens: np.ndarray) -> np.ndarray:
    """Floating-point (or integer) operations until each layer's end, of texts with so many tokens
    (int64 [texts]): float64 [layers, texts].

    Products with weights count 2 a weight and token, attention 4 a pair of tokens and unit; norms,
    GELU and heads are left out (heads: less than 1 %). Where the last layer computes [CLS] alone
    (`first_token_only`), its keys and values are of all tokens.
    """
    first_only = any(FIRST in var.name for var in source.program.blocks[0].vars)
    count = len(source.layers)
    spent = np.zeros((count, len(tokens)))
    shape_of = {name: stored.shape for name, stored in source.others.items()}
    shape_of.update((name, stored.integers.shape) for name, stored in source.quantized.items())
    for number, program in groups.cut_groups(source.program, range(1, count + 1)):
        last = number == count and first_only
        linear = int8.linear_layers(program)
        shapes = [shape_of[programs.argument(op.inputs, "W")] for op in linear]
        for op, (rows, columns) in zip(linear, shapes):
            read = programs.argument(op.inputs, "Input").replace(int8.INT8, "").replace(SMOOTH, "")
            of_all = not last or read == source.layers[number - 2]
            spent[number - 1] += 2.0 * rows * columns * (tokens if of_all else 1)
        query_width = shapes[0][1]
        spent[number - 1] += 4.0 * query_width * tokens * (1 if last else tokens)
    return spent.cumsum(0)


def _leave(observed: Observed, ends: Sequence[int], speed: float) -> tuple[np.ndarray, float]:
    """The layer after which each text leaves, int64 [texts], and what all cost (`Choice`)."""
    exit_at = np.full(observed.texts, len(ends) - 1)
    for number in reversed(range(len(ends) - 1)):
        exit_at[observed.doubt_after(ends, number) < speed] = number
    cost, starts = 0.0, 0
    for number, end in enumerate(ends):
        share = float((exit_at >= number).mean())
        beside = 0.0 if end == ends[-1] else observed.group_seconds  # the last has no head
        cost += share * ((end - starts) * observed.layer_seconds + beside)
        starts = end
    return np.asarray(ends)[exit_at], cost


def evaluate(observed: Observed, ends: Sequence[int], speed: float) -> Choice:
    """Accuracy and cost of leaving after the layers `ends` (from 1) at that speed, by what was
    observed."""
    texts = observed.texts
    layer, cost = _leave(observed, ends, speed)
    flops = observed.flops[layer - 1, np.arange(texts)]
    margin = 0.0
    if observed.reference is not None:
        right = observed.predicted[layer - 1, np.arange(texts)] == observed.truth
        lost, gained = (observed.reference & ~right).sum(), (~observed.reference & right).sum()
        margin = paired.standard_error(int(lost), int(gained), texts)
    elif observed.error is not None:
        margin = observed.error(layer)
    means = float(layer.mean()), float(flops.mean())
    return Choice(list(ends), speed, observed.accuracy_at(layer), cost, *means, margin)


def saves(observed: Observed, choice: Choice) -> bool:
    """Whether the choice costs less than the whole program, by the times that were observed."""
    return choice.cost < evaluate(observed, [len(observed.doubt)], 0.0).cost * (1 - 1e-9)


def times_faster(
    opened: engine.Engine, other: Callable[[Texts], object], texts: Texts, batch_tokens: int
) -> float:
    """Texts a second of the opened variant at its own speed over those of `other`, which answers a
    batch, the median of passes over the texts by turns. batch_tokens: of the batches."""

    def alone() -> None:
        for _, batch in engine.in_batches(texts, batch_tokens):
            other(batch)

    def together() -> None:
        for _ in opened.run_all(texts, None, batch_tokens):
            pass

    _, times = in_turns([alone, together], TIMED)
    return statistics.median(slow / fast for slow, fast in zip(*times))


def choose(
    observed: Observed, least: float, layers: Sequence[int] | None, speed: float | None
) -> Choice:
    """The choice with the fewest groups among those whose accuracy is `least` or more, by a margin,
    and that cost hardly more than the cheapest; the most accurate of all where none is so.

    The margin is a standard error: of the many choices that are compared, the ones that seem to
    lose little are those that were lucky on these texts.

    layers, speed: fixed where they are given.
    """
    count = len(observed.doubt)
    inner = range(1, count) if count <= ALL_CUTS else range(2, count, 2)
    cuts = [
        [*chosen, count]
        for size in range(1, len(inner) + 1)
        for chosen in itertools.combinations(inner, size)
    ]
    if layers is not None:
        cuts = [list(layers)]
    speeds = SPEEDS if speed is None else (speed,)
    ways = [(_leave(observed, ends, limit)[1], ends, limit) for ends in cuts for limit in speeds]
    every: list[Choice] = []
    good: list[Choice] = []
    # The cheapest first: of those beyond what is looked for no figure is computed.
    for cost, ends, limit in sorted(ways, key=lambda way: way[0]):
        if good and cost > NEARLY * good[0].cost:
            break
        every.append(evaluate(observed, ends, limit))
        if every[-1].accuracy - every[-1].margin >= least - 1e-9:
            good.append(every[-1])
    if good:
        return min(good, key=lambda choice: (len(choice.ends), choice.cost))
    return max(every, key=lambda choice: (choice.accuracy, -choice.cost))
