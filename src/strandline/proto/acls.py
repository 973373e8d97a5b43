"""Access control lists as Kafka has them: who may do what, on which resources, from where; and filters that find them.

Numbers, names and the meaning of `*` are Kafka's (`AclBinding`, `AclBindingFilter`). A binding stands in the metadata
log, on the wire between nodes, and in the admin client.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

from strandline.proto.ids import address_of


class Operation(IntEnum):
    """Operation on a resource, with the numbers of Kafka's `AclOperation`. ANY is allowed only in filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class ResourceKind(IntEnum):
    """On what, with the numbers of Kafka's `ResourceType`. ANY stands in filters alone."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a binding names its resources, with the numbers of Kafka's `PatternType`.

    LITERAL: the name itself, or `*` for all. PREFIXED: all names that begin so. In filters alone stand ANY, and MATCH:
    every binding that counts for a resource of this name.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's `AclPermissionType`. ANY stands in filters alone."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Resource(NamedTuple):
    """One topic, group, ..."""

    kind: ResourceKind
    name: str


CLUSTER = Resource(ResourceKind.CLUSTER, "kafka-cluster")
"""The cluster as a resource, under Kafka's name for it."""

WILDCARD = "*"
"""The name of every resource (of a LITERAL binding), and every host."""

EVERYBODY = "User:*"
"""The principal that everyone is."""

OPERATIONS_OF: dict[ResourceKind, tuple[Operation, ...]] = {
    ResourceKind.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceKind.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceKind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    ResourceKind.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceKind.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that mean something on a kind of resource (Kafka's `AclEntry.supportedOperations`). Others may be
bound, as in Kafka, and are asked by nobody."""

PRINCIPAL_CHARS_MAX = 4096
"""Maximum characters of a principal: as long as the subject of a certificate may be."""

NAME_CHARS_MAX = 1024
"""Maximum characters of a resource's name: topics have 249 at most, and groups and transactional ids are mostly
short."""

HOST_CHARS_MAX = 256


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One access control entry: a permission on resources, for a principal.

    Attributes:
        name: the resource's name, or what names begin with (`pattern`).
        principal: `User:alice`, or `User:*` for everybody.
        host: an IP address as text, or `*`. New ones are written as `host_of` has it; older ones may be written
            otherwise, so hosts are compared by it (rule A25).
    """

    kind: Annotated[ResourceKind, 1]
    name: Annotated[str, 2]
    pattern: Annotated[PatternType, 3]
    principal: Annotated[str, 4]
    host: Annotated[str, 5]
    operation: Annotated[Operation, 6]
    permission: Annotated[Permission, 7]

    def __str__(self) -> str:
        verb = "may" if self.permission is Permission.ALLOW else "may not"
        where = "" if self.host == WILDCARD else f" from {self.host}"
        return f"{self.principal} {verb} {self.operation.name} {described(self.kind, self.pattern, self.name)}{where}"

    def covers(self, name: str) -> bool:
        """Whether the pattern matches a resource of this name, kinds left aside."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Filter of ACL bindings. A binding must match every field; None and ANY match all."""

    kind: Annotated[ResourceKind, 1] = ResourceKind.ANY
    name: Annotated[str | None, 2] = None
    pattern: Annotated[PatternType, 3] = PatternType.ANY
    principal: Annotated[str | None, 4] = None
    host: Annotated[str | None, 5] = None
    operation: Annotated[Operation, 6] = Operation.ANY
    permission: Annotated[Permission, 7] = Permission.ANY

    @property
    def exact(self) -> AclBinding | None:
        """The one binding that fits, where every field names one; else None."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        if ":" in self.host:  # an address that may be written in many ways
            return None
        if min(self.kind, self.operation, self.permission) <= 1 or self.pattern <= PatternType.MATCH:
            return None
        return AclBinding(
            self.kind, self.name, self.pattern, self.principal, self.host, self.operation, self.permission
        )

    def fits(self, binding: AclBinding) -> bool:
        """Whether the binding is one of these."""
        # rule A25/hosts-are-filtered-as-text
        return (
            self.kind in (ResourceKind.ANY, binding.kind)
            and self.principal in (None, binding.principal)
            and (self.host is None or host_of(self.host) == host_of(binding.host))
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
            and self._fits_name(binding)
        )

    def _fits_name(self, binding: AclBinding) -> bool:
        if self.pattern is PatternType.MATCH:
            return self.name is None or binding.covers(self.name)
        return self.pattern in (PatternType.ANY, binding.pattern) and self.name in (None, binding.name)


def host_of(host: str) -> str:
    """One text for an address, however it is written (rule A25). Without a colon there is one way alone to write it."""
    return address_of(host) if ":" in host else host


def described(kind: ResourceKind, pattern: PatternType, name: str) -> str:
    """Resources in words: `topic orders`, `topics orders-*`, `every topic`, `the cluster`."""
    words = kind.name.lower().replace("_", " ")
    if kind is ResourceKind.CLUSTER:
        return "the cluster" if name in (CLUSTER.name, WILDCARD) else f"cluster {name}"
    if pattern is PatternType.PREFIXED:
        return f"{words}s {name}*"
    return f"every {words}" if name == WILDCARD else f"{words} {name}"


def lacking(who: str, operation: Operation, resource: Resource) -> str:
    """Sentence that says which right is missing: `User:alice may not READ topic orders`."""
    return f"{who} may not {operation.name} {described(resource.kind, PatternType.LITERAL, resource.name)}"


def binding_fault(binding: AclBinding) -> str:
    """Reason the binding is not a valid access control entry, as a sentence, or ""."""
    if binding.kind in (ResourceKind.UNKNOWN, ResourceKind.ANY):
        return f"Invalid resourceType {binding.kind.name}"
    if binding.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {binding.pattern.name}"
    if binding.operation in (Operation.UNKNOWN, Operation.ANY):
        return f"Invalid operation {binding.operation.name}"
    if binding.permission not in (Permission.ALLOW, Permission.DENY):
        return f"Invalid permissionType {binding.permission.name}"
    if not binding.name:
        return "Resource name should not be empty"
    if binding.kind is ResourceKind.CLUSTER and binding.name != CLUSTER.name:
        return f"The only valid name for the CLUSTER resource is {CLUSTER.name}"
    return _text_fault(binding)


def _text_fault(binding: AclBinding) -> str:
    kind, colon, name = binding.principal.partition(":")
    if not colon or not kind or not name:
        return f"The principal {binding.principal[:80]!r} is not of the form Type:name, as User:alice"
    if not binding.host:
        return "The host is an IP address, or * for any; it should not be empty"
    for what, text, limit in (
        ("resource's name", binding.name, NAME_CHARS_MAX),
        ("principal", binding.principal, PRINCIPAL_CHARS_MAX),
        ("host", binding.host, HOST_CHARS_MAX),
    ):
        if len(text) > limit:
            return f"The {what} has {len(text)} characters; {limit} are possible"
    return ""


def filter_fault(wanted: AclFilter) -> str:
    """Reason the filter is invalid, as a sentence, or ""."""
    numbers: tuple[tuple[str, IntEnum], ...] = (
        ("resourceType", wanted.kind),
        ("patternType", wanted.pattern),
        ("operation", wanted.operation),
        ("permissionType", wanted.permission),
    )
    unknown = [name for name, value in numbers if value == 0]
    return f"Unknown {' and '.join(unknown)} in the filter" if unknown else ""
