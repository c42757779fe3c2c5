"""Two jobs with one output_dir: the second is refused at its start, and the first goes on."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import processes
import pytest
import tiny_job

from fleetbert import bundle
from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import of_vocab
from fleetbert.training import job as training
from fleetbert.training.strategies.single import Single


@pytest.fixture
def output(tmp_path):
    """A folder that this process has, as the first rank of a job has it."""
    with training.only_writer(Single("cpu"), tmp_path / "output"):
        yield tmp_path / "output"
    assert not list((tmp_path / "output").glob(".*"))


def test_the_second_is_refused(output, trainer, tiny_vocab):
    """So is another bundle where the job's will be."""

    def export():
        tokenizer = of_vocab(tiny_vocab, True)
        labels = ["a", "b"]
        bundle.create(
            output / "bundle", task="classification", labels=labels, max_length=8,
            tokenizer=tokenizer, fill=None,
        )  # fmt: skip

    first = rf"process {os.getpid()} \(`.*`\) is writing"
    with ThreadPoolExecutor(1) as other:  # a thread may take what it has again
        with pytest.raises(UserError, match=f"output_dir: {output}: {first}.*another output_dir"):
            other.submit(trainer, output).result()
        with pytest.raises(UserError, match=first):
            other.submit(export).result()


@pytest.mark.slow
def test_all_ranks_are_refused_with_the_first_ones_sentence(output, tiny_data, tmp_path):
    path = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, output)
    process = processes.run(tmp_path, path, launcher=["--nproc_per_node", "2"])
    assert process.returncode != 0
    said = processes.said(process)
    assert "starting all again" not in said
    first = rf"^error: output_dir: .*: process {os.getpid()} .* is writing it"
    assert re.search(first, said, re.M)
    assert "the first rank failed" in said
