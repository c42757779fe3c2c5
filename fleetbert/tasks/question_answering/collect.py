"""Windows of contexts as a step's examples."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fleetbert.data import batching, windows
from fleetbert.data.tokenizers import Encodings
from fleetbert.data.windows import Layout
from fleetbert.data.words import touched
from fleetbert.tasks.collect import Arrays, Labelled, network_inputs


class Windows(Labelled):
    """An example is a window of a question's context: a step has windows of different questions.

    Arrays besides, of windows: `places` int64 [windows, longest], where their tokens are among
    the network's outputs, and `masked` bool, of the same shape, where there is none; `labels` int64
    [windows, 2], the tokens of a window in which the answer begins and ends, 0 where the window has
    not all of it. Those of an evaluation have all windows of its questions, the `texts`; `layout`:
    which are whose; `words`: of the questions.
    """

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        texts, place = np.unique(self.owners[part], return_inverse=True)
        rows, layout = self.divided(texts)
        firsts = np.searchsorted(self.owners, np.asarray(texts))  # the first window of each text
        chosen = layout.starts[place] + part - firsts[place]
        return {
            **self.laid_out(rows, chosen, packed),
            "labels": self.targets(texts, layout)[chosen],
            "weight": weight / np.float32(len(step)),
            "texts": texts[place],
            "n_texts": int(np.count_nonzero(weight)),
        }

    def whole(self, part: np.ndarray) -> Arrays:
        rows, layout = self.divided(part)
        count = len(layout.text)
        return {
            **self.laid_out(rows, np.arange(count), False),
            "labels": self.targets(part, layout),
            "weight": np.full(count, 1 / count, np.float32),
            "texts": part,
            "layout": layout,
            "words": [self.words[text] for text in part.tolist()],
            "n_texts": len(part),
        }

    @cached_property
    def owners(self) -> np.ndarray:
        """The question of each window, int64 [windows]."""
        counts, _ = windows.row_sizes(self.split.encodings)
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int64 [windows]."""
        _, tokens = windows.row_sizes(self.split.encodings)
        return tokens[self.owners]

    @property
    def lines(self) -> np.ndarray:
        return self.split.lines[self.owners]

    def laid_out(self, rows: Encodings, chosen: np.ndarray, packed: bool) -> Arrays:
        """The windows `chosen` (int64) of `rows`: `inputs`, `places`, `masked` and `n_tokens`."""
        batch = batching.collate(
            rows,
            chosen,
            packed=packed,
            max_length=self.job.data.max_length,
            pad_id=self.tokenizer.pad_id,
        )
        lengths = np.asarray(rows.lengths)[chosen]
        columns = np.arange(lengths.max())
        masked = columns >= lengths[:, None]
        return {
            "inputs": network_inputs(batch),
            "places": np.where(masked, 0, columns) + batch.first[np.argsort(batch.order)][:, None],
            "masked": masked,
            "n_tokens": batch.n_tokens,
        }

    def divided(self, part: np.ndarray) -> tuple[Encodings, Layout]:
        divided = windows.divide(self.split.encodings, part, always=True)
        assert divided is not None
        return divided

    def targets(self, part: np.ndarray, layout: Layout) -> np.ndarray:
        """int64 [windows, 2]."""
        targets = np.zeros((len(layout.text), 2), np.int64)
        for number, text in enumerate(part.tolist()):
            tokens, place = self.words[text], self.split.labels[text].place
            first, end = (0, 0) if place is None else touched(tokens, np.array([place]))[0]
            if first == end:
                continue
            both = tokens[[first, end - 1], 0]
            held = (layout.begins <= both[0]) & (both[1] < layout.ends) & (layout.text == number)
            shift = layout.divided[number, 0] - layout.begins[held]
            targets[held] = both + shift[:, None]
        return targets
