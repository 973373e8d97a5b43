"""The source of a copy: the records of a range, as they are to be sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.client.errors import OffsetOutOfRange
from strandline.client.fetcher import consumer_records
from strandline.client.range_reader import AsyncRangeReader, RawBatch
from strandline.client.types import ConsumerRecord
from strandline.log.compression import Codec
from strandline.proto.ids import TopicPartition
from strandline.tools.copy.errors import RecordsDeleted

Transform = Callable[[ConsumerRecord], ConsumerRecord | None]

SLICE_RECORDS = 500
"""Records after which the heartbeats, and what is sent and fetched, have their turn."""


@dataclass(slots=True)
class CopyCounts:
    """Records of rounds: read (by source partition), of them `left_out` by the transform, `already` there or `written`.

    `size_bytes` is that of the batches read, `deleted` counts the offsets that the source had deleted before.
    """

    read: dict[int, int] = field(default_factory=dict)
    left_out: int = 0
    already: int = 0
    written: int = 0
    size_bytes: int = 0
    deleted: int = 0

    def add(self, other: CopyCounts) -> None:
        """Count a round that is done."""
        for number, count in other.read.items():
            self.read[number] = self.read.get(number, 0) + count
        self.left_out += other.left_out
        self.already += other.already
        self.written += other.written
        self.size_bytes += other.size_bytes
        self.deleted += other.deleted


class Slice(NamedTuple):
    """Records in order, the codec of their batch, and the offset behind them."""

    records: list[ConsumerRecord]
    codec: Codec
    next_offset: int


class Source:
    """Reads the source's partitions. Runs on one event loop."""

    def __init__(
        self, reader: AsyncRangeReader, topic: str, *, transform: Transform | None, accept_deleted: bool
    ) -> None:
        self.topic = topic
        self._reader = reader
        self._transform = transform
        self._accept_deleted = accept_deleted

    async def slices(self, number: int, start: int, end: int, tally: CopyCounts) -> AsyncGenerator[Slice, None]:
        """The records of [start, end) of a partition, as the transform makes them; counted in `tally`.

        Raises:
            RecordsDeleted: some are gone, and that is not accepted.
            StrandlineError: as `AsyncRangeReader.answers`.
            Exception: of the transform.
        """
        place = TopicPartition(self.topic, number)
        tally.read.setdefault(number, 0)
        async with aclosing(self._batches(place, start, end, tally)) as batches:
            async for batch in batches:
                records = consumer_records(place, batch.header, batch.data, start, check_crcs=False)
                if batch.next_offset > end:
                    records = [record for record in records if record.offset < end]
                tally.read[number] += len(records)
                tally.size_bytes += len(batch.data)
                for first in range(0, len(records), SLICE_RECORDS):
                    part = records[first : first + SLICE_RECORDS]
                    next_offset = part[-1].offset + 1
                    if self._transform is not None:
                        changed = [_changed(self._transform, record) for record in part]
                        part = [record for record in changed if record is not None]
                        tally.left_out += len(changed) - len(part)
                    yield Slice(part, batch.header.codec, next_offset)

    def deleted(self, number: int, start: int, end: int) -> int:
        """Number of deleted offsets; raises RecordsDeleted unless that is accepted."""
        if not self._accept_deleted:
            raise RecordsDeleted(TopicPartition(self.topic, number), start, end)
        return end - start

    async def _batches(
        self, place: TopicPartition, start: int, end: int, tally: CopyCounts
    ) -> AsyncGenerator[RawBatch, None]:
        """The batches that reach into a range; what was deleted of it is stepped over, where that is accepted."""
        position = start
        while position < end:
            try:
                async with aclosing(self._reader.answers(place, position, end)) as answers:
                    async for batches in answers:
                        for batch in batches:
                            yield batch
                            position = batch.next_offset
                return
            except OffsetOutOfRange as error:
                if error.log_start <= position:
                    raise
                first = min(error.log_start, end)
                tally.deleted += self.deleted(place.partition, position, first)
                position = first


def _changed(transform: Transform, record: ConsumerRecord) -> ConsumerRecord | None:
    """Raises what the transform raises, with a note of the record; TypeError for what is no record."""
    try:
        changed = transform(record)
        if changed is not None and not isinstance(changed, ConsumerRecord):
            raise TypeError(f"the transform gave {type(changed).__name__}: a ConsumerRecord is expected, or None")
    except Exception as error:
        error.add_note(f"(the transform was given offset {record.offset} of {record.topic}-{record.partition})")
        raise
    return changed
