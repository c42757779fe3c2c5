"""The command line of `fleetbert export`."""

from __future__ import annotations

import argparse
import functools

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compat import environment, versions
from fleetbert.core import extras
from fleetbert.core.errors import UserError

DESCRIPTION = """\
Add another form of the model to a bundle; the bundle's other variants stay as they are.

  fleetbert export --bundle output/quickstart/bundle --format onnx
  fleetbert export --bundle output/quickstart/bundle --format lite --target armv8 --precision int8

onnx: for ONNX Runtime and other engines. The export compares it with float32 before it adds it.
`fleetbert quantize method=onnx` makes it in int8.
lite: for Paddle Lite on ARM boards. int16 and int8 make the file a half and a quarter
as large and compute in float32. float16 needs ARMv8.2. static-int8 computes in int8 and is made
from the variant int8-static. --early-exit exports the variant early-exit-float32, in which texts
may exit after inner layers. See docs/edge.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to add to")
    parser.add_argument("--format", required=True, choices=("onnx", "lite"), help="form to add")
    parser.add_argument("--opset", type=int, metavar="N", help="onnx: operator set (default: 17)")
    parser.add_argument(
        "--target",
        help="lite: processor: armv8, armv7, x86, or armv8-opencl (the board's GPU; not run)",
    )
    parser.add_argument(
        "--precision", help="lite: float32, float16, int16, int8 or static-int8 (default: float32)"
    )
    parser.add_argument(
        "--early-exit",
        action="store_true",
        default=None,
        help="lite: export early-exit-float32; not in float16 or static-int8",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="lite: labelled .tsv or .jsonl; the manifest gets the accuracy on it, measured on x86",
    )
    parser.add_argument(
        "--max-accuracy-drop",
        type=float,
        metavar="D",
        help="lite: with --data: largest accepted drop, 0 to 1 (default: 0.01); else exit code 3",
    )


# The options that only one format has.
_OF_FORMAT = {
    "onnx": ("opset",),
    "lite": ("target", "precision", "early_exit", "data", "max_accuracy_drop"),
}


def run(arguments: argparse.Namespace) -> None:
    for other, names in _OF_FORMAT.items():
        given = [name for name in names if getattr(arguments, name) is not None]
        if given and other != arguments.format:
            option = given[0].replace("_", "-")
            raise UserError(f"--{option} is for --format {other}; leave it out")
    if arguments.format == "lite":
        versions.need_paddle_2("--format lite")
    extras.need("train", "fleetbert export")
    environment.import_paddle()
    (_export_onnx if arguments.format == "onnx" else _export_lite)(arguments)


def _export_onnx(arguments: argparse.Namespace) -> None:
    from fleetbert.export import onnx  # loads Paddle

    opset = onnx.OPSET if arguments.opset is None else arguments.opset
    variant = onnx.export_onnx(arguments.bundle, opset).variant("onnx")
    assert isinstance(variant, bundles.OnnxVariant)
    print(
        f"added variant onnx to {arguments.bundle}: {variant.bytes / 1e6:.1f} MB, opset "
        f"{variant.opset}, logits within {variant.max_difference_to_float32:.1e} of float32's"
    )


def _export_lite(arguments: argparse.Namespace) -> None:
    # They load Paddle.
    from fleetbert.compression.gate import lite_accuracy
    from fleetbert.export import lite

    if arguments.target is None:
        raise UserError("--format lite needs --target: armv8, armv7, armv8-opencl or x86")
    if arguments.max_accuracy_drop is not None and arguments.data is None:
        raise UserError("--max-accuracy-drop needs --data, a labelled table to measure on")
    drop = 0.01 if arguments.max_accuracy_drop is None else arguments.max_accuracy_drop
    measure = None
    if arguments.data is not None:
        gate = config.Gate(data=arguments.data, max_accuracy_drop=drop)
        measure = functools.partial(lite_accuracy, gate)
    precision = arguments.precision or "float32"
    choice = arguments.target, precision, bool(arguments.early_exit)
    bundle = lite.export_lite(arguments.bundle, *choice, measure)
    variant = bundle.variant(lite.variant_name(*choice))
    assert isinstance(variant, (bundles.LiteVariant, bundles.LiteEarlyExitVariant))
    megabytes = variant.bytes / 1e6
    parts = [f"added variant {variant.name} to {arguments.bundle}: {megabytes:.1f} MB"]
    if variant.checked_on:
        difference = variant.max_difference_to_paddle
        same = "" if precision == "float32" else f" with the same {precision} weights"
        parts.append(f"on x86 its logits are within {difference:.1e} of Paddle's{same}")
    else:
        parts.append("which was not run: it runs on ARM only")
    if variant.accuracy:
        measured = variant.accuracy[0]
        figures = f"{measured.accuracy:.4f} (float32 {measured.float32_accuracy:.4f})"
        parts.append(f"{measured.metric} {figures}")
    print(", ".join(parts))
