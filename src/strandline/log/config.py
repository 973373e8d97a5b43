"""Settings of one log, with Kafka's names and defaults (topic configs in Kafka's documentation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from strandline.log.compression import Codec
from strandline.proto.errors import ConfigError

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


INT64_MAX = (1 << 63) - 1
BATCH_BYTES_MAX = 96 << 20
"""Largest record batch that any setting allows, and that followers accept: the default of socket.request.max.bytes
(100 MiB) admits it, with room for the rest of the request. Each node on its way holds it in memory a few times over.
(Kafka has no bound but the socket's, RabbitMQ allows 512 MiB, NATS 64 MiB.)"""


UNPACKED_FACTOR = 32
"""Maximum ratio of a client's unpacked batch to max.message.bytes. Clients close a batch by its size before
compression, so that honest ones stay far below; a larger batch would only cost the broker time and memory."""


class StoredCodec(NamedTuple):
    """`compression.type` of a topic, if it is not `producer`.

    Attributes:
        level: level in Kafka's numbering; None: the codec's default, or the codec has no levels.
    """

    codec: Codec
    level: int | None = None


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one partition's log: its segments, its limits and its retention. Changes take effect at the next
    append.

    Raises ConfigError for a value that is not allowed.
    """

    segment_bytes: int = 1 << 30
    """`segment.bytes`: a segment is closed before it would grow beyond this."""

    segment_ms: int = 7 * 24 * 3600 * 1000
    """`segment.ms`: a segment is closed at the first append after this age, so that retention can reach it."""

    segment_jitter_ms: int = 0
    """`segment.jitter.ms`: a segment is closed up to this much earlier than `segment_ms`, each by its own amount, so
    that not all partitions begin a segment at once."""

    index_interval_bytes: int = 4096
    """`index.interval.bytes`: approximate bytes of log for each index entry."""

    segment_index_bytes: int = 10 << 20
    """`segment.index.bytes`: a segment is also closed when its offset index is full."""

    max_message_bytes: int = 1048588
    """`max.message.bytes`: the largest record batch accepted from a client (1 MiB and 12 bytes of framing)."""

    stored_codec: StoredCodec | None = None
    """`compression.type`: codec in which clients' batches are stored; None (`producer`): as they came."""

    retention_ms: int = 604800000
    """`retention.ms`: segments whose newest record is older are deleted; -1 keeps them for ever."""

    retention_bytes: int = -1
    """`retention.bytes`: the oldest segments beyond this size are deleted; -1: no limit."""

    remote_storage: bool = False
    """`remote.storage.enable`: closed segments are copied to the object store."""

    local_retention_ms: int = 604800000
    """`local.retention.ms`, at most `retention_ms`: copied segments whose newest record is older are deleted from the
    disk; -1: they stay as long as all others."""

    local_retention_bytes: int = -1
    """`local.retention.bytes`, at most `retention_bytes`: the oldest copied segments beyond this are deleted from
    disk."""

    compacted: bool = False
    """`cleanup.policy` contains `compact`: the last record of each key stays, and a record without a key is refused."""

    min_cleanable_dirty_ratio: float = 0.5
    """`min.cleanable.dirty.ratio`: share of a log that must be uncompacted before it is compacted, from 0 to 1."""

    min_compaction_lag_ms: int = 0
    """`min.compaction.lag.ms`: a segment whose newest record is younger is not compacted."""

    max_compaction_lag_ms: int = INT64_MAX
    """`max.compaction.lag.ms`: the longest time that a record stays uncompacted, whatever the ratio."""

    delete_retention_ms: int = 24 * 3600 * 1000
    """`delete.retention.ms`: time that a tombstone stays after it was first compacted."""

    message_timestamp_type: str = CREATE_TIME
    """`message.timestamp.type`: CreateTime keeps the producer's timestamps, LogAppendTime sets the leader's."""

    timestamp_before_max_ms: int = INT64_MAX
    """`message.timestamp.before.max.ms`: a record is refused if its timestamp is further behind the broker's time."""

    timestamp_after_max_ms: int = INT64_MAX
    """`message.timestamp.after.max.ms`: a record is refused if its timestamp is further ahead of the broker's time.
    Topics have an hour by default; a log without settings accepts any time."""

    preallocate_bytes: int = 32 << 20
    """Largest step in which the active segment is allocated ahead of its data; 0 turns it off. Steps start small and
    double with the segment, so that many idle partitions reserve little (Kafka's `preallocate` takes whole segments).
    """

    file_delete_delay_ms: int = 60000
    """`file.delete.delay.ms`: milliseconds that deleted segments stay on disk, for readers that still use them."""

    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """`producer.id.expiration.ms`: milliseconds after its last append at which a producer is forgotten."""

    @property
    def log_append_time(self) -> bool:
        """True if the leader sets the timestamps of records (`message.timestamp.type` is LogAppendTime)."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def unpacked_bytes_max(self) -> int:
        """Largest size, in bytes, that the records of one batch may unpack to."""
        return UNPACKED_FACTOR * self.max_message_bytes

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(name.replace("_", "."), value, f"at least {least}")
        if self.message_timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
            raise ConfigError(
                "message.timestamp.type", self.message_timestamp_type, f"{CREATE_TIME} or {LOG_APPEND_TIME}"
            )


_LEAST = {
    "segment_bytes": 14,  # Kafka's own lower bound: one empty record of the oldest format
    "segment_ms": 1,
    "segment_jitter_ms": 0,
    "index_interval_bytes": 0,
    "segment_index_bytes": 12,
    "max_message_bytes": 0,
    "retention_ms": -1,
    "retention_bytes": -1,
    "local_retention_ms": -1,
    "local_retention_bytes": -1,
    "timestamp_before_max_ms": 0,
    "timestamp_after_max_ms": 0,
    "preallocate_bytes": 0,
    "file_delete_delay_ms": 0,
    "min_cleanable_dirty_ratio": 0,
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": 1,
    "delete_retention_ms": 0,
    "producer_id_expiration_ms": 1,
}
