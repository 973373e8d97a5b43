"""Reading a range of offsets straight from a partition's leader, for engines that plan their reads themselves.

    with RangeReader("127.0.0.1:9092") as reader:
        for record in reader.read_records("orders", 0, start=100, end=200):
            ...

The range is fixed before, so nothing here waits for records to come: a range beyond the log's end is an error with the
figures, as is one that retention has eaten. The next answer is fetched while the last one is worked on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, Unpack

from strandline.client.config import ConsumerConfig
from strandline.client.errors import OffsetOutOfRange, TopicReplaced
from strandline.client.fetcher import AbortedTransactions, consumer_records, good_batches, located, whole_batches
from strandline.client.leaders import Leaders
from strandline.client.limits import Limit, note
from strandline.client.loop_thread import LoopThread, end_unless
from strandline.client.network import DATA
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.settings import ConsumerSettings
from strandline.client.types import EARLIEST, LATEST, ConsumerRecord
from strandline.client.unclosed import watch
from strandline.log.batch import BatchHeader, check_content, decode_columns
from strandline.log.columns import RecordColumns
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    PartitionData,
    read_response,
    write_request,
)
from strandline.proto.ports import Clock, Rng

_SHORT_LOG_GRACE_MS = 45_000
"""Time that a log may seem to end before the range does. A new leader learns its high watermark from the ISR, and waits
replica.lag.time.max.ms (30 s) for one of it that is silent: until then records that were committed seem not to be."""


class RawBatch(NamedTuple):
    """One record batch as stored in the log. It may begin before the start of the range and end after its end."""

    base_offset: int
    next_offset: int
    max_timestamp_ms: int
    data: memoryview
    header: BatchHeader


class AsyncRangeReader:
    """The reader for coroutines; see `RangeReader`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._config = ConsumerConfig(settings)
        self._session = Session(bootstrap, self._config, clock=clock, rng=rng)
        self._metadata = self._session.metadata
        self._clock = self._session.clock
        self._leaders = Leaders(self._session, self._config.request_timeout_ms)
        self._read_committed = self._config.isolation_level == "read_committed"
        self._expected: dict[str, str | None] = {}

    def expect(self, topic: str, topic_id: str | None) -> None:
        """Read this very topic from now on: another one of that name is TopicReplaced. None: whichever there is."""
        self._expected[topic] = topic_id

    async def answers(self, partition: TopicPartition, start: int, end: int) -> AsyncGenerator[list[RawBatch], None]:
        """The batches that reach into [start, end), one fetch answer after the other.

        Raises:
            OffsetOutOfRange: the log does not hold the range (any more); the figures say what it holds.
            TopicReplaced: see `expect`.
            UnknownTopic, KafkaError: what a retry does not mend, damaged batches among it.
            ClientTimeout: no progress for `default.api.timeout.ms`.
        """
        self._session.check()
        if not 0 <= start <= end:
            raise ConfigError("range", f"{start} to {end}", "0 <= start <= end")
        position = start
        ahead: asyncio.Task[PartitionData] | None = None
        try:
            while position < end:
                told = await (ahead or self._fetch(partition, position, end))
                ahead = None
                batches, position = self._batches(partition, told, position, end)
                if position < end:
                    ahead = asyncio.get_running_loop().create_task(self._fetch(partition, position, end))
                if batches:
                    yield batches
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)  # what it failed with is nobody's any more

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._session.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _batches(
        self, partition: TopicPartition, told: PartitionData, position: int, end: int
    ) -> tuple[list[RawBatch], int]:
        """The batches of an answer that the reader gets to see, and the offset to go on from."""
        hidden = AbortedTransactions(told.aborted) if self._read_committed else None
        batches: list[RawBatch] = []
        for header, data in good_batches(told.records, told.high_watermark):
            if header.base_offset >= end:
                return batches, end
            position = max(position, header.next_offset)
            try:
                if header.is_control if hidden is None else hidden.hides(header, data):
                    continue
            except KafkaError as error:
                raise located(error, partition, header) from error
            if self._config.check_crcs:
                check_content(header, data)
            batches.append(RawBatch(header.base_offset, header.next_offset, header.max_timestamp, data, header))
        return batches, position

    def _readable(self, told: PartitionData) -> int:
        """The offset up to which this reader may read: the high watermark, or the last stable offset."""
        return told.last_stable_offset if self._read_committed else told.high_watermark

    async def _fetch(self, partition: TopicPartition, position: int, end: int) -> PartitionData:
        """One answer that holds at least one whole batch."""
        timeout_ms = self._config.default_api_timeout_ms
        words = f"no record of {partition} from offset {position} within default.api.timeout.ms={timeout_ms}"
        return await Limit(timeout_ms, words).keep(self._fetch_until_it_is_there(partition, position, end, timeout_ms))

    async def _fetch_until_it_is_there(
        self, partition: TopicPartition, position: int, end: int, timeout_ms: float
    ) -> PartitionData:
        start_ms = self._clock.monotonic_ms()
        failures = 0
        while True:
            try:
                told = await self._fetch_once(partition, position, timeout_ms)
            except KafkaError as error:
                if not error.retriable:
                    raise
                note(error)
                self._refresh(partition, error)
            except (OffsetOutOfRange, ConfigError, TopicReplaced):
                raise
            except StrandlineError as error:
                note(error)
                self._metadata.request_update()
            else:
                if told.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                    note(await self._out_of_range(partition, position, timeout_ms))
                elif len(told.records) and next(whole_batches(told.records, told.high_watermark), None) is not None:
                    return told
                elif (readable := self._readable(told)) < end:
                    short = OffsetOutOfRange(*partition, end - 1, told.log_start_offset, readable)
                    if self._clock.monotonic_ms() - start_ms > _SHORT_LOG_GRACE_MS:
                        raise short
                    note(short)
            failures += 1
            await asyncio.sleep(self._session.backoff_ms(failures) / 1000)

    async def _fetch_once(self, partition: TopicPartition, position: int, timeout_ms: float) -> PartitionData:
        config = self._config
        view = await self._metadata.wait_for_topic(partition.topic, timeout_ms)
        expected = self._expected.get(partition.topic)
        if expected is not None and view.topic_id is not None and str(view.topic_id) != expected:
            # What is known may be older than what is expected: a reader outlives topics.
            await self._metadata.update(timeout_ms)  # schedule 63/kept-reader-trusts-what-it-knows
            view = await self._metadata.wait_for_topic(partition.topic, timeout_ms)
            if str(view.topic_id) != expected:
                raise TopicReplaced(partition.topic, expected, str(view.topic_id))
        leader = self._metadata.leader_of(partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        node, epoch = leader
        connection = await self._session.network.to_node(node, DATA)
        size = config.max_partition_fetch_bytes
        wanted = FetchPartition(partition.topic, view.topic_id, partition.partition, position, size, epoch)
        request = FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=config.fetch_max_bytes,
            partitions=[wanted],
            isolation_level=READ_COMMITTED if self._read_committed else READ_UNCOMMITTED,
            rack=config.client_rack,
        )
        version = connection.version(Api.FETCH, None if view.topic_id is not None else 12)
        wait_ms = config.request_timeout_ms + config.fetch_max_wait_ms
        await connection.wait_throttled()
        body = await connection.send(Api.FETCH, version, [write_request(version, request)], wait_ms)
        response = connection.read(read_response, body, version)
        connection.throttle(response.throttle_ms)
        if response.error is not ErrorCode.NONE:
            raise KafkaError(response.error, f"broker {node} refused the fetch")
        if response.throttle_ms > 0 and not response.partitions:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"broker {node} throttles this client")
        if len(response.partitions) != 1:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {node} answered for other partitions")
        told = response.partitions[0]
        if told.error not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            if told.leader_id >= 0:
                self._metadata.apply_leader(partition, told.leader_id, told.leader_epoch)
            topic, where = partition.topic, str(partition)
            raise answered(config, Api.FETCH, told.error, of=topic, partition=where, broker=node.node_id)
        return told

    def _refresh(self, partition: TopicPartition, error: KafkaError) -> None:
        if error.refresh_metadata:
            self._metadata.request_update()
        gone = self._metadata.absence(partition)
        if gone is not None:
            raise gone

    async def _out_of_range(self, partition: TopicPartition, position: int, timeout_ms: float) -> StrandlineError:
        """Ask for the figures; raises unless the offset is inside after all (leadership has just moved)."""
        first = (await self._leaders.list_offsets({partition: EARLIEST}, timeout_ms))[partition].offset
        last = (await self._leaders.list_offsets({partition: LATEST}, timeout_ms))[partition].offset
        error = OffsetOutOfRange(*partition, position, first, last)
        if not first <= position <= last:
            raise error
        return error


class RangeReader:
    """Reads ranges of offsets. Blocking, one thread at a time; make one per process, and not before a fork.

    Settings are a consumer's: `max.partition.fetch.bytes` is what one answer brings, and two answers are in memory at
    most; `isolation.level=read_committed` leaves aborted transactions out.
    """

    def __init__(self, bootstrap: str | Sequence[str] = "127.0.0.1:9092", **settings: Unpack[ConsumerSettings]) -> None:
        make: Callable[..., AsyncRangeReader] = AsyncRangeReader
        made: list[LoopThread] = []
        try:
            self._thread = LoopThread("strandline-range-reader", made)
            self._inner = self._thread.call(lambda: make(bootstrap, **settings))
            self._thread.at_end = self._inner._session.drop
            end = partial(self._thread.stop, self._inner.close)
            self._watched = watch(self, "a RangeReader", self._thread, end)
        except BaseException:
            end_unless(made, None)
            raise

    def expect(self, topic: str, topic_id: str | None) -> None:
        """Read this very topic from now on: another one of that name is TopicReplaced. None: whichever there is."""
        self._inner.expect(topic, topic_id)

    def read_batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[RawBatch]:
        """Every batch that reaches into [start, end), in order. Raises as `AsyncRangeReader.answers`."""
        answers = self._inner.answers(TopicPartition(topic, partition), start, end)
        try:
            while True:
                try:
                    batches = self._thread.wait(partial(anext, answers))
                except StopAsyncIteration:
                    return
                yield from batches
        finally:
            self._thread.wait(answers.aclose)

    def read_records(self, topic: str, partition: int, start: int, end: int) -> Iterator[ConsumerRecord]:
        """Every record of [start, end), in order. Raises as `AsyncRangeReader.answers`."""
        where = TopicPartition(topic, partition)
        for batch in self.read_batches(topic, partition, start, end):
            records = consumer_records(where, batch.header, batch.data, start, check_crcs=False)
            if batch.next_offset > end:
                records = [record for record in records if record.offset < end]
            yield from records

    def read_columns(
        self, topic: str, partition: int, start: int, end: int, *, max_rows: int, max_bytes: int, with_headers: bool
    ) -> Iterator[tuple[int, RecordColumns]]:
        """The records of [start, end), in order, as buffers in Arrow's layout, each with its records' timestamp type.

        No object is made for a record. Columns are given out once they hold `max_rows` records or `max_bytes` of keys,
        values and headers; a batch is never split, so they may hold one batch more. Raises as `read_batches`.
        """
        columns, timestamp_type = RecordColumns.empty(), 0
        try:
            for batch in self.read_batches(topic, partition, start, end):
                full = columns.rows >= max_rows or columns.size_bytes >= max_bytes
                if columns.rows and (full or timestamp_type != batch.header.timestamp_type):
                    yield timestamp_type, columns
                    columns = RecordColumns.empty()
                timestamp_type = batch.header.timestamp_type
                try:
                    decode_columns(columns, batch.header, batch.data, start, end, with_headers=with_headers)
                except KafkaError as error:
                    raise located(error, TopicPartition(topic, partition), batch.header) from error
        except OffsetOutOfRange:
            if columns.rows:
                yield timestamp_type, columns  # records before the gap: who goes on behind it must not miss them
            raise
        if columns.rows:
            yield timestamp_type, columns

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._thread.stop(self._inner.close)
        self._watched()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_range(
    bootstrap: str | Sequence[str],
    topic: str,
    partition: int,
    *,
    start: int,
    end: int,
    config: Mapping[str, Any] | None = None,
) -> Iterator[RawBatch]:
    """The batches of one range with a reader of its own; see `RangeReader`."""
    with RangeReader(bootstrap, **(config or {})) as reader:
        yield from reader.read_batches(topic, partition, start, end)
