"""`load`, and the `Model` that it returns."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ClassVar,
    Generic,
    Iterable,
    List,
    Literal,
    Mapping,
    Protocol,
    Sequence,
    TypeVar,
    Union,
    cast,
    overload,
)

from fleetbert import config
from fleetbert.api import notebook
from fleetbert.compat import environment
from fleetbert.core import device as devices
from fleetbert.core.arguments import checked
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home
from fleetbert.data import in_memory
from fleetbert.data.in_memory import Table
from fleetbert.tasks.answer import Answer

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import TypedDict, Unpack

    from fleetbert.engines import answer
    from fleetbert.tasks import (
        Candidate,
        ClickAnswer,
        ContextAnswer,
        LabelAnswer,
        LabelsAnswer,
        Metrics,
        NumberAnswer,
        Span,
        SpansAnswer,
        VectorAnswer,
    )

    class Options(TypedDict, total=False):
        device: str
        precision: str
        tensorrt: str
        threads: int | None
        batch_tokens: int | None


PathLike = Union[str, "os.PathLike[str]"]
A = TypeVar("A", bound=Answer)
SHOWN = 20  # answers in a notebook


class Columns(config.Columns):
    """Those that arguments name."""

    spelling: ClassVar[str] = "{name}={column!r}"


class AnyAnswer(Answer, Protocol):
    """The fields of all tasks' answers, for type checkers that do not know the task. An answer has
    those of its task."""

    label: str | int
    labels: list[str | int]
    scores: dict[str | int, float]
    logits: np.ndarray
    value: float
    probability: float
    vector: np.ndarray
    spans: list[Span]
    text: str | None
    start: int | None
    end: int | None
    score: float
    n_best: list[Candidate]


class Answers(List[A]):
    """A list of answers, which a notebook shows as a table beside their texts."""

    def __init__(
        self,
        answers: Sequence[A],
        texts: Sequence[Sequence[str]],
        in_words: Callable[[Mapping[str, object]], str],
    ):
        super().__init__(answers)
        # By identity, since a user may sort the list; answers are kept so that ids stay theirs.
        self._texts = {id(answer): (answer, *row) for answer, *row in zip(answers, *texts)}
        self._in_words, self._no_texts = in_words, (None, *("" for _ in texts))

    def __reduce__(self) -> tuple[object, ...]:
        return list, (list(self),)

    def _repr_html_(self) -> str:
        shown = (
            (
                *self._texts.get(id(answer), self._no_texts)[1:],
                self._in_words(answer.as_json()),
            )
            for answer in self[:SHOWN]
        )
        more = f"<p>and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return notebook.table(shown) + more


# Opens a model again in one thread of a forked process at a time.
_opening = threading.Lock()


def _renew_lock() -> None:
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class Model(Generic[A]):
    """An opened variant of a bundle; `load` returns it.

    Threads may share a model; their calls then wait for each other. A forked process opens it again
    when it first uses it. A copy, and a model that is unpickled, are opened from the bundle's
    folder.
    """

    @checked
    def __init__(
        self,
        bundle: PathLike,
        variant: str = "float32",
        device: str = "cpu",
        threads: int | None = None,
        batch_tokens: int | None = None,
        precision: str = "float32",
        tensorrt: str = "off",
    ):
        path = Path(below_home(bundle)).absolute()
        self._named = path, variant, device, threads, batch_tokens, precision, tensorrt
        self._open()

    def _open(self) -> None:
        environment.import_paddle()
        from fleetbert.engines import answer  # loads Paddle

        path, variant, name, threads, batch_tokens, *how = self._named
        device = devices.of(name, *how)
        self._model = answer.load(path, variant, device, threads, batch_tokens, streams=True)
        self._process = os.getpid()

    @property
    def _opened(self) -> answer.Model:
        if self._process != os.getpid():
            with _opening:
                if self._process != os.getpid():
                    environment.never_free(self._model)  # its threads are the other process's
                    self._open()
                    environment.never_free(self._model)
        return self._model

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._named

    def __repr__(self) -> str:
        bundle, variant = self._named[:2]
        labels = self.labels
        shown = ", ".join(map(repr, labels[:SHOWN])) + (", ..." if len(labels) > SHOWN else "")
        return (
            f"Model({str(bundle)!r}, task={self.task!r}, variant={variant!r}, labels=[{shown}], "
            f"max_length={self.max_length})"
        )

    @property
    def task(self) -> str:
        """The name of the task, as in docs/tasks.md."""
        return self._model.task.name

    @property
    def variant(self) -> str:
        """The name of the variant."""
        return self._named[1]

    @property
    def labels(self) -> list[str | int]:
        """The labels in the order of the logits, as answers have them; empty for regression."""
        return list(self._model.answered_labels)

    @property
    def max_length(self) -> int:
        """Tokens per text, special tokens included; longer texts are truncated."""
        return self._model.reading.max_length

    @checked
    def predict(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        speed: float | None = None,
    ) -> list[A]:
        """Return one answer per text, in the order of the texts.

        An answer of classification has label, scores (probability by label), logits float32
        [labels], and exit_layer, after which the text left the model (None without early exit).
        An answer of regression has value; an embedding has vector, float32 [width], of length 1;
        ctr (of rows, with tabs between their columns) has probability. docs/tasks.md lists
        the others. as_json() returns what `fleetbert predict` prints.

        pairs: the second texts, as many as `texts`, if the model takes pairs.
        speed: for early-exit variants: a text exits early when its uncertainty is below `speed`,
            from 0 (never) to 1. Default: the variant's. Other variants ignore it.

        Raises UserError, with the index, if a text is empty, blank or contains NUL.
        """
        model, given = self._asked(texts, pairs, speed)
        if not given[0]:
            return []
        from fleetbert.engines import answer  # loads Paddle

        answers = answer.answer(model, *given)
        # of a class of the task, which may be from outside the package
        return Answers(cast("Sequence[A]", answers), given, model.task.answer.in_words)

    __call__ = predict

    @checked
    def predict_proba(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        speed: float | None = None,
    ) -> np.ndarray:
        """Return probabilities, float32 [texts, labels], in the order of `labels`.

        A row of single-label classification sums to 1. pairs, speed: as in `predict`. Raises
        UserError if the task gives a text no probability for each label.
        """
        remedy = "use predict, whose answers docs/tasks.md lists"
        return self._tensor("predict_proba", "scores", remedy, texts, pairs, speed)

    @checked
    def encode(self, texts: Iterable[str]) -> np.ndarray:
        """Return embeddings, float32 [texts, width], each of length 1.

        Raises UserError if the bundle's task is not embedding.
        """
        remedy = 'make a bundle of vectors with import_model(..., task="embedding")'
        return self._tensor("encode", "embedding", remedy, texts)

    @checked
    def similarity(self, texts: Iterable[str], others: Iterable[str]) -> np.ndarray:
        """Return the cosine of each text and each of `others`, float32 [texts, others].

        Raises UserError if the bundle's task is not embedding.
        """
        remedy = 'make a bundle of vectors with import_model(..., task="embedding")'
        first, second = (
            self._tensor("similarity", "embedding", remedy, given) for given in (texts, others)
        )
        cosines: np.ndarray = first @ second.T
        return cosines

    def _tensor(
        self,
        function: str,
        name: str,
        remedy: str,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        speed: float | None = None,
    ) -> np.ndarray:
        """The values of the tensor `name`, as a server gives them, for all texts."""
        from fleetbert.engines import answer  # loads Paddle

        task, labels = self._model.task, self._model.labels
        tensors = [tensor.name for tensor in task.answer.tensors(labels, task.outputs(labels))]
        if name not in tensors:
            raise UserError(
                f"{function}: the bundle {self._named[0]} answers the task {task.name}, which has "
                f"no {name}; {remedy}"
            )
        model, given = self._asked(texts, pairs, speed)
        outputs = answer.outputs(model, *given).values if given[0] else task.room(0, labels)
        return cast("np.ndarray", task.answer.tell(labels, outputs)[tensors.index(name)])

    def _asked(
        self, texts: Iterable[str], pairs: Iterable[str] | None, speed: float | None
    ) -> tuple[answer.Model, list[list[str]]]:
        """The model at this speed, and its texts: one list, or two of the same length."""
        model = self._opened
        given = [list(texts)]
        if pairs is not None:
            given.append(list(pairs))
        if model.pair != (pairs is not None):
            raise UserError(
                f"pairs: the model answers {'pairs of texts' if model.pair else 'single texts'}; "
                + ("give the second texts" if model.pair else "leave pairs out")
            )
        if len(given[-1]) != len(given[0]):
            raise UserError(f"pairs: has {len(given[1])} texts for the {len(given[0])} of texts")
        if speed is not None and not 0 <= speed <= 1:
            raise UserError(f"speed is {speed}; it has to be from 0 (none leaves early) to 1")
        if speed is not None and model.engine.early_exit:
            model = model._replace(speed=speed)
        return model, given

    @checked
    def evaluate(
        self,
        data: Table,
        on_bad_line: Literal["stop", "skip"] = "stop",
        quoting: Literal["auto", "none", "minimal"] = "auto",
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
    ) -> Metrics:
        """Return the task's metrics on a labelled table (see `Run.metrics`), and texts_per_s.

        data: as in `train`; of a `datasets.DatasetDict` the split test, or else validation.
        on_bad_line: stop raises UserError at an invalid row; skip leaves the row out.
        quoting: how fields of a file are quoted, as the key data.quoting.
        text_column, text_pair_column, label_column: the columns of the texts and of the label.
        """
        from fleetbert.engines import evaluate  # loads Paddle

        with tempfile.TemporaryDirectory() as folder:
            columns = config.from_keys(
                Columns,
                {
                    "text_column": text_column,
                    "text_pair_column": text_pair_column,
                    "label_column": label_column,
                    "quoting": quoting,
                    "on_bad_line": on_bad_line,
                },
            )
            table = in_memory.of_splits({"data": data})["data"]
            assert table is not None
            task = self._opened.task
            path = in_memory.as_file(
                "data", table, Path(folder), columns=columns, label=task.shape.label
            )
            try:
                form = task.labels.table_format(path, columns, labelled=True)
                if path.parent == Path(folder) and form.pair is False:
                    in_memory.refuse_pair(
                        "data", in_memory.first_pair(path, columns), f"the model, of {task.name},"
                    )
                return evaluate.evaluate(self._opened, path, columns)
            except UserError as error:
                raise UserError(in_memory.by_row(str(error), "data", path, folder)) from None


# Type checkers learn the answers' class from the task. Without it they know the fields of all.
@overload
def load(bundle: PathLike, variant: str = ..., **how: Unpack[Options]) -> Model[AnyAnswer]: ...
@overload
def load(
    bundle: PathLike,
    variant: str = ...,
    *,
    task: Literal["classification", "pair_classification"],
    **how: Unpack[Options],
) -> Model[LabelAnswer]: ...
@overload
def load(
    bundle: PathLike,
    variant: str = ...,
    *,
    task: Literal["multi_label_classification"],
    **how: Unpack[Options],
) -> Model[LabelsAnswer]: ...
@overload
def load(
    bundle: PathLike,
    variant: str = ...,
    *,
    task: Literal["regression", "pair_regression", "ranking"],
    **how: Unpack[Options],
) -> Model[NumberAnswer]: ...
@overload
def load(
    bundle: PathLike,
    variant: str = ...,
    *,
    task: Literal["token_classification"],
    **how: Unpack[Options],
) -> Model[SpansAnswer]: ...
@overload
def load(
    bundle: PathLike,
    variant: str = ...,
    *,
    task: Literal["question_answering"],
    **how: Unpack[Options],
) -> Model[ContextAnswer]: ...
@overload
def load(
    bundle: PathLike, variant: str = ..., *, task: Literal["embedding"], **how: Unpack[Options]
) -> Model[VectorAnswer]: ...
@overload
def load(
    bundle: PathLike, variant: str = ..., *, task: Literal["ctr"], **how: Unpack[Options]
) -> Model[ClickAnswer]: ...
@overload
def load(
    bundle: PathLike, variant: str = ..., *, task: str, **how: Unpack[Options]
) -> Model[Any]: ...
@checked
def load(
    bundle: PathLike,
    variant: str = "float32",
    *,
    task: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    batch_tokens: int | None = None,
    precision: str = "float32",
    tensorrt: str = "off",
) -> Model[Any]:
    """Open a variant of a bundle: `load("bundle")(["a lovely film"])[0].label`.

    task: the task that the bundle has to have, by which type checkers know the answers' fields.
        Default: any.
    device: cpu, gpu or gpu:N.
    threads: the number of CPU threads. Default: OMP_NUM_THREADS, else one per processor.
    batch_tokens: tokens per batch, padding included. Default: 2048.
    precision: of matrix products on a GPU: float32, float16, bfloat16 or int8 (docs/serve.md).
    tensorrt: off, or auto: a GPU computes through TensorRT where it is installed.

    Raises UserError if the bundle cannot be opened, gives no answers (mlm), is of another task or
    lacks the variant.
    """
    model: Model[Any] = Model(bundle, variant, device, threads, batch_tokens, precision, tensorrt)
    if task not in (None, model.task):
        raise UserError(f"task: {bundle} answers the task {model.task}, not {task}")
    return model
