"""Backup of one topic into a directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from strandline.client.admin import Admin
from strandline.client.range_reader import RangeReader, RawBatch
from strandline.client.types import EARLIEST, LATEST, ConfigResource, TopicDescription
from strandline.proto.ids import TopicPartition
from strandline.tools.backup.files import (
    BackupRefused,
    Manifest,
    PartitionCopy,
    SegmentWriter,
    sync_directory,
    write_manifest,
)

SEGMENT_BYTES = 1 << 30
TOPICS_OWN = "DYNAMIC_TOPIC_CONFIG"
"""Source, as DescribeConfigs reports it, of a setting that was set on the topic itself."""

_WHY = "records written again would get other offsets, and this backup promises equal ones"


def survey(admin: Admin, topic: str, taken_ms: int) -> Manifest:
    """Plan a backup: the manifest of the topic as it is now, with offset ranges but without segments.

    Raises:
        UnknownTopic
        KafkaError: e.g. LEADER_NOT_AVAILABLE.
        BackupRefused: the topic is internal to the cluster.
    """
    [told] = admin.describe_topics([topic])
    if told.is_internal:
        raise BackupRefused(f"{topic} is the cluster's own topic: what is in it means nothing to another cluster")
    partitions = [TopicPartition(topic, part.partition) for part in told.partitions]
    first = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    last = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    [entries] = admin.describe_configs([ConfigResource("topic", topic)]).values()
    return Manifest(
        topic,
        str(told.topic_id or ""),
        admin.describe_cluster().cluster_id or "",
        taken_ms,
        _replicas(told),
        {entry.name: entry.value for entry in entries if entry.source == TOPICS_OWN and entry.value is not None},
        tuple(PartitionCopy(where.partition, first[where].offset, last[where].offset, ()) for where in partitions),
    )


def take(
    reader: RangeReader,
    planned: Manifest,
    directory: Path,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    copied: Callable[[int], None],
) -> Manifest:
    """Copy the planned offset ranges. The directory appears once it is complete and synced, or not at all.

    Args:
        segment_bytes: size at which a new segment is begun.
        copied: called with the size of each batch in bytes.

    Raises:
        BackupRefused: the directory exists and is not empty, or offsets are missing in the log: see `_check`.
        OffsetOutOfRange: records were deleted before they were copied.
        TopicReplaced, KafkaError, ClientTimeout, OSError.
    """
    refuse_unless_free(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".unfinished", dir=directory.parent))
    try:
        if planned.topic_id:
            reader.expect(planned.topic, planned.topic_id)
        parts = []
        for part in planned.partitions:
            with SegmentWriter(work / planned.directory(part.partition), segment_bytes) as writer:
                _copy(reader, planned.topic, part, writer, copied)
            parts.append(replace(part, segments=tuple(writer.segments)))
        taken = replace(planned, partitions=tuple(parts))
        write_manifest(work, taken)
        sync_directory(work)
        work.rename(directory)
        sync_directory(directory.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return taken


def refuse_unless_free(directory: Path) -> None:
    """Check that `directory` does not exist, or is empty. Raises BackupRefused."""
    if directory.exists() and (not directory.is_dir() or any(os.scandir(directory))):
        raise BackupRefused(f"{directory} is there already and not empty: a backup overwrites nothing")


def _copy(
    reader: RangeReader, topic: str, part: PartitionCopy, writer: SegmentWriter, copied: Callable[[int], None]
) -> None:
    offset: int | None = None
    for batch in reader.read_batches(topic, part.partition, part.log_start, part.end):
        _check(f"{topic}-{part.partition}", batch, part.log_start if offset is None else offset, offset is None)
        writer.append(batch.header, batch.data)
        copied(len(batch.data))
        offset = batch.next_offset
    if (part.log_start if offset is None else offset) != part.end:
        raise _gap(f"{topic}-{part.partition}", part.log_start if offset is None else offset, part.end)


def _check(where: str, batch: RawBatch, offset: int, first: bool) -> None:
    """Check that a batch begins at `offset`, and that producing it again gives each record the same offset.

    Raises:
        BackupRefused: offsets are missing (a compacted log, or markers of transactions), or the batch belongs to a
            transaction, whose marker elsewhere in the log decides whether its records are valid.
    """
    header = batch.header
    if header.is_transactional:
        raise BackupRefused(f"{where} holds records of transactions, from offset {batch.base_offset} on: {_WHY}")
    if batch.base_offset > offset or (batch.base_offset < offset and not first):
        raise _gap(where, offset, batch.base_offset)
    if header.count != header.last_offset_delta + 1:
        raise _gap(where, batch.base_offset, batch.next_offset)


def _gap(where: str, low: int, high: int) -> BackupRefused:
    return BackupRefused(f"{where} has no record at some offset from {low} to {high} (it was compacted, say): {_WHY}")


def _replicas(topic: TopicDescription) -> int:
    return max((len(part.replicas) for part in topic.partitions), default=1)
