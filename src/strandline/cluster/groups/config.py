"""Limits and times of groups, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""A new member that has joined and hears nothing is given up after so long: it does not send heartbeats yet, and its
client may have gone while the rebalance lasted (Kafka's constant)."""

MEMBER_BYTES_MAX = 1024 * 1024
"""The most that one member may have in subscriptions: no more would fit into the record of its group."""


UNSTORED_GROUPS_MAX = 10_000
"""The most groups of a shard of which nothing is stored yet: memory that anybody can ask for with one request each.
More are refused with an error that their clients retry."""


class MigrationPolicy(Enum):
    """Which way groups with members may move between the protocols, in Kafka's words: `up` from the classic protocol to
    the consumer protocol, `down` back. Empty groups move both ways whatever it says."""

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


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Attributes:
    min_session_timeout_ms, max_session_timeout_ms: what a member may ask for (`group.{min,max}.session.timeout.ms`).
    initial_rebalance_delay_ms: how long an empty group waits for more members (`group.initial.rebalance.delay.ms`).
    max_size: most members of a group (`group.max.size`).
    offset_metadata_max_bytes: most bytes of text beside a committed offset (`offset.metadata.max.bytes`).
    offsets_retention_ms: offsets of a group without members are forgotten after so long
        (`offsets.retention.minutes`).
    offsets_retention_check_ms: how often that is looked at (`offsets.retention.check.interval.ms`).
    consumer_session_timeout_ms, consumer_heartbeat_interval_ms: of members of the consumer protocol, which do not
        choose their own (`group.consumer.session.timeout.ms`, `group.consumer.heartbeat.interval.ms`).
    consumer_max_size: most members of such a group (`group.consumer.max.size`).
    consumer_assignors: names, the first is the default (`group.consumer.assignors`).
    consumer_migration_policy: `group.consumer.migration.policy`.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 10_000
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_ms: int = 600_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 10_000
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
