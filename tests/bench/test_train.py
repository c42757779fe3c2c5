"""A real run of `bench train` on a tiny job."""

from __future__ import annotations

import pytest
import tiny_job

from fleetbert.bench import train
from fleetbert.core.errors import UserError


@pytest.mark.slow
def test_a_job_is_measured_beside_its_changes(tiny_data, tmp_path, measured):
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output")
    words = ["train", "--config", config, "--full", "--rounds", 2, "--threads", 1]
    words += ["trainer.epochs=4", "--beside", "data.batching=pad,data.batch_size=8"]
    report, out = measured(*words)
    beside = "data.batching=pad,data.batch_size=8"
    assert list(report["engines"]) == [train.AS_IT_IS, beside]
    assert len(report["segments"]) == 4
    for side, batch in ((train.AS_IT_IS, 16), (beside, 8)):
        found = report["engines"][side]
        assert found["texts"] == 4 * 160 - train.WARM_UP * batch
        assert len(found["last"]["dev"]) == 4
        assert found["last"]["dev"][-1] > 0.7  # it learns
        assert 0 < found["last"]["reading"] < found["last"]["seconds"]
    assert f"{beside}: " in out and "times the texts/s of the job" in out
    assert not (tmp_path / "output").exists()


def test_rounds_get_as_many_steps_as_there_are(capsys):
    totals = {"peer": 160, "ours": 161}
    assert train.plan(totals, 40, 3, False) == {"peer": [45, 40, 40], "ours": [45, 40, 40]}
    assert train.plan(totals, 100, 3, False) == {"peer": [56, 51, 51], "ours": [56, 51, 51]}
    assert "51 steps a round instead of 100" in capsys.readouterr().err
    assert train.plan(totals, 100, 2, True) == {"peer": [80, 80], "ours": [80, 81]}
    with pytest.raises(UserError, match="too few for 200 rounds"):
        train.plan(totals, 100, 200, False)


def test_a_training_is_cut_into_even_parts():
    assert train.split(651, 3) == [217, 217, 217]
    assert train.split(10, 4) == [2, 3, 2, 3]
