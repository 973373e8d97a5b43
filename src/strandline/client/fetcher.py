"""The way of records from the brokers to a consumer: what is asked for, and what is kept until `poll` takes it.

`PartitionState`: where the consumer stands in one partition, and what it has fetched ahead: bytes that become records,
batch by batch, when they are asked for.

`Lookups`: positions that come from the partitions' leaders, and whether what was read is still in their logs.

`Fetcher`: one request out per broker, driven by `_run`, like the producer's sender: it does what can be done now and
sets one timer. A seek does not wait for a fetch of the old position that the broker holds: what was sought is asked for
over a second connection, never held there, until its end is reached or the first connection is free.

What bounds the memory: records that wait for `poll`, and what brokers were asked for, stay below `fetch.max.bytes` in
all, and below twice `max.partition.fetch.bytes` per partition; only a batch larger than what is left comes on top. Each
broker gets its share of the whole, so that one with nothing to send does not keep the room from the others. Paused
partitions keep what they hold while the others have room for one fetch; else it is dropped, and fetched again later.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from uuid import UUID

from strandline.client import logs
from strandline.client.config import ConsumerConfig, duration_ms
from strandline.client.errors import LogTruncated, NoOffsetForPartition, OffsetOutOfRange, PositionLost
from strandline.client.leaders import Leaders
from strandline.client.network import DATA, SEEK, Connection
from strandline.client.polled import PART_BYTES_MAX, Part
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.client.types import EARLIEST, LATEST, ConsumerRecord, EpochEnd, NodeInfo
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
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    read_response,
    write_request,
)
from strandline.proto.kafka.fields import RESPONSE_BYTES_MAX

NEVER_MS = float("-inf")
FORMER_MAX = 3
"""Maximum earlier topics of the same name whose position a partition keeps."""

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0

_SLOTS = (2, 3, 5, 6, 7)
"""Indexes of offset, timestamp, key, value and headers in a ConsumerRecord."""


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
            if header.producer_id in self._dead and _marker_type(header, batch) == _ABORT:
                self._dead.discard(header.producer_id)  # rule C18/an-abort-outlives-its-marker
            return True  # rule C18/markers-are-records
        # rule C18/aborted-records-are-read
        return header.is_transactional and header.producer_id in self._dead


def _marker_type(header: BatchHeader, batch: memoryview) -> int:
    """Type of a control batch's marker. Raises KafkaError CORRUPT_MESSAGE if it does not parse."""
    check_content(header, batch)  # rule C18/damaged-markers-are-believed
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
    """Append the records of one batch from offset `start` on, and return their number.

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

    def hides(self, partition: TopicPartition, header: BatchHeader, batch: memoryview) -> bool:
        """True if the reader does not get to see a batch. Raises KafkaError: a damaged marker, with its place."""
        if self._filter is None:
            return header.is_control
        try:
            return self._filter.hides(header, batch)
        except KafkaError as error:
            raise located(error, partition, header) from error


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
        """Positions of this partition in earlier topics of the same name, by their ids."""
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
        """The group is asked where to begin (`groups.commits.Beginnings`)."""
        self.paused = False
        self.error: Exception | None = None
        self.error_told_ms = NEVER_MS
        """Time (monotonic ms) when a poll last raised `error`: one that stays is not raised in a busy loop."""
        self.high_watermark = -1
        self.log_start_offset = -1
        self.preferred_replica = -1
        self.preferred_until_ms = 0.0
        self.retry_at_ms = 0.0
        self.refused = False
        """The leader has no `fetch_offset`. What was fetched before is handed out first: a reset would drop it."""
        self.rotten_at = -1
        """Offset at which the broker says its log is damaged, since `rotten_since_ms` (monotonic); -1: none."""
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
            try:
                if not chunk.hides(self.partition, header, batch) and header.last_offset >= self.position:
                    of = (self.partition, header.timestamp_type, header.leader_epoch)
                    if not parts or parts[-1][:3] != of:
                        parts.append(Part(*of, RecordColumns.empty()))
                    columns = parts[-1].columns
                    size -= columns.size_bytes
                    rows += add_columns(columns, self.partition, header, batch, self.position, check_crcs=check_crcs)
                    size += columns.size_bytes
            except KafkaError as error:
                self.error = error
                break
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
        """Drop what was fetched ahead, to be fetched again from the position on, and return its bytes.

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
        """True while the position is being looked up: until it is known, nothing is fetched and nothing else asked."""
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
                hidden = chunk.hides(self.partition, header, batch)
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
        """Drop the first chunk, if all of its batches are gone, and return whether they are."""
        if chunk.batches:
            return False
        self.chunks.popleft()
        self.buffered_bytes -= chunk.size_bytes
        return True


class Lookups:
    """Asks partition leaders for positions. Runs on one event loop.

    Args:
        found: called when positions or errors have come.
    """

    def __init__(
        self, config: ConsumerConfig, session: Session, leaders: Leaders, tasks: Tasks, found: Callable[[], None]
    ) -> None:
        self._config = config
        self._metadata = session.metadata
        self._clock = session.clock
        self._leaders = leaders
        self._tasks = tasks
        self._found = found
        self._read_committed = config.isolation_level == "read_committed"

    def find_positions(self, states: Iterable[PartitionState]) -> None:
        """Ask the leaders for the positions that are to come from them, all in one round."""
        wanted: dict[PartitionState, int] = {}
        for state in states:
            if state.position is not None or state.error is not None or state.is_sought_for or self._is_replaced(state):
                continue
            if state.reset_to is None:
                self._reset_by_policy(state)
            if state.reset_to is not None:
                wanted[state] = state.reset_to
        if wanted:
            for state in wanted:
                state.resolving = True
            self._tasks.spawn("a look-up of positions", self._resolve(wanted))

    def out_of_range(self, state: PartitionState) -> None:
        """The leader has refused the position, and everything before it was handed out."""
        state.refused = False
        state.resolving = True
        self._tasks.spawn("a look-up of a log's bounds", self._settle_out_of_range(state, state.generation))

    def check_epoch(self, state: PartitionState, epoch: int) -> None:
        """A new leader: its log may end earlier than what we read (KIP-320)."""
        state.resolving = True
        self._tasks.spawn("a check of a leader epoch", self._settle_epoch(state, state.generation, epoch))

    def _is_replaced(self, state: PartitionState) -> bool:
        """Whether its topic was created anew, which the caller of `poll` has to hear of first."""
        return state.is_of_another(self._metadata.topic_id(state.partition.topic))

    def _reset_by_policy(self, state: PartitionState) -> None:
        policy = self._config.auto_offset_reset
        if policy == "none":
            text = f"{state.partition} has no position and auto.offset.reset is none: seek before you poll"
            state.error = NoOffsetForPartition(text)
            self._found()
        elif policy in ("earliest", "latest"):
            state.seek_by_query(EARLIEST if policy == "earliest" else LATEST)
        else:
            state.seek_by_query(self._clock.wall_ms() - duration_ms(policy))

    async def _resolve(self, wanted: dict[PartitionState, int]) -> None:
        generations = {state: state.generation for state in wanted}
        timeout_ms = self._config.default_api_timeout_ms
        try:
            for topic in dict.fromkeys(state.partition.topic for state in wanted):
                await self._metadata.wait_for_topic(topic, timeout_ms)
            asked = {state: self._metadata.topic_id(state.partition.topic) for state in wanted}
            offsets = await self._offsets_at({state.partition: reset for state, reset in wanted.items()})
        except StrandlineError as error:
            for state, generation in generations.items():
                if state.generation == generation:
                    state.error = error
        else:
            for state, generation in generations.items():
                now = self._metadata.topic_id(state.partition.topic)
                # The question went by the name: the offset is of this topic if none was made anew meanwhile.
                if state.generation == generation and asked[state] == now and not state.is_of_another(now):
                    state.seek(*offsets[state.partition])
                    state.topic_id = now
        finally:
            for state in wanted:
                state.resolving = False
            self._found()

    async def _offsets_at(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Offset and epoch for each time; the end of the log where no record is that new."""
        timeout_ms = self._config.default_api_timeout_ms
        # The ends first: a record that comes between two questions in the other order would be passed over.
        times = {item: LATEST for item, time in wanted.items() if time >= 0}
        ends = await self._leaders.list_offsets(times, timeout_ms, read_committed=self._read_committed) if times else {}
        found = await self._leaders.list_offsets(wanted, timeout_ms, read_committed=self._read_committed)
        found |= {item: ends[item] for item, answer in found.items() if answer.offset < 0}
        return {item: (answer.offset, answer.leader_epoch) for item, answer in found.items()}

    async def _settle_out_of_range(self, state: PartitionState, generation: int) -> None:
        """The policy decides, or the error tells."""
        partition, timeout_ms = state.partition, self._config.default_api_timeout_ms
        try:
            start = await self._leaders.list_offsets({partition: EARLIEST}, timeout_ms)
            end = await self._leaders.list_offsets({partition: LATEST}, timeout_ms)
            if state.generation == generation:
                log_start, log_end = start[partition].offset, end[partition].offset
                if log_start <= state.fetch_offset <= log_end:
                    state.retry_at_ms = self._clock.monotonic_ms() + self._config.retry_backoff_ms
                elif self._config.auto_offset_reset == "none":
                    state.error = OffsetOutOfRange(*partition, state.fetch_offset, log_start, log_end)
                else:
                    logs.consumer.warning(
                        "%s: offset %s is out of range, the log holds %s to %s: it goes on by auto.offset.reset=%s",
                        partition, state.fetch_offset, log_start, log_end, self._config.auto_offset_reset,
                    )  # fmt: skip
                    self._reset_by_policy(state)
        except StrandlineError as error:
            if state.generation == generation:
                state.error = error
        finally:
            state.resolving = False
            self._found()

    async def _settle_epoch(self, state: PartitionState, generation: int, epoch: int) -> None:
        """The epoch counts as checked once it was: an error is raised, and the next poll leads to another attempt. The
        answer does not speak of records that came meanwhile, of a fetch that was under way: it is asked again then."""
        partition, read = state.partition, (state.fetch_offset, state.fetch_epoch)
        try:
            asked = {partition: state.fetch_epoch}
            end = (await self._leaders.epoch_ends(asked, self._config.default_api_timeout_ms))[partition]
            if state.generation != generation:
                return
            if (state.fetch_offset, state.fetch_epoch) == read:  # rule C35/judged-by-an-older-epoch
                state.checked_epoch = epoch
                self.judge(state, end)
        except StrandlineError as error:
            if state.generation != generation:
                return
            if isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
                state.checked_epoch = epoch  # a broker that cannot be asked
            else:
                state.error = error  # schedule 68/epoch-checked-by-an-error
        finally:
            state.resolving = False
            self._found()

    def judge(self, state: PartitionState, end: EpochEnd) -> None:
        """Go on where the leader's log parts from what was read."""
        if end.is_before(state.fetch_offset):
            self._truncated(state, end.end_offset)

    def _truncated(self, state: PartitionState, diverged_at: int) -> None:
        position = state.fetch_offset
        checked = state.checked_epoch
        if self._config.auto_offset_reset == "none":
            state.error = LogTruncated(*state.partition, position, diverged_at)
        else:
            logs.consumer.warning(
                "%s: its log was cut, and records up to offset %s had been read: it goes on at offset %s, from where "
                "the log differs", state.partition, position, diverged_at,
            )  # fmt: skip
            state.seek(min(diverged_at, position if state.position is None else max(state.position, 0)))
        state.checked_epoch = checked


_TELL_AGAIN_MS = 1_000.0
"""Time that a poll waits for records of other partitions before it raises again an error that stays."""
_ROT_PATIENCE_MS = 5_000.0
"""Time after which each poll raises CORRUPT_MESSAGE. A broker with a damaged log gives its leadership away in far less;
after that there may be no other replica that has the records."""
_SHORT_WAIT_MS = 50
"""Longest time that a broker holds a fetch that leaves out full partitions: they may be drained any moment."""


class Fetcher:
    """Fetches ahead for one consumer. Runs on one event loop."""

    def __init__(
        self,
        config: ConsumerConfig,
        session: Session,
        leaders: Leaders,
        tasks: Tasks,
        lookups: type[Lookups] = Lookups,
    ) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.requests_sent = 0
        self.last_error: StrandlineError | None = None
        self.replaced = False
        """Whether some partition's topic was created anew: its position means nothing, which the next poll says."""
        self._config = config
        self._network = session.network
        self._metadata = session.metadata
        self._clock = session.clock
        self._asked_bytes: dict[tuple[int, str], int] = {}
        """Bytes that the outstanding request asked for, by (broker id, purpose of the connection)."""
        self._tasks = tasks
        self._lookups = lookups(config, session, leaders, tasks, self._found)
        self._connecting: set[tuple[int, str]] = set()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._wake_pending = False
        self._turn = 0
        self._closed = False
        self._read_committed = config.isolation_level == "read_committed"
        self._metadata.subscribe(self.wake)

    # -- the consumer's side ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at everything again in this turn of the loop."""
        if not self._wake_pending and not self._closed:
            self._wake_pending = True
            asyncio.get_running_loop().call_soon(self._run)

    async def wait_for_change(self) -> None:
        """Return when records, an error or a position have come since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def notify(self) -> None:
        """Wake `wait_for_change`: something that `poll` checks has changed."""
        self._changed.set()

    def raise_error(self, *, again: bool = False) -> float:
        """Raise the error of a partition; its position stays as it was. One that says that there is no position to go
        on from stays, until a seek (schedule 68): each poll raises it, though not before it has waited a while (or,
        `again`, at its end) for records of other partitions. Returns after how many milliseconds to look again.
        """
        now, wait = self._clock.monotonic_ms(), float("inf")
        for state in self.states.values():
            if state.error is not None and not state.paused:
                left_ms = state.error_told_ms + _TELL_AGAIN_MS - now
                if again or left_ms <= 0:
                    self.raise_error_of(state)
                wait = min(wait, left_ms)
        return wait

    def raise_error_of(self, state: PartitionState) -> None:
        """Raise the error of this partition, if it has one."""
        error = state.error
        if error is not None:
            state.error_told_ms = self._clock.monotonic_ms()
            if not isinstance(error, PositionLost):  # schedule 68/lost-position-told-once
                state.error = None
            raise error.with_traceback(None)

    def _found(self) -> None:
        """A look-up has ended."""
        self._changed.set()
        self.wake()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that wait for `poll`."""
        return sum(state.buffered_bytes for state in self.states.values())

    def close(self) -> None:
        """Stop fetching; the tasks are their owner's to end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # -- the engine -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._wake_pending = False
        if self._closed:
            return
        now = self._clock.monotonic_ms()
        self._lookups.find_positions(self.states.values())
        wait = float("inf")
        by_node: dict[int, tuple[NodeInfo, list[PartitionState]]] = {}
        full: set[int] = set()
        leaders: set[int] = set()
        room = self._room()
        for state in self.states.values():
            if state.is_of_another(self._metadata.topic_id(state.partition.topic)):
                self.replaced = True
                self._changed.set()
                continue
            if state.position is None or state.paused or state.error is not None or state.is_sought_for:
                continue
            if state.refused:
                if not state.has_records:
                    self._lookups.out_of_range(state)
                continue
            if state.retry_at_ms > now:
                wait = min(wait, state.retry_at_ms - now)
                continue
            node = self._node_for(state)
            if node is None:
                state.error = self._metadata.absence(state.partition)
                if state.error is not None:
                    self._changed.set()
                self._metadata.request_update()
                wait = min(wait, self._config.retry_backoff_ms + 1.0)
                continue
            leaders.add(node.node_id)
            if room <= 0 or state.buffered_bytes >= self._config.max_partition_fetch_bytes:
                full.add(node.node_id)
            elif not state.fetching:
                by_node.setdefault(node.node_id, (node, []))[1].append(state)
        for node_id, (node, states) in by_node.items():
            purpose = SEEK if (node_id, DATA) in self._asked_bytes else DATA
            wanted = states if purpose is DATA else [state for state in states if state.sought]
            if room > 0 and wanted and (node_id, purpose) not in self._asked_bytes:
                share = min(room, max(self._config.fetch_max_bytes // len(leaders), 1))
                most_wait_ms = 0 if purpose is SEEK else self._held_ms(node_id in full)
                wait = min(wait, self._fetch((node, purpose), wanted, share, most_wait_ms))
                room -= self._asked_bytes.get((node_id, purpose), 0)
        self._set_timer(wait)

    def _room(self) -> int:
        """Bytes that brokers may be asked for now. Paused partitions make room where another one needs it."""
        room = self._config.fetch_max_bytes - self.buffered_bytes - sum(self._asked_bytes.values())
        needed = min(self._config.max_partition_fetch_bytes, self._config.fetch_max_bytes)
        if room < needed and any(state.lacks_records for state in self.states.values()):
            for state in self.states.values():
                if state.paused and room < needed:
                    room += state.drop_fetched()
        return room

    def _node_for(self, state: PartitionState) -> NodeInfo | None:
        """The replica to read from: the leader, or the nearer one it named (KIP-392). Checks the epoch on the way."""
        leader = self._metadata.leader_of(state.partition)
        if leader is None:
            return None
        node, epoch = leader
        if epoch > state.checked_epoch:
            if state.checked_epoch >= 0 and state.fetch_epoch >= 0:
                self._lookups.check_epoch(state, epoch)
                return None
            state.checked_epoch = epoch
        if state.preferred_replica >= 0 and self._clock.monotonic_ms() >= state.preferred_until_ms:
            state.preferred_replica = -1  # ask the leader again, which may know a better one by now
        return self._metadata.nodes.get(state.preferred_replica, node)

    def _held_ms(self, others_full: bool) -> int:
        """Longest time (ms) that a broker holds a fetch that it has nothing for."""
        most = self._config.fetch_max_wait_ms
        return min(most, _SHORT_WAIT_MS) if others_full else most

    def _fetch(self, via: tuple[NodeInfo, str], states: list[PartitionState], room: int, most_wait_ms: int) -> float:
        node, purpose = via
        connection = self._network.ready(node, purpose)
        if connection is None:
            return self._connect(node, purpose)
        if connection.throttled_ms > 0:
            return connection.throttled_ms
        states.sort(key=lambda state: state.turn)
        config = self._config
        wanted: list[FetchPartition] = []
        ids = {name: view.topic_id for name, view in self._metadata.topics.items()}
        for state in states:
            topic, partition = state.partition
            state.topic_id = state.topic_id or ids[topic]
            leader = self._metadata.leader_of(state.partition)
            epoch = -1 if leader is None else leader[1]
            size = config.max_partition_fetch_bytes
            wanted.append(FetchPartition(topic, ids.get(topic), partition, state.fetch_offset, size, epoch))
        all_named = all(one.topic_id is not None for one in wanted)
        version = connection.version(Api.FETCH, None if all_named else 12)
        request = FetchRequest(
            max_wait_ms=most_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=min(room, len(states) * config.max_partition_fetch_bytes),
            partitions=wanted,
            isolation_level=READ_COMMITTED if self._read_committed else READ_UNCOMMITTED,
            rack=config.client_rack,
        )
        timeout_ms = config.request_timeout_ms + request.max_wait_ms
        answer = connection.send(Api.FETCH, version, [write_request(version, request)], timeout_ms)
        for state in states:
            state.fetching = True
            state.sought = state.sought and purpose is SEEK
        self._asked_bytes[node.node_id, purpose] = request.max_bytes
        self.requests_sent += 1
        read = partial(_read, connection, version)
        asked = {state.partition: (state, state.generation) for state in states}
        answer.add_done_callback(partial(self._answered, via, read, asked))
        return float("inf")

    def _connect(self, node: NodeInfo, purpose: str) -> float:
        if (node.node_id, purpose) not in self._connecting:
            wait = self._network.backoff_ms(node)
            if wait > 0:
                return wait
            self._connecting.add((node.node_id, purpose))
            self._tasks.spawn(f"the connection to broker {node}", self._open(node, purpose))
        return float("inf")

    async def _open(self, node: NodeInfo, purpose: str) -> None:
        try:
            await self._network.to_node(node, purpose)
        except StrandlineError as error:
            self.last_error = error
            self._back_to_leaders(node)
            self._metadata.request_update()
        finally:
            self._connecting.discard((node.node_id, purpose))
            self.wake()

    def _set_timer(self, wait_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_ms != float("inf"):
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.wake)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _answered(
        self,
        via: tuple[NodeInfo, str],
        read: Callable[[memoryview], FetchResponse],
        asked: Mapping[TopicPartition, tuple[PartitionState, int]],
        answer: asyncio.Future[memoryview],
    ) -> None:
        node, purpose = via
        self._asked_bytes.pop((node.node_id, purpose), None)
        for state, generation in asked.values():
            if state.generation == generation:
                state.fetching = False
        if answer.cancelled() or self._closed:
            return
        now = self._clock.monotonic_ms()
        try:
            response = read(answer.result())
            if response.error is not ErrorCode.NONE:
                raise KafkaError(response.error, f"broker {node} refused the fetch")
        except StrandlineError as error:
            self.last_error = error
            self._back_to_leaders(node)
            self._metadata.request_update()
            for state, _ in asked.values():
                state.retry_at_ms = now + self._config.retry_backoff_ms
            self.wake()
            return
        self.last_error = None
        for fetched in response.partitions:
            name = self._metadata.topic_name(fetched.topic)
            entry = None if name is None else asked.get(TopicPartition(name, fetched.partition))
            if (
                entry is not None
                and entry[0].generation == entry[1]
                and self.states.get(entry[0].partition) is entry[0]
            ):
                self._take(entry[0], fetched, node, now)
                if not len(fetched.records):
                    entry[0].sought = False  # nothing more to hurry for
        self._changed.set()
        self.wake()

    def _back_to_leaders(self, node: NodeInfo) -> None:
        """Ask the leader again where it named `node` as the nearer replica, which does not answer."""
        for state in self.states.values():
            if state.preferred_replica == node.node_id:
                state.preferred_replica = -1

    def _take(self, state: PartitionState, fetched: PartitionData, node: NodeInfo, now: float) -> None:
        code = fetched.error
        if code is ErrorCode.NONE:
            state.high_watermark = fetched.high_watermark
            state.log_start_offset = fetched.log_start_offset
            if fetched.preferred_replica >= 0:
                state.preferred_replica = fetched.preferred_replica
                state.preferred_until_ms = now + self._config.metadata_max_age_ms
            if len(fetched.records):
                self._turn += 1
                state.turn = self._turn
                try:
                    state.add(self._chunk(state, fetched))
                except KafkaError as damage:
                    state.error = damage
            return
        from_leader = state.preferred_replica < 0
        state.preferred_replica = -1
        topic, partition = state.partition.topic, str(state.partition)
        error = answered(self._config, Api.FETCH, code, of=topic, partition=partition, broker=node.node_id)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and from_leader:
            state.refused = True  # schedule 107/reset-drops-what-was-fetched
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.last_error = error  # a follower that lags, or leads no more: the leader decides
        elif code.retriable and not self._is_rotten_for_long(state, code, now):
            self.last_error = error
            moved = fetched.leader_id >= 0 and self._metadata.apply_leader(
                state.partition, fetched.leader_id, fetched.leader_epoch
            )
            if not moved:
                state.retry_at_ms = now + self._config.retry_backoff_ms
                self._metadata.request_update()
            state.error = self._metadata.absence(state.partition)
        else:
            state.error = error

    def _is_rotten_for_long(self, state: PartitionState, code: ErrorCode, now: float) -> bool:
        """The log has rotted at this position, and no other replica has taken over in the time that this takes."""
        if code is not ErrorCode.CORRUPT_MESSAGE:
            return False
        state.retry_at_ms = now + self._config.retry_backoff_ms
        if state.rotten_at != state.fetch_offset:
            state.rotten_at, state.rotten_since_ms = state.fetch_offset, now
        return now - state.rotten_since_ms >= _ROT_PATIENCE_MS

    def _chunk(self, state: PartitionState, fetched: PartitionData) -> Chunk:
        chunk = Chunk(fetched.records, fetched.aborted, self._read_committed, fetched.high_watermark)
        if not chunk.batches:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                "the next batch is larger than max.partition.fetch.bytes, and this broker cuts it off",
                partition=str(state.partition),
                offset=state.fetch_offset,
                max_partition_fetch_bytes=self._config.max_partition_fetch_bytes,
            )
        return chunk


def _read(connection: Connection, version: int, body: memoryview) -> FetchResponse:
    """Decode a response, and obey its throttle time. Raises ProtocolError."""
    response = connection.read(read_response, body, version)
    connection.throttle(response.throttle_ms)
    return response
