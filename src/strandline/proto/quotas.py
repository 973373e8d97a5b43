"""Quotas of clients: whom they are for, their keys, and what a value may be (KIP-13, KIP-55, KIP-124, KIP-546)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

DEFAULT = ""
"""The name of an entity that stands for all that have no quota of their own. No user and no client.id of a quota is
empty; on the wire the default is null."""

NAME_CHARS_MAX = 1000
"""Of a user or a client.id that has a quota: the subject of a certificate is long."""

_LONG_MAX = 2**63 - 1


class QuotaEntity(NamedTuple):
    """Whom a quota is for: a user, a client.id, or both together; `DEFAULT` for each that has none of its own.

    Attributes:
        user: name of a principal, without its type; None: whoever it is.
        client_id: None: whatever it is.
    """

    user: str | None = None
    client_id: str | None = None

    def parts(self) -> list[tuple[str, str | None]]:
        """(type, name) as on the wire: null is the default."""
        both = ((USER, self.user), (CLIENT_ID, self.client_id))
        return [(kind, name or None) for kind, name in both if name is not None]

    def __str__(self) -> str:
        """`user alice, default client-id`."""
        return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in self.parts())


class QuotaKey(StrEnum):
    """What is bounded, by Kafka's names. Each is a bound of every broker for itself.

    Attributes:
        PRODUCER_BYTE_RATE: bytes a second of produce requests.
        CONSUMER_BYTE_RATE: bytes a second of fetch answers.
        REQUEST_PERCENTAGE: share of the time of the broker's event loop that requests may take: 100 is all of it.
    """

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"


QUOTA_DOCS: Mapping[QuotaKey, str] = {
    QuotaKey.PRODUCER_BYTE_RATE: "Bytes a second that a client may produce, at each broker.",
    QuotaKey.CONSUMER_BYTE_RATE: "Bytes a second that a client may fetch, of each broker.",
    QuotaKey.REQUEST_PERCENTAGE: "Percent of a broker's time that a client's requests may take; 100 is all of it.",
}

UNSERVED_KEYS = ("controller_mutation_rate", "connection_creation_rate")
"""Kafka's other keys: nothing enforces them here, so they cannot be set."""

_WHOLE = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of (type, name)s as on the wire.

    Raises:
        KafkaError: INVALID_REQUEST, in Kafka's words where it has them.
    """
    found: dict[str, str] = {}
    for kind, name in parts:
        if kind in found:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind == IP:
            raise _invalid("quotas by ip (connection_creation_rate) are not served; users and client-ids have quotas")
        if kind not in (USER, CLIENT_ID):
            raise _invalid(f"Unhandled client quota entity type: {kind[:NAME_CHARS_MAX]}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        found[kind] = DEFAULT if name is None else name
    entity = QuotaEntity(found.get(USER), found.get(CLIENT_ID))
    fault = entity_fault(entity)
    if fault:
        raise _invalid(fault)
    return entity


def entity_fault(entity: QuotaEntity) -> str:
    """Why there can be no quota for it, or ""."""
    names = [name for name in entity if name is not None]
    if not names:
        return "Invalid empty client quota entity"
    if any(len(name) > NAME_CHARS_MAX for name in names):
        return f"a user or client-id with a quota has up to {NAME_CHARS_MAX} characters"
    return ""


def value_fault(key: str, value: float) -> str:
    """Why this key cannot have this value, or ""."""
    if key in UNSERVED_KEYS:
        return f"{key} is not served: nothing would enforce it; " + _ALLOWED
    if key not in QuotaKey.__members__.values():
        return f"Invalid configuration key {key[:NAME_CHARS_MAX]}; {_ALLOWED}"
    if not value > 0 or math.isinf(value):
        return f"Quota {key} must be greater than 0, and a number, not {value:g}"
    if key not in _WHOLE:
        return ""
    if value > _LONG_MAX:
        return f"Proposed value for {key} is too large for a LONG."
    return f"{key} cannot be a fractional value." if abs(value % 1.0) > 1e-6 else ""


_ALLOWED = "possible are " + ", ".join(QuotaKey)


def _invalid(words: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, words)
