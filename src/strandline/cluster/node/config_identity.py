"""Settings: who this node is, where it listens, where its data lies, and whom it forms the quorum with."""

from __future__ import annotations

from strandline.cluster.node.config_setting import (
    Listener,
    Setting,
    integer,
    milliseconds,
    one_of,
    parse_listeners,
    parse_voters,
    size,
    string,
)
from strandline.controller.metadata.config_key import ConfigType, split_list
from strandline.controller.quorum.api import Voter
from strandline.proto.errors import ConfigError

INTERNAL = "INTERNAL"
HTTP = "HTTP"
RESERVED = (INTERNAL, HTTP)
"""Listener names with a protocol of their own; every other listener speaks Kafka's protocol."""

BROKER = "broker"
CONTROLLER = "controller"

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name of the selector that sends consumers to a replica in their rack."""


def _roles(name: str, text: str) -> frozenset[str]:
    roles = split_list(text)
    if not roles or any(role not in (BROKER, CONTROLLER) for role in roles):
        raise ConfigError(name, text, "broker, controller, or both")
    return frozenset(roles)


def _selector(name: str, text: str) -> str:
    if text not in ("", RACK_AWARE):
        raise ConfigError(name, text, f"{RACK_AWARE}, or nothing for reading from leaders alone")
    return text


def _one_directory(name: str, text: str) -> str:
    directories = split_list(text)
    if len(directories) != 1:
        raise ConfigError(name, text, "exactly one directory (several are not served yet)")
    return directories[0]


class Identity:
    """Who, where, and with whom."""

    process_roles: Setting[frozenset[str]] = Setting(
        "process.roles",
        _roles,
        "broker,controller",
        "What this node does: broker holds partitions and serves clients, controller votes in the metadata quorum.",
        type=ConfigType.LIST,
    )
    node_id = integer(
        "node.id",
        None,
        "Names this node in its cluster; unique over brokers and controllers, and kept for life.",
        low=0,
        high=2**31 - 1,
    )
    listeners: Setting[tuple[Listener, ...]] = Setting(
        "listeners",
        parse_listeners,
        "PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:19092,HTTP://127.0.0.1:8092",
        "Where this node listens, as NAME://host:port. INTERNAL is gRPC between nodes, HTTP serves /metrics, /healthz "
        "and /readyz (leave it out for none), any other name speaks Kafka's protocol. Port 0 means any free one.",
        type=ConfigType.LIST,
    )
    advertised_listeners: Setting[tuple[Listener, ...]] = Setting(
        "advertised.listeners",
        parse_listeners,
        "",
        "What clients and other nodes are told to connect to, where that differs from where a listener is bound.",
        type=ConfigType.LIST,
    )
    log_dirs: Setting[str] = Setting(
        "log.dirs",
        _one_directory,
        "strandline-data",
        "The directory of this node's data; `strandline format` prepares it.",
        type=ConfigType.LIST,
    )
    broker_rack = string(
        "broker.rack",
        "",
        "The failure domain of this broker (a rack, a zone): replicas of a partition are spread over racks.",
    )
    replica_selector: Setting[str] = Setting(
        "replica.selector.class",
        _selector,
        "",
        "Which replica a consumer reads. Empty: the leader. RackAwareReplicaSelector (KIP-392): one in sync in the "
        "consumer's own rack (client.rack), if the leader is elsewhere.",
    )
    quorum_voters: Setting[tuple[Voter, ...]] = Setting(
        "controller.quorum.voters",
        parse_voters,
        "",
        "The controllers, as id@host:port of their INTERNAL listeners. Empty: those that `strandline format "
        "--initial-controllers` wrote into the data directory.",
        type=ConfigType.LIST,
    )
    quorum_election_timeout_ms = milliseconds(
        "controller.quorum.election.timeout.ms",
        1000,
        "How long a controller that knows no leader, or a candidate, waits before it asks for an election; each is "
        "drawn from once to twice this.",
    )
    quorum_fetch_timeout_ms = milliseconds(
        "controller.quorum.fetch.timeout.ms",
        1500,
        "A controller that could not fetch from the leader for so long asks for an election; the leader resigns after "
        "1.5 times this without fetches of a majority (Kafka: 2000; what is added here is added to "
        "the time without acks when the active controller is paused).",
    )
    quorum_request_timeout_ms = milliseconds(
        "controller.quorum.request.timeout.ms", 1000, "How long one call between quorum nodes may take."
    )
    quorum_retry_backoff_ms = milliseconds(
        "controller.quorum.retry.backoff.ms",
        20,
        "How long a failed call between quorum nodes waits for its repetition.",
    )
    quorum_election_backoff_max_ms = milliseconds(
        "controller.quorum.election.backoff.max.ms",
        1000,
        "The longest wait after a lost election; waits grow from one to the next and are drawn at random.",
    )
    metadata_log_segment_bytes = size(
        "metadata.log.segment.bytes", 64 * 1024**2, "The size at which the metadata log begins a new segment.", low=1024
    )
    metadata_snapshot_bytes = size(
        "metadata.log.max.record.bytes.between.snapshots",
        20 * 1024**2,
        "A snapshot of the metadata is taken once so much was committed since the last one.",
    )
    logging_format = one_of(
        "logging.format",
        "keyvalue",
        "How log lines are written to standard error: key=value pairs, or one JSON object a line.",
        "keyvalue",
        "json",
    )
    logging_level = one_of(
        "logging.level", "info", "The least severe events that are logged.", "debug", "info", "warning", "error"
    )
