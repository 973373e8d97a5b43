"""Options that a seed draws for brokers with an authorizer, its users, and their rights in terms of ACLs and quotas."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.chaos.checkers.rights import PASSWORD, Key
from strandline.proto.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from strandline.proto.quotas import QuotaEntity, QuotaKey

SECURED_SHARE = 0.15
"""Share of the seeds in which brokers authenticate and authorise clients."""

ADMIN, CLIENT, GUEST, NOBODY = "admin", "client", "guest", "nobody"
"""Users: a super user that is created by the format; the user of all plain clients; one without rights; one that does
not exist."""

NAMES = ("ann", "ben", "cat", "dan")
"""Users whose rights and passwords change."""

GUARDED = "guarded"
PARTITIONS = 3

MECHANISM = "SCRAM-SHA-256"
LISTENER = "SASL_PLAINTEXT"

WRITE, READ, ALL_TOPICS, ALL_GROUPS = "write", "read", "all topics", "all groups"

NODE = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN}",
    "sasl.enabled.mechanisms": MECHANISM,
    "request.timeout.ms": "5000",
}
"""Settings of the nodes. A broker asks the controller for a client no longer than that: so a change that was given up
does not come in the midst of others (`checkers.rights.LATE_MS`)."""

USERS = (f"{MECHANISM}=[name={ADMIN},password={ADMIN}:1]",)
"""Users that `format` writes."""

_QUOTAS: Mapping[str, tuple[float, ...]] = {
    QuotaKey.PRODUCER_BYTE_RATE: (300_000.0, 1_000_000.0),
    QuotaKey.CONSUMER_BYTE_RATE: (1_000_000.0, 5_000_000.0),
}
"""Quotas of the client: what a burst takes is slowed down, and the whole is read within the deadline."""


@dataclass
class SecuredOptions:
    """Options of the admin and the users. Times in milliseconds."""

    users: int
    """Number of users out of NAMES."""
    change_gap_ms: float
    """Milliseconds between two changes of the admin."""
    use_gap_ms: float
    """Milliseconds between two attempts of a user."""
    session_ms: int
    """connections.max.reauth.ms: how long a login holds; 0: as long as the connection."""
    quotas: bool
    """True if the admin sets and removes quotas of the client."""

    @classmethod
    def draw(cls, rng: random.Random) -> SecuredOptions:
        return cls(
            users=rng.randint(2, len(NAMES)),
            change_gap_ms=rng.choice((100.0, 400.0)),
            use_gap_ms=rng.choice((150.0, 600.0)),
            session_ms=rng.choice((0, 0, 2_000, 5_000)),
            quotas=rng.random() < 0.7,
        )

    @property
    def node(self) -> dict[str, str]:
        """Settings of the nodes."""
        return NODE | {"connections.max.reauth.ms": str(self.session_ms)}

    @property
    def names(self) -> tuple[str, ...]:
        """The users whose rights and passwords change."""
        return NAMES[: self.users]

    @property
    def changing(self) -> list[Key]:
        """Keys that the admin changes while faults strike."""
        keys = [Key(kind, name) for name in self.names for kind in (PASSWORD, WRITE, READ)]
        return keys + ([Key(kind, CLIENT) for kind in _QUOTAS] if self.quotas else [])


def login(user: str, password: str) -> dict[str, Any]:
    """The settings of a client that logs in."""
    return {
        "security_protocol": LISTENER,
        "sasl_mechanism": MECHANISM,
        "sasl_username": user,
        "sasl_password": password,
    }


PLAIN_CLIENTS = login(CLIENT, f"{CLIENT}:1")
"""Login of the workload's and the services' clients."""


def binding_of(key: Key) -> AclBinding:
    """Access control entry that grants the right of a key."""
    kind = ResourceKind.GROUP if key.kind == ALL_GROUPS else ResourceKind.TOPIC
    name = GUARDED if key.kind in (WRITE, READ) else "*"
    operation = {WRITE: Operation.WRITE, READ: Operation.READ}.get(key.kind, Operation.ALL)
    return AclBinding(kind, name, PatternType.LITERAL, f"User:{key.who}", "*", operation, Permission.ALLOW)


def filter_of(one: AclBinding) -> AclFilter:
    """Filter that matches this one access control entry."""
    return AclFilter(one.kind, one.name, one.pattern, one.principal, one.host, one.operation, one.permission)


def is_quota(key: Key) -> bool:
    """True if the key is a quota of a user, not a right."""
    return key.kind in _QUOTAS


def entity_of(key: Key) -> QuotaEntity:
    """Entity whose quota the key is."""
    return QuotaEntity(user=key.who)


def next_value(key: Key, last: object, number: int, rng: random.Random) -> Any:
    """New value of a key: a new password or none, a right given or taken, another quota or none."""
    if key.kind == PASSWORD:
        return None if last is not None and rng.random() < 0.2 else f"{key.who}:{number}"
    if is_quota(key):
        return rng.choice([value for value in (None, *_QUOTAS[key.kind]) if value != last])
    return None if last is not None else True
