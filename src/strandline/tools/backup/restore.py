"""Restore from a directory into a cluster: the very batches, in order, into an empty topic, so that offsets come out
equal.

Offsets cannot be asked for: a log gives them, one after the other, from 0. A partition whose log began later is filled
up to there with empty records, which are deleted before the restore ends. Keys, values, headers, timestamps, codecs and
the cut into batches are those of the backup; producer ids and sequences are not, for in another cluster they are, or
will be, somebody else's: a batch would be taken for a retry of that one, and dropped.
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
"""Empty records in one batch: 350 kB, which travel as 70."""

PARTITIONS_AT_ONCE = 16
MAX_MESSAGE_BYTES = "max.message.bytes"
MEANWHILE = {
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
}
"""Settings of the topic until everything is there: else records would get new times, or be deleted meanwhile."""


class RestoreFailed(ClientError):
    """The topic that was written back is not what the backup holds; it exists, and must not be used."""


def refuse_unless_empty(admin: Admin, manifest: Manifest, name: str) -> bool:
    """Whether the topic is there already, empty.

    Raises:
        BackupRefused: it holds or held records, or has another number of partitions.
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
    """Create the topic, or give an empty one the settings of the backup, so that every batch will be taken.

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
    """Send every batch. `sent` is told of each batch's bytes.

    Raises:
        RestoreFailed: a record got another offset than it had: somebody else writes into the topic.
        StrandlineError: what the cluster refused.
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
    """The way back of one partition."""

    def __init__(self, sender: BatchSender, place: TopicPartition, copy: PartitionCopy) -> None:
        self.copy = copy
        self._sender = sender
        self._place = place
        self._offset = 0
        self._failure: StrandlineError | None = None

    async def send_all(self, batches: Iterator[tuple[BatchHeader, bytes]], sent: Callable[[int], None]) -> None:
        """Queue the filler, then every batch. Raises what has failed by then."""
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
        elif error is None and future.result().offset not in (expected, -1):  # -1: it has it, and does not say where
            self._failure = RestoreFailed(
                f"{self._place}: the record of offset {expected} got {future.result().offset}: somebody else is "
                f"writing into {self._place.topic}"
            )

    def raise_if_failed(self) -> None:
        """Raise what the first batch that failed has failed with."""
        if self._failure is not None:
            raise self._failure


@lru_cache(maxsize=2)
def filler(count: int) -> bytes:
    """A batch of so many records with nothing in them, of the year 1970."""
    builder = RecordBatchBuilder(Codec.GZIP)
    for _ in range(count):
        builder.append(0, None, None)
    return bytes(builder.build())


def cut_starts(admin: Admin, manifest: Manifest, name: str) -> None:
    """Delete what the backed-up logs did not have any more: the filler, and what their first batches held before."""
    starts = {TopicPartition(name, part.partition): part.log_start for part in manifest.partitions if part.log_start}
    if starts:
        admin.delete_records(starts)


def compare(
    admin: Admin, reader: RangeReader, directory: Path, manifest: Manifest, name: str, *, read: Callable[[int], None]
) -> None:
    """Read the topic back and compare it with the backup, batch by batch: offsets, times, attributes and bytes.

    Raises:
        RestoreFailed: the first difference.
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
    """The offset of the first batch that the other side does not have so."""
    for back, ours in zip_longest(there, kept):
        if ours is None:
            return back.base_offset
        header, batch = ours
        if back is None or back.base_offset != header.base_offset or _essence(back.data) != _essence(batch):
            return header.base_offset
        read(len(batch))
    return None


def _essence(batch: bytes | memoryview) -> bytearray:
    """A batch without what its producer and its leader have put to it."""
    return with_producer(batch, -1, -1, -1)


def finish_settings(admin: Admin, manifest: Manifest, name: str) -> None:
    """Put the settings in place that were others meanwhile."""
    changes = [
        ConfigChange(key, manifest.configs[key]) if key in manifest.configs else ConfigChange(key, None, "delete")
        for key in (*MEANWHILE, MAX_MESSAGE_BYTES)
    ]
    admin.alter_configs({ConfigResource("topic", name): changes})
