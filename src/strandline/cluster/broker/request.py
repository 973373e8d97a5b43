"""A request's seams: who asks through what (`RequestContext`), and whether it may (`Authorizer`).

Every handler asks the authorizer first, for each resource it touches. There are no ACLs yet; `AllowAll` is what a
cluster without security has. Operations and resource types carry Kafka's numbers, because describe answers show the
allowed operations as a bit field of them. A delay by a quota has its place in `api.py` (`THROTTLE_MS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandline.cluster.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from strandline.cluster.broker.sasl import SaslGate

UNKNOWN_SOFTWARE = "unknown"

OPERATIONS_NOT_ASKED = -(2**31)
"""Kafka's bit field of allowed operations where the request did not ask for it."""

NO_TRANSACTIONS = "transactions are not served by this version of Strandline"
"""What a request with a transactional id is told."""


class Peer:
    """What is known of one client connection; the listener fills in what the client tells of itself.

    Attributes:
        principal: who it is, as Kafka spells it (``User:...``).
        listener: name of the listener it came through; answers name brokers by their endpoints on that listener.
        host: its address, or "" where the transport has none.
        sasl: its gate, on a listener with SASL.
        software_name, software_version: from ApiVersions 3 and later, else "unknown".
    """

    __slots__ = ("host", "listener", "principal", "sasl", "software_name", "software_version")

    def __init__(self, listener: str, host: str, principal: str = ANONYMOUS) -> None:
        self.listener = listener
        self.host = host
        self.principal = principal
        self.sasl: SaslGate | None = None
        self.software_name = UNKNOWN_SOFTWARE
        self.software_version = UNKNOWN_SOFTWARE


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


class Operation(IntEnum):
    """What is asked for, with the numbers of Kafka's `AclOperation`."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceKind(IntEnum):
    """On what, with the numbers of Kafka's `ResourceType`."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(NamedTuple):
    kind: ResourceKind
    name: str


CLUSTER = Resource(ResourceKind.CLUSTER, "kafka-cluster")
"""The cluster as a resource, under Kafka's name for it."""

TOPIC_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)

GROUP_OPERATIONS = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)

Action = tuple[Operation, Resource]


class Authorizer(Protocol):
    """Decides; called on the event loop, so an implementation answers from memory."""

    def authorize(self, context: RequestContext, actions: Sequence[Action]) -> Sequence[bool]:
        """For each action, whether the request's principal may do it."""


class AllowAll:
    """Everybody may do everything: a cluster on which no security is configured."""

    def authorize(self, context: RequestContext, actions: Sequence[Action]) -> Sequence[bool]:
        return [True] * len(actions)


def topic(name: str) -> Resource:
    """The resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


def group(group_id: str) -> Resource:
    """The resource of a consumer group."""
    return Resource(ResourceKind.GROUP, group_id)


def allowed(authorizer: Authorizer, context: RequestContext, operation: Operation, resource: Resource) -> bool:
    """One question."""
    return authorizer.authorize(context, ((operation, resource),))[0]


def operations_bits(
    authorizer: Authorizer, context: RequestContext, resource: Resource, operations: Sequence[Operation]
) -> int:
    """The operations that the principal may do on a resource, as Kafka's bit field (KIP-430)."""
    answers = authorizer.authorize(context, [(operation, resource) for operation in operations])
    return sum(1 << operation for operation, answer in zip(operations, answers, strict=True) if answer)
