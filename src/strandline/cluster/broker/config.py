"""Settings of the broker's handlers and of its Kafka listeners: limits and switches."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strandline.proto.errors import ConfigError
from strandline.proto.settings import (
    INT32_MAX,
    ConfigType,
    Scope,
    Setting,
    Settings,
    milliseconds,
    parsed,
    size,
    split_list,
    whole,
)

MIB = 1024 * 1024


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name of the selector that sends consumers to a replica in their rack."""

_SELECTORS = f"{RACK_AWARE}, or nothing for reading from leaders alone"
_OVERRIDES = "ADDRESS:COUNT,... with addresses, not names: 10.0.0.7:200"


def _selector(name: str, text: str) -> bool:
    if text not in ("", RACK_AWARE):
        raise ConfigError(name, text, _SELECTORS)
    return text == RACK_AWARE


def _overrides(name: str, text: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for item in split_list(text):
        host, _, count = item.rpartition(":")
        try:
            ipaddress.ip_address(host)
            found[host] = int(count)
        except ValueError:
            raise ConfigError(name, text, _OVERRIDES) from None
        if found[host] < 0:
            raise ConfigError(name, text, "counts of 0 and more")
    return found


class ListenerConfig(Settings, scope=Scope.NODE):
    """Limits of each Kafka listener.

    Attributes:
        small_request_bytes_max: maximum bytes of a frame of all APIs except Produce. Their elements are small: a frame
            as large as batches need would decode into millions of objects and block the event loop for seconds.
        requests_in_flight_max: maximum unanswered requests of one connection; further ones are not read.
        queued_bytes_max: bytes of responses of one connection that wait behind an unfinished one, from which on no more
            of its requests are read.
        write_buffer_bytes: unsent bytes of one connection above which no more of its requests are read.
        stalled_ms_max: milliseconds without progress after which connections that hold memory are closed, while the
            node's memory budget is used up.
    """

    request_bytes_max = size(
        "socket.request.max.bytes",
        100 * 1024**2,
        "Maximum size of a request of a client; a larger one closes the connection.",
        low=1024,
        high=INT32_MAX,
    )
    idle_ms_max = milliseconds(
        "connections.max.idle.ms",
        600_000,
        "Time without a request after which a client's connection is closed.",
        type=ConfigType.LONG,
    )
    slow_request_ms = milliseconds(
        "slow.request.log.threshold.ms",
        1000,
        "Time from the last byte of a request to the last byte of its answer from which on the request is logged, "
        "with the parts of that time and the replica it waited for; at most 20 lines in 10 seconds. Time that a fetch "
        "waits for records by its client's wish does not count. 0: no lines.",
        low=0,
    )
    small_request_bytes_max = 4 * MIB
    requests_in_flight_max = 128
    queued_bytes_max = 4 * MIB
    write_buffer_bytes = 1 * MIB
    stalled_ms_max = 10_000


class BrokerConfig(Settings, scope=Scope.NODE):
    """Limits and switches of the handlers."""

    fetch_max_bytes = size(
        "fetch.max.bytes",
        55 * 1024**2,
        "Maximum size of the answer to one fetch, whatever the client asks for.",
        low=1024,
        high=INT32_MAX,
    )
    rack_aware_fetch = parsed(
        "replica.selector.class",
        _selector,
        None,
        "Replica that a consumer reads from. Empty: the leader. RackAwareReplicaSelector (KIP-392): an in-sync "
        "replica in the consumer's own rack (client.rack), if the leader is in another.",
        _SELECTORS,
    )
    fetch_session_slots = whole(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "Maximum incremental fetch sessions; clients without a session send all their partitions with each fetch.",
        low=0,
        high=INT32_MAX,
    )
    memory_bytes = size(
        "queued.max.request.bytes",
        256 * 1024**2,
        "Memory for requests and answers of all clients together; while it is used up, no more requests are read from "
        "clients.",
        low=1024**2,
    )
    describe_partitions_max = whole(
        "max.request.partition.size.limit",
        2000,
        "Maximum partitions in one answer to DescribeTopicPartitions; the client asks for more in another request.",
        low=1,
        high=INT32_MAX,
    )
    request_timeout_ms = milliseconds(
        "request.timeout.ms",
        30_000,
        "Time that an operation without a timeout of its own waits for the controller.",
    )
    connections_max = whole(
        "max.connections",
        INT32_MAX,
        "Maximum connections of clients to this broker, through all listeners; further ones are closed at once.",
        low=1,
        high=INT32_MAX,
    )
    connections_per_ip_max = whole(
        "max.connections.per.ip",
        INT32_MAX,
        "Maximum connections from one address; further ones are closed at once. 0: only addresses that "
        "max.connections.per.ip.overrides lists may connect.",
        low=0,
        high=INT32_MAX,
    )
    connections_per_ip = parsed(
        "max.connections.per.ip.overrides",
        _overrides,
        "",
        "Limits for single addresses instead of max.connections.per.ip, as ADDRESS:COUNT,... (10.0.0.7:200); host "
        "names are not resolved.",
        _OVERRIDES,
    )
    quota_windows = whole(
        "quota.window.num",
        11,
        "Windows over which rates are measured for quotas, including the current one.",
        low=2,
        high=1000,
    )
    quota_window_s = whole(
        "quota.window.size.seconds",
        1,
        "Length of such a window; a client that exceeds its request_percentage is delayed by at most this time.",
        low=1,
        high=3600,
        unit="s",
    )


@dataclass(frozen=True, slots=True)
class StaticSetting:
    """A setting of the node's file that cannot change while the node runs.

    `name` is the name of `row`, or that name with the prefix of one listener; `given` is the file's value, or None.
    """

    name: str
    row: Setting[Any]
    given: str | None


@dataclass(frozen=True, slots=True)
class DerivedSetting:
    """A setting of Kafka's that tools look up and that cannot be set here.

    Attributes:
        of: name of the setting that its value is derived from; "": the value is always the row's default.
        value: returns its value for the value of `of`.
    """

    row: Setting[Any]
    of: str = ""
    value: Callable[[str], str] = str
