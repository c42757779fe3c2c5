"""A network of rows and its table → a program and the table, checked against the network, in a
bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Sequence

import numpy as np
import paddle

from fleetbert import bundle
from fleetbert.data import fields
from fleetbert.data.tokenizers import Spec
from fleetbert.engines import engine, golden, table
from fleetbert.export.program import check_difference, save_tidied, versions

SAMPLE = 8  # rows that the network and the program are asked


def export_rows(
    path: Path,
    network: paddle.nn.Layer,
    write_table: Callable[[Path], None],
    *,
    task: str,
    tokenizer: Spec,
    accuracy: Sequence[bundle.Accuracy] = (),
) -> bundle.Bundle:
    """Write `network` as the `float32` variant of a new bundle at `path`; returns the bundle.

    network: forward(numbers, rows), float32 [rows, 2 * fields.NUMBERS] and [rows,
        fields.CATEGORIES, width] → logits float32 [rows]. write_table: writes ids.npy and rows.npy
        into a folder, see `bundle.TableVariant`.

    A bundle that is at `path` is replaced in one step, after the program was found to answer like
    the network (UserError otherwise).
    """

    def fill(folder: Path) -> list[bundle.Variant]:
        folder = folder / "float32"
        folder.mkdir()
        write_table(folder)
        opened = table.open_table(folder)
        width = opened.rows.shape[1]
        spec = [
            paddle.static.InputSpec([-1, *shape], "float32", name)
            for name, shape in zip(
                table.INPUTS, ((2 * fields.NUMBERS,), (fields.CATEGORIES, width))
            )
        ]
        network.eval()
        save_tidied(network, folder, spec)
        numbers, ids = _sample(opened.known)
        chosen = opened.look_up(ids.reshape(-1)).reshape(*ids.shape, width)
        with paddle.no_grad():
            features = fields.features(numbers)
            expected = network(*map(paddle.to_tensor, (features, chosen))).numpy()[:, None]
        words = fields.pack(numbers, ids)
        actual = engine.open_folder(engine.TABLE, folder).run(table.as_texts(words))
        difference = float(np.abs(actual - expected).max())
        check_difference(difference, "train from an earlier checkpoint")
        return [
            bundle.TableVariant(
                name="float32",
                accuracy=list(accuracy),
                runs_on=["x86", "armv8"],
                versions=versions(),
                rows=len(opened.known),
                width=width,
                max_difference_to_network=difference,
                golden=bundle.Golden(
                    ids=words.tolist(),
                    logits=expected.tolist(),
                    bound=golden.FLOAT_SHARE * max(1.0, float(np.abs(expected).max())),
                ),
            )
        ]

    return bundle.create(
        path, task=task, labels=[], max_length=fields.WORDS, tokenizer=tokenizer, fill=fill
    )


def _sample(known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and ids of rows, most of whose ids are known."""
    random = np.random.default_rng(0)
    numbers = random.normal(0, 3, (SAMPLE, fields.NUMBERS)).astype(np.float32)
    numbers[random.random(numbers.shape) < 0.2] = np.nan
    ids = random.integers(0, 1 << 60, (SAMPLE, fields.CATEGORIES))
    if len(known):
        drawn = known[np.sort(random.integers(0, len(known), ids.size))].reshape(ids.shape)
        ids = np.where(random.random(ids.shape) < 0.8, drawn, ids)
    return numbers, ids
