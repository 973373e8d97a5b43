"""Limits and switches of the broker and of its Kafka listeners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.proto.settings import Setting

MIB = 1024 * 1024
INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """Under Kafka's names where Kafka has them.

    Attributes:
        request_bytes_max: the largest Produce frame (`socket.request.max.bytes`).
        small_request_bytes_max: the largest frame of every other API. Their elements are small, so a frame of the size
            that batches need would decode into millions of objects and hold the event loop for seconds.
        idle_ms_max: a connection without traffic for this long is closed (`connections.max.idle.ms`).
        requests_in_flight_max: unanswered requests of one connection; more are not read from the socket.
        queued_bytes_max: answers of one connection that wait behind an unfinished one; more requests are not read.
        write_buffer_bytes: unsent bytes of one connection above which no more of its requests are read.
        stalled_ms_max: while the node's memory budget is used up, a connection that holds the most of it without any
            progress for this long is closed.
    """

    request_bytes_max: int = 100 * MIB
    small_request_bytes_max: int = 4 * MIB
    idle_ms_max: int = 600_000
    requests_in_flight_max: int = 128
    queued_bytes_max: int = 4 * MIB
    write_buffer_bytes: int = 1 * MIB
    stalled_ms_max: int = 10_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Limits and switches of the handlers, under Kafka's names where Kafka has them.

    Attributes:
        fetch_max_bytes: most bytes of one fetch answer, whatever the client asks for (`fetch.max.bytes`).
        rack_aware_fetch: consumers are sent to a replica in sync in their own rack (`replica.selector.class`, KIP-392).
        fetch_session_slots: most incremental fetch sessions (`max.incremental.fetch.session.cache.slots`).
        memory_bytes: limit of the memory budget.
        describe_partitions_max: most partitions in one DescribeTopicPartitions answer
            (`max.request.partition.size.limit`).
        request_timeout_ms: how long an operation without a timeout of its own may wait for the controller.
        connections_max: of clients, through all listeners (`max.connections`).
        connections_per_ip_max: of one address (`max.connections.per.ip`).
        connections_per_ip: of these addresses instead (`max.connections.per.ip.overrides`).
        quota_windows: over so many windows rates of clients are measured (`quota.window.num`).
        quota_window_ms: how long one of them is (`quota.window.size.seconds`).
    """

    fetch_max_bytes: int = 55 * 1024 * 1024
    rack_aware_fetch: bool = False
    fetch_session_slots: int = 1000
    memory_bytes: int = 256 * 1024 * 1024
    describe_partitions_max: int = 2000
    request_timeout_ms: int = 30_000
    connections_max: int = INT_MAX
    connections_per_ip_max: int = INT_MAX
    connections_per_ip: Mapping[str, int] = field(default_factory=dict)
    quota_windows: int = 11
    quota_window_ms: int = 1000


@dataclass(frozen=True, slots=True)
class StaticSetting:
    """A setting of the node's file that cannot change while it runs. `name` is that of the row, or of one listener's
    own; `given` is None where the file does not name it."""

    name: str
    row: Setting[Any]
    given: str | None


@dataclass(frozen=True, slots=True)
class DerivedSetting:
    """A name of Kafka's that tools look up and that nobody sets here.

    Attributes:
        of: the setting that its value follows from; "": it is the row's default, always.
        value: its value by that one's.
    """

    row: Setting[Any]
    of: str = ""
    value: Callable[[str], str] = str
