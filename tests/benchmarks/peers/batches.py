"""Batches of token ids for the peers' engines, without fleetbert."""

from __future__ import annotations

import numpy as np


def read(path):
    """The token ids of each text, and how many are its first text's."""
    with np.load(path) as file:
        ids = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
        return ids, file["first_lengths"]


def collate(ids, first_lengths, indices, length, pad_id):
    """The texts `indices` as input_ids and token_type_ids, int64 [texts, length]."""
    input_ids = np.full((len(indices), length), pad_id, np.int64)
    token_type_ids = np.zeros_like(input_ids)
    for row, index in enumerate(indices):
        input_ids[row, : len(ids[index])] = ids[index]
        token_type_ids[row, first_lengths[index] : len(ids[index])] = 1
    return input_ids, token_type_ids


def inputs_of(input_ids, token_type_ids, pad_id):
    """What an ONNX model of a BERT takes, by name."""
    mask = (input_ids != pad_id).astype(np.int64)
    return {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": mask}


def calibration(job):
    """The inputs of the texts in the file `job["calibration"]`, one text a batch."""
    ids, first_lengths = read(job["calibration"])
    return [
        inputs_of(*collate(ids, first_lengths, [n], len(ids[n]), job["pad_id"]), job["pad_id"])
        for n in range(len(ids))
    ]
