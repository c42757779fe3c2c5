"""Vocabulary trimming of a bundle: a new bundle whose model has only the tokens that texts need.

The ids of tokens change, and all variants of a bundle share its tokenizer. So the result is a new
bundle, from which every other method, engine and board starts as from any other.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.compression import from_program, report
from fleetbert.compression.work import Result, Work
from fleetbert.core import files
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import trimming
from fleetbert.export.program import export_bundle
from fleetbert.models import sources
from fleetbert.tasks import unlabelled

log = logging.getLogger(__name__)

NAME = "vocabulary"  # of the trimmed model beside float32, in logs and the report


def prepare(work: Work) -> Result:
    """Write the new bundle, if its float32 keeps the accuracy of the old one's.

    GateFailed where it does not, and UserError for what is wrong; either leaves no new bundle.
    """
    job, bundle, gate, task = work.job, work.bundle, work.gate, tasks.of(work.bundle.task)
    into = Path(job.vocabulary.into or f"{bundle.root.resolve()}-{NAME}")
    if into.resolve() == bundle.root.resolve():
        raise UserError(f"vocabulary.into: {into} is the bundle itself; name another folder")
    texts = unlabelled.single_texts(str(job.vocabulary.data), task, job.data)
    whole = from_program.open_bundle(bundle, 0.0)
    source = sources.trimmed(whole, texts, job.vocabulary.keep)
    tokenizer, network = tokenizers.open(source.tokenizer), from_program.network_of(source, bundle)
    unseen = unlabelled.single_texts(gate.data, task, job.data)
    share = trimming.changed_share(gate.model.tokenizer, tokenizer, unseen)
    log.info(f"{gate.data}: {share:.2%} of the tokens fall back to smaller ones")
    page: Path | None = None

    def measure(variant: bundles.Variant, folder: Path) -> bundles.Variant:
        nonlocal page
        sample = gate.sample_of(gate.model._replace(tokenizer=tokenizer))
        named = variant.model_copy(update={"name": NAME})
        measured = gate.measure(named, folder, sample)
        hint = "more texts in vocabulary.data keep more tokens"
        refused = gate.refusal(NAME, measured.accuracy[0], hint, measured.alone_difference)
        page = report.write(work, bundle, measured, [], refused)
        if refused is not None:
            raise GateFailed(refused)
        # The golden answers are those that export keeps of any float32.
        known = {"name": variant.name, "golden": variant.golden}
        return measured.model_copy(update=known)

    with files.writing(into):
        made = export_bundle(
            into,
            network,
            task=bundle.task.name,
            labels=bundle.labels,
            max_length=bundle.max_length,
            tokenizer=source.tokenizer,
            made_from=job.bundle,
            thresholds=bundle.task.thresholds,
            integer_labels=bundle.task.integer_labels,
            reading=bundle.reading,
            measure=measure,
        )
    log.info(f"made {made.root}")
    return Result(made, "float32", page)
