"""The settings of topics, and those of brokers that may change while they run: Kafka's names, defaults, rules.

A topic's value is the one set on the topic, else the broker's dynamic one, else the cluster's dynamic default, else the
broker's own file, else the default of this table; a topic's setting and the broker's that it falls back on may differ
in name (`Setting.broker`), and some have none. Kafka has no `flush.policy`.

Every topic setting of Kafka 4 is taken, so that what is written for Kafka works. What has no effect says so
(`Setting.idle`): in DescribeConfigs, in the log of the broker that sets it, on the command line and in `doctor`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strandline.controller.metadata.tiers import REMOTE_STORAGE_ENABLE
from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.free_space import RESERVE_BYTES
from strandline.proto.errors import ConfigError
from strandline.proto.settings import (
    INT32_MAX,
    INT64_MAX,
    ConfigType,
    Scope,
    Setting,
    Settings,
    boolean,
    milliseconds,
    number,
    parsed,
    size,
    split_list,
    whole,
    word,
    words,
)

CLEANER_HAS_NO_THREADS = (
    "compaction is always on and runs in the event loop: there are no threads and no buffers but "
    "log.cleaner.dedupe.buffer.size to set"
)

_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_REPLICAS = "nothing, *, or a list of partition:broker"


def _throttled(side: str, sentence: str) -> Setting[tuple[str, ...]]:
    """Setting that lists the throttled replicas of a topic (KIP-73). `side` is "leader" or "follower"."""

    def parse(name: str, text: str) -> tuple[str, ...]:
        parts = tuple(split_list(text))
        if parts != ("*",) and not all(_REPLICA.fullmatch(part) for part in parts):
            raise ConfigError(name, text, _REPLICAS)
        return parts

    name = f"{side}.replication.throttled.replicas"
    return parsed(name, parse, "", f"{sentence}, as partition:broker,...; *: all.", _REPLICAS, type=ConfigType.LIST)


def _throttled_rate(side: str, sentence: str) -> Setting[int]:
    return whole(
        f"{side}.replication.throttled.rate",
        INT64_MAX,
        f"{sentence} of topics with {side}.replication.throttled.replicas, in bytes per second.",
        low=1,
        high=INT64_MAX,
        because=" (at 0 a throttled replica would never catch up; without the setting nothing is throttled)",
        unit="bytes/s",
    )


def _all_or_none(name: str, text: str) -> bool:
    """Parse `cordoned.log.dirs`: True for all directories of the broker ("*"), False for none. Raises ConfigError."""
    if split_list(text) not in ([], ["*"]):
        raise ConfigError(name, text, _CORDONED)
    return bool(split_list(text))


_CORDONED = "* (all of the broker's directories) or nothing; `strandline log move` empties a single one"
_FLUSH = "flush.policy says when records are synced, by default before each acknowledgement"
_LAG = "a segment is copied once it is closed and committed"
_ONE_WAY = "a topic is tiered as long as it has segments in the object store"


class TopicSettings(Settings, scope=Scope.TOPIC):
    """Settings of a topic."""

    cleanup_policy = words(
        "cleanup.policy",
        "delete",
        "delete: old segments are deleted by retention.ms and retention.bytes; compact: the last record of each key "
        "is kept.",
        "delete",
        "compact",
        broker="log.cleanup.policy",
    )
    compression_gzip_level = whole(
        "compression.gzip.level",
        -1,
        "Level of compression where compression.type is gzip; -1: zlib's default, 6.",
        low=1,
        high=9,
        others=(-1,),
        broker="compression.gzip.level",
    )
    compression_lz4_level = whole(
        "compression.lz4.level",
        9,
        "Level of compression where compression.type is lz4; 9: the fast compressor of lz4, any other: the slower one "
        "that compresses more.",
        low=1,
        high=17,
        broker="compression.lz4.level",
    )
    compression_type = word(
        "compression.type",
        "producer",
        "Codec of stored batches; producer: batches keep the producer's codec. The leader recompresses batches of "
        "another codec.",
        *("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        broker="compression.type",
    )
    compression_zstd_level = whole(
        "compression.zstd.level",
        3,
        "Level of compression where compression.type is zstd; levels from 4 on take many times as long.",
        low=-131_072,
        high=22,
        broker="compression.zstd.level",
    )
    delete_retention_ms = milliseconds(
        "delete.retention.ms",
        86_400_000,
        "Time that tombstones of a compacted topic are kept.",
        low=0,
        high=INT64_MAX,
        broker="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms = milliseconds(
        "file.delete.delay.ms",
        60_000,
        "Time that the files of a deleted segment stay on disk before they are removed.",
        low=0,
        high=INT64_MAX,
        broker="log.segment.delete.delay.ms",
    )
    flush_messages = whole(
        "flush.messages",
        INT64_MAX,
        "Number of records after which the log is synced.",
        low=1,
        high=INT64_MAX,
        idle=_FLUSH,
    )
    flush_ms = milliseconds(
        "flush.ms", INT64_MAX, "Time after which the log is synced.", low=0, high=INT64_MAX, idle=_FLUSH
    )
    follower_throttled_replicas = _throttled(
        "follower", "Replicas that fetch within follower.replication.throttled.rate while out of the ISR"
    )
    index_interval_bytes = size(
        "index.interval.bytes",
        4096,
        "Bytes of the log between two entries of the offset index, approximately.",
        high=INT32_MAX,
        broker="log.index.interval.bytes",
    )
    leader_throttled_replicas = _throttled(
        "leader", "Leader replicas that send within leader.replication.throttled.rate to those out of the ISR"
    )
    local_retention_bytes = size(
        "local.retention.bytes",
        -2,
        "With remote.storage.enable: size of a partition on the broker's disk above which copied segments are deleted "
        "there; -2: the value of retention.bytes, which it must not exceed.",
        low=-2,
        broker="log.local.retention.bytes",
    )
    local_retention_ms = milliseconds(
        "local.retention.ms",
        -2,
        "With remote.storage.enable: age above which copied segments are deleted from the brokers' disks; -2: the "
        "value of retention.ms, which it must not exceed.",
        low=-2,
        high=INT64_MAX,
        broker="log.local.retention.ms",
    )
    max_compaction_lag_ms = milliseconds(
        "max.compaction.lag.ms",
        INT64_MAX,
        "Longest time that a record may stay uncompacted.",
        high=INT64_MAX,
        broker="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes = whole(
        "max.message.bytes",
        1_048_588,
        "Maximum size of a record batch after compression, both as received and as stored; 100663296 (96 MiB) at most.",
        low=0,
        high=BATCH_BYTES_MAX,
        because=" (96 MiB, which is what the default of socket.request.max.bytes lets in)",
        unit="bytes",
        broker="message.max.bytes",
    )
    message_timestamp_after_max_ms = milliseconds(
        "message.timestamp.after.max.ms",
        3_600_000,
        "Maximum time by which a record's timestamp may be ahead of the broker's clock; later ones are refused.",
        low=0,
        high=INT64_MAX,
        broker="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms = milliseconds(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        "Maximum time by which a record's timestamp may be behind the broker's clock; earlier ones are refused.",
        low=0,
        high=INT64_MAX,
        broker="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type = word(
        "message.timestamp.type",
        "CreateTime",
        "CreateTime: records keep the producer's timestamp; LogAppendTime: the leader sets the timestamp.",
        "CreateTime",
        "LogAppendTime",
        broker="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio = number(
        "min.cleanable.dirty.ratio",
        "0.5",
        "Share of a log that must be uncompacted before the log is compacted.",
        low=0,
        high=1,
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms = milliseconds(
        "min.compaction.lag.ms",
        0,
        "Shortest time that a record stays uncompacted.",
        low=0,
        high=INT64_MAX,
        broker="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas = whole(
        "min.insync.replicas",
        2,
        "Minimum in-sync replicas for a write with acks=all; with fewer it is refused. A topic with fewer replicas "
        "than this needs all of them in sync.",
        low=1,
        high=INT32_MAX,
        broker="min.insync.replicas",
        cluster_wide=True,
        agreed=True,
    )
    preallocate = boolean(
        "preallocate",
        False,
        "true: files of new segments are allocated at their full size.",
        exact=True,
        idle="files are allocated ahead of their data in steps that grow with the segment",
    )
    remote_copy_lag_bytes = size(
        "remote.copy.lag.bytes", 0, "Bytes that wait before they are copied to the remote tier.", low=-1, idle=_LAG
    )
    remote_copy_lag_ms = milliseconds(
        "remote.copy.lag.ms",
        0,
        "Time that a segment waits before it is copied to the remote tier.",
        low=-1,
        high=INT64_MAX,
        idle=_LAG,
    )
    remote_log_copy_disable = word(
        "remote.log.copy.disable",
        "false",
        "true: no more segments are copied to the remote tier. Not supported: only false is accepted.",
        "false",
        because=" (what is closed of a tiered topic is copied)",
        type=ConfigType.BOOLEAN,
        idle=_ONE_WAY,
    )
    remote_log_delete_on_disable = word(
        "remote.log.delete.on.disable",
        "false",
        "true: the topic's segments in the remote tier are deleted when the tier is turned off. Not supported: only "
        "false is accepted.",
        "false",
        because=" (what is in the object store goes by retention, or with the topic)",
        type=ConfigType.BOOLEAN,
        idle=_ONE_WAY,
    )
    remote_storage_enable = boolean(
        REMOTE_STORAGE_ENABLE,
        False,
        "true: closed segments are copied to the object store of remote.log.storage.url and can be read from there. "
        "Not with cleanup.policy=compact; it can be set back to false only when the topic has no segments left there.",
        exact=True,
    )
    retention_bytes = size(
        "retention.bytes",
        -1,
        "Size of a partition above which its oldest segments are deleted; -1: no limit.",
        low=-1,
        broker="log.retention.bytes",
    )
    retention_ms = milliseconds(
        "retention.ms",
        604_800_000,
        "Age above which segments are deleted, whether consumed or not; -1: no limit.",
        low=-1,
        high=INT64_MAX,
        broker="log.retention.ms",
    )
    segment_bytes = size(
        "segment.bytes",
        1024**3,
        "Size of a segment at which a new one is begun.",
        low=1024,
        high=INT32_MAX,
        broker="log.segment.bytes",
    )
    segment_index_bytes = size(
        "segment.index.bytes",
        10 * 1024**2,
        "Maximum size of a segment's offset index; when it is full, a new segment is begun.",
        low=4,
        high=INT32_MAX,
        broker="log.index.size.max.bytes",
    )
    segment_jitter_ms = milliseconds(
        "segment.jitter.ms",
        0,
        "Maximum time by which a segment may be closed sooner than segment.ms; each segment has a share of its own of "
        "it.",
        low=0,
        high=INT64_MAX,
        broker="log.roll.jitter.ms",
    )
    segment_ms = milliseconds(
        "segment.ms",
        604_800_000,
        "Age of a segment at which a new one is begun even if the old one is not full.",
        high=INT64_MAX,
        broker="log.roll.ms",
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "true: a replica that is not in sync may become leader if no other replica can; acknowledged records may be "
        "lost.",
        exact=True,
        broker="unclean.leader.election.enable",
        cluster_wide=True,
        agreed=True,
    )


class BrokerSettings(Settings, scope=Scope.BROKER):
    """Settings of a broker that may change while it runs, besides the defaults of topics."""

    auto_create_topics_enable = boolean(
        "auto.create.topics.enable",
        False,
        "true: a topic that does not exist is created, with the brokers' defaults, when a client asks for it.",
        exact=True,
        cluster_wide=True,
    )
    cordoned_log_dirs = parsed(
        "cordoned.log.dirs",
        _all_or_none,
        "",
        "*: the broker gets no new replicas and keeps those it has (KIP-1066); `strandline broker cordon` sets it. The "
        "controller uses only the value in the cluster's metadata, so that a broker that is down stays cordoned.",
        _CORDONED,
        type=ConfigType.LIST,
        agreed=True,
    )
    default_replication_factor = whole(
        "default.replication.factor",
        -1,
        "Replicas of a topic that is created without a number of replicas; -1: three, or one per broker if there are "
        "fewer.",
        low=-1,
        high=32_767,
        cluster_wide=True,
    )
    flush_policy = word(
        "flush.policy",
        "ack",
        "ack: a replica counts towards the high watermark once its records are synced; replicate: once they are in "
        "its memory, so that a power failure of min.insync.replicas machines at the same time can lose acknowledged "
        "records. A broker reads the setting only when it starts.",
        "ack",
        "replicate",
    )
    follower_throttled_rate = _throttled_rate(
        "follower", "Maximum rate at which a broker fetches for throttled replicas"
    )
    leader_throttled_rate = _throttled_rate("leader", "Maximum rate at which a broker sends to throttled replicas")
    log_cleaner_backoff_ms = milliseconds(
        "log.cleaner.backoff.ms",
        15_000,
        "Interval between checks for a compacted log that has enough uncompacted records.",
        type=ConfigType.LONG,
    )
    log_cleaner_dedupe_buffer_size = size(
        "log.cleaner.dedupe.buffer.size",
        128 << 20,
        "Memory for the keys of the log that is being compacted: 42 bytes for each key (192 without compiled code; 27 "
        "in Kafka). Records whose keys do not fit wait for the next pass. A change applies from the next pass on.",
        low=1 << 20,
    )
    log_cleaner_io_max_bytes_per_second = number(
        "log.cleaner.io.max.bytes.per.second",
        "1.7976931348623157E308",
        "Bytes that compaction reads and writes per second, together; the default is no limit.",
        above=0,
        unit="bytes/s",
    )
    log_dir_reserve_bytes = size(
        "log.dir.reserve.bytes",
        RESERVE_BYTES,
        "Free space of the disk that is kept for metadata, checkpoints and deletions: with less free space, the broker "
        "writes no more records of clients and gives up leadership. At most 1/64 of the disk. 0: no space is kept "
        "free, and the broker writes until a write fails.",
        low=0,
        high=2**40,
    )
    log_scrub_interval_ms = milliseconds(
        "log.scrub.interval.ms",
        604_800_000,
        "Interval between scrubs: reads of all logs of the broker that find damaged bits in data that no client reads "
        "(rule B19 in docs/rules.md). The first one starts an hour after the broker starts, or after the setting was "
        "0. 0: no scrubs, and a current one ends.",
        low=0,
        high=2**53,
    )
    log_scrub_max_bytes_per_second = size(
        "log.scrub.max.bytes.per.second",
        10 << 20,
        "Maximum bytes that the scrub reads per second.",
        low=64 << 10,
        high=2**40,
        unit="bytes/s",
    )
    num_partitions = whole(
        "num.partitions",
        1,
        "Partitions of a topic that is created without a number of partitions.",
        low=1,
        high=INT32_MAX,
        cluster_wide=True,
    )


CLIENT_KEYS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
)
"""Attributes of a client that a subscription may match. Kafka's `client_source_port` is left out: it tells nothing."""

_MATCH = f"a list of key=pattern, where key is one of {', '.join(CLIENT_KEYS)}, and pattern a regular expression (RE2)"

MATCH_CHARS_MAX = 1_000
"""Maximum characters of all patterns of a subscription together."""


def _match(name: str, text: str) -> dict[str, str]:
    """Parse a subscription's `match`: attribute -> regular expression. Raises ConfigError."""
    found: dict[str, str] = {}
    for part in split_list(text):
        key, equals, pattern = part.partition("=")
        if not equals or key.strip() not in CLIENT_KEYS or key.strip() in found or len(text) > MATCH_CHARS_MAX:
            raise ConfigError(name, text, _MATCH)
        found[key.strip()] = pattern.strip()
    return found


class ClientMetricsSettings(Settings, scope=Scope.CLIENT_METRICS):
    """Settings of a subscription to client metrics: which clients push which metrics, and how often (KIP-714)."""

    metrics = parsed(
        "metrics",
        lambda _name, text: tuple(split_list(text)),
        "",
        "Prefixes of the names of metrics that clients push; *: all of a client's metrics; empty: none.",
        "a list of prefixes, or *",
        type=ConfigType.LIST,
    )
    interval_ms = milliseconds(
        "interval.ms",
        300_000,
        "Interval at which clients push; if several subscriptions match a client, the shortest interval applies.",
        low=100,
        high=3_600_000,
    )
    match = parsed(
        "match",
        _match,
        "",
        "Clients that push, as key=pattern for each property: every pattern must match the whole value; empty: every "
        "client.",
        _MATCH,
        type=ConfigType.LIST,
    )


CLIENT_METRICS_SETTINGS: dict[str, Setting[Any]] = dict(sorted(ClientMetricsSettings.rows.items()))
"""Name -> setting of a subscription to client metrics."""

TOPIC_SETTINGS: dict[str, Setting[Any]] = dict(sorted(TopicSettings.rows.items()))
"""Name -> setting of a topic."""

BROKER_SETTINGS: dict[str, Setting[Any]] = {
    row.name: row
    for row in sorted(
        (*BrokerSettings.rows.values(), *(row.of_brokers() for row in TopicSettings.rows.values() if row.broker)),
        key=lambda row: row.name,
    )
}
"""Name -> setting that may change while a broker runs, including the defaults of topics."""

AGREED_KEYS = frozenset(name for name, row in BROKER_SETTINGS.items() if row.agreed)
"""Settings of which the controller and every leader must see the same value, because the high watermark, the eligible
leader replicas and placement depend on it. Only the metadata log and the default count, never a broker's own file."""

REMOVED_FROM_KAFKA = frozenset(
    {"message.downconversion.enable", "message.format.version", "message.timestamp.difference.max.ms"}
)
"""Settings that Kafka 4.0 removed and now refuses."""


def topic_setting(name: str, value: str) -> Setting[Any]:
    """The topic setting called `name`, which somebody wants to set to `value`.

    Raises:
        ConfigError: there is no such setting; the message says whether Kafka once had it.
    """
    row = TOPIC_SETTINGS.get(name)
    if row is not None:
        return row
    if name in REMOVED_FROM_KAFKA:
        raise ConfigError(name, value, "Kafka 4.0 removed this topic config, and nothing here goes by it")
    if name in BROKER_SETTINGS:
        raise ConfigError(name, value, "it is a config of brokers, not of topics")
    near = [known for known in TOPIC_SETTINGS if known.split(".")[0] == name.split(".", maxsplit=1)[0]]
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise ConfigError(name, value, f"no topic config has this name{hint}")


def validate_topic_settings(values: Mapping[str, str]) -> None:
    """Check the names and values of a topic's settings. Raises ConfigError."""
    for name, value in values.items():
        topic_setting(name, value).read(name, value)


def validate_broker_settings(values: Mapping[str, str], *, cluster_default: bool) -> None:
    """Check the names and values of settings of one broker, or of all (`cluster_default`). Raises ConfigError."""
    for name, value in values.items():
        row = BROKER_SETTINGS.get(name)
        if row is None:
            raise ConfigError(name, value, _why_not_live(name))
        if not cluster_default and row.cluster_wide:
            raise ConfigError(name, value, "it can only be set for all brokers at once, as the cluster's default")
        row.read(name, value)


def validate_client_metrics_settings(values: Mapping[str, str]) -> None:
    """Check the names and values of a subscription to client metrics. Raises ConfigError."""
    for name, value in values.items():
        row = CLIENT_METRICS_SETTINGS.get(name)
        if row is None:
            known = ", ".join(CLIENT_METRICS_SETTINGS)
            raise ConfigError(name, value, f"subscriptions to client metrics have {known}, and no other config")
        row.read(name, value)
        if row is ClientMetricsSettings.match:
            for pattern in row.read(name, value).values():
                _check_pattern(name, value, pattern)


def _check_pattern(name: str, value: str, pattern: str) -> None:
    import re2  # needed only when a subscription is made

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ConfigError(name, value, f"{_MATCH}; {pattern!r} is none: {error}") from None


def _why_not_live(name: str) -> str:
    if name.startswith(("log.cleaner.threads", "log.cleaner.enable", "log.cleaner.io.buffer.")):
        return CLEANER_HAS_NO_THREADS
    return "no broker config of this name may change while the broker runs; docs/configuration.md lists those that may"


def settings_without_effect(values: Mapping[str, str], *, topic: bool) -> dict[str, str]:
    """Name -> reason, for each of these settings of a topic or a broker that has no effect."""
    table = TOPIC_SETTINGS if topic else BROKER_SETTINGS
    reasons = {name: table[name].without_effect(value) for name, value in values.items() if name in table}
    return {name: reason for name, reason in reasons.items() if reason}
