"""The model card: a bundle's README.md, made from its manifest (Mitchell et al. 2019).

It is rewritten with every variant. A person reads it; nothing else does.
"""

from __future__ import annotations

import math

from fleetbert import task_names
from fleetbert.bundle.manifest import Accuracy, Manifest, Variant

NAME = "README.md"
MOST_LABELS = 50


def card(manifest: Manifest) -> str:
    """Markdown: what the model answers, what was measured of each variant, how to use it."""
    variants = manifest.variants
    lines = [
        f"# {manifest.task.name.replace('_', ' ').capitalize()} model",
        "",
        *_answers(manifest),
        "",
        "## Variants",
        "",
        "| variant | measured on | texts | figure (95 %) | drop from float32 (95 %) "
        "| times float32's speed | MB | runs on |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(variant) for variant in variants),
        "",
        "The figures are of these texts only: measure on your own with `fleetbert evaluate`. "
        "Speeds were measured on one machine beside float32, on the same texts.",
        "",
        "## Use",
        "",
        "```python",
        "import fleetbert",
        f'model = fleetbert.load("this folder", variant="{variants[-1].name}")'
        if variants
        else 'model = fleetbert.load("this folder")',
        'print(model(["a text"])[0])',
        "```",
        "",
        "`fleetbert serve --repository models` serves it as `models/NAME/1`.",
        "",
        "## Made with",
        "",
        *(f"- {variant.name}: {_versions(variant)}" for variant in variants),
        "",
    ]
    return "\n".join(lines)


def _answers(manifest: Manifest) -> list[str]:
    labels, tokenizer = manifest.task.labels, manifest.tokenizer
    few = ", ".join(f"`{label}`" for label in labels[:MOST_LABELS])
    more = f" and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else ""
    source = next((v.made_from for v in manifest.variants if v.made_from), None)
    facts = [
        f"- Answers: {len(labels)} labels: {few}{more}" if labels else _without_labels(manifest),
        f"- Trained from: {source}" if source else None,
        f"- Texts are cut to {manifest.max_length} tokens ({tokenizer.kind}"
        + (", lower-cased)." if tokenizer.lowercase else ")."),
        "- It knows its labels only, and the language and kind of texts that it was trained on.",
    ]
    return [fact for fact in facts if fact]


def _without_labels(manifest: Manifest) -> str | None:
    told = task_names.KINDS[manifest.task.name].tells
    if manifest.task.width is not None:
        told += f" of {manifest.task.width} numbers and length 1 ({manifest.task.pooling})"
    return f"- Answers: {told} for each text" if told else None


def _row(variant: Variant) -> str:
    size = sum(file.size for file in variant.files) / 1e6
    speed = f"{variant.comparison.speed_ratio:.2f}" if variant.comparison else ""
    runs_on = ", ".join(variant.runs_on)
    if not variant.accuracy:
        return f"| {variant.name} | | | | | {speed} | {size:.1f} | {runs_on} |"
    measured = variant.accuracy[0]
    return (
        f"| {variant.name} | {measured.data} | {measured.n} | {_with_interval(measured)} "
        f"| {_drop(measured)} | {speed} | {size:.1f} | {runs_on} |"
    )


def _with_interval(measured: Accuracy) -> str:
    if measured.metric != "accuracy":
        return f"{measured.metric} {measured.accuracy:.3f}"
    low, high = wilson(measured.accuracy, measured.n)
    return f"{measured.accuracy:.3f} ({low:.3f} to {high:.3f})"


def _drop(measured: Accuracy) -> str:
    if measured.drop is None:
        return ""
    drop = measured.drop
    return f"{drop.value:+.4f} ({drop.low:+.4f} to {drop.high:+.4f})"


def _versions(variant: Variant) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(variant.versions.items()))


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n texts (Wilson 1927)."""
    if not n:
        return 0.0, 1.0
    z = 1.959964
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
