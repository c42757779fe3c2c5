"""Makes families.npz: tiny encoders with random weights, and what transformers computes with them.

    .venv-bench/bin/python tests/models/families/make.py tests/models/families/families.npz

Of each family: token ids with padding, their types (a pair where the family has types); and of its
classifier and of its masked-word head: config.json, tensors (one after the other) and their shapes
as transformers writes them, the hidden states after the last layer, and the logits.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from safetensors.numpy import load_file

SIZES = {
    "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "num_labels": 3, "max_position_embeddings": 24,
}  # fmt: skip
ROBERTA = {**SIZES, "max_position_embeddings": 26, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
TASKS = {"type_vocab_size": 4, "use_task_id": True, "task_type_vocab_size": 3, "hidden_act": "relu"}
DISTILBERT = {
    "vocab_size": 30, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "num_labels": 3,
    "max_position_embeddings": 24, "layer_norm_eps": 1e-3,  # which its layers do not read
}  # fmt: skip
# name: (transformers' prefix of classes, fields, padding id)
FAMILIES = {
    "bert": ("Bert", SIZES, 0),
    "roberta": ("Roberta", ROBERTA, 1),
    "camembert": ("Camembert", ROBERTA, 1),
    "xlm-roberta": ("XLMRoberta", {**ROBERTA, "hidden_act": "relu"}, 1),
    "ernie": ("Ernie", {**SIZES, **TASKS}, 0),
    "distilbert": ("DistilBert", DISTILBERT, 0),
    "electra": ("Electra", {**SIZES, "embedding_size": 8}, 0),
    "electra-small": ("Electra", {**SIZES, "embedding_size": 4}, 0),
    "albert": ("Albert", {**SIZES, "embedding_size": 4, "hidden_act": "gelu_new"}, 0),
}
LENGTHS = (12, 16, 5)


def main(out):
    arrays = {}
    for number, (name, (prefix, fields, pad)) in enumerate(FAMILIES.items()):
        torch.manual_seed(number)
        config = getattr(hf, f"{prefix}Config")(**fields)
        rng = np.random.default_rng(number)
        ids = rng.integers(5, 30, (len(LENGTHS), max(LENGTHS)))
        mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
        ids = np.where(mask, ids, pad)
        types = np.zeros_like(ids)
        given = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        if fields.get("type_vocab_size", 2) > 1 and name != "distilbert":
            types[0, 7:12] = 1
            given["token_type_ids"] = types
        given = {key: torch.from_numpy(value) for key, value in given.items()}
        heads = ["ForSequenceClassification", "ForMaskedLM"]
        if prefix == "Electra":  # its own is of a generator
            heads.pop()
        for head in heads:
            model = getattr(hf, prefix + head)(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(0, 0.3)
                answer = model(**given, output_hidden_states=True)
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                kind = "mlm" if head == "ForMaskedLM" else "classifier"
                arrays[f"{name}/{kind}/config"] = np.array(
                    json.dumps(json.loads((Path(folder) / "config.json").read_text()))
                )
                tensors = load_file(Path(folder) / "model.safetensors")
                shapes = {tensor: array.shape for tensor, array in tensors.items()}
                arrays[f"{name}/{kind}/shapes"] = np.array(json.dumps(shapes))
                arrays[f"{name}/{kind}/tensors"] = np.concatenate(
                    [array.ravel() for array in tensors.values()]
                )
            arrays[f"{name}/{kind}/hidden"] = answer.hidden_states[-1].numpy()
            arrays[f"{name}/{kind}/logits"] = answer.logits.numpy()
        arrays[f"{name}/ids"], arrays[f"{name}/types"] = ids, types
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
