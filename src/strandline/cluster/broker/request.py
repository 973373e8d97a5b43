"""One request: who asks through what (`RequestContext`), whether it may (`Authorizer`), and its answer (`Exchange`) in
the order of a connection's answers, with what its client pays for what it changes of the metadata (KIP-599).

Every handler asks the authorizer first, for each resource it touches; `proto.kafka.access` says which asks for what.
`AllowAll` is what a cluster without an authorizer has.
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
"""Kafka's bit field of allowed operations where the request did not ask for it."""

NO_TRANSACTIONS = "this cluster has no transactions yet: its transaction.version is 0 (strandline upgrade finalize)"
"""What a request with a transactional id is told."""


# Who asks


class Gate(Protocol):
    """Gate before the APIs on a listener with SASL (`strandline.cluster.broker.sasl`).

    Attributes:
        session: where the connection stands.
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
        """Count a frame before the authentication. True if it is one too many: the connection will end."""

    def check(self, frame: memoryview) -> None:
        """Let a request through to its handler. Raises ProtocolError: the connection ends here."""

    def handshake(self, exchange: Exchange, mechanism: str) -> None:
        """Answer SaslHandshake."""

    def authenticate(self, exchange: Exchange, token: bytes, *, raw: bool = False) -> None:
        """Answer SaslAuthenticate, or a token without a header (`raw`)."""


class Peer:
    """One client connection: its principal, and what the client tells of itself, which the listener fills in.

    Attributes:
        principal: who it is, as Kafka spells it (``User:...``).
        listener: name of the listener it came through; answers name brokers by their endpoints on that listener.
        host: its address, or "" where the transport has none.
        sasl: its gate, on a listener with SASL.
        is_stranger: it has not gone through that gate yet.
        stranger_ms: what it took of the node's loop until then (`LoopTime`).
        number: the later a connection was accepted, the higher; 0 of none.
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
        """Name to which this connection's use is charged: "" for all strangers together, a principal, or where
        everybody is anonymous the address."""
        if self.is_stranger:
            return ""
        return f"{ANONYMOUS} {self.host}" if self.principal == ANONYMOUS else self.principal


class RequestContext(NamedTuple):
    """One request.

    Attributes:
        peer: the connection it came by.
        client_id: the request's client.id, or "".
        api: Kafka's name of the API.
        version: the API version; decides which errors the client understands.
        correlation_id: the client's number of the request.
        received_ms: the node's monotonic clock when the request was taken.
    """

    peer: Peer
    client_id: str
    api: str
    version: int
    correlation_id: int
    received_ms: float

    @property
    def principal(self) -> str:
        """Principal that asks, as Kafka spells it: what an `Authorizer` judges by."""
        return self.peer.principal


# Whether it may


Action = tuple[Operation, Resource]


class Authorizer(Protocol):
    """Decides; called on the event loop, so an implementation answers from memory.

    Attributes:
        enabled: there is one: what it says comes from ACLs, and they can be described and changed.
        generation: another object whenever an answer may be another one than before.
    """

    @property
    def enabled(self) -> bool: ...

    @property
    def generation(self) -> object: ...

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        """True or false for each action: the request's principal may do it, or not.

        Args:
            noted: a no is logged and counted: the principal asked for this. Else it is left out of a list, or told what
                it may do.
        """

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        """True if the principal may do this on any resource of a kind."""

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        """The access control entries that fit, sorted."""


class AllowAll:
    """Authorizer of a cluster on which none is configured: everybody may do everything."""

    enabled = False
    generation: object = None

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        return [True] * len(actions)

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        return True

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        return []


class Sink(Protocol):
    """Place where lines for the audit go, beside the log."""

    def write(self, event: str, figures: Mapping[str, Any]) -> None:
        """Write one line. Raises nothing: what cannot be written is told by the log."""


def topic(name: str) -> Resource:
    """The resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


def group(group_id: str) -> Resource:
    """The resource of a consumer group."""
    return Resource(ResourceKind.GROUP, group_id)


def transaction(transactional_id: str) -> Resource:
    """The resource of a transactional id."""
    return Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id)


def allowed(
    authorizer: Authorizer, context: RequestContext, operation: Operation, resource: Resource, *, noted: bool = True
) -> bool:
    """True if the principal may do this on the resource."""
    return authorizer.authorize(context, ((operation, resource),), noted=noted)[0]


_REFUSED = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def refusal(context: RequestContext, operation: Operation, resource: Resource) -> KafkaError:
    """Error for a principal that may not do this, and named the resource itself (rule A31: it says what is lacking)."""
    # rule A31/refusals-say-no-words
    return KafkaError(_REFUSED[resource.kind], lacking(context.principal, operation, resource))


def require(authorizer: Authorizer, context: RequestContext, operation: Operation, resource: Resource) -> None:
    """Raises KafkaError, by the kind of the resource, where the principal may not do this."""
    if not allowed(authorizer, context, operation, resource):
        raise refusal(context, operation, resource)


def operations_bits(authorizer: Authorizer, context: RequestContext, resource: Resource) -> int:
    """The operations that the principal may do on a resource, as Kafka's bit field (KIP-430)."""
    operations = OPERATIONS_OF[resource.kind]
    answers = authorizer.authorize(context, [(operation, resource) for operation in operations], noted=False)
    return sum(1 << operation for operation, answer in zip(operations, answers, strict=True) if answer)


def cluster_operations_bits(authorizer: Authorizer, context: RequestContext) -> int:
    """The operations that the principal may do on the cluster, as Kafka's bit field; 0 if it may not describe it."""
    may = allowed(authorizer, context, Operation.DESCRIBE, CLUSTER, noted=False)
    return operations_bits(authorizer, context, CLUSTER) if may else 0


# Its answer


class Charge:
    """The changes of one request. This one is free: no quota is for its client.

    The work stands in its `with`; behind that the answer knows how long the client must wait.
    """

    def admits(self, partitions: int) -> bool:
        """Count partitions before they are made or deleted. False, and they are not counted: the client has had too
        much, and its request says so."""
        return True

    def correct(self, partitions: int) -> None:
        """Add `partitions` to what was counted: more were made or deleted, or, below 0, fewer."""

    def settle(self) -> None:
        """Note that all is done that the client waits for."""

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()


FREE = Charge()

Explain = Callable[[], Mapping[str, Any]]
"""Makes figures for the log: what a request is about, and what it waited for."""

NO_DETAIL: Mapping[str, Any] = {}


class Connection(Protocol):
    """Connection of a client, as exchanges and handlers use it (`strandline.cluster.broker.connection`)."""

    def answered(self, exchange: Exchange) -> None:
        """The exchange is ready: send it with all others of this loop turn."""

    def run(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Answer an exchange by a coroutine, which is cancelled when the connection is lost."""

    def run_alone(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """`run`, and take no request behind it until it has ended: what it writes comes first, and its frame stays
        where it is."""

    def in_steps(self, exchange: Exchange, steps: Steps[None]) -> None:
        """Answer an exchange by steps: at once as far as a turn has time, the rest in turns, as `run_alone`. Raises
        ProtocolError."""

    async def stepped(self, steps: Steps[T]) -> T:
        """Long work of a coroutine that answers: at once as far as a turn has time, the rest in turns."""

    async def each(self, make: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """What `make` makes of each item of a request, awaited one after the other, a slice of them in a turn."""

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


class Parts(NamedTuple):
    """Parts of a request's time, as Kafka divides it, in milliseconds. The throttle is not a part of the total."""

    request_queue: float
    local: float
    remote: float
    throttle: float
    response_queue: float
    response_send: float
    total: float


class Exchange:
    """A request that was read; its answer is sent after those of all requests before it on the connection.

    Invariants: it is answered at most once; an answer to a connection that has gone is dropped.

    Attributes:
        parts: the frame to send, in pieces, until it is sent; empty for no answer (acks=0).
        when_gone: called if the connection is lost before the answer, so that parked work can be dropped.
        arrived_ms: when its frame was there, and waited for the loop.
        local_ms: what it took of the loop until its answer, in milliseconds.
        answered_ms: when it had its answer.
        throttled_ms: how long its client was told to wait.
        may_wait_ms: for so long it waits because its client wants it to.
        detail: what a slow one has to say for itself.
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
        """Answer with the message in `body`, in pieces that are sent as they are; length and header are added."""
        size = sum(map(len, body))
        head = response_head(self.context.correlation_id, size, self.flexible_header)
        self.parts = [head, *body]
        self.size = size + len(head)
        self._ready()

    def respond_in_steps(self, body: Sequence[Piece]) -> Steps[None]:
        """`respond`, where what is done with the answer before it is sent may be long."""
        self.respond(body)
        yield from ()

    def respond_as_is(self, frame: Sequence[Piece]) -> None:
        """Answer with a frame that has no header (a token after SaslHandshake 0)."""
        self.parts = [*frame]
        self.size = sum(map(len, frame))
        self._ready()

    def respond_nothing(self) -> None:
        """The request wants no answer (Produce with acks=0)."""
        self._ready()

    # Its times: where they end, they are counted (`strandline.cluster.broker.stats`)

    def begin_step(self, now_ms: float) -> None:
        """The event loop is at it from now on."""
        self._step_ms = now_ms

    def end_step(self, now_ms: float) -> None:
        """Until now."""
        if self._step_ms is not None:
            self.local_ms += now_ms - self._step_ms  # rule A40/local-time-is-not-counted
            self._step_ms = None

    def times(self, flushed_ms: float, sent_ms: float) -> Parts:
        """The parts of its time: it has its answer, which was handed over and has left then."""
        taken_ms, answered_ms = self.context.received_ms, self.answered_ms
        remote_ms = answered_ms - taken_ms - self.local_ms
        return Parts(
            taken_ms - self.arrived_ms,
            self.local_ms,
            remote_ms if remote_ms > 0 else 0.0,  # a float's last digit
            self.throttled_ms,
            flushed_ms - answered_ms,
            sent_ms - flushed_ms,
            sent_ms - self.arrived_ms,
        )

    def explained_by(self, explain: Explain) -> None:
        """Ask `explain`, should it be slow."""
        self._explain = explain

    def take_detail(self) -> None:
        """Note what it has to say for itself, as it is slow."""
        if self._explain is not None:
            self.detail = self._explain()

    def forget_explanation(self) -> None:
        """Hold nothing of the request any more: it has its answer."""
        self._explain = None

    # Quotas: a request that none is for is not throttled (`strandline.cluster.broker.quotas`)

    def throttle_ms(self) -> int:
        """The throttle_time_ms of the answer, asked for once, when the answer is made; the connection is muted."""
        return 0

    def throttle_fetch(self, records_bytes: int) -> tuple[int, bool]:
        """The throttle_time_ms of a fetch with `records_bytes` of records, and true if these may be sent, or false and
        none of them is."""
        return 0, True

    def charge(self) -> Charge:
        """Charge for the request's changes of the metadata."""
        return FREE

    @property
    def runs_alone(self) -> bool:
        """True if no request behind it is taken before it is done: only then is known how long its client must wait."""
        return False

    @property
    def fetch_bytes_max(self) -> float:
        """Bytes of records above which a fetch would be throttled, whatever came before it."""
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
