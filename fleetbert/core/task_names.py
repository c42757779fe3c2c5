"""The tasks by name, and what each declares: what the schemas of jobs and bundles, the commands and
the server ask, none of which has to import a task.

`fleetbert.tasks` has what they learn and answer, and adds those that are registered from outside.
"""

from __future__ import annotations

import difflib
from typing import Callable, NamedTuple

from pydantic_core import PydanticCustomError


class Shape(NamedTuple):
    """What a task declares; the defaults are those of a label for each text.

    what: more of it than its name says, for `--help`.
    of_texts: False: it learns from rows of `data.fields`, and is asked such.
    pair: a question is two texts.
    head: of the network, see `models.task_heads`.
    label: how a table writes what is learned, of `data.written.KINDS`.
    labelled: training texts have labels.
    least_labels: that a bundle has.
    outputs: numbers that the network gives for a text, or for a token; None: as many as labels.
    per_token: the network has outputs for each token: an engine gives float32 [own tokens, outputs]
        of each text, in an array of objects [texts].
    pooled: the outputs are a vector of the network's width, made by `task.pooling` of a job.
    answers: a bundle can be asked.
    picks_label: the outputs are logits of labels, of which the largest is the answer.
    tells: what a bundle without labels tells of each text; "" if nothing.
    counts: what `n` of its metrics counts.
    problem_type: in a model's config.json, by which transformers knows what its head is for.
    also: what others call the task, for the hint to a name that is none.
    imports: what a model of others is that is imported as this task only where a user names it.
    """

    name: str
    what: str = ""
    of_texts: bool = True
    pair: bool = False
    head: str = "classifier"
    label: str = "name"
    labelled: bool = True
    least_labels: int = 2
    outputs: int | None = None
    per_token: bool = False
    pooled: bool = False
    answers: bool = True
    picks_label: bool = True
    tells: str = ""
    counts: str = "texts"
    problem_type: str = ""
    also: str = ""
    imports: str = ""

    @property
    def answer(self) -> str:
        """What a bundle answers: label, labels, number, vector, spans or (in the second text of a
        pair) answer; "" if nothing."""
        if not self.answers:
            return ""
        if self.per_token:
            return "answer" if self.pair else "spans"
        if self.outputs == 1:
            return "number"
        return "vector" if self.pooled else "label" if self.picks_label else "labels"


# What rows have in common.
NUMBER = Shape("", label="number", least_labels=0, picks_label=False)
SCORE = NUMBER._replace(outputs=1, tells="a number", problem_type="regression")
TAGS = Shape("", head="tokens", label="spans", per_token=True, picks_label=False)
UNASKED = Shape("", answers=False, picks_label=False)
SHAPES: dict[str, Shape] = {shape.name: shape for shape in (
    Shape(
        "classification", also="text_classification sequence_classification sentiment sst2 "
        "sentiment_analysis intent single_label_classification topic"),
    Shape(
        "pair_classification", pair=True, also="nli mnli paraphrase entailment text_matching "
        "sentence_pair sentence_pair_classification natural_language_inference"),
    SCORE._replace(name="regression", also="text_regression score"),
    SCORE._replace(name="pair_regression", pair=True, also="sts stsb similarity"),
    SCORE._replace(
        name="ranking", also="rerank reranking reranker cross_encoder text_ranking",
        what="score of a query and a document", pair=True, label="relevance",
        imports="a cross-encoder with one output, which scores a query and a document"),
    NUMBER._replace(
        name="embedding", also="embeddings sentence_similarity feature_extraction retrieval "
        "bi_encoder contrastive simcse sentence_embedding",
        head="embedding", pooled=True, tells="a vector",
        imports="any encoder, which gives a vector for each text"),
    Shape(
        "multi_label_classification", also="multilabel multi_label tagging",
        label="names", least_labels=1, picks_label=False,
        problem_type="multi_label_classification"),
    TAGS._replace(
        name="token_classification", also="ner named_entities named_entity_recognition pos "
        "sequence_labeling sequence_tagging entities", what="named entities"),
    TAGS._replace(
        name="question_answering", also="qa squad reading_comprehension mrc span_extraction "
        "extractive_question_answering", what="answers in a context", pair=True, head="answers",
        label="answers", least_labels=0, outputs=2, counts="questions"),
    UNASKED._replace(
        name="mlm", also="masked_lm fill_mask pretraining language_modeling pretrain",
        what="masked-language modelling", head="masked_words", labelled=False,
        least_labels=0, outputs=2,  # PaddleNLP's config knows no fewer labels
        counts="masked words"),
    NUMBER._replace(
        name="ctr", what="clicks, from rows in Criteo's format: docs/wide_deep.md", of_texts=False,
        outputs=1, tells="the probability of a click", counts="rows"),
)}  # fmt: skip


UNTRAINED = ("zero_shot", "zero_shot_classification")


def check(name: str) -> str:
    """For pydantic: the name, if there is such a task."""
    if name not in SHAPES:
        if _plain(name) in UNTRAINED:
            raise ValueError(
                f"task.name: {name} is not trained; make a bundle of the labels' names by "
                "`fleetbert label`, or serve an embedding model and send the labels with each "
                "request (docs/few_labels.md)"
            )
        *names, last = map(repr, SHAPES)
        near = meant(name)
        hint = f" (did you mean {near}?)" if near else ""
        choices = f"{', '.join(names)} or {last}"
        raise PydanticCustomError("literal_error", f"Input should be {choices}{hint}")
    return name


def meant(name: str) -> str | None:
    """The task that others call so, or that is spelled nearly so."""
    words = {word: shape.name for shape in SHAPES.values() for word in shape.also.split()}
    words.update({task: task for task in SHAPES})
    near = difflib.get_close_matches(_plain(name), words, 1, 0.75)
    return words[near[0]] if near else None


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def in_words() -> str:
    """All tasks, for `--help`."""
    shapes = SHAPES.values()
    return ", ".join(
        f"{shape.name} ({shape.what})" if shape.what else shape.name for shape in shapes
    )


def all_that(declare: Callable[[Shape], object]) -> list[str]:
    """The names of the tasks whose shapes do so."""
    return [name for name, shape in SHAPES.items() if declare(shape)]
