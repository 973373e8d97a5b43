"""The configs of topics, and those of brokers that may change while they run: Kafka's names, types, defaults, rules.

A topic's value is the one set on the topic, else the broker's dynamic one, else the cluster's dynamic default, else the
broker's own file, else the default of this table; a topic config and the broker config it falls back on may differ in
name (`broker_name`). `flush.policy` is ours alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from strandline.log.config import BATCH_BYTES_MAX
from strandline.proto.errors import ConfigError

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_FRACTION = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?([eE]-?[0-9]{1,2})?")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """The type of a value, with the numbers of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


Validator = Callable[[str, str], None]
"""(name, value) -> nothing, or ConfigError."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One config.

    Attributes:
        broker_name: the broker config a topic falls back on; the same as `name` for configs of brokers alone.
        default: what holds when nobody says anything, as text.
        doc: one sentence for people, with unit.
        topic: may be set on a topic; broker: on one broker; cluster: as the default of all brokers.
    """

    name: str
    type: ConfigType
    default: str
    doc: str
    validate: Validator
    broker_name: str
    topic: bool = True
    broker: bool = True
    cluster: bool = True


def _integer(low: int, high: int, because: str = "") -> Validator:
    def validate(name: str, value: str) -> None:
        if not _WHOLE_NUMBER.fullmatch(value) or not low <= int(value) <= high:
            raise ConfigError(name, value, f"a whole number from {low} to {high}{because}")

    return validate


def _ratio(name: str, value: str) -> None:
    if not _FRACTION.fullmatch(value) or not 0.0 <= float(value) <= 1.0:
        raise ConfigError(name, value, "a number from 0 to 1")


def _one_of(*allowed: str, because: str = "") -> Validator:
    def validate(name: str, value: str) -> None:
        if value not in allowed:
            raise ConfigError(name, value, "one of " + ", ".join(allowed) + because)

    return validate


def _list_of(*allowed: str) -> Validator:
    def validate(name: str, value: str) -> None:
        parts = split_list(value)
        if not parts or any(part not in allowed for part in parts) or len(parts) > len(set(parts)):
            raise ConfigError(name, value, "a list of " + ", ".join(allowed) + ", each once at most")

    return validate


_boolean = _one_of("true", "false")


def _int(name: str, broker_name: str, default: int, low: int, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.INT, str(default), doc, _integer(low, INT32_MAX), broker_name)


def _long(name: str, broker_name: str, default: int, low: int, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.LONG, str(default), doc, _integer(low, INT64_MAX), broker_name)


_FOR_COMPACTION = " Takes effect with compaction, which is not served yet."
_FOR_RETENTION = " Takes effect with retention, which is not served yet: nothing is deleted by itself."

_TOPIC_KEYS = (
    ConfigKey(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "delete: old segments shall go by retention.ms and retention.bytes; compact: the last record of each key shall "
        "stay. Neither is served yet: every record is kept.",
        _list_of("delete", "compact"),
        "log.cleanup.policy",
    ),
    ConfigKey(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "producer: batches stay as the producer compressed them; the broker never re-encodes a batch.",
        _one_of("producer", because=" (the broker never re-encodes a batch)"),
        "compression.type",
    ),
    _long(
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
        86_400_000,
        0,
        "How long tombstones of a compacted topic are kept, in milliseconds." + _FOR_COMPACTION,
    ),
    _long(
        "file.delete.delay.ms",
        "log.segment.delete.delay.ms",
        60_000,
        0,
        "How long a deleted segment's files stay on disk before they are unlinked, in milliseconds.",
    ),
    _int(
        "index.interval.bytes",
        "log.index.interval.bytes",
        4096,
        1,
        "An entry is added to the offset index about every so many bytes of log.",
    ),
    ConfigKey(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        "The largest record batch that is accepted, in bytes, after compression; 100663296 (96 MiB) at most.",
        _integer(
            0,
            BATCH_BYTES_MAX,
            " (96 MiB, which is what the default of socket.request.max.bytes lets in)",
        ),
        "message.max.bytes",
    ),
    _long(
        "max.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        INT64_MAX,
        1,
        "The longest time a record may stay uncompacted, in milliseconds." + _FOR_COMPACTION,
    ),
    ConfigKey(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "CreateTime: records keep the producer's time; LogAppendTime: the leader sets its own.",
        _one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "How much of a log must be uncompacted before it is compacted." + _FOR_COMPACTION,
        _ratio,
        "log.cleaner.min.cleanable.ratio",
    ),
    _long(
        "min.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        0,
        0,
        "The shortest time a record stays uncompacted, in milliseconds." + _FOR_COMPACTION,
    ),
    ConfigKey(
        "min.insync.replicas",
        ConfigType.INT,
        "2",
        "With acks=all, a write is refused while fewer replicas than this are in sync; a topic with fewer replicas "
        "than this needs them all.",
        _integer(1, INT32_MAX),
        "min.insync.replicas",
        broker=False,
    ),
    _long(
        "retention.bytes",
        "log.retention.bytes",
        -1,
        -1,
        "The size beyond which old segments of a partition are deleted, in bytes; -1: no limit." + _FOR_RETENTION,
    ),
    _long(
        "retention.ms",
        "log.retention.ms",
        604_800_000,
        -1,
        "The age beyond which old segments are deleted, whether consumed or not, in milliseconds; -1: no limit."
        + _FOR_RETENTION,
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
        _boolean,
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
        _boolean,
        "auto.create.topics.enable",
        topic=False,
        broker=False,
    ),
    ConfigKey(
        "default.replication.factor",
        ConfigType.INT,
        "-1",
        "Replicas of a topic created without saying how many; -1: three, or as many as there are brokers.",
        _integer(-1, 32_767),
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
        _one_of("ack", "replicate"),
        "flush.policy",
        topic=False,
    ),
    ConfigKey(
        "num.partitions",
        ConfigType.INT,
        "1",
        "Partitions of a topic created without saying how many.",
        _integer(1, INT32_MAX),
        "num.partitions",
        topic=False,
        broker=False,
    ),
)

TOPIC_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in sorted(_TOPIC_KEYS, key=lambda key: key.name)}
"""What may be set on a topic, by its topic name, sorted."""

BROKER_CONFIGS: Mapping[str, ConfigKey] = {
    key.broker_name: key for key in sorted((*_TOPIC_KEYS, *_BROKER_KEYS), key=lambda key: key.broker_name)
}
"""What may be set on brokers while they run, by its broker name, sorted."""

KAFKA_ONLY_TOPIC_CONFIGS = frozenset(
    {
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "preallocate",
        "remote.storage.enable",
        "segment.jitter.ms",
    }
)
"""Kafka has these and Strandline does not serve them: refused by name, for an option without effect is a lie."""


def split_list(value: str) -> list[str]:
    """The parts of a LIST value."""
    return [part.strip() for part in value.split(",") if part.strip()]


def topic_key(name: str, value: str) -> ConfigKey:
    """The topic config of that name.

    Raises:
        ConfigError: there is none; the sentence says whether Kafka has one.
    """
    key = TOPIC_CONFIGS.get(name)
    if key is not None:
        return key
    if name in KAFKA_ONLY_TOPIC_CONFIGS:
        raise ConfigError(name, value, "Kafka has this topic config, Strandline does not serve it")
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
            raise ConfigError(name, value, "no broker config of this name may change while the broker runs")
        if not cluster_default and not key.broker:
            raise ConfigError(name, value, "it can only be set for all brokers at once, as the cluster's default")
        key.validate(name, value)
