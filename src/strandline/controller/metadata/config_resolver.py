"""Resolution of a config: which value is in force, and where it was set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

from strandline.controller.metadata.image import (
    CLUSTER_DEFAULT,
    MetadataImage,
    broker_resource,
    topic_resource,
)
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.metadata.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerSettings,
    TopicSettings,
)
from strandline.log.compression import Codec
from strandline.log.config import LogConfig, StoredCodec
from strandline.proto.ids import NodeId
from strandline.proto.settings import Scope, Setting

T = TypeVar("T")


class ConfigSource(IntEnum):
    """Source of a value, with the numbers of Kafka's DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value with the name it was set under (a topic config may fall back on a broker config of another name)."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config as DescribeConfigs shows it; `synonyms` are all values set, the one that holds first."""

    row: Setting[Any]
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigValue, ...]

    @property
    def name(self) -> str:
        """Kafka's name of the setting."""
        return self.row.name

    @property
    def is_default(self) -> bool:
        """True if no value was set, so that the default is in force."""
        return self.source is ConfigSource.DEFAULT_CONFIG


Layers = tuple[tuple[ConfigSource, Mapping[str, str]], ...]


def stored_codec(name: str, levels: Mapping[str, int]) -> StoredCodec | None:
    """Codec and level of a `compression.type` and the level setting that belongs to it."""
    if name == "producer":
        return None
    codec = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    return StoredCodec(codec, levels.get(name))


def local_retention(local: int, whole: int) -> int:
    """Retention on the brokers' disks, bounded by the whole retention, even if a default has been lowered since."""
    if local == -2:
        return whole
    if whole == -1:
        return local
    return whole if local == -1 else min(local, whole)


@lru_cache(maxsize=64)
def _listed(replicas: tuple[str, ...], node_id: NodeId | None) -> frozenset[int] | None:
    """The partitions whose replica on a node is listed as partition:broker,...; None: all. Asked anew for each
    partition of a topic, and a list may name them all."""
    if replicas == ("*",):
        return None
    pairs = [part.split(":") for part in replicas]
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == node_id)


class ConfigResolver:
    """Resolves configs for one node: `static` is what its file says, by broker config names.

    `node_id` is None on a controller, which has no broker configs of its own.
    """

    def __init__(self, static: Mapping[str, str], node_id: NodeId | None = None) -> None:
        self._static = dict(static)
        self._node_id = node_id

    def _layers(self, image: MetadataImage) -> Layers:
        """The broker-level values of the image, in the order of their priority."""
        all_brokers = (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, image.config(CLUSTER_DEFAULT))
        file = (ConfigSource.STATIC_BROKER_CONFIG, self._static)
        if self._node_id is None:
            return all_brokers, file
        return (ConfigSource.DYNAMIC_BROKER_CONFIG, image.config(broker_resource(self._node_id))), all_brokers, file

    def in_force(self, image: MetadataImage, row: Setting[T], own: Mapping[str, str]) -> T:
        """The value that holds of a setting of topics or brokers; `own` are the topic's."""
        return _in_force(row, own, self._layers(image))

    def topic_value(self, image: MetadataImage, topic: str, row: Setting[T]) -> T:
        """The value that holds for `topic` (which need not exist)."""
        return self.in_force(image, row, image.config(topic_resource(topic)))

    def broker_value(self, image: MetadataImage, row: Setting[T]) -> T:
        """The value that holds for this node."""
        return self.in_force(image, row, {})

    def topic_entries(
        self, image: MetadataImage, topic: str, own: Mapping[str, str] | None = None
    ) -> list[ConfigEntry]:
        """All configs of a topic, sorted by name; `own` stands in for what is set on it (a topic to be created)."""
        values = image.config(topic_resource(topic)) if own is None else own
        layers = self._layers(image)
        return [_entry(row, values, layers) for _, row in sorted(TOPIC_SETTINGS.items())]

    def broker_entries(self, image: MetadataImage) -> list[ConfigEntry]:
        """The dynamic configs of this broker, sorted by name."""
        layers = self._layers(image)
        return [_entry(row, {}, layers) for _, row in sorted(BROKER_SETTINGS.items())]

    def cluster_default_entries(self, image: MetadataImage) -> list[ConfigEntry]:
        """Values that are set as the default of all brokers, sorted by name. Kafka too lists only the ones that are
        set."""
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return [
            ConfigEntry(BROKER_SETTINGS[name], value, source, (ConfigValue(name, value, source),))
            for name, value in sorted(image.config(CLUSTER_DEFAULT).items())
            if name in BROKER_SETTINGS
        ]

    def configured_min_insync_replicas(self, image: MetadataImage, topic: str) -> int:
        """min.insync.replicas, whatever the number of replicas."""
        return self.topic_value(image, topic, TopicSettings.min_insync_replicas)

    def min_insync_replicas(self, image: MetadataImage, topic: str, partition: PartitionRecord) -> int:
        """min(min.insync.replicas, replication factor): what the strict high watermark rule and ELR go by (rule B4).
        Replicas that a move adds count once it is over: until then nobody waits for them (rule B45)."""
        factor = len(partition.original_replicas)  # rule B45/moves-raise-min-isr
        return min(self.configured_min_insync_replicas(image, topic), factor)

    def unclean_election_enabled(self, image: MetadataImage, topic: str) -> bool:
        """A replica that is not in sync may lead."""
        return self.topic_value(image, topic, TopicSettings.unclean_leader_election_enable)

    def leader_throttled(self, image: MetadataImage, topic: str, partition: int) -> bool:
        """The replica on this node is listed as throttled while it leads (KIP-73)."""
        return self._is_listed(image, topic, partition, TopicSettings.leader_throttled_replicas)

    def follower_throttled(self, image: MetadataImage, topic: str, partition: int) -> bool:
        """The replica on this node is listed as throttled while it follows (KIP-73)."""
        return self._is_listed(image, topic, partition, TopicSettings.follower_throttled_replicas)

    def _is_listed(self, image: MetadataImage, topic: str, partition: int, row: Setting[tuple[str, ...]]) -> bool:
        listed = _listed(self.topic_value(image, topic, row), self._node_id)
        return listed is None or partition in listed

    def leader_throttled_rate(self, image: MetadataImage) -> int:
        """Maximum bytes per second that this broker may send for throttled replicas."""
        return self.broker_value(image, BrokerSettings.leader_throttled_rate)

    def follower_throttled_rate(self, image: MetadataImage) -> int:
        """Maximum bytes per second that this broker may fetch for throttled replicas."""
        return self.broker_value(image, BrokerSettings.follower_throttled_rate)

    def log_config(self, image: MetadataImage, topic: str) -> LogConfig:
        """Config of a topic's logs on this node."""
        own, layers = image.config(topic_resource(topic)), self._layers(image)

        def value(row: Setting[T]) -> T:
            return _in_force(row, own, layers)

        of = TopicSettings
        policy = value(of.cleanup_policy)
        deletes, compacts = "delete" in policy, "compact" in policy
        max_compaction_lag_ms = value(of.max_compaction_lag_ms)
        segment_ms = value(of.segment_ms)
        retention_ms = value(of.retention_ms) if deletes else -1
        retention_bytes = value(of.retention_bytes) if deletes else -1
        levels = {
            "gzip": value(of.compression_gzip_level),
            "lz4": value(of.compression_lz4_level),
            "zstd": value(of.compression_zstd_level),
        }
        return LogConfig(
            segment_bytes=value(of.segment_bytes),
            segment_ms=min(segment_ms, max_compaction_lag_ms) if compacts else segment_ms,
            segment_jitter_ms=value(of.segment_jitter_ms),
            index_interval_bytes=value(of.index_interval_bytes),
            segment_index_bytes=value(of.segment_index_bytes),
            max_message_bytes=value(of.max_message_bytes),
            stored_codec=stored_codec(value(of.compression_type), levels),
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            remote_storage=value(of.remote_storage_enable),
            local_retention_ms=local_retention(value(of.local_retention_ms), retention_ms),
            local_retention_bytes=local_retention(value(of.local_retention_bytes), retention_bytes),
            compacted=compacts,
            min_cleanable_dirty_ratio=value(of.min_cleanable_dirty_ratio),
            min_compaction_lag_ms=value(of.min_compaction_lag_ms),
            max_compaction_lag_ms=max_compaction_lag_ms,
            delete_retention_ms=value(of.delete_retention_ms),
            message_timestamp_type=value(of.message_timestamp_type),
            timestamp_before_max_ms=value(of.message_timestamp_before_max_ms),
            timestamp_after_max_ms=value(of.message_timestamp_after_max_ms),
            file_delete_delay_ms=value(of.file_delete_delay_ms),
        )


def _entry(row: Setting[Any], own: Mapping[str, str], layers: Layers) -> ConfigEntry:
    """Every value set for a setting, the one that holds first, the default last; `own` are the topic's."""
    found: list[ConfigValue] = []
    if row.name in own:
        found.append(ConfigValue(row.name, own[row.name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
    name = _broker_name(row)
    for source, values in layers:
        if name in values and _counts(source, row):
            found.append(ConfigValue(name, values[name], source))
    found.append(ConfigValue(name or row.name, row.default, ConfigSource.DEFAULT_CONFIG))
    return ConfigEntry(row, found[0].value, found[0].source, tuple(found))


def _in_force(row: Setting[T], own: Mapping[str, str], layers: Layers) -> T:
    if row.name in own:
        return row.stored(own[row.name])
    name = _broker_name(row)
    for source, values in layers:
        if name in values and _counts(source, row):
            return row.stored(values[name])
    return row.default_value()


def _counts(source: ConfigSource, row: Setting[Any]) -> bool:
    """True if a value from this source counts. A setting that all nodes must agree on is not taken from a node's
    file."""
    return not (row.agreed and source is ConfigSource.STATIC_BROKER_CONFIG)


def _broker_name(row: Setting[Any]) -> str:
    """The name under which brokers have the setting; "" for one of topics alone."""
    return row.name if row.scope is Scope.BROKER else row.broker
