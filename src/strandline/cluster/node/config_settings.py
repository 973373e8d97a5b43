"""The settings of a node that cannot change while it runs: name, default, meaning, what is allowed."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping

from strandline.cluster.groups.config import MigrationPolicy
from strandline.cluster.groups.consumer_protocol.assignors import ASSIGNORS
from strandline.cluster.node.config_values import (
    Listener,
    Setting,
    boolean,
    integer,
    milliseconds,
    one_of,
    parse_listeners,
    parse_voters,
    rate,
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


def _overrides(name: str, text: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for item in split_list(text):
        host, _, count = item.rpartition(":")
        try:
            ipaddress.ip_address(host)
            found[host] = int(count)
        except ValueError:
            raise ConfigError(name, text, "ADDRESS:COUNT,... with addresses, not names: 10.0.0.7:200") from None
        if found[host] < 0:
            raise ConfigError(name, text, "counts of 0 and more")
    return found


def _directories(name: str, text: str) -> tuple[str, ...]:
    directories = tuple(map(os.path.abspath, split_list(text)))  # what syncs one's name takes the directory above
    if not directories or len(set(directories)) != len(directories):
        raise ConfigError(name, text, "one directory or more, each named once")
    return directories


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
        "Where this node listens, as NAME://host:port; 0.0.0.0 and [::] are all IPv4 and IPv6 addresses. "
        "INTERNAL is gRPC between nodes, HTTP serves /metrics, /healthz, "
        "/readyz and /trace (leave it out for none), any other name speaks Kafka's protocol. Port 0: any free one.",
        type=ConfigType.LIST,
    )
    advertised_listeners: Setting[tuple[Listener, ...]] = Setting(
        "advertised.listeners",
        parse_listeners,
        "",
        "What clients and other nodes are told to connect to, where that differs from where a listener is bound.",
        type=ConfigType.LIST,
    )
    log_dirs: Setting[tuple[str, ...]] = Setting(
        "log.dirs",
        _directories,
        "strandline-data",
        "The directories of this node's data, in any order, best each on a disk of its own; `strandline format` "
        "prepares them. One of them has the metadata log too, and the node stops if it fails.",
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


class Limits:
    """How long, how much, how many."""

    broker_session_timeout_ms = milliseconds(
        "broker.session.timeout.ms",
        9000,
        "A broker whose heartbeats have not come for so long is fenced. (One whose process died is noticed by "
        "its broken connection, in well under a second; one that is silent, by broker.silence.timeout.ms.)",
    )
    broker_silence_timeout_ms = milliseconds(
        "broker.silence.timeout.ms",
        2500,
        "A broker that sends no heartbeats and answers no probes for so long is fenced (Kafka knows nothing like it). "
        "It is probed after two fifths of this; one that is busy answers late, and stays. As great as "
        "broker.session.timeout.ms: only heartbeats count.",
        low=100,
    )
    broker_heartbeat_interval_ms = milliseconds(
        "broker.heartbeat.interval.ms", 2000, "How often a broker tells the controller that it is alive."
    )
    initial_broker_registration_timeout_ms = milliseconds(
        "initial.broker.registration.timeout.ms",
        60_000,
        "A broker that could not register with the controller for so long stops with an error.",
    )
    disk_sync_timeout_ms = milliseconds(
        "disk.sync.timeout.ms",
        5000,
        "A sync of the disk that takes longer: nothing is acknowledged meanwhile, so the node gives up what it leads "
        "and stops. A warning is logged at a fifth of it. (Under flush.policy=replicate acks wait for no sync: a "
        "broker stays, and stops at four times this.)",
        low=100,
    )
    controlled_shutdown_timeout_ms = milliseconds(
        "controlled.shutdown.timeout.ms",
        10_000,
        "How long a stopping broker waits for its leaderships to move away before it stops all the same.",
    )
    replica_lag_time_max_ms = milliseconds(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that was not caught up for so long leaves the ISR. (One whose broker is fenced leaves at once.)",
    )
    log_retention_check_interval_ms = milliseconds(
        "log.retention.check.interval.ms",
        300_000,
        "How often is looked for records that retention.ms and retention.bytes take.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second = rate(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "1.7976931348623157E308",
        "What moves of replicas to other log directories of this broker copy in a second, in bytes, together.",
    )
    stray_delete_delay_ms = integer(
        "log.stray.delete.delay.ms",
        3_600_000,
        "Directories of partitions whose topic was deleted, or whose replica moved, while this broker was down are "
        "renamed aside (-stray) when it starts, and removed after so long; -1: never, as Kafka has it. Those of a "
        "cluster that knows no topic at all are never removed (-kept-stray).",
        low=-1,
        high=2**31 - 1,
        unit="ms",
    )
    leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether leadership returns by itself to the preferred replica once that is in sync again.",
    )
    leader_rebalance_interval_s = integer(
        "leader.imbalance.check.interval.seconds",
        5,
        "How often the controller looks for partitions that are not led by their preferred replica (Kafka: 300).",
        low=1,
        high=2**31 - 1,
        unit="s",
    )
    socket_request_max_bytes = size(
        "socket.request.max.bytes",
        100 * 1024**2,
        "The largest request that is read from a client; a longer one closes the connection.",
        low=1024,
    )
    connections_max_idle_ms = milliseconds(
        "connections.max.idle.ms", 600_000, "A client's connection without a request for so long is closed."
    )
    max_connections = integer(
        "max.connections",
        2**31 - 1,
        "Connections that clients may have to this broker, through all listeners; one more is closed at once.",
        low=1,
        high=2**31 - 1,
    )
    max_connections_per_ip = integer(
        "max.connections.per.ip",
        2**31 - 1,
        "Connections of one address; one more is closed at once. 0: only what max.connections.per.ip.overrides names.",
        low=0,
        high=2**31 - 1,
    )
    max_connections_per_ip_overrides: Setting[Mapping[str, int]] = Setting(
        "max.connections.per.ip.overrides",
        _overrides,
        "",
        "Other limits for single addresses, as ADDRESS:COUNT,... (10.0.0.7:200); names are not looked up.",
        type=ConfigType.LIST,
    )
    quota_window_num = integer(
        "quota.window.num",
        11,
        "The rates that quotas bound are measured over so many windows, the one under way among them.",
        low=2,
        high=1000,
    )
    quota_window_size_seconds = integer(
        "quota.window.size.seconds",
        1,
        "How long such a window is; a client waits no longer for a request_percentage that it has exceeded.",
        low=1,
        high=3600,
        unit="s",
    )
    queued_max_request_bytes = size(
        "queued.max.request.bytes",
        256 * 1024**2,
        "Memory for requests and answers of all clients together; beyond it their sockets are not read until there is "
        "room again.",
        low=1024**2,
    )
    fetch_max_bytes = size(
        "fetch.max.bytes", 55 * 1024**2, "The largest answer to one fetch, whatever the client asks for.", low=1024
    )
    fetch_session_slots = integer(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "How many incremental fetch sessions are remembered; clients without one send all their partitions each time.",
        low=0,
        high=2**31 - 1,
    )
    request_partition_limit = integer(
        "max.request.partition.size.limit",
        2000,
        "The most partitions in one answer to DescribeTopicPartitions; the rest comes with the next page.",
        low=1,
        high=2**31 - 1,
    )
    request_timeout_ms = milliseconds(
        "request.timeout.ms", 30_000, "How long an operation without a timeout of its own waits for the controller."
    )
    fault_injection = boolean(
        "strandline.fault.injection",
        False,
        "For tests alone: POST /faults on the HTTP listener makes chosen requests fail and the disk slow. Whoever "
        "reaches that listener can do so.",
    )


def assignors(name: str, default: str, doc: str) -> Setting[tuple[str, ...]]:
    """Some of the assignors that there are, comma separated."""

    def parse(setting: str, text: str) -> tuple[str, ...]:
        chosen = tuple(split_list(text))
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= ASSIGNORS.keys():
            raise ConfigError(setting, text, f"some of {', '.join(ASSIGNORS)}, each once")
        return chosen

    return Setting(name, parse, default, doc, type=ConfigType.LIST)


class Groups:
    """Who may be a member, how long what is remembered."""

    group_min_session_timeout_ms = milliseconds(
        "group.min.session.timeout.ms",
        6_000,
        "The shortest session.timeout.ms that a member may ask for; a shorter one is refused.",
    )
    group_max_session_timeout_ms = milliseconds(
        "group.max.session.timeout.ms", 1_800_000, "The longest session.timeout.ms that a member may ask for."
    )
    group_initial_rebalance_delay_ms = milliseconds(
        "group.initial.rebalance.delay.ms",
        3_000,
        "How long an empty group waits for more members before its first rebalance. `strandline dev` sets 150: "
        "consumers start nearly at once, and kafka-python's still meet no race of theirs.",
        low=0,
    )
    group_max_size = integer(
        "group.max.size",
        10_000,
        "The most members of one group; further ones are refused with GROUP_MAX_SIZE_REACHED (Kafka: no limit).",
        low=1,
        high=2**31 - 1,
    )
    group_consumer_session_timeout_ms = milliseconds(
        "group.consumer.session.timeout.ms",
        45_000,
        "A member of a group of the consumer protocol (KIP-848) that says nothing for so long is given up. They do "
        "not choose their own.",
        low=1_000,
    )
    group_consumer_heartbeat_interval_ms = milliseconds(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        "How often members of the consumer protocol are told to send a heartbeat: a rebalance takes some of these.",
        low=10,
    )
    group_consumer_max_size = integer(
        "group.consumer.max.size",
        10_000,
        "The most members of one group of the consumer protocol; further ones are refused with GROUP_MAX_SIZE_REACHED "
        "(Kafka: no limit).",
        low=1,
        high=2**31 - 1,
    )
    group_consumer_assignors = assignors(
        "group.consumer.assignors",
        "uniform,range",
        "The assignors that members of the consumer protocol may choose from; the first is for those that do not care. "
        "uniform: all partitions spread evenly, moving few. range: each topic in ranges, topics of one size alike.",
    )
    group_consumer_migration_policy = one_of(
        "group.consumer.migration.policy",
        MigrationPolicy.BIDIRECTIONAL.value,
        "Which way a group with members may move while they read: upgrade (a group of the classic protocol becomes "
        "one of the consumer protocol with the first member that joins by that), downgrade (and a classic one again "
        "when the last of these has gone), bidirectional, or disabled. Groups without members move both ways.",
        *(policy.value for policy in MigrationPolicy),
    )
    offset_metadata_max_bytes = integer(
        "offset.metadata.max.bytes",
        4096,
        "The most bytes of text that a client may store beside a committed offset.",
        low=0,
        high=2**31 - 1,
        unit="bytes",
    )
    offsets_retention_minutes = integer(
        "offsets.retention.minutes",
        10_080,
        "Committed offsets of a group without members, and of topics that nobody in the group reads, are forgotten "
        "after so long (a week).",
        low=1,
        high=2**31 - 1,
        unit="min",
    )
    offsets_retention_check_interval_ms = milliseconds(
        "offsets.retention.check.interval.ms", 600_000, "How often is looked for offsets that may be forgotten."
    )
    offsets_commit_timeout_ms = milliseconds(
        "offsets.commit.timeout.ms",
        5_000,
        "How long a commit waits until every in-sync replica has it, before the client is told to try again.",
    )
    offsets_topic_num_partitions = integer(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets when it is created, at the first use of a group. Not to be changed after.",
        low=1,
        high=10_000,
    )
    offsets_topic_replication_factor = integer(
        "offsets.topic.replication.factor",
        3,
        "Copies of each partition of __consumer_offsets when it is created; where fewer brokers are registered, as "
        "many as there are, with a warning in the log.",
        low=1,
        high=32_767,
    )
    offsets_topic_segment_bytes = size(
        "offsets.topic.segment.bytes",
        100 * 1024**2,
        "segment.bytes of __consumer_offsets when it is created.",
        low=1024,
    )
