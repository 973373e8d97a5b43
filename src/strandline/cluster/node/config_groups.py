"""Settings of consumer groups and of the topic that they are kept in."""

from __future__ import annotations

from strandline.cluster.groups.config import MigrationPolicy
from strandline.cluster.groups.consumer_protocol.assignors import ASSIGNORS
from strandline.cluster.node.config_setting import Setting, integer, milliseconds, one_of, size
from strandline.controller.metadata.config_key import ConfigType, split_list
from strandline.proto.errors import ConfigError


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
