"""Limits and times of groups, under Kafka's names."""

from __future__ import annotations

from enum import Enum

from strandline.cluster.groups.consumer_protocol.assignors import ASSIGNORS
from strandline.proto.errors import ConfigError
from strandline.proto.settings import (
    INT32_MAX,
    ConfigType,
    Scope,
    Settings,
    milliseconds,
    parsed,
    size,
    whole,
    words,
)

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Milliseconds after which a new member that joined but never got an answer is removed: it does not send heartbeats
yet, and its client may have gone during the rebalance (Kafka's constant)."""

MEMBER_BYTES_MAX = 1024 * 1024
"""Maximum bytes of one member's subscriptions: more would not fit into the record of its group."""


UNSTORED_GROUPS_MAX = 10_000
"""Maximum groups of a shard that have nothing stored yet: each takes memory that any client can claim with one request.
More are refused with an error that clients retry."""


class MigrationPolicy(Enum):
    """Directions in which groups with members may change the protocol, in Kafka's words. `up`: from the classic
    protocol to the consumer protocol; `down`: back. Groups without members may always change."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def up(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def down(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


_POLICIES = "one of " + ", ".join(policy.value for policy in MigrationPolicy)


def _policy(name: str, text: str) -> MigrationPolicy:
    try:
        return MigrationPolicy(text)
    except ValueError:
        raise ConfigError(name, text, _POLICIES) from None


class GroupConfig(Settings, scope=Scope.NODE):
    """Settings of groups in a node's file: limits of members and sessions, retention of offsets, the internal topic."""

    min_session_timeout_ms = milliseconds(
        "group.min.session.timeout.ms",
        6_000,
        "Shortest session.timeout.ms that a member may ask for; a shorter one is refused.",
    )
    max_session_timeout_ms = milliseconds(
        "group.max.session.timeout.ms",
        1_800_000,
        "Longest session.timeout.ms that a member may ask for; a longer one is refused.",
    )
    initial_rebalance_delay_ms = milliseconds(
        "group.initial.rebalance.delay.ms",
        3_000,
        "Time that an empty group waits for more members before its first rebalance. `strandline dev` sets 150: "
        "consumers start nearly at once, and kafka-python's clients still do not run into a race of their own.",
        low=0,
    )
    max_size = whole(
        "group.max.size",
        10_000,
        "Maximum members of one group; more are refused with GROUP_MAX_SIZE_REACHED (Kafka: no limit).",
        low=1,
        high=INT32_MAX,
    )
    consumer_session_timeout_ms = milliseconds(
        "group.consumer.session.timeout.ms",
        45_000,
        "Time without a heartbeat after which a member of a group of the consumer protocol (KIP-848) is removed. "
        "Members of this protocol do not choose a timeout of their own.",
        low=1_000,
    )
    consumer_heartbeat_interval_ms = milliseconds(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        "Interval at which members of the consumer protocol are told to send heartbeats. A rebalance takes several.",
        low=10,
    )
    consumer_max_size = whole(
        "group.consumer.max.size",
        10_000,
        "Maximum members of one group of the consumer protocol; more are refused with GROUP_MAX_SIZE_REACHED (Kafka: "
        "no limit).",
        low=1,
        high=INT32_MAX,
    )
    consumer_assignors = words(
        "group.consumer.assignors",
        "uniform,range",
        "Assignors that members of the consumer protocol may choose from; the first is used for members that choose "
        "none. uniform: spreads all partitions evenly and moves few. range: divides each topic into ranges, in the "
        "same way for topics of the same size.",
        *ASSIGNORS,
    )
    consumer_migration_policy = parsed(
        "group.consumer.migration.policy",
        _policy,
        MigrationPolicy.BIDIRECTIONAL.value,
        "Directions in which a group with members may change its protocol: upgrade (a classic group becomes one of "
        "the consumer protocol when the first member joins by that protocol), downgrade (it becomes classic again "
        "when the last such member has left), bidirectional, or disabled. Groups without members may always change.",
        _POLICIES,
    )
    offset_metadata_max_bytes = whole(
        "offset.metadata.max.bytes",
        4096,
        "Maximum bytes of text that a client may store with a committed offset.",
        low=0,
        high=INT32_MAX,
        unit="bytes",
    )
    offsets_retention_minutes = whole(
        "offsets.retention.minutes",
        10_080,
        "Time after which committed offsets are deleted: those of a group without members, and those of a topic that "
        "no member of the group reads. The default is a week.",
        low=1,
        high=INT32_MAX,
        unit="min",
    )
    offsets_retention_check_ms = milliseconds(
        "offsets.retention.check.interval.ms",
        600_000,
        "Interval between checks for committed offsets that may be deleted.",
        type=ConfigType.LONG,
    )
    commit_timeout_ms = milliseconds(
        "offsets.commit.timeout.ms",
        5_000,
        "Time that a commit waits for all in-sync replicas to have it; after that the client is told to try again.",
    )
    topic_partitions = whole(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets when it is created, at the first use of a group. It must not be changed "
        "later.",
        low=1,
        high=10_000,
    )
    topic_replication_factor = whole(
        "offsets.topic.replication.factor",
        3,
        "Replicas of each partition of __consumer_offsets when it is created. If fewer brokers are registered, there "
        "are as many replicas as brokers, and the log has a warning.",
        low=1,
        high=32_767,
        type=ConfigType.SHORT,
    )
    topic_segment_bytes = size(
        "offsets.topic.segment.bytes",
        100 * 1024**2,
        "Value of segment.bytes that __consumer_offsets has when it is created.",
        low=1024,
        high=INT32_MAX,
    )

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets.retention.minutes` in milliseconds."""
        return self.offsets_retention_minutes * 60_000
