"""The process in which PaddleSlim compresses; `auto_compression` starts it.

Its arguments are a JSON file with the job and PaddleSlim's YAML file, the folder of the program,
which PaddleSlim may change, and the folder to save in.
"""

from __future__ import annotations

import json
import logging
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
from fleetbert.compression import auto_compression, from_program  # noqa: E402
from fleetbert.compression.gate import Sample  # noqa: E402
from fleetbert.compression.texts import BATCH_TOKENS, Feeds  # noqa: E402
from fleetbert.compression.work import Work, open_work  # noqa: E402
from fleetbert.core.errors import UserError  # noqa: E402
from fleetbert.data import ragged  # noqa: E402
from fleetbert.data.batching import plan_inference  # noqa: E402
from fleetbert.engines.engine import INPUTS, ProgramEngine  # noqa: E402
from fleetbert.models import task_heads, weights  # noqa: E402

RATE = 1e-5  # of AdamW, as in the recipes of AutoCompression
SHOWN = 10  # every so many steps the loss is told


def main(arguments: Sequence[str]) -> None:
    given = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    job = config.Quantize.model_validate(given["job"])
    settings = auto_compression.read(job.paddleslim)
    work = open_work(job)
    batches = [{name: batch[name] for name in INPUTS} for batch in work.calibration_batches]
    order = np.random.default_rng(job.calibration.seed).permutation(len(batches))
    paddle.set_device("cpu")
    paddle.seed(job.calibration.seed)
    if auto_compression.QAT in settings:
        train_network(
            work,
            settings[auto_compression.QAT],
            [batches[number] for number in order],
            Path(arguments[2]),
        )
        return
    calibrates_only = set(settings) <= {"QuantPost", "Global"}
    sample = None if calibrates_only else work.selection
    from paddleslim.auto_compression import AutoCompression  # prints as it is imported

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


def train_network(
    work: Work, settings: auto_compression.Settings, batches: Sequence[Feeds], folder: Path
) -> None:
    """PaddleSlim's QAT of the network, an epoch of AdamW by the squared error of its outputs
    against those before; saves the program in `folder`."""
    from paddleslim import QAT
    from paddleslim.common import get_logger

    log = get_logger(__name__, level=logging.INFO)  # whose lines the parent shows
    source = from_program.open_bundle(work.bundle, 0.0, work.job.source)
    task, labels = work.gate.model.task, work.bundle.task.labels
    pad_id = work.gate.model.tokenizer.pad_id
    network, before = (
        task_heads.build(task.name, weights.bert_config(source, task.outputs(labels), 0, pad_id))
        for _ in range(2)
    )
    for built in (network, before):
        weights.load(built, source, labels)
    before.eval()
    # QAT wraps a layer's output too, and the network asks its pooler for its weight.
    network.network.bert.pooler.dense.skip_quant = True
    qat = QAT(settings)
    qat.quantize(network)
    network.train()
    optimizer = paddle.optimizer.AdamW(RATE, parameters=network.parameters(), weight_decay=0.01)
    for number, batch in enumerate(batches, 1):
        inputs = [paddle.to_tensor(batch[name]) for name in INPUTS]
        with paddle.no_grad():
            expected = before(*inputs)
        loss = (network(*inputs) - expected).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if number % SHOWN == 0 or number == len(batches):
            log.info(f"step {number} of {len(batches)}: loss {float(loss):.4f}")
    network.eval()
    specs = [paddle.static.InputSpec([None, None], "int64", name) for name in INPUTS]
    qat.save_quantized_model(network, str(folder / "model"), input_spec=specs)


def _loader(batches: Sequence[dict[str, np.ndarray]]) -> paddle.io.DataLoader:
    """What all of PaddleSlim takes: QuantPost wants a DataLoader, and the batches are made."""
    return paddle.io.DataLoader(batches, batch_size=None, places=[paddle.CPUPlace()])


def _labelled(sample: Sample) -> list[dict[str, np.ndarray]]:
    """Batches with int64 labels [texts, 1], by whose loss TransformerPrune ranks heads; without
    labels where a text has not just one."""
    (texts, layout), pad_id = sample.rows, sample.model.tokenizer.pad_id
    truth = sample.truth if layout is None else sample.truth[layout.text]
    batches = []
    for numbers, batch in texts.parts(plan_inference(texts.lengths, BATCH_TOKENS)):
        arrays = dict(zip(INPUTS, ragged.pad(batch, pad_id)))
        if sample.model.task.shape.picks_label:
            arrays["label"] = truth[numbers].astype(np.int64)[:, None]
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
