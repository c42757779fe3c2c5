"""Query a server: `Client("localhost:8000").infer("sst2", ["What a lovely film"])`.

The client uses the Open Inference Protocol v2 over HTTP with binary tensors, as tritonclient does.
It works with any server of that protocol whose model takes `text`. It needs only the package
`requests`, and imports no Paddle.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import struct
from array import array
from typing import Any, Iterable, List, NamedTuple, Sequence, Union
from urllib.parse import quote, urlsplit

import requests

from fleetbert.core.arguments import checked
from fleetbert.core.errors import UserError

TRIES = 3  # of a question whose version is replaced meanwhile
Labels = List[Union[str, int]]
LENGTH_HEADER = "Inference-Header-Content-Length"


class Answer(NamedTuple):
    """An answer of classification: the most likely label, the probability of each label, the logits
    in the order of the labels, and the layer after which the text left the model. Labels are
    integers if those of the training table in memory were."""

    label: str | int
    scores: dict[str | int, float]
    logits: list[float]
    exit_layer: int


class NumberAnswer(NamedTuple):
    """An answer of regression: the value, and the layer after which the text left the model."""

    value: float
    exit_layer: int


class VectorAnswer(NamedTuple):
    """An embedding: a vector of length 1, and the layer after which the text left the model."""

    vector: list[float]
    exit_layer: int


class LabelsAnswer(NamedTuple):
    """An answer of multi-label classification: the labels above their threshold, the most likely
    first; the probability of each label; the logits in the order of the labels; and the layer after
    which the text left the model."""

    labels: list[str | int]
    scores: dict[str | int, float]
    logits: list[float]
    exit_layer: int


class Span(NamedTuple):
    """A named entity: the input's characters [start:end], its kind, and the kind's probability."""

    start: int
    end: int
    kind: str
    score: float
    text: str


class SpansAnswer(NamedTuple):
    """The named entities of a text, in order, and the layer after which the text left the model."""

    spans: list[Span]
    exit_layer: int


class Candidate(NamedTuple):
    """A part of a context, its characters [start:end], and its probability; the text, start and end
    of no answer are None."""

    text: str | None
    start: int | None
    end: int | None
    score: float


class ContextAnswer(NamedTuple):
    """The answer to a question, with the fields of a `Candidate`; the likeliest candidates; and the
    layer after which the text left the model."""

    text: str | None
    start: int | None
    end: int | None
    score: float
    n_best: list[Candidate]
    exit_layer: int


class ClickAnswer(NamedTuple):
    """The probability of a click."""

    probability: float


class ServerError(Exception):
    """The server refused the request; `status` is the HTTP status, e.g. 404 for an unknown model.
    After a 503 you may try again in `retry_after` seconds."""

    def __init__(self, status: int, message: str, retry_after: float | None = None):
        super().__init__(f"{message} (status {status})")
        self.status, self.retry_after = status, retry_after


class Unreachable(Exception):
    """No server answered in time."""


class Client:
    """A connection to a server. Threads may share a client; close it when all have finished.

    url: host:port, or https://host:port.
    api_key: the key that the server expects, if it expects one.
    timeout: seconds after which a call without an answer raises Unreachable.
    verify: the certificate file of a private certificate authority.
    """

    @checked
    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 60.0,
        verify: bool | str = True,
    ):
        self._url = (url if "://" in url else f"http://{url}").rstrip("/")
        address = urlsplit(self._url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise UserError(f"url: is {url!r}; give host:port, or https://host:port")
        if not timeout > 0:
            raise UserError(f"timeout: is {timeout}; it has to be above 0 seconds")
        self._timeout = timeout
        self._labels: dict[tuple[str, str], tuple[str | None, Labels]] = {}  # and their bundle
        self._session = requests.Session()
        self._verify = verify
        # http_proxy is for other machines: a proxy's localhost is the proxy.
        host = address.hostname
        self._proxies = {"no_proxy": host} if _is_this_machine(host) else None
        if api_key is not None:
            # As a header, it would yield to what ~/.netrc has for the host.
            self._session.auth = functools.partial(_with_key, api_key)

    @checked
    def infer(
        self,
        model: str,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        version: str | int | None = None,
        speed: float | None = None,
        server_timeout: float | None = None,
    ) -> list[Any]:
        """Return one answer per text, in the order of the texts. The model's task decides whether
        it is an Answer, a LabelsAnswer, a NumberAnswer, a VectorAnswer, a SpansAnswer, a
        ContextAnswer or a ClickAnswer, of rows in place of texts.

        pairs: the second texts, if the model takes pairs.
        version: a version's number or an alias ("stable").
        speed: the threshold of early exit, 0 to 1.
        server_timeout: seconds after which the server gives up (ServerError 504).
        """
        tensors = {"text": list(texts)}
        bodies = [pack(tensors["text"], "texts")]
        if pairs is not None:
            tensors["text_pair"] = list(pairs)
            bodies.append(pack(tensors["text_pair"], "pairs"))
        parameters: dict[str, Any] = {"binary_data_output": True}
        if speed is not None:
            parameters["speed"] = speed
        if server_timeout is not None:
            parameters["timeout"] = round(server_timeout * 1e6)
        inputs = [
            {
                "name": name,
                "shape": [len(values)],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": len(body)},
            }
            for (name, values), body in zip(tensors.items(), bodies)
        ]
        head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
        path, body = f"{_path(model, version)}/infer", b"".join([head, *bodies])
        for _ in range(TRIES):
            reply = self._call("POST", path, body, len(head))
            size = int(reply.headers[LENGTH_HEADER])
            message = json.loads(reply.content[:size])
            tensors_of = _read_outputs(message["outputs"], reply.content[size:])
            labels = self._labels_of(message, tensors_of)
            if labels is not None:
                return _answers(tensors_of, labels)
        raise ServerError(
            503, f"the answers of model {model} and its labels are of different bundles", 1.0
        )

    @checked
    def metadata(self, model: str, version: str | int | None = None) -> dict[str, Any]:
        """Return the versions, inputs and outputs of a model."""
        return self._call("GET", _path(model, version)).json()

    def ready(self) -> bool:
        """Return whether the server is ready to answer."""
        try:
            self._call("GET", "/v2/health/ready")
        except (ServerError, Unreachable):
            return False
        return True

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _labels_of(self, message: dict[str, Any], outputs: dict[str, Any]) -> Labels | None:
        """Those that an answer was made with; None if the version was replaced in place since.

        They are asked for once for each bundle. Servers that do not name it are asked again where
        labels and scores contradict each other.
        """
        key = message["model_name"], message["model_version"]
        bundle = message.get("parameters", {}).get("bundle")
        known = self._labels.get(key)
        if known is not None and known[0] == bundle and (bundle or _agree(outputs, known[1])):
            return known[1]
        parameters = self.metadata(*key).get("parameters", {})
        labels = parameters.get("labels", [])
        if (parameters.get("bundle") or bundle) != bundle:
            return None
        self._labels[key] = (bundle, labels)
        return labels

    def _call(
        self, method: str, path: str, body: bytes | None = None, head: int | None = None
    ) -> requests.Response:
        headers = {}
        if head is not None:
            headers = {LENGTH_HEADER: str(head), "Content-Type": "application/octet-stream"}
        try:
            reply = self._session.request(
                method,
                self._url + path,
                data=body,
                headers=headers,
                timeout=self._timeout,
                verify=self._verify,  # a session's own yields to REQUESTS_CA_BUNDLE
                proxies=self._proxies,
            )
        except requests.Timeout:
            raise Unreachable(f"{self._url} did not answer in {self._timeout} s") from None
        except requests.RequestException as error:
            raise Unreachable(f"{self._url} cannot be reached: {error}") from None
        if reply.ok:
            return reply
        try:
            message = reply.json()["error"]
        except (ValueError, KeyError, TypeError):
            message = reply.text[:200] or reply.reason
        try:
            wait = float(reply.headers["Retry-After"])
        except (KeyError, ValueError):
            wait = None
        raise ServerError(reply.status_code, message, wait)


def _with_key(key: str, request: requests.PreparedRequest) -> requests.PreparedRequest:
    request.headers["Authorization"] = f"Bearer {key}"
    return request


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _path(model: str, version: str | int | None) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def pack(texts: Sequence[str], name: str) -> bytes:
    """BYTES: each text in UTF-8 after its length, uint32 little-endian. TypeError or ValueError
    for what is no text; `name` is the argument that holds it."""
    parts: list[bytes] = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{number}] is {text!r:.40}; it has to be a string")
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"{name}[{number}] holds half of a surrogate pair, which is no character: read its "
                'source as UTF-8, or replace it: text.encode("utf-8", "replace").decode()'
            ) from None
        parts += struct.pack("<I", len(encoded)), encoded
    return b"".join(parts)


def _read_outputs(outputs: Sequence[dict[str, Any]], body: bytes) -> dict[str, Any]:
    """By name; the raw tensors stand in `body` in the order of `outputs`."""
    tensors: dict[str, Any] = {}
    start = 0
    for output in outputs:
        end = start + output["parameters"]["binary_data_size"]
        tensors[output["name"]] = unpack(output["datatype"], body[start:end])
        start = end
    return tensors


def _rows(values: Any, texts: int) -> list[Any]:
    """A tensor [texts, width] by text."""
    width = len(values) // texts
    return [values[at : at + width] for at in range(0, len(values), width)]


def _agree(outputs: dict[str, Any], labels: Labels) -> bool:
    """Whether there are as many scores as labels, and the label of each answer has the highest."""
    if not labels or "label" not in outputs:
        return True
    answers, labels = outputs["label"], list(map(str, labels))
    rows = _rows(outputs["scores"], len(answers))
    return len(labels) == len(rows[0]) and all(
        label in labels and row[labels.index(label)] == max(row)
        for label, row in zip(answers, rows)
    )


def _answers(tensors: dict[str, Any], labels: Labels) -> list[Any]:
    if "probability" in tensors:
        return list(map(ClickAnswer, tensors["probability"]))
    layers = tensors["exit_layer"]
    if "spans" in tensors:
        answers = ([Span(**span) for span in json.loads(spans)] for spans in tensors["spans"])
        return list(map(SpansAnswer, answers, layers))
    if "answer" in tensors:
        parsed = [json.loads(answer) for answer in tensors["answer"]]
        others = [[Candidate(**other) for other in answer.pop("n_best")] for answer in parsed]
        return [
            ContextAnswer(**answer, n_best=n_best, exit_layer=layer)
            for answer, n_best, layer in zip(parsed, others, layers)
        ]
    if "embedding" in tensors:
        rows = (row.tolist() for row in _rows(tensors["embedding"], len(layers)))
        return list(map(VectorAnswer, rows, layers))
    if "values" in tensors:
        return list(map(NumberAnswer, tensors["values"], layers))
    scores, logits = (_rows(tensors[name], len(layers)) for name in ("scores", "logits"))
    names = labels or [str(number) for number in range(len(scores[0]))]
    rest = ([dict(zip(names, row)) for row in scores], [row.tolist() for row in logits], layers)
    if "labels" in tensors:
        return list(map(LabelsAnswer, map(json.loads, tensors["labels"]), *rest))
    by_name = {str(label): label for label in labels}  # the tensor has strings
    return [Answer(by_name.get(name, name), *more) for name, *more in zip(tensors["label"], *rest)]


def unpack(datatype: str, raw: bytes) -> Any:
    if datatype == "BYTES":
        texts, at = [], 0
        while at < len(raw):
            (length,) = struct.unpack_from("<I", raw, at)
            texts.append(raw[at + 4 : at + 4 + length].decode("utf-8"))
            at += 4 + length
        return texts
    values = array({"FP32": "f", "INT32": "i"}[datatype])
    values.frombytes(raw)
    return values
