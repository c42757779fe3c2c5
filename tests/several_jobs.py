"""Jobs one after another in the same ranks, which take longer to start than to train a tiny job.

  python several_jobs.py --config job.yaml [more.yaml ...]

Those with a section `distill` are distilled. How ranks start and end is tested with the scripts of
launch/.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fleetbert import config, errors
from fleetbert.compat import environment


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", nargs="+", required=True)
    paths = parser.parse_args(argv).config
    environment.import_paddle()
    from fleetbert.compress.distill import job as distilling
    from fleetbert.train import job as training
    from fleetbert.train.strategies import connect
    from fleetbert.train.strategies.single import Single

    met: list[Single] = []

    def connected(job: config.Config) -> Single:
        """Ranks meet once in a process."""
        met[:] = met or [connect(job)]
        met[0].syncs_late = False
        return met[0]

    training.connect = distilling.connect = connected  # type: ignore[attr-defined]
    for path in paths:
        if "distill" in yaml.safe_load(Path(path).read_text(encoding="utf-8")):
            distilling.distill(config.load_as(config.Distill, path, []))
        else:
            training.train(config.load(path, []))


if __name__ == "__main__":
    errors.run(main)
