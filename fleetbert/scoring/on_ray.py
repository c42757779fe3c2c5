"""The files of `predict` on a Ray cluster: Ray Data gives them to actors, each with one model."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from typing import Any, Generator, Sequence

from fleetbert.core.errors import UserError
from fleetbert.scoring import remote
from fleetbert.scoring.plan import Plan


class Answering:
    """An actor of Ray Data; its process keeps the model."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return remote.answer(row["work"])._asdict()


def run(
    plans: Sequence[Plan], address: str | None = None
) -> Generator[tuple[int, int], None, None]:
    """Answer the files with as many actors as the cluster has processors.

    address: `host:port`, `ray://host:port` or auto. Default: RAY_ADDRESS, else a Ray of this
    machine that ends with the job. Raises UserError where it cannot be reached or a file fails.
    """
    import ray
    from ray import data as ray_data

    if address is None and "RAY_ADDRESS" not in os.environ:
        address = "local"  # else Ray joins one that runs here, or waits for one that was killed
    if address not in (None, "auto", "local"):
        remote.check_reachable(address if "://" in address else f"ray://{address}")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        ray_data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        scorer = plans[0].scorer
        threads = scorer.threads or 1
        largest = max(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
        if 0 < largest < threads:
            raise UserError(
                f"--threads {threads}: the machines of this Ray have {largest} processors at most; "
                "say fewer"
            )
        actors = min(len(plans), max(1, int(ray.cluster_resources().get("CPU", 1)) // threads))
        files = ray_data.from_items(
            [{"work": work} for work in remote.pack(plans)], override_num_blocks=len(plans)
        )
        outcomes = files.map(
            Answering,
            compute=ray_data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=1),
            num_cpus=threads,
            num_gpus=0 if scorer.device == "cpu" else 1,
        )
        # Ray Data has to end its work, also that of a file that failed, before Ray ends.
        with closing(iter(outcomes.iter_rows())) as rows:
            yield from remote.counted(plans, (remote.Outcome(**row) for row in rows))
    except ConnectionError as error:
        raise UserError(
            f"--on ray: {remote.cause(error)}; if it asks for a token, set RAY_AUTH_MODE=token, "
            "and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise UserError(f"--on ray: {remote.cause(error)}") from error
    finally:
        ray.shutdown()
