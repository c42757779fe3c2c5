"""PaddleSlim's AutoCompression over the bundle's float32 program: `method: paddleslim`.

The job names a YAML file of AutoCompression, which PaddleSlim gets unchanged, or one of `RECIPES`;
or DYGRAPH, PaddleSlim's QAT of the network, which is no part of AutoCompression.
PaddleSlim runs in a process of its own (`auto_compression_process`), as importing it takes seconds
and it changes the program's folder. The program that it saves becomes an int8 variant where it has
quantizers, else a float32 one, which other methods may take as their source.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, Mapping

import numpy as np
import yaml

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compat import versions as paddles
from fleetbert.compression.work import Ready, Source, Work
from fleetbert.core import charset, extras
from fleetbert.core.errors import UserError
from fleetbert.export import from_paddle
from fleetbert.export.program import versions
from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters

log = logging.getLogger(__name__)

PROCESS = "fleetbert.compression.auto_compression_process"
Settings = Dict[str, Any]

# The sections of AutoCompression's files (PaddleSlim's auto_compression/strategy_config.py).
# Global has what its command line reads: the model, which here is the bundle's.
QUANTIZING = ("QuantAware", "QuantPost")
TRAINING = ("Distillation", "MultiTeacherDistillation")
PRUNING = ("ASPPrune", "TransformerPrune", "UnstructurePrune")
OTHERS = ("HyperParameterOptimization", "TrainConfig", "Global")
REFUSED = {
    "ChannelPrune": "removes channels of convolutions, and an encoder has none; take "
    "TransformerPrune, or method: prune",
}

# UnstructurePrune's default of prune_params_type.
CONVOLUTIONS = "conv1x1_only"

_LINEAR: Settings = {
    "quantize_op_types": ["matmul_v2"],
    "weight_quantize_type": "channel_wise_abs_max",
    "onnx_format": True,
}
_TRAIN: Settings = {
    "epochs": 1,
    "eval_iter": 10,
    "learning_rate": 1e-5,
    "optimizer_builder": {"optimizer": {"type": "AdamW"}, "weight_decay": 0.01},
}
# What fits an encoder, by `paddleslim.strategy`.
RECIPES: Mapping[str, Settings] = {
    "quant_post": {"QuantPost": {**_LINEAR, "algo": "avg", "batch_nums": 10000}},
    "qat": {"QuantAware": _LINEAR, "Distillation": {}, "TrainConfig": _TRAIN},
    "asp": {"ASPPrune": {}, "Distillation": {}, "TrainConfig": _TRAIN},
    "unstructured": {
        "UnstructurePrune": {"prune_params_type": None, "ratio": 0.5, "local_sparsity": True},
        "Distillation": {},
        "TrainConfig": _TRAIN,
    },
    "transformer_prune": {
        "TransformerPrune": {"pruned_ratio": 0.25},
        "Distillation": {},
        "TrainConfig": {**_TRAIN, "learning_rate": 5e-5},
    },
}


# The strategy of `paddleslim.QAT`, and what stands for a section of its settings.
DYGRAPH, QAT = "dygraph_qat", "QAT"
OF_NETWORK: Settings = {
    QAT: {
        "quantizable_layer_type": ["Linear"],
        "weight_quantize_type": "channel_wise_abs_max",
        "activation_quantize_type": "moving_average_abs_max",
        "onnx_format": True,
    }
}


def read(job: config.PaddleSlim) -> Settings:
    """The sections of `paddleslim.config`, or of the recipe; UserError for what a BERT cannot."""
    if job.config is None:
        return dict(OF_NETWORK if job.strategy == DYGRAPH else RECIPES[job.strategy])
    where = f"paddleslim.config: {job.config}"
    try:
        settings = yaml.safe_load(charset.read_text(job.config, "configuration"))
    except yaml.YAMLError as error:
        raise UserError(f"{where}: is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{where}: has no sections; name one, like QuantPost:")
    known = (*QUANTIZING, *TRAINING, *PRUNING, *OTHERS, *REFUSED)
    for name in settings:
        if name in REFUSED:
            raise UserError(f"{where}: {name} {REFUSED[name]}")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            meant = f"; did you mean {near[0]}?" if near else f": {', '.join(known)}"
            raise UserError(f"{where}: PaddleSlim has no section {name}{meant}")
    if not {*QUANTIZING, *TRAINING, *PRUNING} & set(settings):
        raise UserError(f"{where}: has no strategy; add a section, like QuantPost:")
    learned = next((name for name in (*PRUNING, "QuantAware") if name in settings), None)
    if learned and not set(TRAINING) & set(settings):
        raise UserError(
            f"{where}: {learned} trains against the model as it was, and PaddleSlim passes over it "
            "without the section Distillation:; add that"
        )
    pruning = settings.get("UnstructurePrune", {"prune_params_type": None})
    if (pruning or {}).get("prune_params_type", CONVOLUTIONS) == CONVOLUTIONS:
        raise UserError(
            f"{where}: UnstructurePrune takes weights of 1x1 convolutions alone unless it has "
            "prune_params_type: null; add that"
        )
    if "QuantPost" in settings and "QuantAware" in settings:
        raise UserError(f"{where}: has QuantPost and QuantAware; leave one of them")
    return settings


def quantizes(settings: Settings) -> bool:
    """Whether the program that PaddleSlim saves has quantizers."""
    return not {*QUANTIZING, QAT}.isdisjoint(settings)


def variant_name(job: config.Quantize) -> str:
    """What the variant is called where the job does not name it."""
    return "int8-paddleslim" if quantizes(read(job.paddleslim)) else "paddleslim-float32"


def prepare(work: Work) -> Ready:
    """Let PaddleSlim compress the source. UserError with its last words where it fails."""
    paddles.need_paddle_2("method: paddleslim")
    extras.need("compress", "method: paddleslim")
    settings = read(work.job.paddleslim)
    if "TransformerPrune" in settings and not work.gate.model.task.shape.picks_label:
        raise UserError(
            f"paddleslim: TransformerPrune ranks heads by the cross entropy of one label, and "
            f"{work.bundle.root} answers the task {work.bundle.task.name}; take method: static"
        )
    name = variant_name(work.job)
    about = {**versions(), "paddleslim": version("paddleslim")}
    with tempfile.TemporaryDirectory(prefix="fleetbert-paddleslim-") as temporary:
        compressed = from_paddle.read(_compress(work, settings, Path(temporary)))
    widened = from_paddle.widen(compressed.program, compressed.arrays)
    _check_pruned(settings, work.source.arrays, widened.arrays)
    made = Source.of(widened.program, widened.arrays)
    if not widened.quantized:

        def write_float32(folder: Path) -> bundles.Variant:
            programs.write_model(folder, widened.program, widened.arrays)
            return bundles.ProgramVariant(
                name=name, runs_on=["x86", "gpu", "armv8"], versions=about
            )

        return Ready(made, write_float32)

    def write_int8(folder: Path) -> bundles.Variant:
        variant = from_paddle.write_int8(widened, made.folder, folder)
        return variant.model_copy(update={"name": name, "versions": about})

    # Weights that were trained are compared with themselves before rounding, which nobody has.
    return Ready(work.source if "QuantPost" in settings else made, write_int8)


def _check_pruned(settings: Settings, before: Parameters, after: Parameters) -> None:
    """UserError where a strategy removed nothing, which PaddleSlim does not say."""
    if "UnstructurePrune" in settings and all(map(np.all, after.values())):
        raise UserError(
            "paddleslim: UnstructurePrune left no weight at 0, as PaddleSlim applies its "
            "masks only where it evaluates; lower TrainConfig's eval_iter below the number of "
            "steps, or raise calibration.texts"
        )
    sizes = [sum(array.size for array in arrays.values()) for arrays in (before, after)]
    if "TransformerPrune" in settings and sizes[0] == sizes[1]:
        raise UserError(
            "paddleslim: TransformerPrune removed no head; raise its pruned_ratio, so that it is "
            "at least one head of a layer"
        )


def _compress(work: Work, settings: Settings, temporary: Path) -> Path:
    """Run PaddleSlim on a copy of the source in the folder `temporary`; the program's path."""
    given, out = temporary / "float32", temporary / "out"
    shutil.copytree(work.source.folder, given)
    recipe = work.job.paddleslim.config
    if recipe is None:
        recipe = str(temporary / "recipe.yaml")
        Path(recipe).write_text(yaml.safe_dump(settings), encoding="utf-8")
    job = temporary / "job.json"
    job.write_text(
        json.dumps({"job": work.job.model_dump(mode="json"), "recipe": recipe}), encoding="utf-8"
    )
    strategy = "+".join(name for name in settings if name not in OTHERS)
    log.info(f"paddleslim: {strategy}")
    process = subprocess.Popen(
        [sys.executable, "-m", PROCESS, str(job), str(given), str(out)],
        stdin=subprocess.PIPE,  # it ends when this closes, as it does when this process dies
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    last = ""
    with process:
        try:
            for line in process.stdout:
                text = re.sub(r"^[\d-]+ [\d:,]+-(INFO|WARNING): ", "", line.strip())
                log.log(logging.DEBUG if text == line.strip() else logging.INFO, f"  {text}")
                last = text or last
        except BaseException:
            process.kill()
            raise
    program = out / "model.pdmodel"
    if process.returncode or not program.is_file():
        raise UserError(
            f"paddleslim: {strategy} failed ({last or f'exit code {process.returncode}'}); the "
            "bundle stays as it was"
        )
    return program
