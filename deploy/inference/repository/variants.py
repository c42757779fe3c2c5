"""Which of a bundle's variants answers."""

from __future__ import annotations

import logging
import platform

from fleetbert import bundle as bundles
from fleetbert.compat import processor
from fleetbert.core.device import Device
from fleetbert.core.errors import UserError, of_system
from fleetbert.deploy.inference.messages import Variant
from fleetbert.deploy.inference.workers import frames
from fleetbert.deploy.inference.workers.connection import OPEN_SECONDS, Lost, Plan, Refused, Worker
from fleetbert.engines.engine import INT8, OPENERS

log = logging.getLogger(__name__)

# Wishes instead of a name: the fastest variant at a batch of this shape (texts, length). A version
# keeps its variant, because a text's scores are not the same in another one: even with the same
# integers and scales, two sets of kernels (AVX2, AVX-512) differ by up to 0.25 in a logit (MiniLM
# on SST-2), as a rounding that falls otherwise changes an integer.
LOADS = {"auto": (8, 64), "auto-single": (1, 32)}
EARLY_EXIT = (bundles.EarlyExitVariant, bundles.LiteEarlyExitVariant)


def named(bundle: bundles.Bundle, name: str) -> str:
    """The name of a variant that the server can answer with; UserError if it is none."""
    if bundle.variant(name).kind not in OPENERS:
        raise UserError(
            f"variant: {name} of bundle {bundle.root} is of kind {bundle.variant(name).kind}, "
            "which is not served; name another, or auto"
        )
    return name


def candidates(bundle: bundles.Bundle, device: Device) -> list[str]:
    """The variants that can run here and are known to be accurate: float32, what was found equal
    to it, and what passed the gate. UserError if there are none."""
    place = _architecture() if device.card is None else "gpu"
    names = [
        variant.name
        for variant in bundle.manifest.variants
        if variant.kind in OPENERS
        and (variant.kind == INT8 if device.precision == "int8" else place in variant.runs_on)
        and variant.compared
        and not _lacks(variant, bundle)
    ]
    if not names:
        raise UserError(
            f"bundle {bundle.root} has no variant that runs on {place} and whose accuracy was "
            "measured beside float32's; export one, or name one with `variant`"
        )
    return names


async def measure(
    plan: Plan, names: list[str], shape: tuple[int, int], gently: bool
) -> dict[str, float]:
    """Texts a second of each variant through all layers on this processor, of batches of this shape
    (texts, length), measured in a worker that is ended then.

    Variants that cannot be opened are left out, with a line in the log. OSError or Refused where
    the machine is at fault: they may be opened the next time.
    """
    names = list(names)
    while names:
        worker = await Worker.start(plan.processors[0], plan.threads)
        name = ""
        try:
            for name in list(names):
                try:
                    await worker.open(plan, name, gently)
                except Refused as error:
                    if of_system(error):
                        raise
                    log.warning("variant %s of %s is left out: %s", name, plan.bundle, error)
                    names.remove(name)
            if not names:
                break
            texts, length = shape
            shape = (texts, min(length, plan.lengths[-1]))
            frame = frames.pack({"do": "measure", "shape": shape})
            head, _ = await worker.ask(frame, OPEN_SECONDS)
            return head["texts_per_s"]
        except Lost as error:
            log.warning("variant %s of %s is left out: %s", name, plan.bundle, error)
            names.remove(name)
        finally:
            worker.kill("done")
            await worker.close()
    raise Refused(f"none of the variants of {plan.bundle} can be opened")


def times_faster(variant: bundles.Variant) -> float:
    """Than at speed 0, through all layers, as it was measured where the variant was made; 1.0 where
    no text leaves early, or nothing is known of it."""
    return variant.times_faster if isinstance(variant, bundles.EarlyExitVariant) else 1.0


def describe(bundle: bundles.Bundle, measured: dict[str, float]) -> tuple[Variant, ...]:
    """All variants, with their speed where it was measured."""
    described = []
    for variant in bundle.manifest.variants:
        accuracy = variant.accuracy[0] if variant.accuracy else None
        described.append(
            Variant(
                name=variant.name,
                kind=variant.kind,
                accuracy=accuracy.accuracy if accuracy else None,
                float32_accuracy=accuracy.float32_accuracy if accuracy else None,
                texts_per_s=measured.get(variant.name),
                speed=variant.speed if isinstance(variant, EARLY_EXIT) else None,
                bytes=variant.bytes,
                metric=accuracy.metric if accuracy else "accuracy",
            )
        )
    return tuple(described)


def _lacks(variant: bundles.Variant, bundle: bundles.Bundle) -> bool:
    """Whether the processor lacks what the variant needs, which is told in the log."""
    needs = variant.needs if isinstance(variant, bundles.BFloat16Variant) else []
    lacks = not processor.has_one_of(needs)
    if lacks:
        words = "variant %s of %s is left out: the processor has none of %s"
        log.info(words, variant.name, bundle.root, ", ".join(needs))
    return lacks


def _architecture() -> str:
    return "armv8" if platform.machine() in ("aarch64", "arm64") else "x86"
