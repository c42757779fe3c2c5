"""`python server_rules.py ACCESSOR FIRST OTHERS`: as a server, a table whose first column learns by
one of Paddle's rules and the others by another; as a trainer, pushes and prints what it pulls."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

from fleetbert.compat import parameter_server

KEYS = {"SparseNaiveSGDRule": "naive", "SparseAdamSGDRule": "adam"}
IDS = np.array([5, 7])
GRADIENTS = np.array([[1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5]], np.float32)
PUSHES, DAYS = 3, 3


def settings(accessor: str, *rules: str) -> dict[str, object]:
    prefix = f"table_parameters.{parameter_server.ROWS}."
    of_clicks = f"{prefix}accessor.ctr_accessor_param."
    known: dict[str, object] = {
        f"{prefix}shard_num": 16,
        f"{prefix}accessor.accessor_class": accessor,
        f"{prefix}accessor.embedx_threshold": 0,
        f"{of_clicks}zero_init": False,
        f"{of_clicks}nonclk_coeff": 1.0,
        f"{of_clicks}click_coeff": 1.0,
        f"{of_clicks}show_click_decay_rate": 0.5,
        f"{of_clicks}delete_threshold": 0.8,
        f"{of_clicks}delete_after_unseen_days": 30.0,
    }
    for part, rule in zip(("embed_sgd_param", "embedx_sgd_param"), rules):
        name = KEYS.get(rule, "adagrad")
        of_rule = f"{prefix}accessor.{part}."
        known[f"{of_rule}name"] = rule
        known[f"{of_rule}{name}.learning_rate"] = 0.1
        known[f"{of_rule}{name}.initial_range"] = 0.0
        known[f"{of_rule}{name}.weight_bounds"] = [-1e30, 1e30]
        if name == "adagrad":
            known[f"{of_rule}{name}.initial_g2sum"] = 3.0
    return known


def main(*words: str) -> None:
    parameter_server._table = lambda *_: settings(*words)
    tables = parameter_server.Fleet(256, 1000, GRADIENTS.shape[1], 16)
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        tables.serve()
        return
    tables.connect()

    def pull() -> list[list[float]]:
        time.sleep(0.3)  # a push is sent in a thread of its own
        return tables.pull_rows(IDS).tolist()

    tables.push_rows(IDS, np.zeros_like(GRADIENTS))  # makes room
    pulled = [pull()]
    for _ in range(PUSHES):
        tables.push_rows(IDS, GRADIENTS)
        pulled.append(pull())
    counts = []
    for _ in range(DAYS):
        with parameter_server.static_graph():
            parameter_server.fleet.shrink(10)
        pulled.append(pull())
        counts.append(tables.count_rows())
    print(json.dumps({"pulled": pulled, "rows": counts}), flush=True)
    tables.stop_servers()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
