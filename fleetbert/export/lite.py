"""A bundle's program → its variant for Paddle Lite, the engine for ARM boards.

Weights of int16 and int8 are rounded by Paddle Lite's converter, a scale for each column, and are
widened again when the engine opens the model: it computes in float32, and the file is small.
static-int8 computes in int8; it is made from the variant int8-static. With early exit the float32
program is cut into the layer groups of the variant early-exit-float32, whose heads come with them.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers.whole import Whole
from fleetbert.engines import alike, engine, exit_heads, exits
from fleetbert.engines.alike import LARGEST_DIFFERENCE, random_batches
from fleetbert.export import lite_opt, lite_unigram
from fleetbert.graph import gelu, groups, lite_program, weights
from fleetbert.graph import program as programs

OPENCL = "armv8-opencl"  # a board's GPU, in half precision; the processor what it lacks
PLACES = {"armv8": "arm", "armv7": "arm", OPENCL: "opencl,arm", "x86": "x86"}  # as opt names them
PRECISIONS = ("float32", "float16", "int16", "int8", "static-int8")
KINDS = {False: bundles.LiteVariant, True: bundles.LiteEarlyExitVariant}
# That deploy/lite knows.
TASKS = [task.name for task in tasks.BUILT_IN if task.shape.answer]
STATIC = "int8-static"
EARLY_EXIT = "early-exit-float32"
MODEL = "model.nb"
BITS = {"int16": 16, "int8": 8}
# Of logits, between the converted model and Paddle with the same integers.
LARGEST_DIFFERENCES = {"float32": LARGEST_DIFFERENCE, "int16": LARGEST_DIFFERENCE, "int8": 3e-2}
# Of the bundle, the variant's name, the folder with its files for x86, and its kind; GateFailed
# where too much is lost.
Measure = Callable[[bundles.Bundle, str, Path, str], bundles.Accuracy]


def variant_name(target: str, precision: str, early_exit: bool = False) -> str:
    return f"lite-{target}-{precision}" + ("-early-exit" if early_exit else "")


def export_lite(
    path: str | Path,
    target: str,
    precision: str,
    early_exit: bool = False,
    measure: Measure | None = None,
) -> bundles.Bundle:
    """Add the variant `lite-<target>-<precision>` (model.nb) to the bundle at `path`.

    early_exit: `lite-<target>-<precision>-early-exit` instead, see `engines.exits` for its files.

    target: one of PLACES. The rewrites that the converter needs must leave Paddle's own
    answers as they are, to the bit. What x86 processors can run is run: the logits must be those
    of Paddle with the same rounded weights (`LARGEST_DIFFERENCES`). For an ARM target that is
    done with the model's twin for x86, but for float16, static-int8 and OpenCL, which have none.
    UserError, and nothing is added, where that fails or the combination cannot work; or whatever
    `measure` raises, which gives the accuracy of what runs here.
    """
    _check_choice(target, precision, early_exit, measure)
    bundle = bundles.read(path)
    tasks.get(bundle.task.name).check_of_texts(str(path), "fleetbert export")
    _check_task(bundle)
    tokenizer = _compiled(bundle)
    made_from = STATIC if precision == "static-int8" else "float32"
    source = _source(bundle, made_from)
    name = variant_name(target, precision, early_exit)
    early = _source(bundle, EARLY_EXIT) if early_exit else None
    # On the bundle's disk: it holds the model up to five times.
    with bundles.adding(path, name) as new, tempfile.TemporaryDirectory(
        dir=bundle.root
    ) as temporary:
        if precision == "static-int8":
            made = _convert_static(source, Path(temporary))
        else:
            made = _convert(bundle, source, Path(temporary), target, precision, early)
        accuracy = []
        if measure is not None:
            assert made.twin is not None, "_check_choice refuses to measure where there is none"
            kind = engine.LITE_EARLY_EXIT if early_exit else engine.LITE
            accuracy.append(measure(bundle, name, made.twin, kind))
        if tokenizer is not None:
            lite_unigram.write(tokenizer, made.converted.folder)
        for file in made.converted.folder.iterdir():
            file.rename(new.folder / file.name)
        variant = KINDS[early_exit](
            name=name,
            made_from=EARLY_EXIT if early_exit else made_from,
            accuracy=accuracy,
            runs_on=[target.split("-")[0]],
            versions={"fleetbert": fleetbert.__version__, **made.converted.versions},
            precision=precision,
            kernels=made.converted.kernels,
            **made.fields,
        )
        return new.add(variant)


class _Made(NamedTuple):
    """converted: what goes into the bundle; twin: what of it runs here, if anything does."""

    converted: lite_opt.Converted
    twin: Path | None
    fields: dict[str, Any]


def _check_choice(target: str, precision: str, early_exit: bool, measure: Measure | None) -> None:
    if target not in PLACES:
        raise UserError(f"target is {target!r}; choose one of {', '.join(PLACES)}")
    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; choose one of {', '.join(PRECISIONS)}")
    if target == OPENCL and (precision != "float32" or early_exit or measure is not None):
        raise UserError(
            f"target is {OPENCL}, whose answers cannot be checked here: it takes --precision "
            "float32 only, without --early-exit and --data"
        )
    if precision == "static-int8" and target == "x86":
        raise UserError(
            "static-int8 is not for x86: Paddle Lite has no int8 kernels there and answers "
            "wrong; use --precision int8, or the variant int8-static with Paddle Inference"
        )
    if precision == "float16" and target != "armv8":
        raise UserError(
            f"float16 is not for {target}: Paddle Lite computes in half precision on armv8 "
            "only (ARMv8.2 and later); use --precision float32, int16 or int8"
        )
    if early_exit and precision in ("float16", "static-int8"):
        raise UserError(
            f"early exit does not work in {precision}, whose answers cannot be checked here: use "
            "--precision float32, int16 or int8"
        )
    if measure is not None and precision in ("float16", "static-int8"):
        raise UserError(
            f"the accuracy of {precision} cannot be measured here, because it runs only on ARM "
            "processors: leave --data out, and measure it on the board"
        )


def _compiled(bundle: bundles.Bundle) -> lite_unigram.Compiled | None:
    """What the programs for boards need beside the model; None of WordPiece: vocab.txt is all."""
    tokenizer = tokenizers.open(bundle)
    if tokenizer.on_boards:
        return None
    if tasks.get(bundle.task.name).shape.per_token:
        raise UserError(
            f"{bundle.root}: answers with parts of texts, and its tokenizer is a "
            f"{tokenizer.kind}: the programs for boards find them with WordPiece only; serve it "
            "with Paddle Inference"
        )
    if isinstance(tokenizer, Whole):
        return lite_unigram.compiled(tokenizer)
    raise UserError(
        f"{bundle.root}: its tokenizer is a {tokenizer.kind}, and the programs for boards know "
        "WordPiece and Unigram: serve it with Paddle Inference"
    )


_MADE_WITH = {
    STATIC: ("static-int8", "quantize --config configs/quantize/static.yaml"),
    EARLY_EXIT: ("early exit", "distill --config configs/distill/self.yaml"),
}


def _check_task(bundle: bundles.Bundle) -> None:
    task = tasks.get(bundle.task.name)
    if not task.shape.answers:
        raise UserError(
            f"{bundle.root} is a pretrained encoder (task {task.name}), which no board can ask "
            "anything; export a model that was trained from it"
        )
    if task.name not in TASKS:
        raise UserError(
            f"{bundle.root} answers the task {task.name}, which the programs for boards do not "
            "know; serve it with fleetbert serve, or export it with --format onnx"
        )


def _source(bundle: bundles.Bundle, name: str) -> Path:
    if all(variant.name != name for variant in bundle.manifest.variants) and name in _MADE_WITH:
        product, command = _MADE_WITH[name]
        raise UserError(
            f"{product} is made from the variant {name}, which {bundle.root} has not: add it with "
            f"`fleetbert {command}`"
        )
    bundles.verify(bundle, name)
    return bundle.folder(name)


def _convert(
    bundle: bundles.Bundle,
    source: Path,
    temporary: Path,
    target: str,
    precision: str,
    early: Path | None,
) -> _Made:
    """early: the folder with settings and heads, where texts may leave early."""
    bits = BITS.get(precision)
    tokenizer = tokenizers.open(bundle)
    batches = random_batches(bundle.max_length, tokenizer.vocab_size, tokenizer.pad_id)
    answers_of = functools.partial(_answers, batches=batches, pad_id=tokenizer.pad_id)
    program, arrays = programs.read_model(source)
    expected = answers_of(source)
    spelled, answers = gelu.spell_out(program), expected
    if spelled != program:
        answers = answers_of(programs.write_model(temporary / "spelled", spelled, arrays))
        _check_same(expected, answers, LARGEST_DIFFERENCE)
    program = lite_program.for_lite(spelled, arrays)
    rewritten = programs.write_model(temporary / "rewritten", program, arrays)
    _check_same(answers, answers_of(rewritten), 0.0)
    extra: dict[str, Any] = {"rewrites_change_answers": False}
    parts = {MODEL: rewritten}
    if early is not None:
        settings = exits.load_settings(early)
        parts = _cut(program, arrays, settings, temporary)
        extra.update(settings._asdict())
    if precision == "float16" or target == OPENCL:
        half = precision == "float16"
        converted = lite_opt.convert(parts, temporary / "arm", PLACES[target], float16=half)
        return _Made(converted, None, extra)
    twin = lite_opt.convert(parts, temporary / "x86", "x86", bits=bits, batches=batches)
    converted = twin
    if target != "x86":
        converted = lite_opt.convert(parts, temporary / "arm", "arm", bits=bits)
    same = expected
    if bits is not None:
        names = lite_program.quantized_weights(program, arrays)
        rounded = lite_program.as_integers(arrays, names, bits)
        same = answers_of(programs.write_model(temporary / "rounded", program, rounded))
    real = [ids != tokenizer.pad_id for ids, _ in batches]
    answers = [alike.at_tokens(*pair) for pair in zip(twin.answers, real)]
    difference = alike.difference(answers, same)
    if not difference <= LARGEST_DIFFERENCES[precision]:  # also catches NaN
        raise UserError(
            f"Paddle Lite's logits differ from Paddle's by {difference:.3g} (at most "
            f"{LARGEST_DIFFERENCES[precision]} is allowed), so nothing was added to "
            f"{bundle.root}; try another --precision"
        )
    if early is not None:
        for folder in {converted.folder, twin.folder}:
            for name in (exits.NAME, exit_heads.NAME):
                shutil.copyfile(early / name, folder / name)
    extra.update({"checked_on": "x86", "max_difference_to_paddle": difference})
    if bits is not None:
        extra["rounding_changes_logits_by"] = alike.difference(answers, expected)
    elif early is None:  # a server takes what has this key for float32 in another form
        extra["max_difference_to_float32"] = alike.difference(answers, expected)
    return _Made(converted, twin.folder, extra)


def _cut(
    program: programs.ProgramDesc,
    arrays: programs.Parameters,
    settings: exits.Settings,
    temporary: Path,
) -> dict[str, Path]:
    """The folders of the program's groups of layers, by the names of the files they will be."""
    if settings.ends[-1] != len(groups.layer_outputs(program)):
        raise UserError(
            f"the variant {EARLY_EXIT} has {settings.ends[-1]} layers and float32 has "
            f"{len(groups.layer_outputs(program))}: make {EARLY_EXIT} again"
        )
    parts = {}
    for end, part in groups.cut_groups(program, settings.ends):
        stored = {name: arrays[name] for name in programs.parameter_names(part)}
        parts[exits.program_name(end, "nb")] = programs.write_model(
            temporary / f"group-{end}", part, stored
        )
    return parts


def _convert_static(source: Path, temporary: Path) -> _Made:
    program = gelu.spell_out(programs.read(source / "model.pdmodel"))
    arrays = weights.parameters(source, program)
    for op in program.blocks[0].ops:
        name = programs.argument(op.inputs, "X") if op.type == "dequantize_linear" else ""
        if name in arrays and arrays[name].dtype != np.int8:
            raise UserError(
                f"{source / 'model.pdmodel'} is from an older fleetbert, whose weights the "
                "converter would scale twice: run `fleetbert quantize` again"
            )
    folder = programs.write_model(temporary / "static", program, arrays)
    return _Made(lite_opt.convert({MODEL: folder}, temporary / "arm", "arm"), None, {})


def _answers(folder: Path, batches: Sequence[lite_opt.Batch], pad_id: int) -> list[np.ndarray]:
    run = engine.open_folder(engine.FLOAT32, folder, pad_id=pad_id)
    return [run(*batch, pad_id=pad_id) for batch in batches]


def _check_same(expected: list[np.ndarray], answers: list[np.ndarray], most: float) -> None:
    if not alike.difference(expected, answers) <= most:  # also catches NaN
        raise UserError(
            "what Paddle Lite's converter needs changed in the program changes its answers by "
            f"{alike.difference(expected, answers):.3g}, so nothing was converted; export the "
            "float32 variant again"
        )
