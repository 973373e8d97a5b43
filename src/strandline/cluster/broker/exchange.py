"""One request: its place in the order of a connection's answers, and what its client pays for what it changes of the
metadata (KIP-599).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from types import TracebackType
from typing import Any, Protocol

import structlog

from strandline.cluster.broker.request import RequestContext
from strandline.proto.kafka.fields import Piece, response_head

log = structlog.get_logger("strandline.kafka")


class Charge:
    """The changes of one request. This one is free: no quota is for its client.

    The work stands in its `with`; behind that the answer knows how long the client must wait.
    """

    def admits(self, partitions: int) -> bool:
        """Count so many before they are made or deleted; or false, and they are not counted: the client has had too
        much, and its request says so."""
        return True

    def correct(self, partitions: int) -> None:
        """So many more were made or deleted than were counted; less than 0: fewer."""

    def settle(self) -> None:
        """All is done that the client waits for."""

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()


FREE = Charge()


class Connection(Protocol):
    """What an exchange and the handlers use of a connection (`strandline.cluster.broker.connection`)."""

    def answered(self, exchange: Exchange) -> None:
        """The exchange is ready: send it with all others of this loop turn."""

    def run(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Answer an exchange by a coroutine, which is cancelled when the connection is lost."""

    def run_alone(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """`run`, and take no request behind it until it has ended: what it writes comes first, and its frame stays
        where it is."""

    def hold(self) -> None:
        """Take no further request until `let_go` was called as often."""

    def let_go(self) -> None:
        """See `hold`."""

    def refuse(self, reason: str) -> None:
        """Close after what is answered has been sent; the first reason is logged."""

    def shut(self) -> None:
        """Send what is ready and close, without a log line."""

    def abort(self) -> None:
        """Close at once; unsent answers are lost."""

    def count_software(self) -> None:
        """The client has said what it is (ApiVersions)."""

    def identity(self) -> dict[str, Any]:
        """The peer, for log lines."""


class Exchange:
    """A request that was read; its answer is sent after those of all requests before it on the connection.

    Invariants: it is answered at most once; an answer to a connection that has gone is dropped.

    Attributes:
        parts: the frame to send, in pieces; empty for no answer (acks=0).
        when_gone: called if the connection is lost before the answer, so that parked work can be dropped.
    """

    __slots__ = ("connection", "context", "flexible_header", "parts", "ready", "size", "when_gone")

    def __init__(self, connection: Connection, context: RequestContext, flexible_header: bool) -> None:
        self.connection = connection
        self.context = context
        self.flexible_header = flexible_header
        self.parts: list[Piece] = []
        self.size = 0
        self.ready = False
        self.when_gone: Callable[[], None] | None = None

    def respond(self, body: Sequence[Piece]) -> None:
        """Answer with the message in `body`, in pieces that are sent as they are; length and header are added."""
        size = sum(map(len, body))
        head = response_head(self.context.correlation_id, size, self.flexible_header)
        self.parts = [head, *body]
        self.size = size + len(head)
        self._ready()

    def respond_as_is(self, frame: Sequence[Piece]) -> None:
        """Answer with a frame that has no header (a token after SaslHandshake 0)."""
        self.parts = [*frame]
        self.size = sum(map(len, frame))
        self._ready()

    def respond_nothing(self) -> None:
        """The request wants no answer (Produce with acks=0)."""
        self._ready()

    # Quotas: a request that none is for is not throttled (`strandline.cluster.broker.quotas`)

    def throttle_ms(self) -> int:
        """The throttle_time_ms of the answer, asked for once, when the answer is made; the connection is muted."""
        return 0

    def throttle_fetch(self, records_bytes: int) -> tuple[int, bool]:
        """The same of a fetch with so many bytes of records; and whether they may be sent, or else none of them."""
        return 0, True

    def charge(self) -> Charge:
        """What its changes of the metadata cost."""
        return FREE

    @property
    def runs_alone(self) -> bool:
        """Nothing behind it is taken before it is done: how long the client must wait is known then."""
        return False

    @property
    def fetch_bytes_max(self) -> float:
        """A fetch of more bytes of records would be throttled whatever came before it."""
        return inf

    def timed(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """The work, with the time that it takes counted."""
        return work

    def attempt(self, answer: Callable[[], None]) -> None:
        """Run `answer` where an exception would reach somebody else's work: the replicas', or the event loop's."""
        try:
            answer()
        except Exception:
            context = self.context
            log.exception(
                "internal error: a request failed",
                api=context.api,
                version=context.version,
                **self.connection.identity(),
            )
            self.drop_connection(f"{context.api} v{context.version} could not be answered")

    def drop_connection(self, reason: str) -> None:
        """There is no other way to tell the client: close (acks=0 that failed, a request that cannot be answered)."""
        self._ready()
        self.connection.refuse(reason)

    def _ready(self) -> None:
        self.ready = True
        self.when_gone = None
        self.connection.answered(self)
