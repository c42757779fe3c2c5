"""What is asked and answered: the words that protocols, repository, queue and workers share.

A protocol turns bytes into a checked `Request`, hands it to a `Core`, and turns the `Response` or
the `Failure` into bytes. None of these words knows of HTTP or gRPC.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    List,
    Mapping,
    NamedTuple,
    Protocol,
    Sequence,
    TypedDict,
    Union,
)

import numpy as np

if TYPE_CHECKING:  # it loads tokenizers
    from fleetbert.tasks import Tensor

MOST_NAMES = 10  # of models or versions, in a message


class Reason(enum.Enum):
    """Why a request was not answered."""

    BAD_REQUEST = "bad_request"  # the request itself cannot be answered
    FORBIDDEN = "forbidden"  # not for this caller
    NOT_FOUND = "not_found"  # no such model or version
    TOO_LARGE = "too_large"  # more than this server would ever take at once
    UNAUTHENTICATED = "unauthenticated"  # no key, or a wrong one
    UNAVAILABLE = "unavailable"  # queue full, not ready, worker lost: worth another try
    EXHAUSTED = "exhausted"  # too many bytes wait: worth another try
    DEADLINE = "deadline"  # its own time limit passed
    CANCELLED = "cancelled"  # the client went away
    INTERNAL = "internal"  # the server's fault


class Failure(Exception):
    """A request that is not answered: one sentence that names the field, and its `reason`."""

    def __init__(self, reason: Reason, message: str, retry_after: float | None = None):
        super().__init__(printable(message))
        self.reason = reason
        self.retry_after = retry_after  # seconds, where another try may help


class Request(NamedTuple):
    """Texts (or pairs of texts), or token ids in their place, for one model: all checked."""

    model: str
    version: str | None = None  # a number or a label ("stable"); None: the newest that is ready
    texts: list[str] | None = None
    texts_b: list[str] | None = None  # as many, for models of pairs
    ids: Sequence[np.ndarray] = ()  # in place of texts: int32 [tokens] of each
    first_lengths: Sequence[int] = ()  # beside `ids`: tokens of segment 0 of each
    speed: float | None = None  # early exit's threshold; None: the bundle's default
    timeout: float | None = None  # seconds from now; None: the server's default
    id: str = ""  # for logs
    truncate: bool = True  # too long texts, which are refused otherwise

    @property
    def size(self) -> int:
        return len(self.ids if self.texts is None else self.texts)

    @property
    def bytes(self) -> int:
        """In memory, of texts and ids."""
        texts = (*(self.texts or ()), *(self.texts_b or ()))
        return sum(map(sys.getsizeof, texts)) + sum([row.nbytes for row in self.ids])

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts or ())) + sum(map(len, self.texts_b or ()))


class Token(TypedDict):
    """Of a text; start, stop: the characters that it is made of, None for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


# Of an output, one for each text: strings, or an array [texts, ...].
Values = Union[List[str], np.ndarray]


class Response(NamedTuple):
    """Answers in the order of the request's texts."""

    model: str
    version: str
    outputs: Mapping[str, Values]  # by name, in the order of `Version.outputs`
    queue_seconds: float  # waiting until its last batch began
    compute_seconds: float  # its batches in the engine
    truncated: int = 0  # texts that were truncated to the model's maximum length
    bundle: str = ""  # which one answered, as `Version.bundle`
    tokens: int = 0  # of all texts

    @property
    def size(self) -> int:
        return len(next(iter(self.outputs.values())))


class State(enum.Enum):
    """Of a version of a model."""

    QUEUED = "QUEUED"  # other versions are loaded before it
    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"  # answers what it has taken, takes nothing new
    REPLACED = "REPLACED"  # a newer version answers
    UNLOADED = "UNLOADED"  # by request
    UNAVAILABLE = "UNAVAILABLE"  # refused, or not chosen by the policy; `reason` says why


class Variant(NamedTuple):
    """What people want to know of a bundle's variant; None where it was not measured. accuracy: the
    figure of the task that `metric` names."""

    name: str
    kind: str
    accuracy: float | None
    float32_accuracy: float | None
    texts_per_s: float | None
    speed: float | None  # early exit's threshold, unless a request names one
    bytes: int
    metric: str = "accuracy"


@dataclass(frozen=True)
class Version:
    """A version of a model as it stands."""

    model: str
    version: str
    state: State
    reason: str = ""
    aliases: tuple[str, ...] = ()  # "stable", "canary"
    task: str = ""
    labels: tuple[str | int, ...] = ()  # as answers in JSON have them
    outputs: tuple[Tensor, ...] = ()  # as its task says them
    pair: bool = False
    fields: bool = False  # it reads rows of `data.fields`
    max_length: int = 0  # tokens of a text: longer texts are truncated, longer input_ids refused
    vocab_size: int = 0  # input_ids are below it
    pad_id: int = 0  # of input_ids
    layers: int = 0
    pooling: str = ""  # of tokens to a text's vector
    bundle: str = ""  # a hash of its manifest: a version may be replaced in place
    variant: str = ""  # which of the bundle's variants answers
    variants: tuple[Variant, ...] = ()

    @property
    def answers_questions(self) -> bool:
        """Whether its pairs are a question and a context."""
        return any(tensor.name == "answer" for tensor in self.outputs)


class Duration(TypedDict):
    count: int
    ns: int


class Statistics(TypedDict):
    """Counts of a version since it was loaded, as Triton's statistics extension has them."""

    name: str
    version: str
    last_inference: int  # milliseconds since the epoch; 0: none yet
    inference_count: int  # texts
    execution_count: int  # batches
    inference_stats: dict[str, Duration]
    batch_stats: list[dict[str, object]]  # by the number of texts, `batch_size`


def printable(text: str) -> str:
    """The text in which what cannot be UTF-8, as in a folder's name, is escaped: \\udcff."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def show(value: Any) -> str:
    """What a client sent, for a message: short, whatever it is."""
    if isinstance(value, (list, dict)):
        text = f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    elif isinstance(value, (str, bytes)):
        text = repr(value[:60])
    else:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def list_names(names: Sequence[str]) -> str:
    """The first of them, for a message."""
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "") or "none"


def too_long(count: int, max_length: int) -> Failure:
    """Of a request that does not want its texts cut."""
    return Failure(
        Reason.TOO_LARGE,
        f"{count} of the texts have more than the {max_length} tokens that the model reads; send "
        "shorter texts, or truncate=true",
    )


class Core(Protocol):
    """What stands behind the protocols. All methods are called in the server's event loop."""

    async def answer(self, request: Request) -> Response:
        """Failure if there is no answer. Cancelling it drops what has not been computed yet."""

    async def tokenize(
        self, model: str, version: str | None, texts: list[str]
    ) -> list[list[Token]]:
        """The tokens of whole texts, special ones included. Failure as of `find`, and BAD_REQUEST
        for texts that cannot be tokenized."""

    def live(self) -> bool:
        """Whether what does not answer may yet do so without a new start of the server."""

    def ready(self) -> bool:
        """Whether every model that is to be served has a version that answers."""

    def versions(self, model: str | None = None) -> list[Version]:
        """Of one model (Failure NOT_FOUND if unknown) or of all, in the order of their numbers."""

    def find(self, model: str, version: str | None = None) -> Version:
        """The version that a request with these words would go to. Failure NOT_FOUND if there is
        no such model or version, UNAVAILABLE if it is not ready."""

    def statistics(self, model: str | None = None, version: str | None = None) -> list[Statistics]:
        """Failure NOT_FOUND if unknown."""

    async def load(self, model: str) -> None:
        """Look at the model's folder now and serve what its policy says. Failure if that cannot
        be had; what is served stays served."""

    async def unload(self, model: str) -> None:
        """Stop serving the model (after draining) until it is loaded by request."""
