"""The table of configs, and which value holds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from strandline.controller.metadata.config_resolver import ConfigResolver, ConfigSource
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import ConfigRecord, MetadataVersionRecord, PartitionRecord
from strandline.controller.metadata.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    TopicSettings,
    settings_without_effect,
    topic_setting,
)
from strandline.log.config import LogConfig
from strandline.proto.errors import ConfigError
from strandline.proto.ids import LeaderEpoch, PartitionEpoch
from strandline.proto.words import without_effect


def image_with(*configs: tuple[int, str, str, str]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage("c"))
    delta.apply(MetadataVersionRecord(1))
    delta.apply_all(ConfigRecord(*config) for config in configs)
    return delta.image(0, 1, 0)


def partition(replicas: tuple[int, ...], **move: Any) -> PartitionRecord:
    return PartitionRecord(UUID(int=1), 0, replicas, (1,), (), (), 1, LeaderEpoch(0), PartitionEpoch(0), False, **move)


def test_defaults_are_those_of_the_log_and_of_kafka() -> None:
    """Row S74: 604800000 ms; a topic nobody configured is logged as LogConfig's own defaults say."""
    assert ConfigResolver({}).log_config(image_with(), "t") == LogConfig(timestamp_after_max_ms=3_600_000)
    assert TOPIC_SETTINGS["retention.ms"].default == "604800000"
    assert TOPIC_SETTINGS["min.insync.replicas"].default == "2"
    assert TOPIC_SETTINGS["unclean.leader.election.enable"].default == "false"


KAFKA_4_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.copy.lag.bytes": "0",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Every topic config of Apache Kafka 4 (LogConfig.java), and its default."""


def test_every_topic_config_of_kafka_is_taken_at_kafkas_default() -> None:
    """What is written for Kafka works: a topic of Terraform's, Connect's or Streams' names many at their defaults."""
    assert set(TOPIC_SETTINGS) == set(KAFKA_4_DEFAULTS)
    for name, value in KAFKA_4_DEFAULTS.items():
        TOPIC_SETTINGS[name].read(name, value)
        if name != "min.insync.replicas":  # safe by default: 2
            assert TOPIC_SETTINGS[name].default == value


def test_what_has_no_effect_says_so_and_what_asks_for_nothing_does_not() -> None:
    """Nothing silent: a value that does nothing has a reason; one that says what is done anyway has none."""
    given = {"retention.ms": "1000", "segment.ms": "1000", "compression.type": "zstd", "flush.ms": "10"}
    assert list(settings_without_effect(given, topic=True)) == ["flush.ms"]
    asks_nothing = {"retention.ms": "-1", "compression.type": "producer", "cleanup.policy": "delete"}
    assert settings_without_effect(asks_nothing, topic=True) == {}
    given = {"compression.type": "zstd", "log.cleanup.policy": "compact"}
    assert settings_without_effect(given, topic=False) == {}, "every setting of brokers has its effect"
    for row in TOPIC_SETTINGS.values():
        assert without_effect(row.documentation, row.default) == ""
        assert without_effect(row.documentation, "another") == row.idle


def test_a_config_that_kafka_removed_is_refused_as_kafka_refuses_it() -> None:
    """Kafka 4.0 answers INVALID_CONFIG to these, too."""
    for name in ("message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"):
        with pytest.raises(ConfigError, match=r"Kafka 4\.0 removed"):
            topic_setting(name, "true")


def test_precedence_and_synonyms() -> None:
    """Topic, then this broker, then all brokers, then the file, then the default; each under the name it was set by."""
    image = image_with(
        (2, "t", "retention.ms", "1"), (4, "3", "log.retention.ms", "2"), (4, "", "log.retention.ms", "3")
    )
    resolver = ConfigResolver({"log.retention.ms": "4"}, 3)
    entry = next(one for one in resolver.topic_entries(image, "t") if one.name == "retention.ms")
    assert [(one.name, one.value, one.source) for one in entry.synonyms] == [
        ("retention.ms", "1", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "2", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.ms", "4", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG),
    ]
    assert (entry.value, entry.is_default) == ("1", False)
    assert resolver.topic_value(image, "other", TopicSettings.retention_ms) == 2
    assert ConfigResolver({}, 4).topic_value(image, "other", TopicSettings.retention_ms) == 3
    broker = next(one for one in resolver.broker_entries(image) if one.name == "log.retention.ms")
    assert (broker.value, broker.source) == ("2", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert [one.value for one in resolver.cluster_default_entries(image)] == ["3"]


def test_what_all_nodes_must_agree_on_does_not_come_from_one_nodes_file() -> None:
    """Controller and leaders must see one min.insync.replicas: the strict watermark rule and the ELR rest on it."""
    resolver = ConfigResolver({"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}, 1)
    three = image_with((4, "", "min.insync.replicas", "3"))
    assert resolver.min_insync_replicas(image_with(), "t", partition((1, 2, 3))) == 2
    assert not resolver.unclean_election_enabled(image_with(), "t")
    assert resolver.min_insync_replicas(three, "t", partition((1, 2, 3))) == 3
    assert resolver.min_insync_replicas(three, "t", partition((1, 2))) == 2


def test_a_move_under_way_changes_no_min_insync_replicas() -> None:
    """Rule B45: replicas that come count once the move is over, and so do those that go."""
    resolver, image = ConfigResolver({}, 1), image_with((4, "", "min.insync.replicas", "3"))
    assert resolver.min_insync_replicas(image, "t", partition((2, 3, 1), adding_replicas=(2, 3))) == 1
    assert resolver.min_insync_replicas(image, "t", partition((1, 2, 3), removing_replicas=(2, 3))) == 3


def test_configs_of_a_topic_to_be() -> None:
    """CreateTopics answers the configs of a topic that is not in the image yet."""
    entries = ConfigResolver({}).topic_entries(image_with(), "new", {"segment.bytes": "4096"})
    found = {entry.name: (entry.value, entry.source) for entry in entries}
    assert found["segment.bytes"] == ("4096", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert list(found) == sorted(TOPIC_SETTINGS)


def test_compacted_topics_lose_nothing_to_retention() -> None:
    """compact without delete: time and size delete nothing."""
    image = image_with((2, "t", "cleanup.policy", "compact"), (2, "t", "retention.ms", "5"))
    config = ConfigResolver({}).log_config(image, "t")
    assert (config.compacted, config.retention_ms, config.retention_bytes) == (True, -1, -1)


def test_a_record_waits_no_longer_than_max_compaction_lag() -> None:
    """KIP-354: its segment is closed by then, for the active one is not compacted."""
    image = image_with((2, "t", "max.compaction.lag.ms", "5000"))
    assert ConfigResolver({}).log_config(image, "t").segment_ms == 604_800_000, "the topic is not compacted"
    image = image_with((2, "t", "cleanup.policy", "compact,delete"), (2, "t", "max.compaction.lag.ms", "5000"))
    config = ConfigResolver({}).log_config(image, "t")
    assert (config.segment_ms, config.max_compaction_lag_ms, config.retention_ms) == (5_000, 5_000, 604_800_000)


@pytest.mark.parametrize(
    ("listed", "throttled"),
    [("", []), ("*", [0, 1, 2]), ("0:3,1:4, 2:3", [0, 2]), ("00:03", [0]), ("0:33", [])],
)
def test_which_replicas_are_throttled(listed: str, throttled: list[int]) -> None:
    """KIP-73: those of this broker that the topic lists, on the side that it lists them for."""
    image = image_with((2, "t", "follower.replication.throttled.replicas", listed))
    resolver = ConfigResolver({}, 3)
    assert [number for number in range(3) if resolver.follower_throttled(image, "t", number)] == throttled
    assert not any(resolver.leader_throttled(image, "t", number) for number in range(3))


def test_the_rate_of_one_broker_is_its_own() -> None:
    image = image_with(
        (4, "3", "leader.replication.throttled.rate", "1000"), (4, "", "leader.replication.throttled.rate", "9")
    )
    assert ConfigResolver({}, 3).leader_throttled_rate(image) == 1000
    assert ConfigResolver({}, 4).leader_throttled_rate(image) == 9
    assert ConfigResolver({}, 4).follower_throttled_rate(image) == 2**63 - 1, "Kafka's default: none"


def test_what_an_earlier_version_allowed_counts_as_the_bound_of_today() -> None:
    """max.message.bytes had no bound once: a log that says more must not stop the node that reads it."""
    image = image_with((2, "t", "max.message.bytes", "2147483647"), (4, "", "log.segment.bytes", "1"))
    config = ConfigResolver({}).log_config(image, "t")
    assert (config.max_message_bytes, config.segment_bytes) == (96 << 20, 1024)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("segment.bytes", ["1024", "2147483647"], ["1023", "2147483648", "1e6", "", " 2000", "2_000"]),
        ("max.message.bytes", ["0", "100663296"], ["-1", "100663297", "96 MiB"]),
        ("retention.ms", ["-1", "0", "9223372036854775807"], ["-2", "9223372036854775808", "1 day"]),
        ("cleanup.policy", ["delete", "compact,delete", "delete, compact"], ["", "remove", "delete,x"]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["1.1", "-0.1", "nan", "half"]),
        ("unclean.leader.election.enable", ["true", "false"], ["TRUE", "1"]),
        ("flush.policy", ["ack", "replicate"], ["never"]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime"]),
        ("min.insync.replicas", ["1"], ["0"]),
        ("compression.type", ["producer", "uncompressed", "zstd"], ["none", "ZSTD", ""]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10"]),
        ("compression.zstd.level", ["-131072", "22"], ["23"]),
        ("leader.replication.throttled.replicas", ["", "*", "0:1,12:3"], ["0", "0:1:2", "*,0:1", "a:1"]),
        ("leader.replication.throttled.rate", ["1", "9223372036854775807"], ["0", "-1", "9223372036854775808"]),
        ("remote.storage.enable", ["false", "true"], ["yes"]),
        ("remote.log.copy.disable", ["false"], ["true"]),
        ("remote.log.delete.on.disable", ["false"], ["true"]),
        ("local.retention.ms", ["-2", "-1", "0"], ["-3"]),
        ("preallocate", ["true", "false"], ["yes"]),
    ],
)
def test_values(name: str, good: list[str], bad: list[str]) -> None:
    """The limits of each type."""
    row = {**BROKER_SETTINGS, **TOPIC_SETTINGS}[name]
    for value in good:
        row.read(name, value)
    for value in bad:
        with pytest.raises(ConfigError):
            row.read(name, value)
