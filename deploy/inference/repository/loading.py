"""A version's folder → a version that answers: checked, measured, opened, tried."""

from __future__ import annotations

import asyncio
import logging
import weakref
from dataclasses import dataclass, replace
from typing import Sequence

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.data import tokenizers
from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.deploy.inference.messages import State, Version
from fleetbert.deploy.inference.repository import index, variants
from fleetbert.deploy.inference.scheduler.scheduler import Scheduler
from fleetbert.deploy.inference.settings import Policy, Serve
from fleetbert.deploy.inference.workers import priority, process
from fleetbert.deploy.inference.workers.connection import Plan
from fleetbert.engines import engine as engines

log = logging.getLogger(__name__)


@dataclass
class LoadedVersion:
    """A version that answers, as it was found."""

    folder: index.VersionFolder
    scheduler: Scheduler
    version: Version


class Loader:
    """Opens versions; remembers what was measured of a bundle's variants, and has versions of one
    vocabulary share a tokenizer: making one keeps those who answer waiting."""

    def __init__(self, settings: Serve):
        self._settings = settings
        self._measured: dict[tuple[str, ...], dict[str, float]] = {}
        self._tokenizers: weakref.WeakValueDictionary[str, Tokenizer] = (
            weakref.WeakValueDictionary()
        )

    async def open(
        self,
        model: str,
        number: int,
        policy: Policy,
        folder: index.VersionFolder,
        gently: bool,
        batches: Sequence[tuple[int, int]] = (),
    ) -> LoadedVersion:
        """A version whose workers all answer. UserError, OSError, Refused or Lost if it cannot be
        served; nothing is left of it then. `gently` leaves the processors to others.
        batches: the usual ones (texts, length) of the version in service."""
        bundle, engine = folder.bundle, self._settings.engine
        assert bundle is not None
        task = tasks.of(bundle.task)
        task.check_answers(str(bundle.root))
        processors, threads = process.share_processors(engine)
        longest = round_up(bundle.max_length, SAFE_LENGTHS)
        loop = asyncio.get_running_loop()
        tokenizer = await self._tokenizer(bundle)
        plan = Plan(
            model=model,
            bundle=bundle.root,
            variant="",
            device=engine.computes_on(),
            threads=threads,
            processors=processors,
            lengths=tuple(length for length in SAFE_LENGTHS if length <= longest),
            pad_id=tokenizer.pad_id,
            batch_tokens=self._settings.batching.batch_tokens,
            hang_seconds=engine.hang_seconds,
        )
        variant, measured = await self._choose(bundle, policy.variant, plan, gently)
        engines.warn_if_one_by_one(bundle, variant)
        usual = tuple(shape for shape in batches if shape[1] <= longest)
        plan = replace(plan, variant=variant, batches=usual)
        scheduler = Scheduler(model, str(number), bundle, tokenizer, plan, self._settings.batching)
        opening = asyncio.ensure_future(scheduler.open(gently))
        try:
            await loop.run_in_executor(None, _verify, bundle, variant, gently)
            await opening
        except BaseException:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await scheduler.close()
            raise
        version = Version(
            model,
            str(number),
            State.READY,
            aliases=tuple(sorted(a for a, n in policy.aliases.items() if n == number)),
            task=bundle.task.name,
            labels=tuple(bundle.task.answered_labels),
            outputs=tuple(task.answer.tensors(bundle.labels, task.outputs(bundle.labels))),
            pair=bundle.task.pair,
            fields=tokenizer.has_fields,
            max_length=bundle.max_length,
            vocab_size=tokenizer.vocab_size,
            pad_id=tokenizer.pad_id,
            layers=scheduler.pool.layers,
            pooling=bundle.manifest.task.pooling or "",
            bundle=scheduler.bundle,
            variant=variant,
            variants=variants.describe(bundle, measured),
        )
        return LoadedVersion(folder, scheduler, version)

    async def _tokenizer(self, bundle: bundles.Bundle) -> Tokenizer:
        """That of the version in service, if the manifests say that the vocabularies are alike; the
        hash of this one's is checked before the version answers."""
        says = bundle.manifest.tokenizer.model_dump_json()
        tokenizer = self._tokenizers.get(says)
        if tokenizer is None:
            loop = asyncio.get_running_loop()
            tokenizer = await loop.run_in_executor(None, tokenizers.open, bundle)
            self._tokenizers[says] = tokenizer
        return tokenizer

    async def _choose(
        self, bundle: bundles.Bundle, wanted: str, plan: Plan, gently: bool
    ) -> tuple[str, dict[str, float]]:
        """The variant that is to answer, and what was measured to find it."""
        if wanted not in variants.LOADS:
            return variants.named(bundle, wanted), {}
        names = variants.candidates(bundle, plan.device)
        if len(names) == 1:
            return names[0], {}
        key = (wanted, *(file.sha256 for name in names for file in bundle.variant(name).files))
        if key not in self._measured:
            rates = await variants.measure(plan, names, variants.LOADS[wanted], gently)
            self._measured[key] = {
                name: rate * variants.times_faster(bundle.variant(name))
                for name, rate in rates.items()
            }
        measured = self._measured[key]
        chosen = max(measured, key=lambda name: measured[name])
        words = "model %s: variant: %s chose %s of %s (texts/s)"
        rounded = {name: round(rate) for name, rate in measured.items()}
        log.info(words, plan.model, wanted, chosen, rounded)
        return chosen, measured


def _verify(bundle: bundles.Bundle, variant: str, gently: bool) -> None:
    def check() -> None:
        bundles.verify(bundle, variant)

    priority.call(check) if gently else check()
