"""The float32 program of a bundle → its `onnx` variant, for ONNX Runtime and what else reads it."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.core import extras
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.engines import engine
from fleetbert.engines.alike import LARGEST_DIFFERENCE, difference, random_batches
from fleetbert.graph import gelu, padding
from fleetbert.graph import program as programs

log = logging.getLogger(__name__)

# The first with LayerNormalization as one operator: a quarter fewer nodes.
OPSET = 17
# cumsum, which makes the position ids, needs 11; paddle2onnx 1.3.1 knows up to 19.
OPSETS = range(11, 20)


def export_onnx(path: str | Path, opset: int = OPSET) -> bundles.Bundle:
    """Add the variant `onnx` (model.onnx, batch and length free) to the bundle at `path`.

    Nothing is added (UserError) if ONNX Runtime's logits differ from Paddle Inference's by more
    than LARGEST_DIFFERENCE on token ids of several shapes; the difference is kept in the manifest.
    """
    if opset not in OPSETS:
        raise UserError(f"opset is {opset}; choose one from {OPSETS[0]} to {OPSETS[-1]}")
    bundle = bundles.read(path)
    tasks.get(bundle.task.name).check_of_texts(str(path), "fleetbert export")
    source = bundle.folder("float32")
    bundles.verify(bundle, "float32")

    with bundles.adding(path, "onnx") as new:
        convert(source, new.folder / "model.onnx", opset)
        log.info("onnx: comparing ONNX Runtime's answers with Paddle's")
        largest = _compare(bundle, source, new.folder)
        if not largest <= LARGEST_DIFFERENCE:
            raise UserError(
                f"the ONNX model's logits differ from float32's by {largest:.3g} (at most "
                f"{LARGEST_DIFFERENCE} is allowed), so it was not added to {bundle.root}; "
                "try another --opset"
            )
        variant = bundles.OnnxVariant(
            name="onnx",
            made_from="float32",
            runs_on=["x86", "gpu", "armv8"],
            versions={"fleetbert": fleetbert.__version__, **packages()},
            opset=opset,
            max_difference_to_float32=largest,
        )
        return new.add(variant)


def packages() -> dict[str, str]:
    """The versions of what makes and runs the file."""
    return {name: version(name) for name in ("paddle2onnx", "onnxruntime")}


# In a process of its own: paddle2onnx writes to stdout from C++, and some errors abort.
_CONVERT = """
import sys
import zlib, paddle2onnx  # zlib before Paddle: see fleetbert.compat.environment
program, weights, target, opset = sys.argv[1:]
paddle2onnx.export(program, weights, target, opset_version=int(opset), auto_upgrade_opset=False)
"""


def convert(source: Path, target: Path, opset: int = OPSET) -> None:
    """Write the float32 program in the folder `source` as the ONNX file `target`; UserError where
    paddle2onnx cannot, or is not installed."""
    try:
        installed = version("paddle2onnx")
    except PackageNotFoundError:
        raise UserError(
            "paddle2onnx, which writes ONNX files, is not installed; it has wheels for Python 3.8 "
            f"to 3.12 only: {extras.command('onnx')} for one of these, and run this command there"
        ) from None
    log.info("onnx: converting the model")
    with tempfile.TemporaryDirectory() as temporary:
        program = Path(temporary) / "model.pdmodel"
        masked = padding.mask_as_input(programs.read(source / program.name))
        programs.write(program, gelu.spell_out(masked))
        files = [program, source / "model.pdiparams", target]
        done = subprocess.run(
            [sys.executable, "-c", _CONVERT, *(str(file.resolve()) for file in files), str(opset)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    if done.returncode or not target.is_file():
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise UserError(
            f"paddle2onnx {installed} could not convert {source} (opset {opset}): "
            f"{lines[-1] if lines else f'exit code {done.returncode}'}; "
            "`fleetbert export --format onnx --opset` tries others"
        )
    _store_weights(target)


def _store_weights(path: Path) -> None:
    """Make initializers of the weights in the ONNX file `path`, where quantizers and optimizers of
    other projects look for them; paddle2onnx 1.3.1 writes Constant nodes."""
    import onnx  # comes with paddle2onnx

    model = onnx.load(path)
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    for node in constants:
        tensor = node.attribute[0].t
        tensor.name = node.output[0]
        model.graph.initializer.append(tensor)
        model.graph.node.remove(node)
    onnx.save(model, path)


def _compare(bundle: bundles.Bundle, source: Path, folder: Path) -> float:
    threads = engine.default_threads()
    tokenizer = tokenizers.open(bundle)
    pad_id = tokenizer.pad_id
    batches = random_batches(bundle.max_length, tokenizer.vocab_size, pad_id)
    expected, answers = (
        [run(*batch, pad_id=pad_id) for batch in batches]
        for run in (
            engine.open_folder(engine.FLOAT32, source, "cpu", threads, pad_id=pad_id),
            engine.open_folder(engine.ONNX, folder, "cpu", threads, pad_id=pad_id),
        )
    )
    return difference(expected, answers)
