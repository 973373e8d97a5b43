"""The configs of topics, and those of brokers that may change while they run: Kafka's names, types, defaults, rules.

A topic's value is the one set on the topic, else the broker's dynamic one, else the cluster's dynamic default, else the
broker's own file, else the default of this table; a topic config and the broker config it falls back on may differ in
name (`broker_name`), and some have none. Kafka has no `flush.policy`.

Every topic config of Kafka 4 is taken, so that what is written for Kafka works. What has no effect yet says so
(`without_effect`): in DescribeConfigs, in the log of the broker that sets it, on the command line and in `doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.controller.metadata.config_key import (
    INT32_MAX,
    INT64_MAX,
    ConfigKey,
    ConfigType,
    Validator,
    boolean,
    integer,
    level,
    list_of,
    one_of,
    ratio,
    throttled_replicas,
)
from strandline.controller.metadata.disk_configs import CLEANER_HAS_NO_THREADS, DISK_KEYS
from strandline.controller.metadata.idle_configs import IDLE_TOPIC_KEYS, with_reason
from strandline.controller.metadata.tiers import REMOTE_STORAGE_ENABLE
from strandline.log.config import BATCH_BYTES_MAX
from strandline.proto.errors import ConfigError


def _int(name: str, broker_name: str, default: int, low: int, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.INT, str(default), doc, integer(low, INT32_MAX), broker_name)


def _long(name: str, broker_name: str, default: int, low: int, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.LONG, str(default), doc, integer(low, INT64_MAX), broker_name)


def _level(codec: str, default: str, allowed: Validator, more: str) -> ConfigKey:
    name = f"compression.{codec}.level"
    doc = f"The level at which batches are packed where compression.type is {codec}{more}"
    return ConfigKey(name, ConfigType.INT, default, doc, allowed, name)


def _throttled(side: str, doc: str) -> ConfigKey:
    """A topic config without a default of the brokers: which replicas are throttled (KIP-73)."""
    name = f"{side}.replication.throttled.replicas"
    doc = f"{doc}, as partition:broker,...; *: all."
    return ConfigKey(name, ConfigType.LIST, "", doc, throttled_replicas, "")


def _throttled_rate(side: str, doc: str) -> ConfigKey:
    name = f"{side}.replication.throttled.rate"
    doc = f"{doc} of topics that say {side}.replication.throttled.replicas, in bytes a second."
    because = " (at 0 a throttled replica would never catch up; without the config nothing is throttled)"
    return ConfigKey(name, ConfigType.LONG, str(INT64_MAX), doc, integer(1, INT64_MAX, because), name, topic=False)


_TOPIC_KEYS = (
    ConfigKey(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "delete: old segments go by retention.ms and retention.bytes; compact: the last record of each key stays.",
        list_of("delete", "compact"),
        "log.cleanup.policy",
    ),
    ConfigKey(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "The codec of stored batches; producer: as they came. The leader packs a batch of another codec anew.",
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "compression.type",
    ),
    _level("gzip", "-1", level(1, 9, -1), "; -1: zlib's usual one, 6."),
    _level("lz4", "9", level(1, 17), "; 9: its fast compressor, all others: the one that packs more."),
    _level("zstd", "3", level(-131_072, 22), "; from 4 on it takes many times as long."),
    _long(
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
        86_400_000,
        0,
        "How long tombstones of a compacted topic are kept, in milliseconds.",
    ),
    _long(
        "file.delete.delay.ms",
        "log.segment.delete.delay.ms",
        60_000,
        0,
        "How long a deleted segment's files stay on disk before they are unlinked, in milliseconds.",
    ),
    _throttled("follower", "The replicas that fetch within follower.replication.throttled.rate while out of the ISR"),
    _int(
        "index.interval.bytes",
        "log.index.interval.bytes",
        4096,
        1,
        "An entry is added to the offset index about every so many bytes of log.",
    ),
    _long(
        "local.retention.bytes",
        "log.local.retention.bytes",
        -2,
        -2,
        "With remote.storage.enable: the size beyond which copied segments of a partition go from the brokers' disks, "
        "in bytes; -2: as retention.bytes, which it may not exceed.",
    ),
    _long(
        "local.retention.ms",
        "log.local.retention.ms",
        -2,
        -2,
        "With remote.storage.enable: the age beyond which copied segments go from the brokers' disks, in milliseconds; "
        "-2: as retention.ms, which it may not exceed.",
    ),
    ConfigKey(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        "The largest record batch that is accepted, and that is stored, in bytes, after compression; 100663296 (96 "
        "MiB) at most.",
        integer(0, BATCH_BYTES_MAX, " (96 MiB, which is what the default of socket.request.max.bytes lets in)"),
        "message.max.bytes",
    ),
    _throttled(
        "leader", "The leading replicas that send within leader.replication.throttled.rate to those out of the ISR"
    ),
    _long(
        "max.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        INT64_MAX,
        1,
        "The longest time a record may stay uncompacted, in milliseconds.",
    ),
    _long(
        "message.timestamp.after.max.ms",
        "log.message.timestamp.after.max.ms",
        3_600_000,
        0,
        "How far a record's time may lie ahead of the broker's, in milliseconds; further ahead it is refused.",
    ),
    _long(
        "message.timestamp.before.max.ms",
        "log.message.timestamp.before.max.ms",
        INT64_MAX,
        0,
        "How far a record's time may lie behind the broker's, in milliseconds; further behind it is refused.",
    ),
    ConfigKey(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "CreateTime: records keep the producer's time; LogAppendTime: the leader sets its own.",
        one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "How much of a log must be uncompacted before it is compacted.",
        ratio,
        "log.cleaner.min.cleanable.ratio",
    ),
    _long(
        "min.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        0,
        0,
        "The shortest time a record stays uncompacted, in milliseconds.",
    ),
    ConfigKey(
        "min.insync.replicas",
        ConfigType.INT,
        "2",
        "With acks=all, a write is refused while fewer replicas than this are in sync; a topic with fewer replicas "
        "than this needs them all.",
        integer(1, INT32_MAX),
        "min.insync.replicas",
        broker=False,
    ),
    ConfigKey(
        REMOTE_STORAGE_ENABLE,
        ConfigType.BOOLEAN,
        "false",
        "true: closed segments are copied to the object store of remote.log.storage.url, and read from there. Not with "
        "cleanup.policy=compact; back to false only once nothing of the topic is left there.",
        boolean,
        "",
    ),
    _long(
        "retention.bytes",
        "log.retention.bytes",
        -1,
        -1,
        "The size beyond which old segments of a partition are deleted, in bytes; -1: no limit.",
    ),
    _long(
        "retention.ms",
        "log.retention.ms",
        604_800_000,
        -1,
        "The age beyond which old segments are deleted, whether consumed or not, in milliseconds; -1: no limit.",
    ),
    _int(
        "segment.bytes",
        "log.segment.bytes",
        1024**3,
        1024,
        "The size at which a new segment is begun, in bytes.",
    ),
    _int(
        "segment.index.bytes",
        "log.index.size.max.bytes",
        10 * 1024**2,
        4,
        "The largest size of a segment's offset index, in bytes; a full one begins a new segment.",
    ),
    _long(
        "segment.jitter.ms",
        "log.roll.jitter.ms",
        0,
        0,
        "How much sooner than segment.ms a segment may be closed, each by its own share of it, in milliseconds.",
    ),
    _long(
        "segment.ms",
        "log.roll.ms",
        604_800_000,
        1,
        "The age at which a new segment is begun even if the old one is not full, in milliseconds.",
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "true: a replica that is not in sync may lead when no other can, and acknowledged records may be lost.",
        boolean,
        "unclean.leader.election.enable",
        broker=False,
    ),
)

_BROKER_KEYS = (
    ConfigKey(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "false",
        "true: a topic that a client names is created with the defaults of the brokers.",
        boolean,
        "auto.create.topics.enable",
        topic=False,
        broker=False,
    ),
    ConfigKey(
        "default.replication.factor",
        ConfigType.INT,
        "-1",
        "Replicas of a topic created without saying how many; -1: three, or as many as there are brokers.",
        integer(-1, 32_767),
        "default.replication.factor",
        topic=False,
        broker=False,
    ),
    ConfigKey(
        "flush.policy",
        ConfigType.STRING,
        "ack",
        "ack: a replica counts towards the high watermark once it has synced; replicate: once it has it in memory, so "
        "that losing the power of min.insync.replicas machines at once can lose acknowledged records. A broker reads "
        "it when it starts.",
        one_of("ack", "replicate"),
        "flush.policy",
        topic=False,
    ),
    _throttled_rate("follower", "What a broker fetches for throttled replicas"),
    _throttled_rate("leader", "What a broker sends to throttled replicas"),
    ConfigKey(
        "num.partitions",
        ConfigType.INT,
        "1",
        "Partitions of a topic created without saying how many.",
        integer(1, INT32_MAX),
        "num.partitions",
        topic=False,
        broker=False,
    ),
)

_ALL_TOPIC_KEYS = tuple(with_reason(key) for key in (*_TOPIC_KEYS, *IDLE_TOPIC_KEYS))

TOPIC_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in sorted(_ALL_TOPIC_KEYS, key=lambda key: key.name)}
"""What may be set on a topic, by its topic name, sorted."""

BROKER_CONFIGS: Mapping[str, ConfigKey] = {
    key.broker_name: key
    for key in sorted((*_ALL_TOPIC_KEYS, *_BROKER_KEYS, *DISK_KEYS), key=lambda key: key.broker_name)
    if key.broker_name
}
"""What may be set on brokers while they run, by its broker name, sorted."""

REMOVED_FROM_KAFKA = frozenset(
    {"message.downconversion.enable", "message.format.version", "message.timestamp.difference.max.ms"}
)
"""Kafka 4.0 took these out, and refuses them since."""


def topic_key(name: str, value: str) -> ConfigKey:
    """The topic config of that name.

    Raises:
        ConfigError: there is none; the sentence says whether Kafka had one.
    """
    key = TOPIC_CONFIGS.get(name)
    if key is not None:
        return key
    if name in REMOVED_FROM_KAFKA:
        raise ConfigError(name, value, "Kafka 4.0 removed this topic config, and nothing here goes by it")
    if name in BROKER_CONFIGS:
        raise ConfigError(name, value, "it is a config of brokers, not of topics")
    near = [known for known in TOPIC_CONFIGS if known.split(".")[0] == name.split(".", maxsplit=1)[0]]
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise ConfigError(name, value, f"no topic config has this name{hint}")


def validate_topic_configs(values: Mapping[str, str]) -> None:
    """Check names and values of a topic's own configs. Raises ConfigError."""
    for name, value in values.items():
        topic_key(name, value).validate(name, value)


def validate_broker_configs(values: Mapping[str, str], *, cluster_default: bool) -> None:
    """Check names and values of dynamic broker configs, of one broker or of all. Raises ConfigError."""
    for name, value in values.items():
        key = BROKER_CONFIGS.get(name)
        if key is None:
            raise ConfigError(name, value, _why_not_live(name))
        if not cluster_default and not key.broker:
            raise ConfigError(name, value, "it can only be set for all brokers at once, as the cluster's default")
        key.validate(name, value)


def _why_not_live(name: str) -> str:
    if name.startswith(("log.cleaner.threads", "log.cleaner.enable", "log.cleaner.io.buffer.")):
        return CLEANER_HAS_NO_THREADS
    return "no broker config of this name may change while the broker runs; docs/configuration.md lists those that may"


def settings_without_effect(values: Mapping[str, str], *, topic: bool) -> dict[str, str]:
    """Those of a topic's or a broker's settings that do nothing yet, and why."""
    table = TOPIC_CONFIGS if topic else BROKER_CONFIGS
    reasons = {name: table[name].without_effect(value) for name, value in values.items() if name in table}
    return {name: reason for name, reason in reasons.items() if reason}
