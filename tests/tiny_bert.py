"""A BERT so small that a test can make one."""

from __future__ import annotations

import os
from pathlib import Path

WORDS = [f"word{number}" for number in range(150)] + [f"字{number}" for number in range(40)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
EARLY_SPEED = 0.6
LABELS = ["bad", "so so", "好"]


def make_network(
    labels: int = len(LABELS), positions: int = 512, seed: int = 1, head: str = "classifier"
):
    """A two-layer BERT whose random weights are large enough that texts get different answers."""
    import paddle

    from fleetbert.models.bert import BertConfig
    from fleetbert.models.task_heads import heads

    paddle.seed(seed)
    config = BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=positions,
        initializer_range=0.3,
        num_labels=labels,
    )
    return heads[head](config)


def make_embedder(seed: int = 1, task: str = "embedding", **fields: object):
    """The network of vectors (mean), or of another task, of the same shape."""
    import paddle

    from fleetbert.models import task_heads
    from fleetbert.models.bert import BertConfig

    paddle.seed(seed)
    shape = {"vocab_size": len(VOCAB), "hidden_size": 64, "num_hidden_layers": 2}
    config = BertConfig(
        num_attention_heads=4, intermediate_size=128, initializer_range=0.3, **shape, **fields
    )
    return task_heads.build(task, config)


def write_encoder(folder: Path, task: str = "embedding", deviation: float = 0.05):
    """Write a folder in Hugging Face format; returns its network. Of an embedding it says that it
    pools by the mean; with a small deviation that is nearly the mean of the words' embeddings."""
    import paddle

    from fleetbert.data import tokenizers
    from fleetbert.models import encoders, sources, task_heads, weights
    from fleetbert.models.bert import BertConfig
    from fleetbert.models.network import Shape

    vocab = folder.parent / "vocab.txt"
    vocab.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    shape: Shape = {
        "vocab_size": len(VOCAB), "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 128,
        "type_vocab_size": 2, "layer_norm_eps": 1e-5,
    }  # fmt: skip
    paddle.seed(5)
    network = task_heads.build(task, BertConfig(initializer_range=deviation, **shape))
    network.eval()
    spec = tokenizers.of_vocab(vocab, True)
    weights.save_folder(network, sources.Source("made", shape, spec, None, encoders.BERT), folder)
    return network


LABELS_OF = {
    "multi_label_classification": ["joy", "love", "怒"],
    "token_classification": ["O", "B-loc", "I-loc"],
}
# Of what answers with no single label; pooling: of vectors.
OTHER_TASKS = [*((name, "") for name in (*LABELS_OF, "regression", "ranking",
                                   "question_answering")),
               ("embedding", "mean"), ("embedding", "cls")]  # fmt: skip


def export(path: Path, network, vocab: Path, **changes: object):
    """The bundle of a network, by default of a classifier with LABELS."""
    from fleetbert.data import tokenizers
    from fleetbert.export.program import export_bundle

    given = {"task": "classification", "labels": LABELS, "max_length": 64, **changes}
    return export_bundle(path, network, tokenizer=tokenizers.of_vocab(vocab, True), **given)


def make_bundle(folder: Path, task: str, vocab: Path, pooling: str = "") -> Path:
    """A bundle of a random network for one of OTHER_TASKS, or classification; pooling: of vectors,
    which a classifier may read too."""
    labels = LABELS_OF.get(task, LABELS if task == "classification" else [])
    if task == "embedding" or pooling:
        network = make_embedder(task=task, pooling=pooling, num_labels=max(1, len(labels)))
    else:
        from fleetbert import tasks

        known = tasks.get(task)
        network = make_network(max(1, known.outputs(labels)), head=known.shape.head)
    export(folder, network, vocab, task=task, labels=labels, max_length=24)
    return folder


def telling_places(folder: Path) -> list[Path]:
    """Files that have the path of this checkout or of Paddle in them, as Paddle's programs do."""
    import paddle

    places = [
        os.fsencode(path) for path in (Path(paddle.__file__).parent, Path(__file__).parents[1])
    ]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(place in path.read_bytes() for place in places)]


def add_early_exit(path: Path, pad_id: int = 0, source: str = "float32") -> None:
    """Add early-exit-float32, or -int8, to a bundle of `make_network`'s: its head after the first
    layer is certain of some texts and not of others at the variant's own speed."""
    import numpy as np

    from fleetbert import bundle as bundles
    from fleetbert import tasks
    from fleetbert.compression import early_exit
    from fleetbert.engines.exits import Settings

    bundle = bundles.read(path)
    task = tasks.of(bundle.task)
    head, outputs = task.answer.exit_head("pooled"), task.outputs(bundle.labels)
    sizes = {"inner": (64 if head == "tokens" else 2 * 64, 6), "out": (6, outputs)}
    if head == "vector":
        sizes = {"out": (2 * 64, outputs)}
    opened = early_exit.open_source(bundle, source)
    random = np.random.default_rng(0)
    tensors = {}
    for name, size in sizes.items():
        tensors[f"{name}.weight"] = random.normal(size=size).astype(np.float32)
        tensors[f"{name}.bias"] = np.zeros(size[1], np.float32)
    settings = Settings([1, 2], head, EARLY_SPEED, pad_id, task.answer.doubt)
    bundles.add_variant(
        path,
        f"early-exit-{source.partition('-')[0]}",
        lambda folder: early_exit.write(opened, folder, settings, {1: tensors}),
    )
