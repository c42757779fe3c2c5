"""Questions of a step as windows of their contexts."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fleetbert.data import batching, windows
from fleetbert.data.tokenizers import Encodings
from fleetbert.data.windows import Layout
from fleetbert.data.words import touched
from fleetbert.tasks.collect import Arrays, Labelled, network_inputs


class Windows(Labelled):
    """Each window of each question is a text of the network.

    Its arrays besides, of windows: `places` int64 [windows, longest], where their tokens are among
    the network's outputs, and `masked` bool, of the same shape, where there is none; `labels` int64
    [windows, 2], the tokens of a window in which the answer begins and ends, 0 where the window has
    not all of it; `weight`. `layout`: which are whose; `words`: of the questions `texts`.
    """

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        rows, layout = self.divided(part)
        batch = batching.collate(
            rows,
            np.arange(len(rows.ids)),
            packed=packed,
            max_length=self.job.data.max_length,
            pad_id=self.tokenizer.pad_id,
        )
        lengths, firsts = np.asarray(rows.lengths), batch.first[np.argsort(batch.order)]
        columns = np.arange(lengths.max())
        masked = columns >= lengths[:, None]
        return {
            "inputs": network_inputs(batch),
            "places": np.where(masked, 0, columns) + firsts[:, None],
            "masked": masked,
            "labels": self.targets(part, layout),
            "weight": weight[layout.text] / np.float32(self.counts[step].sum()),
            "texts": part,
            "layout": layout,
            "words": [self.words[text] for text in part.tolist()],
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": batch.n_tokens,
        }

    @cached_property
    def text_lengths(self) -> np.ndarray:
        """A step has all windows of a question."""
        return windows.row_tokens(self.split.encodings)

    @cached_property
    def counts(self) -> np.ndarray:
        """Windows of each question, int64 [questions]."""
        counts: np.ndarray = -(-self.text_lengths // self.job.data.max_length)
        return counts

    def divided(self, part: np.ndarray) -> tuple[Encodings, Layout]:
        encodings = self.split.encodings
        divided = windows.divide(encodings, part)
        if divided is not None:
            return divided
        assert encodings.divided is not None
        contexts = np.asarray(encodings.divided[part], np.int64)
        ids = [encodings.ids[text] for text in part.tolist()]
        rows = Encodings(ids, encodings.first_lengths[part], 0)
        begins, ends = contexts.T
        layout = Layout(np.arange(len(part)), begins, ends, contexts, rows.lengths, "mean")
        return rows, layout

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
