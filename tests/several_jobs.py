"""Jobs one after another in the same ranks, which take longer to start than to train a tiny job.

  python several_jobs.py --config job.yaml [more.yaml ...]

Those with a section `distill` are distilled. How ranks start and end is tested with the scripts of
launch/.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.core import errors


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", nargs="+", required=True)
    paths = parser.parse_args(argv).config
    environment.import_paddle()
    from fleetbert.compression.distill import job as distilling
    from fleetbert.training import job as training
    from fleetbert.training.strategies import collective, connect

    former: list[collective.Collective] = []

    def connected(job: config.Config) -> collective.Collective:
        """Ranks meet once in a process, and number their barriers."""
        if former:
            collective.training.join_ranks = lambda strategy: None
        strategy: Any = connect(job)
        if former:
            strategy.barriers = former[-1].barriers
        former.append(strategy)
        return strategy

    training.connect = distilling.connect = connected  # type: ignore[attr-defined]
    for path in paths:
        if "distill" in yaml.safe_load(Path(path).read_text(encoding="utf-8")):
            distilling.distill(config.load_as(config.Distill, path, []))
        else:
            training.train(config.load_as(config.Config, path, []))


if __name__ == "__main__":
    errors.run(main)
