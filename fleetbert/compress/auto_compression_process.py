"""The process in which PaddleSlim compresses; `auto_compression` starts it.

Its arguments are a JSON file with the job and PaddleSlim's YAML file, the folder of the program,
which PaddleSlim may change, and the folder to save in.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Sequence

from fleetbert.compat import environment

environment.import_paddle()
import numpy as np  # noqa: E402
import paddle  # noqa: E402  after its warnings were taken away

from fleetbert import config  # noqa: E402
from fleetbert.compress import auto_compression  # noqa: E402
from fleetbert.compress.gate import Sample  # noqa: E402
from fleetbert.compress.texts import BATCH_TOKENS  # noqa: E402
from fleetbert.compress.work import open_work  # noqa: E402
from fleetbert.core.errors import UserError  # noqa: E402
from fleetbert.data import ragged  # noqa: E402
from fleetbert.data.batching import plan_inference  # noqa: E402
from fleetbert.engines.engine import INPUTS, ProgramEngine  # noqa: E402


def main(arguments: Sequence[str]) -> None:
    given = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    job = config.Quantize.model_validate(given["job"])
    settings = auto_compression.read(job.paddleslim)
    work = open_work(job)
    batches = [{name: batch[name] for name in INPUTS} for batch in work.calibration_batches]
    order = np.random.default_rng(job.calibration.seed).permutation(len(batches))
    calibrates_only = set(settings) <= {"QuantPost", "Global"}
    sample = None if calibrates_only else work.selection
    from paddleslim.auto_compression import AutoCompression  # prints as it is imported

    paddle.set_device("cpu")
    paddle.seed(job.calibration.seed)
    AutoCompression(
        model_dir=arguments[1],
        model_filename="model.pdmodel",
        params_filename="model.pdiparams",
        save_dir=arguments[2],
        config=given["recipe"],
        train_dataloader=_loader([batches[number] for number in order]),
        eval_callback=_metric_of(sample) if sample else None,
        eval_dataloader=_loader(_labelled(sample)) if sample else None,
        deploy_hardware="cpu",
    ).compress()


def _loader(batches: Sequence[dict[str, np.ndarray]]) -> paddle.io.DataLoader:
    """What all of PaddleSlim takes: QuantPost wants a DataLoader, and the batches are made."""
    return paddle.io.DataLoader(batches, batch_size=None, places=[paddle.CPUPlace()])


def _labelled(sample: Sample) -> list[dict[str, np.ndarray]]:
    """Batches with int64 labels [texts, 1], by whose loss TransformerPrune ranks heads; without
    labels where a text has not just one."""
    texts, pad_id = sample.ragged, sample.model.tokenizer.pad_id
    batches = []
    for numbers, batch in texts.parts(plan_inference(texts.lengths, BATCH_TOKENS)):
        arrays = dict(zip(INPUTS, ragged.pad(batch, pad_id)))
        if sample.model.task.shape.picks_label:
            arrays["label"] = sample.truth[numbers].astype(np.int64)[:, None]
        batches.append(arrays)
    return batches


def _metric_of(sample: Sample) -> Any:
    """AutoCompression's eval_callback: the task's metric of a program on the sample."""

    def evaluate(
        executor: Any, program: Any, feeds: Sequence[str], fetched: Sequence[Any]
    ) -> float:
        def run(ids: np.ndarray, types: np.ndarray, _: np.ndarray) -> np.ndarray:
            fed = dict(zip(INPUTS, (ids, types)))
            outputs = executor.run(
                program, feed={name: fed[name] for name in feeds}, fetch_list=fetched
            )
            return np.asarray(outputs[0])

        return sample.metric(sample.logits(ProgramEngine(run, sample.model.tokenizer.pad_id)))

    return evaluate


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
