"""One request: its client and API (`RequestContext`), the check of rights (`Authorizer`), the response (`Exchange`) and
the charge for the metadata that it changes (`Charge`, KIP-599).

Every handler first asks the authorizer about each resource that it touches; `proto.kafka.access` lists these rights
for each API. A cluster without an authorizer uses `AllowAll`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from strandline.cluster.security.principal import ANONYMOUS
from strandline.cluster.security.sasl import SaslSession
from strandline.proto.acls import (
    CLUSTER,
    OPERATIONS_OF,
    AclBinding,
    AclFilter,
    Operation,
    Resource,
    ResourceKind,
    lacking,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.fields import Piece, response_head
from strandline.proto.steps import Steps

T = TypeVar("T")
R = TypeVar("R")

log = structlog.get_logger("strandline.kafka")

UNKNOWN_SOFTWARE = "unknown"

OPERATIONS_NOT_ASKED = -(2**31)
"""Value of Kafka's bit field of allowed operations if the request did not ask for it."""

NO_TRANSACTIONS = "this cluster has no transactions yet: its transaction.version is 0 (strandline upgrade finalize)"
"""Message of the error that a request with a transactional id gets while transactions are off."""


# The client and its request


class Gate(Protocol):
    """Authentication of one connection on a listener with SASL (`strandline.cluster.broker.sasl`).

    Attributes:
        session: state of the SASL exchange.
    """

    @property
    def session(self) -> SaslSession: ...

    @property
    def is_open(self) -> bool:
        """True once the client is authenticated."""

    @property
    def frame_bytes_max(self) -> int:
        """Largest frame, in bytes, while the client is not authenticated."""

    def counts_too_many(self) -> bool:
        """Count a frame before the authentication. Return True above the maximum: then the connection will end."""

    def check(self, frame: memoryview) -> None:
        """Check that a request may be handled now. Raises ProtocolError otherwise; then the connection is closed."""

    def handshake(self, exchange: Exchange, mechanism: str) -> None:
        """Answer SaslHandshake."""

    def authenticate(self, exchange: Exchange, token: bytes, *, raw: bool = False) -> None:
        """Answer SaslAuthenticate, or a token without a header (`raw`)."""


class Peer:
    """The client at the other end of a connection; the connection and the handlers fill it in.

    Attributes:
        principal: the authenticated principal, as Kafka spells it (``User:...``).
        listener: name of the listener it came through; responses name brokers by their endpoints on that listener.
        host: the client's address, or "" if the transport has none.
        sasl: the gate of the connection, on a listener with SASL.
        is_stranger: the client has not authenticated yet.
        stranger_ms: milliseconds of the event loop that it used until then (`LoopTime`).
        number: rises in the order in which connections are accepted; 0: none given.
        software_name, software_version: from ApiVersions 3 and later, else "unknown".
    """

    __slots__ = (
        "host", "is_stranger", "listener", "number", "principal", "sasl", "software_name", "software_version",
        "stranger_ms",
    )  # fmt: skip

    def __init__(self, listener: str, host: str, principal: str = ANONYMOUS) -> None:
        self.listener = listener
        self.host = host
        self.principal = principal
        self.sasl: Gate | None = None
        self.is_stranger = False
        self.stranger_ms = 0.0
        self.number = 0
        self.software_name = UNKNOWN_SOFTWARE
        self.software_version = UNKNOWN_SOFTWARE

    @property
    def payer(self) -> str:
        """Name to which this connection's use of memory is charged: "" for all unauthenticated clients together, the
        principal, or for anonymous clients the address."""
        if self.is_stranger:
            return ""
        return f"{ANONYMOUS} {self.host}" if self.principal == ANONYMOUS else self.principal


class RequestContext(NamedTuple):
    """One request.

    Attributes:
        peer: the client that sent it.
        client_id: the request's client.id, or "".
        api: Kafka's name of the API.
        version: the API version; decides which errors the client understands.
        correlation_id: the number that the client gave the request.
        received_ms: monotonic time in ms at which the request was taken from the buffer.
    """

    peer: Peer
    client_id: str
    api: str
    version: int
    correlation_id: int
    received_ms: float

    @property
    def principal(self) -> str:
        """Principal of the client, as Kafka spells it; an `Authorizer` decides by it."""
        return self.peer.principal


# Authorization


Action = tuple[Operation, Resource]


class Authorizer(Protocol):
    """Decides what principals may do. It is called on the event loop, so an implementation decides from memory.

    Attributes:
        enabled: decisions come from ACLs, which can be described and changed.
        generation: a new object whenever a decision may differ from an earlier one.
    """

    @property
    def enabled(self) -> bool: ...

    @property
    def generation(self) -> object: ...

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        """Return one bool per action: whether the request's principal may do it.

        Args:
            noted: log and count denials, as the principal asked for these actions. False: the decision only filters
                a list, or tells the principal what it may do.
        """

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        """Return whether the principal may do the operation on at least one resource of the kind."""

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the access control entries that match the filter, sorted."""


class AllowAll:
    """Authorizer of a cluster without a configured one: every principal may do everything."""

    enabled = False
    generation: object = None

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        return [True] * len(actions)

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        return True

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        return []


class Sink(Protocol):
    """Destination of audit lines, beside the log."""

    def write(self, event: str, figures: Mapping[str, Any]) -> None:
        """Write one line. Raises nothing; a failed write is logged."""


def topic(name: str) -> Resource:
    """Return the resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


def group(group_id: str) -> Resource:
    """Return the resource of a consumer group."""
    return Resource(ResourceKind.GROUP, group_id)


def transaction(transactional_id: str) -> Resource:
    """Return the resource of a transactional id."""
    return Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id)


def allowed(
    authorizer: Authorizer, context: RequestContext, operation: Operation, resource: Resource, *, noted: bool = True
) -> bool:
    """Return whether the principal may do the operation on the resource. `noted`: see `Authorizer.authorize`."""
    return authorizer.authorize(context, ((operation, resource),), noted=noted)[0]


_REFUSED = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def refusal(context: RequestContext, operation: Operation, resource: Resource) -> KafkaError:
    """Return the error for a principal without this right on a resource that its request names. The message says
    which right is lacking (rule A31)."""
    # rule A31/refusals-say-no-words
    return KafkaError(_REFUSED[resource.kind], lacking(context.principal, operation, resource))


def require(authorizer: Authorizer, context: RequestContext, operation: Operation, resource: Resource) -> None:
    """Raises KafkaError, with the error code of the resource's kind, if the principal may not do the operation."""
    if not allowed(authorizer, context, operation, resource):
        raise refusal(context, operation, resource)


def operations_bits(authorizer: Authorizer, context: RequestContext, resource: Resource) -> int:
    """Return the operations that the principal may do on a resource, as Kafka's bit field (KIP-430)."""
    operations = OPERATIONS_OF[resource.kind]
    answers = authorizer.authorize(context, [(operation, resource) for operation in operations], noted=False)
    return sum(1 << operation for operation, answer in zip(operations, answers, strict=True) if answer)


def cluster_operations_bits(authorizer: Authorizer, context: RequestContext) -> int:
    """Return the operations that the principal may do on the cluster as Kafka's bit field; 0 if it may not DESCRIBE."""
    may = allowed(authorizer, context, Operation.DESCRIBE, CLUSTER, noted=False)
    return operations_bits(authorizer, context, CLUSTER) if may else 0


# The response


class Charge:
    """Charge of one request for partitions that it creates or deletes. This class admits all: its client has no quota.

    Make the changes in its `with` block; after the block the throttle time of the response is known.
    """

    def admits(self, partitions: int) -> bool:
        """Charge for partitions before they are created or deleted. False: the client has exceeded its quota, nothing
        is charged, and the item fails with that error."""
        return True

    def correct(self, partitions: int) -> None:
        """Add `partitions` to the charge if more were created or deleted than expected; below 0: if fewer were."""

    def settle(self) -> None:
        """Set the throttle time of the response: all changes of the request are made."""

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()


FREE = Charge()

Explain = Callable[[], Mapping[str, Any]]
"""Returns fields for the log line of a slow request: its topics or partitions, and what it waited for."""

NO_DETAIL: Mapping[str, Any] = {}


class Connection(Protocol):
    """Connection of a client, as exchanges and handlers use it (`strandline.cluster.broker.connection`)."""

    def answered(self, exchange: Exchange) -> None:
        """Send the response of an exchange, with all others of this turn of the loop."""

    def run(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that answers an exchange; it is cancelled when the connection is lost."""

    def run_alone(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """As `run`, but take no later request until `work` ends: its writes come first, and its frame stays in place
        in the buffer."""

    def in_steps(self, exchange: Exchange, steps: Steps[None]) -> None:
        """Answer an exchange by steps: as many as a turn of the loop has time for at once, the rest in later turns,
        as `run_alone` does. Raises ProtocolError."""

    async def stepped(self, steps: Steps[T]) -> T:
        """Run long work of a coroutine: as much as a turn of the loop has time for at once, the rest in later turns."""

    async def each(self, make: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Return the results of `make` for each item, awaited one after the other, in slices of the loop's turns."""

    def hold(self) -> None:
        """Stop taking requests until `let_go` has been called once for each `hold`."""

    def let_go(self) -> None:
        """Undo one `hold`."""

    def refuse(self, reason: str) -> None:
        """Close the connection after the ready responses have been sent; the first reason is logged."""

    def shut(self) -> None:
        """Send the ready responses and close, without a log line."""

    def abort(self) -> None:
        """Close at once; unsent responses are lost."""

    def count_software(self) -> None:
        """Count the client's software name and version, which it has sent in ApiVersions."""

    def identity(self) -> dict[str, Any]:
        """Return fields that identify the peer in log lines."""


class Parts(NamedTuple):
    """Parts of a request's time, as Kafka divides it, in milliseconds. `throttle` does not count toward `total`."""

    request_queue: float
    local: float
    remote: float
    throttle: float
    response_queue: float
    response_send: float
    total: float


class Exchange:
    """A request and its response, which is sent after those of all earlier requests of the connection.

    Invariants: it is answered at most once; a response to a closed connection is dropped.

    Attributes:
        parts: pieces of the response frame until they are handed to the transport; empty: no response (acks=0).
        when_gone: called if the connection is lost before the response, so that parked work can be dropped.
        arrived_ms: monotonic time at which its frame was complete and began to wait for the event loop.
        local_ms: milliseconds of the event loop that it used until its response.
        answered_ms: monotonic time at which its response was ready.
        throttled_ms: throttle time that the response tells the client.
        may_wait_ms: milliseconds for which the client itself lets it wait (the longest wait of a fetch).
        detail: fields that explain the time of a slow request, for its log line.
    """

    __slots__ = (
        "_explain", "_step_ms", "answered_ms", "arrived_ms", "connection", "context", "detail", "flexible_header",
        "local_ms", "may_wait_ms", "parts", "ready", "size", "throttled_ms", "when_gone",
    )  # fmt: skip

    def __init__(self, connection: Connection, context: RequestContext, flexible_header: bool) -> None:
        self.connection = connection
        self.context = context
        self.flexible_header = flexible_header
        self.parts: list[Piece] = []
        self.size = 0
        self.ready = False
        self.when_gone: Callable[[], None] | None = None
        self.arrived_ms = context.received_ms
        self.local_ms = 0.0
        self.answered_ms = 0.0
        self.throttled_ms = 0
        self.may_wait_ms = 0.0
        self.detail: Mapping[str, Any] = NO_DETAIL
        self._step_ms: float | None = context.received_ms
        self._explain: Explain | None = None

    def respond(self, body: Sequence[Piece]) -> None:
        """Answer with the message in `body`, given in pieces that are sent unchanged; length and header are added."""
        size = sum(map(len, body))
        head = response_head(self.context.correlation_id, size, self.flexible_header)
        self.parts = [head, *body]
        self.size = size + len(head)
        self._ready()

    def respond_in_steps(self, body: Sequence[Piece]) -> Steps[None]:
        """As `respond`, in steps: a subclass may need long to process the response before it is sent."""
        self.respond(body)
        yield from ()

    def respond_as_is(self, frame: Sequence[Piece]) -> None:
        """Answer with a frame that has no header (a token after SaslHandshake 0)."""
        self.parts = [*frame]
        self.size = sum(map(len, frame))
        self._ready()

    def respond_nothing(self) -> None:
        """End the request without a response (Produce with acks=0)."""
        self._ready()

    # Times of the request, counted once the response is sent (`strandline.cluster.broker.stats`)

    def begin_step(self, now_ms: float) -> None:
        """Note that the event loop begins to work on the request at `now_ms`."""
        self._step_ms = now_ms

    def end_step(self, now_ms: float) -> None:
        """Note that the work begun by `begin_step` ends at `now_ms`, and add it to `local_ms`."""
        if self._step_ms is not None:
            self.local_ms += now_ms - self._step_ms  # rule A40/local-time-is-not-counted
            self._step_ms = None

    def times(self, flushed_ms: float, sent_ms: float) -> Parts:
        """Return the parts of the request's time. `flushed_ms`, `sent_ms`: when its response was handed to the
        transport, and when the transport had sent it."""
        taken_ms, answered_ms = self.context.received_ms, self.answered_ms
        remote_ms = answered_ms - taken_ms - self.local_ms
        return Parts(
            taken_ms - self.arrived_ms,
            self.local_ms,
            remote_ms if remote_ms > 0 else 0.0,  # below 0 by rounding of floats
            self.throttled_ms,
            flushed_ms - answered_ms,
            sent_ms - flushed_ms,
            sent_ms - self.arrived_ms,
        )

    def explained_by(self, explain: Explain) -> None:
        """Set the function that explains the request's time, called only if the request is slow."""
        self._explain = explain

    def take_detail(self) -> None:
        """Store the explanation in `detail`: the request is slow."""
        if self._explain is not None:
            self.detail = self._explain()

    def forget_explanation(self) -> None:
        """Drop the function of `explained_by`, and with it the references that it holds to the request."""
        self._explain = None

    # Quotas: without one a request is not throttled (`strandline.cluster.broker.quotas`)

    def throttle_ms(self) -> int:
        """Return the throttle_time_ms of the response, and mute the connection for that time. Called once, when the
        response is made."""
        return 0

    def throttle_fetch(self, records_bytes: int) -> tuple[int, bool]:
        """Return the throttle_time_ms of a fetch with `records_bytes` of records, and whether these may be sent; if
        not, the response has no records."""
        return 0, True

    def charge(self) -> Charge:
        """Return the charge for the request's changes of the metadata."""
        return FREE

    @property
    def runs_alone(self) -> bool:
        """True if no later request of the connection is taken before this one ends, as only its end tells how long
        the client must wait."""
        return False

    @property
    def fetch_bytes_max(self) -> float:
        """Bytes of records above which a fetch would be throttled even if the client had fetched nothing before."""
        return inf

    def timed(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Wrap `work` so that its time on the event loop is counted."""
        return work

    def attempt(self, answer: Callable[[], None]) -> None:
        """Run `answer` for a caller that must not see its exceptions (a replica, the event loop): an exception is
        logged, and closes the connection."""
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
        """End the request by closing the connection, as no response can tell the error (acks=0, internal errors)."""
        self._ready()
        self.connection.refuse(reason)

    def _ready(self) -> None:
        self.ready = True
        self.when_gone = None
        self.connection.answered(self)
