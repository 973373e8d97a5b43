"""Restore of a topic from a backup directory. The same batches are sent in order to an empty topic, so that records
keep their offsets.

A producer cannot choose offsets: a log assigns them one after the other, from 0. If the backup of a partition starts at
a later offset, the partition is first filled up to it with empty records, which are deleted at the end. Keys, values,
headers, timestamps, compression and the division into batches are those of the backup. Producer ids and sequences are
not: another producer of the cluster may have the same id, and a batch would be dropped as a retry of that one's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import zip_longest
from pathlib import Path

from strandline.client.admin import Admin
from strandline.client.batch_sender import BatchSender
from strandline.client.errors import ClientError, UnknownTopic
from strandline.client.range_reader import RangeReader, RawBatch
from strandline.client.types import EARLIEST, LATEST, Ack, ConfigChange, ConfigResource, NewTopic
from strandline.log.batch import BatchHeader, RecordBatchBuilder, with_producer
from strandline.log.compression import Codec
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.tools.backup.files import BackupRefused, Manifest, PartitionCopy, read_batches

FILLER_RECORDS = 50_000
"""Number of empty records in one batch of filler: 350 kB, compressed to 70 kB."""

PARTITIONS_AT_ONCE = 16
MAX_MESSAGE_BYTES = "max.message.bytes"
MEANWHILE = {
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
}
"""Settings of the topic during the restore. With others, records might get new timestamps, or be deleted too early."""


class RestoreFailed(ClientError):
    """The restored topic differs from the backup. The topic exists, and must not be used."""


def refuse_unless_empty(admin: Admin, manifest: Manifest, name: str) -> bool:
    """True if the topic exists and is empty; False if it does not exist.

    Raises:
        BackupRefused: the topic has or had records, or has another number of partitions.
    """
    try:
        [told] = admin.describe_topics([name])
    except UnknownTopic:
        return False
    count = len(manifest.partitions)
    if len(told.partitions) != count:
        raise BackupRefused(f"topic {name} is there with {len(told.partitions)} partitions; the backup has {count}")
    ends = admin.list_offsets({(name, part.partition): LATEST for part in told.partitions})
    used = [str(where.partition) for where, end in ends.items() if end.offset]
    if used:
        raise BackupRefused(
            f"topic {name} is there and has had records (partitions {', '.join(used)}): offsets would not come out "
            "equal. Restore under another name with --to, or delete it first"
        )
    return True


def prepare(
    admin: Admin, manifest: Manifest, name: str, *, replication: int | None, largest_bytes: int, dry_run: bool
) -> None:
    """Create the topic, or change the settings of an empty one, so that it accepts every batch of the backup.

    Raises:
        BackupRefused: see `refuse_unless_empty`.
        KafkaError: INVALID_REPLICATION_FACTOR, INVALID_CONFIG.
    """
    there = refuse_unless_empty(admin, manifest, name)
    meanwhile = {**manifest.configs, **MEANWHILE}
    if MAX_MESSAGE_BYTES in meanwhile:
        meanwhile[MAX_MESSAGE_BYTES] = str(max(largest_bytes, int(meanwhile[MAX_MESSAGE_BYTES])))
    elif largest_bytes > 1 << 20:
        meanwhile[MAX_MESSAGE_BYTES] = str(largest_bytes)
    if there:
        changes = [ConfigChange(key, value) for key, value in meanwhile.items()]
        admin.alter_configs({ConfigResource("topic", name): changes}, validate_only=dry_run)
    else:
        factor = manifest.replication_factor if replication is None else replication
        admin.create_topics([NewTopic(name, len(manifest.partitions), factor, meanwhile)], validate_only=dry_run)


def write_back(
    bootstrap: str,
    directory: Path,
    manifest: Manifest,
    name: str,
    *,
    largest_bytes: int,
    settings: Mapping[str, object],
    sent: Callable[[int], None],
) -> None:
    """Send every batch. `sent` is called with the size of each batch in bytes.

    Raises:
        RestoreFailed: a record got a different offset, because another producer writes to the topic.
        StrandlineError: the cluster refused a batch.
    """

    async def send_all() -> None:
        slots = asyncio.Semaphore(PARTITIONS_AT_ONCE)
        async with BatchSender(bootstrap, largest_bytes, settings) as sender:
            await sender.know(name)
            ways = [_Way(sender, TopicPartition(name, part.partition), part) for part in manifest.partitions]

            async def send_one(way: _Way) -> None:
                async with slots:
                    await way.send_all(read_batches(directory, manifest, way.copy.partition), sent)

            async with asyncio.TaskGroup() as group:
                for way in ways:
                    group.create_task(send_one(way))
            await sender.flush()
            for way in ways:
                way.raise_if_failed()

    try:
        asyncio.run(send_all())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


class _Way:
    """Restore of one partition."""

    def __init__(self, sender: BatchSender, place: TopicPartition, copy: PartitionCopy) -> None:
        self.copy = copy
        self._sender = sender
        self._place = place
        self._offset = 0
        self._failure: StrandlineError | None = None

    async def send_all(self, batches: Iterator[tuple[BatchHeader, bytes]], sent: Callable[[int], None]) -> None:
        """Queue the filler, then every batch. Raises the error of a batch that has failed by then."""
        while self._offset < self.copy.first_offset:
            count = min(FILLER_RECORDS, self.copy.first_offset - self._offset)
            await self._send(filler(count), count)
        for header, batch in batches:
            await self._send(batch, header.count)
            sent(len(batch))

    async def _send(self, batch: bytes, count: int) -> None:
        self.raise_if_failed()
        future = await self._sender.send(self._place, batch)
        future.add_done_callback(partial(self._settled, self._offset))
        self._offset += count

    def _settled(self, expected: int, future: asyncio.Future[Ack]) -> None:
        if future.cancelled() or self._failure is not None:
            return
        error = future.exception()
        if isinstance(error, StrandlineError):
            self._failure = error
        elif error is None and future.result().offset not in (expected, -1):  # -1: stored, but no offset given
            self._failure = RestoreFailed(
                f"{self._place}: the record of offset {expected} got {future.result().offset}: somebody else is "
                f"writing into {self._place.topic}"
            )

    def raise_if_failed(self) -> None:
        """Raise the error of the first batch that failed, if any."""
        if self._failure is not None:
            raise self._failure


@lru_cache(maxsize=2)
def filler(count: int) -> bytes:
    """A batch of `count` empty records with timestamp 0."""
    builder = RecordBatchBuilder(Codec.GZIP)
    for _ in range(count):
        builder.append(0, None, None)
    return bytes(builder.build())


def cut_starts(admin: Admin, manifest: Manifest, name: str) -> None:
    """Delete the records below each log start of the backup: the filler, and the start of a first batch whose records
    had partly been deleted."""
    starts = {TopicPartition(name, part.partition): part.log_start for part in manifest.partitions if part.log_start}
    if starts:
        admin.delete_records(starts)


def compare(
    admin: Admin, reader: RangeReader, directory: Path, manifest: Manifest, name: str, *, read: Callable[[int], None]
) -> None:
    """Read the topic and compare it with the backup, batch by batch: offsets, timestamps, attributes and bytes.

    Raises:
        RestoreFailed: names the first difference.
    """
    places = {TopicPartition(name, part.partition): part for part in manifest.partitions}
    first = admin.list_offsets(dict.fromkeys(places, EARLIEST))
    last = admin.list_offsets(dict.fromkeys(places, LATEST))
    for place, part in places.items():
        if (first[place].offset, last[place].offset) != (part.log_start, part.end):
            raise RestoreFailed(
                f"{place} holds offsets {first[place].offset} to {last[place].offset}; the backup {part.log_start} to "
                f"{part.end}"
            )
        differs = _first_difference(
            reader.read_batches(name, part.partition, part.log_start, part.end),
            read_batches(directory, manifest, part.partition),
            read,
        )
        if differs is not None:
            raise RestoreFailed(f"{place}: the batch at offset {differs} is not the one of the backup")


def _first_difference(
    there: Iterator[RawBatch], kept: Iterator[tuple[BatchHeader, bytes]], read: Callable[[int], None]
) -> int | None:
    """Offset of the first batch that differs; None if none does."""
    for back, ours in zip_longest(there, kept):
        if ours is None:
            return back.base_offset
        header, batch = ours
        if back is None or back.base_offset != header.base_offset or _essence(back.data) != _essence(batch):
            return header.base_offset
        read(len(batch))
    return None


def _essence(batch: bytes | memoryview) -> bytearray:
    """Bytes of a batch without the fields that a producer and a leader set."""
    return with_producer(batch, -1, -1, -1)


def finish_settings(admin: Admin, manifest: Manifest, name: str) -> None:
    """Give the topic the backup's values of the settings that were changed during the restore."""
    changes = [
        ConfigChange(key, manifest.configs[key]) if key in manifest.configs else ConfigChange(key, None, "delete")
        for key in (*MEANWHILE, MAX_MESSAGE_BYTES)
    ]
    admin.alter_configs({ConfigResource("topic", name): changes})
