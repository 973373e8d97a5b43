"""Which value of a config holds, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from strandline.controller.metadata.config_key import ConfigKey, split_list
from strandline.controller.metadata.image import (
    CLUSTER_DEFAULT,
    MetadataImage,
    broker_resource,
    topic_resource,
)
from strandline.controller.metadata.tiers import REMOTE_STORAGE_ENABLE
from strandline.controller.metadata.topic_configs import BROKER_CONFIGS, TOPIC_CONFIGS
from strandline.log.compression import Codec
from strandline.log.config import BATCH_BYTES_MAX, LogConfig, StoredCodec
from strandline.proto.ids import NodeId


class ConfigSource(IntEnum):
    """Where a value comes from, with the numbers of Kafka's DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value with the name it was set under (a topic config may fall back on a broker config of another name)."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config as DescribeConfigs shows it; `synonyms` are all values set, the one that holds first."""

    key: ConfigKey
    name: str
    value: str
    source: ConfigSource
    synonyms: tuple[ConfigValue, ...]

    @property
    def is_default(self) -> bool:
        """No value was set."""
        return self.source is ConfigSource.DEFAULT_CONFIG


AGREED_KEYS = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})
"""The controller and every leader must see one value of these (the high watermark rule and the eligible leader replicas
rest on it), so a broker's own file does not count: only what the metadata log says, and the default."""


def stored_codec(text: Callable[[str], str]) -> StoredCodec | None:
    """What the value of `compression.type` and the level that belongs to it mean."""
    name = text("compression.type")
    if name == "producer":
        return None
    codec = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    level = f"compression.{name}.level"
    return StoredCodec(codec, int(text(level)) if level in TOPIC_CONFIGS else None)


def local_retention(local: int, whole: int) -> int:
    """What of a whole retention counts on the brokers' disks: never more, whatever defaults became since it was set."""
    if local == -2:
        return whole
    if whole == -1:
        return local
    return whole if local == -1 else min(local, whole)


@lru_cache(maxsize=64)
def _listed(replicas: str, node_id: NodeId | None) -> frozenset[int] | None:
    """The partitions whose replica on a node is listed as partition:broker,...; None: all. Asked anew for each
    partition of a topic, and a list may name them all."""
    parts = split_list(replicas)
    if parts == ["*"]:
        return None
    pairs = [part.split(":") for part in parts]
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == node_id)


class ConfigResolver:
    """Resolves configs for one node: `static` is what its file says, by broker config names.

    `node_id` is None on a controller, which has no broker configs of its own.
    """

    def __init__(self, static: Mapping[str, str], node_id: NodeId | None = None) -> None:
        self._static = dict(static)
        self._node_id = node_id

    def synonyms(self, image: MetadataImage, key: ConfigKey, own: Mapping[str, str]) -> list[ConfigValue]:
        """Every value set for `key`, the one that holds first, the default last; `own` are the topic's."""
        found: list[ConfigValue] = []
        if key.name in own:
            found.append(ConfigValue(key.name, own[key.name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        name = key.broker_name or key.name
        if self._node_id is not None:
            mine = image.config(broker_resource(self._node_id))
            if name in mine:
                found.append(ConfigValue(name, mine[name], ConfigSource.DYNAMIC_BROKER_CONFIG))
        default = image.config(CLUSTER_DEFAULT)
        if name in default:
            found.append(ConfigValue(name, default[name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG))
        if name in self._static and name not in AGREED_KEYS:
            found.append(ConfigValue(name, self._static[name], ConfigSource.STATIC_BROKER_CONFIG))
        found.append(ConfigValue(name, key.default, ConfigSource.DEFAULT_CONFIG))
        return found

    def topic_value(self, image: MetadataImage, topic: str, name: str) -> str:
        """The value of a topic config that holds for `topic` (which need not exist)."""
        return self.synonyms(image, TOPIC_CONFIGS[name], image.config(topic_resource(topic)))[0].value

    def broker_value(self, image: MetadataImage, name: str) -> str:
        """The value of a broker config that holds for this node."""
        return self.synonyms(image, BROKER_CONFIGS[name], {})[0].value

    def topic_entries(
        self, image: MetadataImage, topic: str, own: Mapping[str, str] | None = None
    ) -> list[ConfigEntry]:
        """All configs of a topic, sorted by name; `own` stands in for what is set on it (a topic to be created)."""
        values = image.config(topic_resource(topic)) if own is None else own
        return [self._entry(image, key, key.name, values) for _, key in sorted(TOPIC_CONFIGS.items())]

    def broker_entries(self, image: MetadataImage) -> list[ConfigEntry]:
        """The dynamic configs of this broker, sorted by name."""
        return [self._entry(image, key, name, {}) for name, key in BROKER_CONFIGS.items()]

    def cluster_default_entries(self, image: MetadataImage) -> list[ConfigEntry]:
        """What is set as the default of all brokers, sorted by name (Kafka lists only what is set)."""
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return [
            ConfigEntry(BROKER_CONFIGS[name], name, value, source, (ConfigValue(name, value, source),))
            for name, value in sorted(image.config(CLUSTER_DEFAULT).items())
            if name in BROKER_CONFIGS
        ]

    def min_insync_replicas(self, image: MetadataImage, topic: str, replication_factor: int) -> int:
        """min(min.insync.replicas, replication factor): what the strict high watermark rule and ELR go by (rule B4)."""
        return min(int(self.topic_value(image, topic, "min.insync.replicas")), replication_factor)

    def unclean_election_enabled(self, image: MetadataImage, topic: str) -> bool:
        """A replica that is not in sync may lead."""
        return self.topic_value(image, topic, "unclean.leader.election.enable") == "true"

    def is_throttled(self, image: MetadataImage, topic: str, partition: int, side: str) -> bool:
        """The replica on this node is listed as throttled, as "leader" or as "follower" (KIP-73)."""
        listed = _listed(self.topic_value(image, topic, f"{side}.replication.throttled.replicas"), self._node_id)
        return listed is None or partition in listed

    def throttled_rate(self, image: MetadataImage, side: str) -> int:
        """What this broker may send ("leader") or fetch ("follower") for throttled replicas, in bytes a second."""
        return int(self.broker_value(image, f"{side}.replication.throttled.rate"))

    def log_config(self, image: MetadataImage, topic: str) -> LogConfig:
        """What the logs of a topic's partitions go by on this node."""
        own = image.config(topic_resource(topic))

        def text(name: str) -> str:
            return self.synonyms(image, TOPIC_CONFIGS[name], own)[0].value

        policy = split_list(text("cleanup.policy"))
        deletes, compacts = "delete" in policy, "compact" in policy
        max_compaction_lag_ms = int(text("max.compaction.lag.ms"))
        segment_ms = int(text("segment.ms"))
        retention_ms = int(text("retention.ms")) if deletes else -1
        retention_bytes = int(text("retention.bytes")) if deletes else -1
        return LogConfig(
            segment_bytes=int(text("segment.bytes")),
            segment_ms=min(segment_ms, max_compaction_lag_ms) if compacts else segment_ms,
            segment_jitter_ms=int(text("segment.jitter.ms")),
            index_interval_bytes=int(text("index.interval.bytes")),
            segment_index_bytes=int(text("segment.index.bytes")),
            max_message_bytes=min(int(text("max.message.bytes")), BATCH_BYTES_MAX),
            stored_codec=stored_codec(text),
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            remote_storage=text(REMOTE_STORAGE_ENABLE) == "true",
            local_retention_ms=local_retention(int(text("local.retention.ms")), retention_ms),
            local_retention_bytes=local_retention(int(text("local.retention.bytes")), retention_bytes),
            compacted=compacts,
            min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
            min_compaction_lag_ms=int(text("min.compaction.lag.ms")),
            max_compaction_lag_ms=max_compaction_lag_ms,
            delete_retention_ms=int(text("delete.retention.ms")),
            message_timestamp_type=text("message.timestamp.type"),
            timestamp_before_max_ms=int(text("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(text("message.timestamp.after.max.ms")),
            file_delete_delay_ms=int(text("file.delete.delay.ms")),
        )

    def _entry(self, image: MetadataImage, key: ConfigKey, name: str, own: Mapping[str, str]) -> ConfigEntry:
        synonyms = self.synonyms(image, key, own)
        return ConfigEntry(key, name, synonyms[0].value, synonyms[0].source, tuple(synonyms))
