"""Where a consumer stands in one partition, and what it has fetched ahead: bytes that become records, batch by batch,
when they are asked for."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from uuid import UUID

from strandline.client.errors import PositionLost
from strandline.client.polled import PART_BYTES_MAX, Part
from strandline.client.types import ConsumerRecord
from strandline.log.batch import (
    HEADER_SIZE,
    BatchHeader,
    BatchJudge,
    CutOff,
    check_content,
    decode_columns,
    decode_records,
    decode_records_as,
)
from strandline.log.columns import RecordColumns
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.fields import RESPONSE_BYTES_MAX

NEVER_MS = float("-inf")
FORMER_MAX = 3
"""Of so many earlier topics of one name a position is kept."""

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0

_SLOTS = (2, 3, 5, 6, 7)
"""Where a ConsumerRecord has offset, timestamp, key, value and headers."""


def whole_batches(data: memoryview, high_watermark: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches of a fetch answer; brokers may cut the last one off.

    A batch's CRC does not cover its base offset, which a leader writes without touching the rest: what rots there shows
    in the order alone. Of two batches in the wrong order either may be the damaged one, so the first is kept back.

    Raises:
        KafkaError: CORRUPT_MESSAGE: no batch, or offsets that go back or reach the answer's high watermark; once the
            batches before have been given.
    """
    pos = 0
    size = len(data)
    judge = BatchJudge(0, gaps=True, bytes_max=RESPONSE_BYTES_MAX)
    before: tuple[BatchHeader, memoryview] | None = None
    while size - pos >= HEADER_SIZE:
        try:
            header = judge.header(data, pos, size - pos)
        except CutOff:
            break
        judge.check_place(header)
        if before is not None:
            yield before
        if header.last_offset >= high_watermark:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                "a batch of offsets that are not committed yet",
                last_offset=header.last_offset,
                high_watermark=high_watermark,
            )
        judge.follow(header)
        before = header, data[pos : pos + header.size]
        pos += header.size
    if before is not None:
        yield before


def good_batches(data: memoryview, high_watermark: int) -> list[tuple[BatchHeader, memoryview]]:
    """The whole batches of a fetch answer, as far as they are good: what follows is met as the first of another answer.

    Raises:
        KafkaError: CORRUPT_MESSAGE, see `whole_batches`, where there is no good one.
    """
    good: list[tuple[BatchHeader, memoryview]] = []
    try:
        for found in whole_batches(data, high_watermark):
            good.append(found)
    except KafkaError:
        if not good:
            raise
    return good


class AbortedTransactions:
    """Tells which transactional batches of one fetch answer were aborted (KIP-98).

    The answer lists (producer id, first offset); a transaction's records are dead from there to its abort marker.
    """

    def __init__(self, aborted: tuple[tuple[int, int], ...]) -> None:
        self._coming = deque(sorted(aborted, key=lambda item: item[1]))
        self._dead: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether a batch is kept from the reader: of an aborted transaction, or a marker. Call in order of offsets."""
        while self._coming and self._coming[0][1] <= header.last_offset:
            self._dead.add(self._coming.popleft()[0])
        if header.is_control:
            if header.producer_id in self._dead and _marker_type(batch) == _ABORT:
                self._dead.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._dead


def _marker_type(batch: memoryview) -> int:
    records = decode_records(batch)
    key = records[0].key if records else None
    if key is None or len(key) < _CONTROL_KEY.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a control batch without a marker")
    kind: int = _CONTROL_KEY.unpack_from(key)[1]
    return kind


def consumer_records(
    partition: TopicPartition, header: BatchHeader, batch: memoryview, start: int, check_crcs: bool
) -> list[ConsumerRecord]:
    """The records of one batch from offset `start` on.

    Raises:
        KafkaError: CORRUPT_MESSAGE or INVALID_RECORD, with partition and offset.
    """
    try:
        if check_crcs:
            check_content(header, batch)
        template = (*partition, None, None, header.timestamp_type, None, None, None, header.leader_epoch)
        records = decode_records_as(ConsumerRecord, template, _SLOTS, header, batch)
    except KafkaError as error:
        raise located(error, partition, header) from error
    if header.base_offset >= start:
        return records
    return [record for record in records if record.offset >= start]


def add_columns(
    columns: RecordColumns,
    partition: TopicPartition,
    header: BatchHeader,
    batch: memoryview,
    start: int,
    *,
    check_crcs: bool,
) -> int:
    """Append the records of one batch from offset `start` on; how many they are.

    Raises as `consumer_records`; the columns are then as they were.
    """
    try:
        if check_crcs:
            check_content(header, batch)
        return decode_columns(columns, header, batch, start, header.next_offset, with_headers=True)
    except KafkaError as error:
        raise located(error, partition, header) from error


def located(error: KafkaError, partition: TopicPartition, header: BatchHeader) -> KafkaError:
    """The error with the place of the batch that it is about."""
    figures = {**error.figures, "partition": str(partition), "base_offset": header.base_offset}
    return KafkaError(error.code, error.message, **figures)


class Chunk:
    """The batches of one fetch answer that were not handed out yet."""

    def __init__(
        self, records: memoryview, aborted: tuple[tuple[int, int], ...], read_committed: bool, high_watermark: int
    ) -> None:
        """Raises KafkaError (CORRUPT_MESSAGE), see `good_batches`."""
        self.size_bytes = len(records)
        self.batches = deque(good_batches(records, high_watermark))
        self._filter = AbortedTransactions(aborted) if read_committed else None

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the reader does not get to see a batch."""
        return header.is_control if self._filter is None else self._filter.hides(header, batch)


class PartitionState:
    """One assigned partition.

    Invariants:
    - `position` is the offset of the next record that `poll` returns, `fetch_offset` >= `position` the one to fetch
      next; everything between lies in `chunks` and `decoded`.
    - `generation` grows with every seek: an answer to a fetch of an older generation is dropped.
    - `sought` from a seek until the broker's ordinary connection, which may hold a fetch of the old position, is free.
    - With `reset_to` set there is no position until the leader has answered the offset.
    - A position belongs to `topic_id` (schedule 63): nothing is fetched from a topic that has another one. None: not
      known yet, or the brokers have none. It changes by `begin_anew` alone, inside a poll of the caller.
    """

    __slots__ = (
        "buffered_bytes", "checked_epoch", "chunks", "decoded", "decoded_pos", "error", "error_told_ms", "fetch_epoch",
        "fetch_offset", "fetching", "former", "generation", "high_watermark", "log_start_offset", "partition", "paused",
        "placing", "position", "preferred_replica", "preferred_until_ms", "refused", "reset_to", "resolving",
        "retry_at_ms", "rotten_at", "rotten_since_ms", "sought", "topic_id", "turn",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.topic_id: UUID | None = None
        self.former: dict[UUID, int] = {}
        """Where this partition stood in other topics of the name, by their ids."""
        self.position: int | None = None
        self.fetch_offset = -1
        self.fetch_epoch = -1
        self.checked_epoch = -1
        self.reset_to: int | None = None
        self.generation = 0
        self.chunks: deque[Chunk] = deque()
        self.decoded: list[ConsumerRecord] = []
        self.decoded_pos = 0
        self.buffered_bytes = 0
        self.fetching = False
        self.sought = False
        self.resolving = False
        """A leader is asked about the position, or the log."""
        self.placing = False
        """The group is asked where to begin (`groups.beginnings`)."""
        self.paused = False
        self.error: Exception | None = None
        self.error_told_ms = NEVER_MS
        """When a poll raised it last: one that stays until a seek is raised again and again, but not in a busy loop."""
        self.high_watermark = -1
        self.log_start_offset = -1
        self.preferred_replica = -1
        self.preferred_until_ms = 0.0
        self.retry_at_ms = 0.0
        self.refused = False
        """The leader has no `fetch_offset`. What was fetched before is handed out first: a reset would drop it."""
        self.rotten_at = -1
        """The offset at which the broker's log has rotted, as it says; since when: `rotten_since_ms`."""
        self.rotten_since_ms = 0.0
        self.turn = 0

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Go on from `offset`; what was fetched ahead is dropped."""
        self._forget()
        self.position = self.fetch_offset = offset
        self.fetch_epoch = leader_epoch
        self.reset_to = None

    def seek_by_query(self, timestamp: int) -> None:
        """Go on from the offset that the leader tells for a time, EARLIEST or LATEST."""
        self._forget()
        self.position = None
        self.reset_to = timestamp

    def is_of_another(self, topic_id: UUID | None) -> bool:
        """Whether the topic that has the name now is another one than that of the position."""
        # schedule 63/position-kept-over-a-topic-made-anew
        return topic_id is not None and self.topic_id is not None and topic_id != self.topic_id

    def begin_anew(self, topic_id: UUID, stood_at: int | None) -> None:
        """The topic was made anew: there is no position in the new one.

        Args:
            stood_at: the offset of the first record of the old one that was not handed out.

        A broker that hears nothing of the others tells of the old topic for a while: one that comes back is gone on
        with where it was left, so that nothing of either is skipped. A seek to an end or a time is in the new topic.
        What was fetched of the old one is dropped: it was deleted with its topic, and nobody could commit it.
        """
        assert self.topic_id is not None
        if stood_at is not None:
            self.former[self.topic_id] = stood_at
        before = self.former.pop(topic_id, None)
        for left_over in list(self.former)[:-FORMER_MAX]:
            del self.former[left_over]
        self._forget()
        self.checked_epoch = -1
        self.position = None
        self.topic_id = topic_id
        if before is not None and self.reset_to is None:
            self.seek(before)

    def _forget(self) -> None:
        self.generation += 1
        self.fetching = False
        self.sought = True
        self.chunks.clear()
        self.decoded = []
        self.decoded_pos = 0
        self.buffered_bytes = 0
        self.error = None
        self.error_told_ms = NEVER_MS
        self.preferred_replica = -1
        self.retry_at_ms = 0.0
        self.refused = False
        self.fetch_epoch = -1

    def add(self, chunk: Chunk) -> None:
        """Keep a fetch answer for `take`."""
        if chunk.batches:
            self.chunks.append(chunk)
            self.buffered_bytes += chunk.size_bytes
            last = chunk.batches[-1][0]
            self.fetch_offset = last.next_offset
            self.fetch_epoch = last.leader_epoch

    def take(self, most: int, check_crcs: bool) -> list[ConsumerRecord]:
        """Up to `most` records from the position on; the position moves past them.

        Damaged records become `error`; those before them are returned, and the position stays between.
        """
        taken: list[ConsumerRecord] = []
        while len(taken) < most:
            if self.decoded_pos >= len(self.decoded):
                try:
                    if not self._decode_next(check_crcs):
                        break
                except KafkaError as error:
                    self.error = error
                    return taken
            pos = self.decoded_pos
            end = min(pos + most - len(taken), len(self.decoded))
            taken += self.decoded[pos:end]
            self.decoded_pos = end
            self.position = taken[-1].offset + 1
        self._reach_end()
        return taken

    def take_columns(self, most: int, check_crcs: bool) -> list[Part]:
        """Whole batches from the position on, until they hold `most` records; the position moves past them.

        Nothing of them was decoded before (`refetch_decoded`). Damaged records become `error`, as in `take`.
        """
        parts: list[Part] = []
        rows = size = 0
        while self.chunks and rows < most and size < PART_BYTES_MAX:
            chunk = self.chunks[0]
            # schedule 108/columns-of-an-answer-without-batches
            if self._drop_if_empty(chunk):  # `take` had the last of it, and has handed all of that out
                continue
            header, batch = chunk.batches[0]
            assert self.position is not None
            if not chunk.hides(header, batch) and header.last_offset >= self.position:
                of = (self.partition, header.timestamp_type, header.leader_epoch)
                if not parts or parts[-1][:3] != of:
                    parts.append(Part(*of, RecordColumns.empty()))
                columns = parts[-1].columns
                size -= columns.size_bytes
                try:
                    rows += add_columns(columns, self.partition, header, batch, self.position, check_crcs=check_crcs)
                except KafkaError as error:
                    self.error = error
                    break
                size += columns.size_bytes
            chunk.batches.popleft()
            self.position = max(self.position, header.next_offset)
            self._drop_if_empty(chunk)
        self._reach_end()
        return [part for part in parts if part.columns.rows]

    def refetch_decoded(self, held: int | None) -> None:
        """Fetch again what became records before, and was not handed out: from `held` on, or the position."""
        if held is not None:
            self.seek(held)
        elif self.decoded_pos < len(self.decoded) and self.position is not None:
            self.seek(self.position)

    def drop_fetched(self) -> int:
        """Drop what was fetched ahead, to be fetched again from the position on; how many bytes that were.

        The epoch of the first batch that is dropped stands for the position: it still shows a log that was cut below.
        A lost position stays as it is: nothing more is fetched before a seek.
        """
        error, size = self.error, self.buffered_bytes
        if not size or self.position is None or isinstance(error, PositionLost):
            return 0
        waiting = self.decoded[self.decoded_pos : self.decoded_pos + 1]
        epochs = [record.leader_epoch for record in waiting]
        epochs += [header.leader_epoch for chunk in self.chunks for header, _ in chunk.batches]
        self.seek(self.position, epochs[0] if epochs else self.fetch_epoch)
        self.error = error
        return size

    @property
    def is_sought_for(self) -> bool:
        """Somebody is asked where to go on: nothing is fetched, and nothing else asked, meanwhile."""
        return self.resolving or self.placing  # schedule 106/begins-while-its-group-is-asked

    @property
    def lacks_records(self) -> bool:
        """Whether a poll finds nothing of this partition before another fetch, which is not out there yet."""
        waits = self.paused or self.fetching or self.is_sought_for or self.has_records
        return not waits and self.position is not None and self.error is None

    def _reach_end(self) -> None:
        """Markers, and records that compaction removed, end a log without a record to return."""
        if not self.chunks and self.decoded_pos >= len(self.decoded) and self.position is not None:
            self.position = max(self.position, self.fetch_offset)

    @property
    def has_records(self) -> bool:
        """Whether something fetched was not handed out yet (it may still turn out to be markers)."""
        return self.decoded_pos < len(self.decoded) or bool(self.chunks)

    def _decode_next(self, check_crcs: bool) -> bool:
        """Decode the next batch that holds a record for the reader."""
        while self.chunks:
            chunk = self.chunks[0]
            while chunk.batches:
                header, batch = chunk.batches[0]
                assert self.position is not None
                hidden = chunk.hides(header, batch)
                if header.last_offset >= self.position and not hidden:
                    records = consumer_records(self.partition, header, batch, self.position, check_crcs)
                else:
                    records = []
                chunk.batches.popleft()
                self.position = max(self.position, header.base_offset)
                if records:
                    self.decoded = records
                    self.decoded_pos = 0
                    return True
                self.position = max(self.position, header.next_offset)
            self._drop_if_empty(chunk)
        return False

    def _drop_if_empty(self, chunk: Chunk) -> bool:
        """The first chunk, if all of its batches are gone; whether they are."""
        if chunk.batches:
            return False
        self.chunks.popleft()
        self.buffered_bytes -= chunk.size_bytes
        return True
