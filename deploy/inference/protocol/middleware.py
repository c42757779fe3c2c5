"""What comes before every call, HTTP or gRPC: who asks, the call's number, its span, its line in
the log."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, ContextManager, Iterator, Mapping, NamedTuple

from fleetbert.deploy.inference.budget import Budget, Share
from fleetbert.deploy.inference.messages import Core, Failure, Reason, Response
from fleetbert.deploy.inference.ops.logs import CALL, Call
from fleetbert.deploy.inference.ops.observe import Observed
from fleetbert.deploy.inference.protocol.auth import Keys
from fleetbert.deploy.inference.protocol.validation import RawRequest, validate
from fleetbert.deploy.inference.settings import Safety

if TYPE_CHECKING:
    from typing import Callable

    from fleetbert.deploy.inference.ops.tracing import Tracer

# Asked every few seconds for ever: nobody wants a trace of them.
PROBES = re.compile(
    r"(GET|HEAD) (/v2/health/\w+|/health|/v2/models/.+/ready|/metrics)"
    r"|/inference\.GRPCInferenceService/(Server(Live|Ready)|ModelReady)|/grpc\.health\.v1\..*"
)
NO_KEY = "authorization: no valid API key; send `Authorization: Bearer KEY`"


class Middleware(NamedTuple):
    """keys: None lets everyone ask. write_calls: a line in the log for each call."""

    keys: Keys | None = None
    write_calls: bool = False
    tracer: Tracer | None = None
    budget: Budget = Budget(64 << 20)  # one for all ports

    @contextmanager
    def around(self, protocol: str, method: str, headers: Mapping[str, str]) -> Iterator[Call]:
        """A block that answers a call and sets its `code`; `headers` have lower-case names."""
        call = Call(headers.get("x-request-id"))
        token = CALL.set(call)
        span: ContextManager[object] = nullcontext()
        if self.tracer is not None and not PROBES.fullmatch(method):
            span = self.tracer.request(method, headers, call.id)
        try:
            with span:
                yield call
        finally:
            if self.write_calls:
                call.write(protocol, method)
            CALL.reset(token)

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Failure UNAUTHENTICATED unless a key is given, where one is needed."""
        if self.keys is not None and not self.keys.known(headers.get("authorization")):
            raise Failure(Reason.UNAUTHENTICATED, NO_KEY)


async def infer(
    core: Core,
    safety: Safety,
    model: str,
    version: str | None,
    read: Callable[[], RawRequest],
    observed: Observed,
    share: Share,
) -> Response:
    """The answer to an inference request, the same way for both protocols; Failure otherwise."""
    target = observed.version = core.find(model, version)
    request = validate(read(), target, version, safety, observed.request_id)
    observed.request_id = request.id
    share.give_back()
    share.take(request.bytes)
    return await core.answer(request)
