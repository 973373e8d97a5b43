"""Quotas of clients: entities, keys and valid values (KIP-13, KIP-55, KIP-124, KIP-546, KIP-599, KIP-612)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address
from typing import NamedTuple, Self

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import address_of
from strandline.proto.settings import INT32_MAX, INT64_MAX, ConfigType

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

DEFAULT = ""
"""The name of an entity that stands for all that have no quota of their own. No user, client.id or ip of a quota is
empty; on the wire the default is null."""

NAME_CHARS_MAX = 255
"""Maximum characters of a user, a client.id or an ip in a quota, and of names by which brokers remember usage."""


class QuotaEntity(NamedTuple):
    """Entity that has a quota: a user, a client.id, or both together; or an ip alone. `DEFAULT` stands for each entity
    without a quota of its own.

    Attributes:
        user: name of a principal, without its type; None for any.
        client_id: None for any.
        ip: an address, as `strandline.proto.ids.address_of` writes it.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> list[tuple[str, str | None]]:
        """(type, name) as on the wire: null is the default."""
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return [(kind, name or None) for kind, name in named if name is not None]

    def __str__(self) -> str:
        """`user alice, default client-id`."""
        return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in self.parts())


class QuotaKey(StrEnum):
    """Keys of quotas, one row each. Every broker applies the bound on its own.

    Attributes:
        type: Kafka's type of the value, which travels as a double; INT and LONG are whole numbers up to their greatest.
        of_ip: whether it is a quota of an ip; all others are quotas of users and client.ids.
        bounds: what it bounds, for people.
        counted: what counts, and when.
    """

    type: ConfigType
    of_ip: bool
    bounds: str
    counted: str

    def __new__(cls, name: str, type: ConfigType, bounds: str, counted: str, of_ip: bool = False) -> Self:
        """A row: Kafka's name, and the columns."""
        key = str.__new__(cls, name)
        key._value_ = name
        key.type, key.of_ip, key.bounds, key.counted = type, of_ip, bounds, counted
        return key

    PRODUCER_BYTE_RATE = (
        "producer_byte_rate",
        ConfigType.LONG,
        "bytes a second of produce requests",
        "whole requests, when they have come",
    )
    CONSUMER_BYTE_RATE = (
        "consumer_byte_rate",
        ConfigType.LONG,
        "bytes a second of fetched records",
        "the records of an answer, when it leaves",
    )
    REQUEST_PERCENTAGE = (
        "request_percentage",
        ConfigType.DOUBLE,
        "percent of the broker's event loop; 100 is all of it",
        "the time in which a request holds the loop",
    )
    CONTROLLER_MUTATION_RATE = (
        "controller_mutation_rate",
        ConfigType.DOUBLE,
        "partitions a second that are created and deleted",
        "those of CreateTopics, DeleteTopics, CreatePartitions, and of topics made by their first use",
    )
    CONNECTION_CREATION_RATE = (
        "connection_creation_rate",
        ConfigType.INT,
        "connections a second of an address, which has this key alone",
        "when they are accepted, before TLS",
        True,
    )


IP_KEYS = tuple(key for key in QuotaKey if key.of_ip)
"""Keys of quotas that an ip may have."""

CLIENT_KEYS = tuple(key for key in QuotaKey if not key.of_ip)
"""Keys of quotas that a user, a client.id, or both may have."""

_WHOLE_MAX = {ConfigType.LONG: ("a LONG", INT64_MAX), ConfigType.INT: ("an INT", INT32_MAX)}
"""Types of whole numbers, each with its article and its greatest value."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Entity of the (type, name) pairs of a request.

    Raises:
        KafkaError: INVALID_REQUEST, in Kafka's words where it has them.
    """
    found: dict[str, str] = {}
    for kind, name in parts:
        if kind in found:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind[:NAME_CHARS_MAX]}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        found[kind] = DEFAULT if name is None else name
    ip = found.get(IP)
    entity = QuotaEntity(found.get(USER), found.get(CLIENT_ID), None if ip is None else address_of(ip))
    fault = entity_fault(entity)
    if fault:
        raise _invalid(fault)
    return entity


def entity_fault(entity: QuotaEntity) -> str:
    """Reason an entity cannot have quotas, or ""."""
    names = [name for name in entity if name is not None]
    if not names:
        return "Invalid empty client quota entity"
    if any(len(name) > NAME_CHARS_MAX for name in names):
        return f"a user or client-id with a quota has up to {NAME_CHARS_MAX} characters"
    if entity.ip is None:
        return ""
    if len(names) > 1:
        return "Invalid quota entity combination, IP entity should not be used with user/client ID entity."
    return "" if entity.ip == DEFAULT else _ip_fault(entity.ip)


def _ip_fault(ip: str) -> str:
    """Reason the text is no address, in Kafka's words, or "". (Kafka looks a name up, once, and counts its address.)"""
    try:
        ip_address(ip)
    except ValueError:
        return f"{ip} is not a valid IP or resolvable host: an address is wanted, names are not looked up"
    return ""


def value_fault(entity: QuotaEntity, key: str, value: float) -> str:
    """Reason a quota of this entity cannot have this value, or ""."""
    allowed = CLIENT_KEYS if entity.ip is None else IP_KEYS  # rule A21/any-key-for-anybody
    if key not in allowed:
        whom = "a user or a client-id" if entity.ip is None else "an ip"
        return f"Invalid configuration key {key[:NAME_CHARS_MAX]}; possible for {whom}: {', '.join(allowed)}"
    if not value > 0 or math.isinf(value):
        return f"Quota {key} must be greater than 0, and a number, not {value:g}"
    type = next(one.type for one in allowed if one == key)
    if type not in _WHOLE_MAX:
        return ""
    kind, most = _WHOLE_MAX[type]
    if value > most:
        return f"Proposed value for {key} is too large for {kind}."
    return f"{key} cannot be a fractional value." if abs(value % 1.0) > 1e-6 else ""


def _invalid(words: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, words)
