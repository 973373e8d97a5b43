"""Explanation of one record, for the command `strandline why`.

The facts come from requests open to any client (Fetch, ListOffsets, Metadata, DescribeConfigs, DescribeLogDirs), from
the metrics of nodes whose HTTP listeners are given, and from file names if a broker's directory is on this machine.
A fact that none of these gives is None, and `unknown` explains it: nothing is guessed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from strandline.client.admin import Admin
from strandline.client.errors import ClientTimeout
from strandline.client.range_reader import RangeReader
from strandline.client.types import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    ConfigResource,
    ConsumerRecord,
    PartitionDescription,
)
from strandline.log.batch import LOG_APPEND_TIME, BatchHeader, Record, decode_records
from strandline.log.checkpoints import META_PROPERTIES, MetaProperties
from strandline.log.segment import LOG_SUFFIX, TIME_ENTRY_BYTES, TIME_INDEX_SUFFIX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError
from strandline.proto.ids import TopicPartition

LOOK_AHEAD = 100_000
"""Number of offsets after a record that are searched for a later value of its key."""


class State(StrEnum):
    """State of an offset."""

    RECORD = "record"
    DELETED = "deleted"
    """The offset lies below the log start."""
    NOT_COMMITTED = "not-committed"
    """The offset lies at the high watermark or beyond: perhaps written, perhaps not."""
    COMPACTED = "compacted"
    """The batch exists, but compaction removed the record."""
    NOTHING = "nothing"
    """No record for consumers: a transaction marker, or an offset that Apache Kafka's compaction left without batch."""
    ROTTEN = "rotten"
    """The leader cannot read the record from its disk."""


@dataclass(frozen=True, slots=True)
class KnownReplica:
    """A replica. `has_it`: whether it has the record, None if not known. `why`: the reason, as a sentence."""

    node: int
    role: str
    has_it: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Ends of a broker's log, from its metrics."""

    log_end_offset: int
    high_watermark: int


@dataclass(slots=True)
class Explanation:
    """Facts about one offset. None: not known, or it does not apply."""

    topic: str
    partition: int
    offset: int
    log_start_offset: int
    high_watermark: int
    leader: int
    leader_epoch: int
    state: State = State.RECORD
    batch: BatchHeader | None = None
    record: Record | None = None
    led_by: int | None = None
    synced: bool | None = None
    replicas: tuple[KnownReplica, ...] = ()
    segment: SegmentFile | None = None
    tier: str = ""
    """Where a record of a tiered topic is stored: the object store, the disks, or both; "" for other topics."""
    retention: str = ""
    not_before_ms: int | None = None
    """Wall time in milliseconds before which retention, as configured now, does not delete the record."""
    compaction: str = ""
    superseded_by: int | None = None
    """Offset of a later record with the same key."""
    unknown: list[str] = field(default_factory=list)


class Why:
    """One search for everything that is known of an offset."""

    def __init__(
        self,
        admin: Admin,
        reader: RangeReader,
        tp: TopicPartition,
        offset: int,
        *,
        ends: Mapping[int, LogEnds],
        now_ms: int,
        look_ahead: int = LOOK_AHEAD,
    ) -> None:
        """`ends`: node id -> ends of its log, for brokers whose metrics were read; `now_ms`: wall time."""
        self._now_ms = now_ms
        self._admin = admin
        self._reader = reader
        self._tp = tp
        self._offset = offset
        self._ends = ends
        self._look_ahead = look_ahead

    def answer(self) -> Explanation:
        """Ask the cluster, and return the explanation.

        Raises:
            ConfigError: the partition does not exist, or the offset is below 0.
            UnknownTopic, KafkaError, ClientTimeout
        """
        tp, offset, admin = self._tp, self._offset, self._admin
        [topic] = admin.describe_topics([tp.topic])
        part = next((one for one in topic.partitions if one.partition == tp.partition), None)
        if part is None:
            raise ConfigError("PARTITION", tp.partition, f"0 to {len(topic.partitions) - 1}: those of {tp.topic}")
        if part.leader is None:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"{tp} has no leader, and nobody else answers for its records. Why: strandline topic elect {tp.topic} "
                f"--partition {tp.partition} --unclean --dry-run",
            )
        start = admin.list_offsets({tp: EARLIEST})[tp].offset
        end = admin.list_offsets({tp: LATEST})[tp].offset
        found = Explanation(tp.topic, tp.partition, offset, start, end, part.leader, part.leader_epoch)
        configs = self._configs(ConfigResource("topic", tp.topic))
        if offset < start:
            self._deleted(found, configs)
        elif offset >= end:
            self._not_committed(found, part)
        else:
            self._read(found)
            self._leadership(found)
            if configs.get("remote.storage.enable") != "true" or self._is_on_disks(found):
                self._replicas(found, part)
                found.segment = self._segment(found)
            self._retention(found, configs)
            self._compaction(found, configs)
        return found

    def _configs(self, resource: ConfigResource) -> dict[str, str]:
        return {entry.name: entry.value or "" for entry in self._admin.describe_configs([resource])[resource]}

    # ------------------------------------------------------------------ where there is nothing to be read

    def _deleted(self, found: Explanation, configs: Mapping[str, str]) -> None:
        found.state = State.DELETED
        found.retention = f"deleted: the log begins at offset {found.log_start_offset}"
        set_now = ", ".join(f"{name}={configs.get(name, '?')}" for name in ("retention.ms", "retention.bytes"))
        found.unknown += [
            f"whether retention took it or somebody did (topic trim): the log start does not say. Set now: {set_now}",
            "who wrote it, and when: that went with it",
        ]

    def _not_committed(self, found: Explanation, part: PartitionDescription) -> None:
        found.state = State.NOT_COMMITTED
        found.replicas = tuple(self._replica(found, part, node) for node in part.replicas)
        if part.leader not in self._ends:
            found.unknown.append(
                "whether it was written at all: consumers are told nothing from the high watermark on. The leader's "
                "metrics say where its log ends (--http)"
            )

    # ------------------------------------------------------------------ the record and its batch

    def _read(self, found: Explanation) -> None:
        tp, offset = self._tp, self._offset
        try:
            batches = list(self._reader.read_batches(tp.topic, tp.partition, offset, offset + 1))
        except (KafkaError, ClientTimeout) as error:
            cause = error.last_error if isinstance(error, ClientTimeout) else error
            if not isinstance(cause, KafkaError) or cause.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            found.state = State.ROTTEN
            found.unknown.append("who wrote it, and when: its batch is damaged at the leader (CORRUPT_MESSAGE)")
            return
        if not batches:
            found.state = State.NOTHING
            found.unknown.append("what stood there: a marker of the cluster, or a record that compaction took")
            return
        header = batches[-1].header
        found.batch = header
        records = decode_records(batches[-1].data)
        found.record = next((record for record in records if record.offset == offset), None)
        if found.record is None:
            found.state = State.COMPACTED
            found.unknown.append("its key, and by what it was superseded: that went with it")
        if header.is_gap:
            found.batch = None
            found.unknown.append("who wrote it: compaction has left an empty batch for these offsets")
        elif found.record is not None and header.timestamp_type != LOG_APPEND_TIME:
            found.unknown.append("when it was appended: the topic keeps the producer's time (CreateTime)")

    def _leadership(self, found: Explanation) -> None:
        if found.batch is None:
            return
        if found.batch.leader_epoch == found.leader_epoch:
            found.led_by = found.leader
        else:
            found.unknown.append(
                f"who led in epoch {found.batch.leader_epoch}: the metadata keep the leader of the present epoch, "
                f"{found.leader_epoch}. The logs of the brokers of that time have it"
            )

    # ------------------------------------------------------------------ who has it

    def _is_on_disks(self, found: Explanation) -> bool:
        """True if the record is on the brokers' disks. Sets `found.tier` for a tiered topic (KIP-405)."""
        local_start = self._admin.list_offsets({self._tp: EARLIEST_LOCAL})[self._tp].offset
        last_tiered = self._admin.list_offsets({self._tp: LATEST_TIERED})[self._tp].offset
        if found.offset < local_start:
            found.tier = f"it lies in the object store alone: the disks begin at offset {local_start}"
        elif found.offset <= last_tiered:
            found.tier = "it lies in the object store too; local.retention.ms and local.retention.bytes take the copies"
        else:
            found.tier = "it lies on the disks alone: it goes to the object store once its segment is closed"
        return found.offset >= local_start

    def _replicas(self, found: Explanation, part: PartitionDescription) -> None:
        found.replicas = tuple(self._replica(found, part, node) for node in part.replicas)
        policy = self._configs(ConfigResource("broker", str(found.leader))).get("flush.policy")
        if policy == "ack":
            found.synced = True
        elif policy is None:
            found.unknown.append("whether the replicas have synced it: the leader does not tell its flush.policy")
        else:
            found.unknown.append(f"who has synced it: with flush.policy={policy} a copy in memory counts")

    def _replica(self, found: Explanation, part: PartitionDescription, node: int) -> KnownReplica:
        role = "leader" if node == part.leader else "in sync" if node in part.isr else "behind"
        is_committed = found.offset < found.high_watermark
        if is_committed and role != "behind":
            return KnownReplica(node, role, True, "it is in sync, so it has everything below the high watermark")
        ends = self._ends.get(node)
        if ends is None:
            return KnownReplica(
                node, role, None, "it does not tell where its log ends; name its HTTP listener (--http)"
            )
        if found.offset >= ends.log_end_offset:
            return KnownReplica(node, role, False, f"its log ends at offset {ends.log_end_offset}")
        if found.offset < ends.high_watermark:
            return KnownReplica(node, role, True, f"it knows it to be committed (up to {ends.high_watermark})")
        reaches = f"its log reaches offset {ends.log_end_offset}; what is not committed may be cut again"
        return KnownReplica(node, role, role == "leader" or None, reaches)

    def _segment(self, found: Explanation) -> SegmentFile | None:
        cluster = self._admin.describe_cluster().cluster_id
        nodes = [replica.node for replica in found.replicas if replica.has_it]
        for node in nodes:
            try:
                [(_, directories)] = self._admin.describe_log_dirs([node]).items()
            except KafkaError:
                continue
            for one in directories:
                segment = find_segment(one.path, self._tp, self._offset, node_id=node, cluster_id=cluster)
                if segment is not None:
                    return segment
        found.unknown.append("in which segment it lies: no directory of a broker that has it is on this machine")
        return None

    # ------------------------------------------------------------------ how long it stays

    def _retention(self, found: Explanation, configs: Mapping[str, str]) -> None:
        if "delete" not in configs.get("cleanup.policy", "delete"):
            found.retention = "none: cleanup.policy has no delete"
            return
        retention_ms = int(configs.get("retention.ms") or -1)
        says: list[str] = []
        newest_ms = found.segment.newest_ms if found.segment is not None else None
        of_record = found.record.timestamp_ms if found.record is not None else -1
        if retention_ms < 0:
            says.append("not for its age (retention.ms=-1)")
        elif newest_ms is not None and 0 <= newest_ms <= self._now_ms:
            found.not_before_ms = newest_ms + retention_ms
            says.append("for its age with its whole segment, whose newest record decides")
        elif newest_ms is None and 0 <= of_record <= self._now_ms:
            found.not_before_ms = of_record + retention_ms
            says.append(
                "for its age with its whole segment, so once the newest record there is old enough (one of the future "
                "counts from when it was written)"
            )
        else:
            says.append("for its age once its segment was not written to for retention.ms: its time says nothing")
        retention_bytes = int(configs.get("retention.bytes") or -1)
        if retention_bytes >= 0:
            says.append(self._by_size(found, retention_bytes))
        found.retention = "; ".join(says)

    @staticmethod
    def _by_size(found: Explanation, retention_bytes: int) -> str:
        if found.segment is None:
            found.unknown.append(f"how many bytes are behind it, which retention.bytes={retention_bytes} goes by")
            return "for the size of the partition at a time that is not known"
        left = retention_bytes - found.segment.bytes_behind
        if left <= 0:
            return "for the size of the partition, at the next check (log.retention.check.interval.ms)"
        return f"for the size of the partition once about {left:,} more bytes are written"

    def _compaction(self, found: Explanation, configs: Mapping[str, str]) -> None:
        if "compact" not in configs.get("cleanup.policy", "delete"):
            found.compaction = "none: cleanup.policy has no compact"
            return
        record, batch = found.record, found.batch
        if record is None:
            found.compaction = "compaction has taken it" if found.state is State.COMPACTED else "not known"
            return
        if record.key is None:
            found.compaction = "it stays: it has no key, so nothing supersedes it"
            return
        end = min(found.high_watermark, found.offset + 1 + self._look_ahead)
        later = self._later_value(record.key, end)
        if later is not None:
            found.superseded_by = later.offset
            found.compaction = (
                f"superseded by offset {later.offset}: a pass takes it once both lie in closed segments, after "
                f"min.compaction.lag.ms={configs.get('min.compaction.lag.ms', '?')}"
            )
        elif end < found.high_watermark:
            found.compaction = f"its key has no later value up to offset {end - 1}"
            found.unknown.append(f"whether its key has a value from offset {end} on (--look-ahead)")
        elif record.value is not None:
            found.compaction = "it stays: it is the last value of its key"
        elif batch is not None and batch.has_delete_horizon:
            found.compaction = "a tombstone: it goes with the first pass after its delete horizon"
            found.not_before_ms = batch.base_timestamp
        else:
            hold = configs.get("delete.retention.ms", "?")
            found.compaction = f"a tombstone: it goes delete.retention.ms={hold} after the first pass over it"

    def _later_value(self, key: bytes, end: int) -> ConsumerRecord | None:
        if self._offset + 1 >= end:
            return None
        for record in self._reader.read_records(self._tp.topic, self._tp.partition, self._offset + 1, end):
            if record.key == key:
                return record
        return None


_TIME_ENTRY = struct.Struct(">qI")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment file of one broker.

    Attributes:
        is_active: True for the newest segment, which is still written to.
        newest_ms: newest timestamp in the segment; None while it is active, because it may still change.
        bytes_behind: bytes of the segments after this one.
    """

    node: int
    path: str
    base_offset: int
    bytes: int
    is_active: bool
    newest_ms: int | None
    bytes_behind: int


def find_segment(
    directory: str, tp: TopicPartition, offset: int, *, node_id: int, cluster_id: str | None
) -> SegmentFile | None:
    """The segment with `offset`; None if the directory is not on this machine, or belongs to another node.

    A path that a broker reports may exist on this machine and belong to another node, so meta.properties must match.
    Only that file and the end of one time index are opened.
    """
    root = Path(directory)
    try:
        path = root / META_PROPERTIES
        meta = MetaProperties.decode(str(path), path.read_bytes())
        if (meta.node_id, meta.cluster_id) != (node_id, cluster_id):
            return None
        sizes = {int(path.stem): path.stat().st_size for path in (root / str(tp)).glob(f"*{LOG_SUFFIX}")}
        bases = sorted(sizes)
        base = max((base for base in bases if base <= offset), default=None)
        if base is None:
            return None
        found = root / str(tp) / f"{base:020d}{LOG_SUFFIX}"
        is_active = base == bases[-1]
        return SegmentFile(
            node=node_id,
            path=str(found),
            base_offset=base,
            bytes=sizes[base],
            is_active=is_active,
            newest_ms=None if is_active else _newest_ms(found.with_suffix(TIME_INDEX_SUFFIX)),
            bytes_behind=sum(size for other, size in sizes.items() if other > base),
        )
    except (OSError, ValueError, CorruptLogError):  # not here, not ours to read, or deleted a moment ago
        return None


def _newest_ms(path: Path) -> int | None:
    """Newest timestamp of a closed segment, which is the last entry of its time index; None if there is none."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < TIME_ENTRY_BYTES or size % TIME_ENTRY_BYTES:
            return None
        file.seek(size - TIME_ENTRY_BYTES)
        return int(_TIME_ENTRY.unpack(file.read(TIME_ENTRY_BYTES))[0])
