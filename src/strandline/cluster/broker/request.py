"""A request's seams: who asks through what (`RequestContext`), and whether it may (`Authorizer`).

Every handler asks the authorizer first, for each resource it touches; `proto.kafka.access` says which asks for what.
`AllowAll` is what a cluster without an authorizer has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

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

UNKNOWN_SOFTWARE = "unknown"

OPERATIONS_NOT_ASKED = -(2**31)
"""Kafka's bit field of allowed operations where the request did not ask for it."""

NO_TRANSACTIONS = "transactions are not served by this version of Strandline"
"""What a request with a transactional id is told."""


class Gate(Protocol):
    """What stands before the APIs on a listener with SASL (`strandline.cluster.broker.sasl`).

    Attributes:
        session: where the connection stands.
    """

    @property
    def session(self) -> SaslSession: ...

    @property
    def is_open(self) -> bool:
        """The client is authenticated."""

    @property
    def frame_bytes_max(self) -> int:
        """Of a frame while it is not open."""

    def counts_too_many(self, connection: Any) -> bool:
        """Another frame has come before the authentication, and is one too many: the connection will end."""

    def check(self, frame: memoryview) -> None:
        """Let a request through to its handler. Raises ProtocolError: the connection ends here."""

    def handshake(self, exchange: Any, mechanism: str) -> None:
        """Answer SaslHandshake."""

    def authenticate(self, exchange: Any, token: bytes, *, raw: bool = False) -> None:
        """Answer SaslAuthenticate, or a token without a header (`raw`)."""


class Peer:
    """What is known of one client connection; the listener fills in what the client tells of itself.

    Attributes:
        principal: who it is, as Kafka spells it (``User:...``).
        listener: name of the listener it came through; answers name brokers by their endpoints on that listener.
        host: its address, or "" where the transport has none.
        sasl: its gate, on a listener with SASL.
        is_stranger: it has not gone through that gate yet.
        software_name, software_version: from ApiVersions 3 and later, else "unknown".
    """

    __slots__ = ("host", "is_stranger", "listener", "principal", "sasl", "software_name", "software_version")

    def __init__(self, listener: str, host: str, principal: str = ANONYMOUS) -> None:
        self.listener = listener
        self.host = host
        self.principal = principal
        self.sasl: Gate | None = None
        self.is_stranger = False
        self.software_name = UNKNOWN_SOFTWARE
        self.software_version = UNKNOWN_SOFTWARE

    @property
    def payer(self) -> str:
        """Who holds what this connection does: all strangers together, a principal, or where everybody is anonymous the
        address."""
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
        received_ms: the node's monotonic clock when the frame was complete.
    """

    peer: Peer
    client_id: str
    api: str
    version: int
    correlation_id: int
    received_ms: float

    @property
    def principal(self) -> str:
        """Who asks, as Kafka spells it: what an `Authorizer` judges by."""
        return self.peer.principal


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
        """For each action, whether the request's principal may do it.

        Args:
            noted: a no is logged and counted: the principal asked for this. Else it is left out of a list, or told what
                it may do.
        """

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        """Whether it may do this on any resource of a kind."""

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        """The access control entries that fit, sorted."""


class AllowAll:
    """Everybody may do everything: a cluster on which no authorizer is configured."""

    enabled = False
    generation: object = None

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        return [True] * len(actions)

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        return True

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        return []


class Sink(Protocol):
    """Where lines for the audit go, beside the log."""

    def write(self, event: str, figures: Mapping[str, Any]) -> None:
        """Write one line. Raises nothing: what cannot be written is told by the log."""


def topic(name: str) -> Resource:
    """The resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


def group(group_id: str) -> Resource:
    """The resource of a consumer group."""
    return Resource(ResourceKind.GROUP, group_id)


def allowed(
    authorizer: Authorizer, context: RequestContext, operation: Operation, resource: Resource, *, noted: bool = True
) -> bool:
    """One question."""
    return authorizer.authorize(context, ((operation, resource),), noted=noted)[0]


_REFUSED = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def refusal(context: RequestContext, operation: Operation, resource: Resource) -> KafkaError:
    """What is told to a principal that may not do this, and named the resource itself (rule A31)."""
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
    """The same of the cluster: none for a principal that may not describe it, as Kafka has it."""
    may = allowed(authorizer, context, Operation.DESCRIBE, CLUSTER, noted=False)
    return operations_bits(authorizer, context, CLUSTER) if may else 0
