"""Typed identifiers. NewTypes cost nothing at run time and keep offsets, epochs and ids apart under mypy."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Any, NamedTuple, NewType
from uuid import UUID

from strandline.proto.messages.fields import UInt32

NodeId = NewType("NodeId", int)
"""A node's id in the cluster (Kafka's ``node.id``); unique over controllers and brokers."""

Offset = NewType("Offset", int)
"""Position of a record in its partition, from 0."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Bumped by the controller at each election of a partition; -1 means unknown."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Bumped at each metadata change of a partition (ISR, leader, replicas)."""

BrokerEpoch = NewType("BrokerEpoch", int)
"""Offset of the broker's registration record in the metadata log: names one process lifetime; -1 means unknown."""

ProducerId = NewType("ProducerId", int)
"""Names an idempotent producer; -1 means none."""

TopicId = UUID
"""A topic's unique id; never reused, so a deleted and recreated topic is another topic."""

NO_NODE = NodeId(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_BROKER_EPOCH = BrokerEpoch(-1)
ZERO_UUID = UUID(int=0)


class TopicPartition(NamedTuple):
    """A partition by its topic's name, as clients and directory names have it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id, as nodes name it among themselves."""

    topic_id: TopicId
    partition: int


class Endpoint(NamedTuple):
    """Host and port at which a listener can be reached."""

    host: Annotated[str, 1]
    port: Annotated[int, UInt32(2)]

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(host: str) -> str:
    """One text for an address, however it is written: an IPv4 client of an IPv6 socket too. A name stays as it is."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


WILDCARDS = ("", "0.0.0.0", "::")
"""Every address of a machine, of both families: a listener that is bound so takes IPv4 and IPv6, as Kafka's does."""


def bound_as(wanted: Endpoint, name: tuple[Any, ...]) -> Endpoint:
    """Where a socket of this name is, that was to be bound at `wanted`, whose text for every address it keeps."""
    return Endpoint(wanted.host if wanted.host in WILDCARDS else str(name[0]), int(name[1]))


def peer_of(peername: tuple[Any, ...] | None) -> str:
    """Address of a peer for log lines. An IPv4 client of an IPv6 socket is shown with its IPv4 address; "?" if it has
    gone."""
    return str(Endpoint(address_of(str(peername[0])), int(peername[1]))) if peername else "?"


def is_loopback(host: str) -> bool:
    """Whether the programs of this machine alone reach what is bound there: `localhost`, or an address of the loopback.
    Other names are not looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
