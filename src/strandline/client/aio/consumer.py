"""The consumer for coroutines. Runs on the loop that first uses it; fetches and beats by itself between the calls."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Self, TypeVar, Unpack
from uuid import UUID

from strandline.client.config import ConsumerConfig, Deserializer
from strandline.client.errors import ClientError, ClosedError, DeserializationFailed, TopicReplaced
from strandline.client.fetcher import Fetcher, Lookups, PartitionState
from strandline.client.groups.commits import CommitDone, HandedOut
from strandline.client.groups.session import ConsumerState, GroupSession, Invoke, Listener, Subscribed, Topics, invoke
from strandline.client.leaders import Leaders
from strandline.client.limits import Limit, limited
from strandline.client.logs import log
from strandline.client.polled import Part, Place, PolledRecords
from strandline.client.session import Session
from strandline.client.settings import ConsumerSettings
from strandline.client.tasks import Tasks
from strandline.client.types import (
    EARLIEST,
    LATEST,
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
)
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock, Rng

Partition = TopicPartition | tuple[str, int]

T = TypeVar("T", list[ConsumerRecord], PolledRecords)

LONG_POLL_S = 3600.0
"""Length of each of the polls by which an iteration waits for its next record."""
CLOSE_S = 30.0
"""Default limit of a close, as in Kafka."""
Handler = Callable[[ConsumerRecord], Awaitable[object] | object]
Offsets = Mapping[TopicPartition, OffsetAndMetadata | int] | Mapping[tuple[str, int], OffsetAndMetadata | int]

__all__ = ["Consumer", "ConsumerState", "Handler", "Offsets", "Partition"]


class Deserializing:
    """Both deserializers of a consumer, for its key and its value."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._key = config.key_deserializer
        self._value = config.value_deserializer
        self.wanted = self._key is not None or self._value is not None
        """Whether there is a deserializer."""

    def record(self, raw: ConsumerRecord) -> ConsumerRecord:
        """The record with what the deserializers made of its key and value.

        Raises:
            DeserializationFailed: with topic, partition and offset, whatever the deserializer raised.
        """
        return raw._replace(
            key=_meaning(raw, "key", raw.key, self._key), value=_meaning(raw, "value", raw.value, self._value)
        )

    def records(self, raw: list[ConsumerRecord]) -> tuple[list[ConsumerRecord], DeserializationFailed | None]:
        """The records before the first one that cannot be deserialized, and the error of that one."""
        done: list[ConsumerRecord] = []
        try:
            for one in raw:
                done.append(self.record(one))
        except DeserializationFailed as failure:
            return done, failure
        return done, None


def _meaning(raw: ConsumerRecord, field: str, data: bytes | None, deserializer: Deserializer | None) -> object:
    if data is None or deserializer is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise DeserializationFailed(raw.topic, raw.partition, raw.offset, field, why) from error


class Consumer:
    """Reads partitions: those that its group gives it (`subscribe`), or those that the program names (`assign`).

    Records of a poll count as done when poll is called again, those of an iteration when the next one is asked for.
    Only what is done is committed by itself; `commit()` says that everything handed out is done.

    Args:
        bootstrap: ``"host:port,..."`` or a sequence of them.
        clock, rng: the world; the machine's own when left out.
        settings: see docs/client-settings.md.

    Raises at construction:
        ConfigError: an unknown setting, or a value that cannot stand.
    """

    _lookups: type[Lookups] = Lookups
    """Judges the answers of leaders that positions are taken from."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._config = ConsumerConfig(settings)
        self.session = Session(bootstrap, self._config, clock=clock, rng=rng)
        self._leaders = Leaders(self.session, self._config.request_timeout_ms)
        self._fetcher: Fetcher | None = None
        self._states: dict[TopicPartition, PartitionState] = {}
        self._tasks = Tasks(self._broke)
        self._broken: ClientError | None = None
        """Internal error that ended the background tasks; None if there is none."""
        self._closed = False
        self._first = 0
        """Index of the partition that the last poll began with."""
        self._ready: deque[ConsumerRecord] = deque()
        """Records that were polled and not yielded or returned."""
        self._group: GroupSession | None = None
        if self._config.group_id is not None:
            self._group = GroupSession(self._config, self.session, self, self._states, self._tasks)
        self._invoke: Invoke = invoke
        self._on_replaced: Listener | None = None
        self._replaced: dict[TopicPartition, None] = {}
        self._deserializing = Deserializing(self._config)
        self._read_committed = self._config.isolation_level == "read_committed"
        self._handed: ConsumerRecord | None = None
        """Record that an iteration without a group yielded last."""
        self._stopped = False
        self._until_ms: float | None = None
        """Time (monotonic ms) by which a close, or leaving the group, has to end; None: neither is under way."""

    # -- what to read, and from where ---------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        on_replaced: Listener | None = None,
    ) -> None:
        """Read what the group gives this consumer of these topics.

        Args:
            topics: a name, several, or a compiled pattern that whole names match; new topics are followed within
                `metadata.max.age.ms`.
            on_assigned: called with the partitions that come, before any record of them; may seek.
            on_revoked: called with those that go, while they may still be committed.
            on_lost: called with those that others may have by now; without it `on_revoked` is.
            on_replaced: called with those whose topic was deleted and made anew while held, before any record of
                the new topic, which begins by `auto.offset.reset`; may seek.

        Listeners are called inside `poll`, and may be coroutine functions. What they raise, poll raises.

        Raises:
            ConfigError: no topics, no `group.id`.
            ClientError: partitions were named with `assign`.
        """
        group = self._of_group("subscribe")
        self._check_if_started()
        if group.subscribed is None and self._states:
            raise ClientError("partitions are assigned by name: call assign([]) before subscribe")
        group.subscribe(Subscribed.of(topics, on_assigned, on_revoked, on_lost))
        self._on_replaced = on_replaced
        self.wake_poll()

    async def unsubscribe(self) -> None:
        """Commit what is done (`enable.auto.commit`), give all partitions up and leave the group.

        Within `default.api.timeout.ms`, calls that listeners make of this consumer included: a coordinator that does
        not answer by then finds out by itself (`session.timeout.ms`).
        """
        if self._group is not None:
            self.session.check()
            await self._parting(self._group.unsubscribe, self._timeout_ms())

    def subscription(self) -> tuple[str, ...]:
        """Topics of the subscription; for a pattern, the known topics that match."""
        wanted = None if self._group is None else self._group.subscribed
        return () if wanted is None else wanted.topics

    def assign(self, partitions: Iterable[Partition], *, on_replaced: Listener | None = None) -> None:
        """Read these partitions and no others. Positions of those that stay are kept; others begin at what is
        committed, if there is a `group.id`, or where `auto.offset.reset` says. `on_replaced`: see `subscribe`."""
        group = self._group
        if group is not None and group.subscribed is not None:
            raise ClientError("topics are subscribed to: call unsubscribe before assign")
        before = frozenset(self._states)
        self._hold(partitions)
        if self._fetcher is not None:
            self.session.metadata.set_wanted(dict.fromkeys(item.topic for item in self._states))
        self._on_replaced = on_replaced
        if group is not None:
            group.progress.forget(before - self._states.keys())
            for item in self._states:
                group.progress.take_up(item)
            group.beginnings.drop_given_up()
            group.beginnings.ask(item for item in self._states if item not in before)

    def _hold(self, partitions: Iterable[Partition]) -> None:
        self._check_if_started()
        wanted = dict.fromkeys(partition_of(item) for item in partitions)
        states = {item: self._states.get(item) or PartitionState(item) for item in wanted}
        self._states.clear()
        self._states.update(states)
        self._keep_ready(lambda held: held in states)
        if self._fetcher is not None:
            self.session.metadata.want(dict.fromkeys(item.topic for item in states))
            self._fetcher.wake()

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, in the order in which they were named."""
        return list(self._states)

    def seek(self, partition: Partition, offset: int) -> None:
        """The next record of the partition is the first at or after `offset`. One outside the log shows at poll."""
        if offset < 0:
            raise ConfigError("offset", offset, "0 or more; for the ends there are seek_to_beginning and seek_to_end")
        self._seekable(partition, offset).seek(offset)
        self._wake()

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Go on from the first offset that the log has; no partition named: all that are assigned."""
        self._seek_by_query(dict.fromkeys(partitions or self._states, EARLIEST))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Go on behind the last record that consumers may see, as of the next poll."""
        self._seek_by_query(dict.fromkeys(partitions or self._states, LATEST))

    def seek_to_timestamp(self, timestamps_ms: Mapping[Partition, int]) -> None:
        """Seek to the first record at or after a time (ms since 1970), or to the end if there is none."""
        for timestamp_ms in timestamps_ms.values():
            if timestamp_ms < 0:
                raise ConfigError("timestamp_ms", timestamp_ms, "milliseconds since 1970, not negative")
        self._seek_by_query(timestamps_ms)

    @limited
    async def position(self, partition: Partition) -> int:
        """Offset of the next record that poll returns, asked of the leader if need be.

        Raises:
            NoOffsetForPartition: there is none, and `auto.offset.reset` is none.
            ClientTimeout, UnknownTopic, KafkaError.
        """
        state = self._state(partition)
        fetcher = self._started()
        while True:
            self._place()
            if state.position is not None:
                break
            fetcher.wake()
            await fetcher.wait_for_change()
            self._raise_if_broken()
            fetcher.raise_error_of(state)
        held = self._first_ready(state.partition)
        return state.position if held is None else held

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions, and fetch none, until `resume`; positions are kept."""
        self._check_if_started()
        for item in partitions:
            state = self._state(item)
            state.paused = True
            held = self._first_ready(state.partition)
            if held is not None:  # what iteration polled ahead comes again after `resume`
                self._drop_ready(state.partition)
                state.seek(held)  # schedule 108/paused-partition-skips-what-was-polled-ahead

    def resume(self, *partitions: Partition) -> None:
        """Undo `pause`."""
        self._check_if_started()
        for item in partitions:
            self._state(item).paused = False
        self._wake()

    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return [item for item, state in self._states.items() if state.paused]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Up to `max_records` (`max.poll.records`) records; waits at most `timeout_s` for the first.

        It waits no longer for anything else: what its group needs goes on meanwhile, and the next poll goes on with it.
        The time that listeners and deserializers take comes on top.

        Records of one partition come in order; positions move past what is returned. What the last poll returned counts
        as done from here on. Rebalances happen in here.

        Raises:
            OffsetOutOfRange, NoOffsetForPartition, LogTruncated: as `auto.offset.reset=none` wants it.
            UnknownTopic, KafkaError: what a retry does not mend. The position is unchanged, poll may be called again.
            DeserializationFailed: of the first record to be returned; the position is unchanged.
            ClientError: nothing is assigned.
        """
        self._finish()
        records = await self._next_records(timeout_s, max_records, self._take)
        if self._deserializing.wanted:
            raw = records
            try:
                records, failure = self._deserializing.records(raw)
            except BaseException:  # sys.exit in a deserializer, say: nobody has these records
                self._ready.extendleft(reversed(raw))
                raise
            self._ready.extendleft(reversed(raw[len(records) :]))
            if failure is not None and not records:
                raise failure
        if self._group is not None:
            self._group.progress.hand(records)
        return records

    async def poll_columns(self, timeout_s: float = 0.0, max_records: int | None = None) -> PolledRecords:
        """As `poll`, as columns: a table of pyarrow or pandas without an object for each record.

        Batches come whole, until they hold `max_records` (`max.poll.records`) records: it may be a batch more.

        Raises as `poll`, and ConfigError with a deserializer: columns hold bytes.
        """
        if self._deserializing.wanted:
            name = "key.deserializer" if self._config.key_deserializer is not None else "value.deserializer"
            raise ConfigError(name, "a function", "none with poll_columns, which gives bytes; poll calls it")
        self._refetch_decoded()  # schedule 108/columns-begin-behind-what-was-decoded
        self._finish()
        polled = await self._next_records(timeout_s, max_records, self._take_columns)
        if self._group is not None:
            behind = {part.partition: part.behind for part in polled.parts}
            self._group.progress.hand_behind(behind)
        return polled

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while True:
            record = await self.next_record(LONG_POLL_S)
            if record is not None:
                return record

    async def next_record(self, timeout_s: float, *, raw: bool = False) -> ConsumerRecord | None:
        """The next record, and the one before it is done; None when none comes in time. `raw`: not deserialized.

        Raises as `poll`.
        """
        record = self.next_polled(raw=raw)
        if record is None:
            self._finish()
            records = await self._next_records(timeout_s, None, self._take)
            self._ready.extend(records)
            record = self.next_polled(raw=raw)
        return record

    def next_polled(self, *, raw: bool = False) -> ConsumerRecord | None:
        """The next record, if there is one that needs no waiting. Callable from another thread.

        Raises DeserializationFailed.
        """
        group = self._group
        if not self._ready or (group is not None and group.restless):
            return None
        record = self._ready[0] if raw or not self._deserializing.wanted else self.deserialized(self._ready[0])
        if group is not None:
            group.progress.step(record)
            group.member.touched = True
        else:
            self._handed = record
        # rule B37/a-record-is-taken-off-by-a-call
        del self._ready[0]  # no call, after which a signal's handler could raise, and the record would be lost
        return record

    def take_back(self, settled: ConsumerRecord | None) -> None:
        """Hand out again, as not done, what an iteration has handed out last, unless it is `settled`."""
        one = self._handed if self._group is None else self._group.progress.handed_last
        if one is not None and one is not settled:
            where = TopicPartition(one.topic, one.partition)
            if where in self._states:  # schedule 64/unsettled-record-counts-as-done
                self.seek(where, one.offset)

    def put_back(self, records: Iterable[ConsumerRecord | Place]) -> None:
        """Deliver these records again, which were delivered but never reached the application."""
        for record in reversed(list(records)):
            where = TopicPartition(record.topic, record.partition)
            if where in self._states:
                self.seek(where, record.offset)

    def put_parts_back(self, polled: PolledRecords) -> None:
        """Hand out again the records of a `poll_columns`, as `put_back`."""
        self.put_back(part.first for part in polled.parts)

    def put_one_back(self, record: ConsumerRecord | None) -> None:
        """Hand out again the record of an iteration, as `put_back`."""
        self.put_back([] if record is None else [record])

    def deserialized(self, raw: ConsumerRecord) -> ConsumerRecord:
        """The record with key and value deserialized. Raises DeserializationFailed."""
        return self._deserializing.record(raw) if self._deserializing.wanted else raw

    def _finish(self) -> None:
        """Note that everything handed out is done; where nothing waits, so is what was skipped on the way (markers)."""
        if self._group is not None:
            progress = self._group.progress
            if self._ready:
                progress.keep(self._ready[0])
            progress.finish()
            if not self._ready:
                for item, state in self._states.items():
                    if state.position is not None and not state.is_sought_for:
                        progress.reach(item, state.position)

    async def _next_records(self, timeout_s: float, most: int | None, take: Callable[[int], T]) -> T:
        group = self._group
        most = most or self._config.max_poll_records
        if (group is None or group.subscribed is None) and not self._states:
            raise ClientError(
                "nothing is assigned: call subscribe(topics) or assign([(topic, partition), ...]) before poll"
            )
        self._started()
        until_ms = self.session.clock.monotonic_ms() + timeout_s * 1000
        if group is None:
            return await self._gather(until_ms, most, take)
        group.start()
        group.member.polling = True
        try:
            return await self._gather(until_ms, most, take)
        finally:
            group.member.polling = False
            group.member.polled()

    async def _gather(self, until_ms: float, most: int, take: Callable[[int], T]) -> T:
        """Up to `most` of what `take` finds; waits until `until_ms` (monotonic) for a first record.

        Other tasks on this loop have a turn before, even when records lie there: a backlog must not hold the loop.
        """
        fetcher = self._started()
        await asyncio.sleep(0)
        while True:
            self._raise_if_broken()
            if fetcher.replaced:
                fetcher.replaced = False
                await self._begin_anew()
            records = take(most if await self._look(until_ms) else 0)
            fetcher.wake()  # schedule 108/cancelled-poll-keeps-what-it-took
            if records:
                return records
            tell_again_ms = fetcher.raise_error()
            left_ms = until_ms - self.session.clock.monotonic_ms()
            if left_ms <= 0:
                fetcher.raise_error(again=True)
                return records
            try:
                async with asyncio.timeout(min(left_ms, tell_again_ms) / 1000):
                    await fetcher.wait_for_change()
            except TimeoutError:
                continue

    async def _look(self, until_ms: float) -> bool:
        """Follow the group; False: it needs more time than until `until_ms` (monotonic) before records may be handed
        out. Raises AuthenticationFailed: the brokers do not let this client in."""
        if self.session.network.denied is not None:
            raise self.session.network.denied.with_traceback(None)
        if self._replaced:
            await self._call_on_replaced()
        if self._group is not None:
            error, self._group.callback_error = self._group.callback_error, None
            if error is not None:
                raise error
            if not await self._group.step(until_ms):
                return False
            self._place()
        return True

    def _place(self) -> None:
        """Begin partitions where the group has committed. Raises what the last attempt failed with."""
        if self._group is not None:
            self._group.beginnings.place()
            self._wake()

    def finish_run(self) -> None:
        """The last record of a run is done."""
        if self._group is not None:
            self._group.progress.finish()

    def start_anew(self) -> None:
        """A run has ended: `stop` is for the next one."""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called since the last run began."""
        return self._stopped

    def stop(self) -> None:
        """End `strandline.tools.handling.handle` (`handle_async`) after the record that it is handling; of a blocking
        consumer any thread may, and the handler."""
        self._stopped = True
        self.wake_poll()

    # -- questions ----------------------------------------------------------------------------------------------------

    @limited
    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises UnknownTopic, KafkaError, ClientTimeout."""
        return await self._ends(partitions, EARLIEST)

    @limited
    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The offset after the last visible record. Raises UnknownTopic, KafkaError, ClientTimeout."""
        return await self._ends(partitions, LATEST)

    @limited
    async def offsets_for_times(
        self, timestamps_ms: Mapping[Partition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """First record at or after each time (ms); None if there is none. Raises as `end_offsets` does."""
        wanted = {partition_of(item): timestamp_ms for item, timestamp_ms in timestamps_ms.items()}
        self._started()
        found = await self._leaders.list_offsets(wanted, self._timeout_ms(), read_committed=self._read_committed)
        return {
            item: None
            if answer.offset < 0
            else OffsetAndTimestamp(answer.offset, answer.timestamp_ms, answer.leader_epoch)
            for item, answer in found.items()
        }

    @limited
    async def partitions_for(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions. Raises UnknownTopic, KafkaError, ClientTimeout."""
        self._started()
        view = await self.session.metadata.wait_for_topic(topic, self._timeout_ms())
        return list(view.partitions)

    @limited
    async def lag(self, partitions: Iterable[Partition] | None = None) -> dict[TopicPartition, int]:
        """Number of offsets between the next record to be handed out and the end, per partition (None: all
        assigned). What is paused counts too. Raises as `position` and `end_offsets`.
        """
        wanted = self.assignment() if partitions is None else [partition_of(item) for item in partitions]
        ends = await self.end_offsets(wanted) if wanted else {}
        return {item: max(end - await self.position(item), 0) for item, end in ends.items()}

    @property
    def fetch_requests_sent(self) -> int:
        """Fetch requests since the start, for tests and metrics."""
        return 0 if self._fetcher is None else self._fetcher.requests_sent

    # -- topics that are made anew ------------------------------------------------------------------------------------

    async def _begin_anew(self) -> None:
        """Partitions whose topic was deleted and made anew begin the new one: by the policy, or where it was left."""
        anew = [state for state in self._states.values() if self._id_now(state) is not None]
        for state in anew:
            topic_id = self._id_now(state)
            assert topic_id is not None
            self._leave_old_topic(state, topic_id)
        if anew:
            mark("topic-made-anew")
            await self._call_on_replaced()

    def _id_now(self, state: PartitionState) -> UUID | None:
        """Id of the topic that has the name now, if that is another one than the position's."""
        now = self.session.metadata.topic_id(state.partition.topic)
        return now if state.is_of_another(now) else None

    def _leave_old_topic(self, state: PartitionState, topic_id: UUID) -> None:
        held, before = self._first_ready(state.partition), state.topic_id
        stood_at = state.position if held is None else held
        self._drop_ready(state.partition)
        state.begin_anew(topic_id, stood_at)
        where = self._beginning if state.position is None else f"offset {state.position}, where it was left"
        log.warning(
            "topic %s was deleted and made anew: the position %s in %s was one of topic id %s; in %s it begins at %s",
            state.partition.topic, stood_at, state.partition, before, topic_id, where,
        )  # fmt: skip
        if self._config.auto_offset_reset == "none" and state.position is None and state.reset_to is None:
            state.error = TopicReplaced(state.partition.topic, str(before), str(topic_id))
        self._replaced[state.partition] = None
        if self._group is not None:
            self._group.progress.start(state.partition, None)
            if state.position is None and state.reset_to is None and state.error is None:
                self._group.beginnings.ask([state.partition])

    async def _call_on_replaced(self) -> None:
        """A listener that is cut short, because the poll was, is called again by the next one."""
        replaced = [item for item in self._replaced if item in self._states]
        if replaced and self._on_replaced is not None:
            await self._invoke(self._on_replaced, replaced)
        self._replaced.clear()

    @property
    def _beginning(self) -> str:
        """Words for where a partition begins that has no position."""
        by_policy = f"auto.offset.reset={self._config.auto_offset_reset}"
        return by_policy if self._group is None else f"what its group has committed, else by {by_policy}"

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """Id of the topic that is read, or would be, as this partition; None: not known."""
        state = self._states.get(partition)
        own = None if state is None else state.topic_id
        return own or self.session.metadata.topic_id(partition.topic)

    # -- commits ------------------------------------------------------------------------------------------------------

    @limited
    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these offsets (of the next record to read), or everything that was handed out.

        Raises:
            CommitFailed: the group has moved on without this consumer.
            TopicReplaced, UnknownTopic: of offsets of topics that are gone; the others were committed.
            ConfigError: no `group.id`.
            KafkaError, ClientTimeout.
        """
        group = self._of_group("commit")
        self._started()
        await group.commits.commit(plain_offsets(offsets), self._timeout_ms())

    def commit_async(self, offsets: Offsets | None = None, callback: CommitDone | None = None) -> None:
        """As `commit`, beside everything else and in the order of the calls; `callback(offsets, error or None)`."""
        group = self._of_group("commit_async")
        self._started()
        group.commits.commit_later(self._tasks, plain_offsets(offsets), callback)

    @limited
    async def committed(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets of the group in these partitions (None: those assigned); None where nothing is committed.

        Raises:
            ConfigError: no `group.id`.
            KafkaError, ClientTimeout.
        """
        group = self._of_group("committed")
        self._started()
        wanted = self.assignment() if partitions is None else [partition_of(item) for item in partitions]
        found = await group.coordinator.retrying(lambda: group.coordinator.committed(wanted), self._timeout_ms())
        return {item: found.get(item) for item in wanted}

    def group_metadata(self) -> GroupMetadata:
        """Membership under which a producer commits offsets of this consumer with its transaction.

        Raises:
            ConfigError: no `group.id`.
            CommitFailed: topics are subscribed to, and this consumer is no member.
        """
        return self._of_group("group_metadata").commits.group_metadata

    async def handed_out(self) -> HandedOut:
        """Offsets behind everything that was handed out, for a transaction (`Producer.send_offsets`)."""
        group = self._of_group("send_offsets")
        self._started()
        return await group.commits.handed_out()

    def committed_with_transaction(self, handed: HandedOut) -> None:
        """The transaction with these offsets is committed."""
        self._of_group("send_offsets").commits.committed_with_transaction(handed)

    @property
    def group_id(self) -> str | None:
        """The group's name; None: it belongs to none."""
        return self._config.group_id

    @property
    def state(self) -> ConsumerState:
        """State of this consumer: joining, stable, rebalancing, lost, ..., and its last error."""
        if self._closed:
            return ConsumerState("closed", last_error=None if self._group is None else self._group.member.last_error)
        if self._group is not None:
            return self._group.state
        return ConsumerState("assigned" if self._states else "unassigned")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what is done (`enable.auto.commit`), leave the group, close the connections. Idempotent.

        What the last poll returned is not done: call `commit()` before, if it is.

        Args:
            timeout_s: what the coordinator does not answer by then is given up, with a line in the log: what was not
                committed comes again, and the group waits for `session.timeout.ms`. The consumer is closed in any case.
        """
        if self._closed or self.session.orphaned:
            return
        self.session.check()
        try:
            if self._group is not None and self._fetcher is not None:
                await self._parting(self._group.close, timeout_s * 1000)
        finally:
            self._closed = True
            if self._fetcher is not None:
                self._fetcher.close()
            try:
                await self._tasks.close()
            finally:
                await self.session.close()
        left = None if self._group is None else self._group.callback_error
        if left is not None and not isinstance(left, Exception):
            raise left

    async def _parting(self, work: Callable[[float], Awaitable[None]], timeout_ms: float) -> None:
        """Within the limit, which no call that listeners make of this consumer meanwhile uses up."""
        outer, self._until_ms = self._until_ms, self.session.clock.monotonic_ms() + timeout_ms
        try:
            await work(self._until_ms)
        finally:
            self._until_ms = outer

    def _timeout_ms(self) -> float:
        timeout_ms = self._config.default_api_timeout_ms
        if self._until_ms is None:
            return timeout_ms
        left_ms = self._until_ms - self.session.clock.monotonic_ms()
        return max(min(left_ms / 2, timeout_ms), 0.0)  # whoever is told that a call failed has time to act on it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Say that its group waits for it in vain: nobody can leave the group here."""
        if getattr(self, "_fetcher", None) is not None and not self._closed and not self.session.orphaned:
            _warn(f"{self!r} was not closed: await close(), or use `async with`", ResourceWarning, source=self)

    # -- for the group ------------------------------------------------------------------------------------------------

    def take_up(
        self, partitions: Iterable[TopicPartition], placed: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> None:
        """The group has given these; those that are not placed yet are looked up before they are read."""
        beginnings = self._of_group("take_up").beginnings
        new = list(partitions)
        self._hold([*self._states, *new])
        beginnings.ask(new)
        for item, offset in placed.items():
            beginnings.begin(item, offset)
        self._wake()

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """The group has taken these."""
        gone = frozenset(partitions)
        self._hold([item for item in self._states if item not in gone])
        if self._group is not None:
            self._group.beginnings.drop_given_up()

    def wake_poll(self) -> None:
        """Wake a poll that waits."""
        if self._fetcher is not None:
            self._fetcher.notify()

    def listen_through(self, invoke: Invoke) -> None:
        """Call listeners through this from now on."""
        self._invoke = invoke
        if self._group is not None:
            self._group.invoke = invoke

    def take_over(self, other: Consumer) -> None:
        """Start with what another consumer, which is not asked to stop, was to read: a subscriber joins as a member,
        else with its assignment, pauses and positions."""
        wanted = None if other._group is None else other._group.subscribed
        self._on_replaced = other._on_replaced
        if wanted is not None and self._group is not None:
            self._group.subscribe(wanted)
            return
        for item, old in other._states.items():
            state = self._states[item] = PartitionState(item)
            state.paused = old.paused
            held = other._first_ready(item)
            position = old.position if held is None else held
            state.topic_id, state.former = old.topic_id, dict(old.former)
            if position is not None:
                state.seek(position)
            elif old.reset_to is not None:
                state.seek_by_query(old.reset_to)

    def _of_group(self, call: str) -> GroupSession:
        if self._group is None:
            raise ConfigError("group.id", None, f"set it: {call} belongs to a group")
        return self._group

    # -- inside -------------------------------------------------------------------------------------------------------

    def _broke(self, error: ClientError) -> None:
        self._broken = self._broken or error
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher.notify()

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken.with_traceback(None)

    def _limit(self) -> Limit:
        """Limit of a call that begins now. Raises ClosedError, ClientError: this client cannot be called here."""
        self.session.check()
        timeout_ms = self._timeout_ms()
        return Limit(timeout_ms, f"no answer within default.api.timeout.ms={timeout_ms:.0f}")

    def _check_if_started(self) -> None:
        if self._fetcher is not None:
            self.session.check()

    def _started(self) -> Fetcher:
        self.session.check()
        if self._closed:
            raise ClosedError("the consumer is closed")
        if self._fetcher is None:
            self._fetcher = Fetcher(self._config, self.session, self._leaders, self._tasks, self._lookups)
            self._fetcher.states = self._states
            self.session.metadata.want(dict.fromkeys(item.topic for item in self._states))
        return self._fetcher

    def _wake(self) -> None:
        if self._fetcher is not None:
            self._fetcher.wake()

    def _take(self, most: int) -> list[ConsumerRecord]:
        """Up to `most` records from the partitions in turn, those first that iteration has polled ahead."""
        if self._ready:
            return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        taken: list[ConsumerRecord] = []
        for state in self._in_turn():
            if len(taken) >= most:
                break
            taken += state.take(most - len(taken), self._config.check_crcs)
        return taken

    def _take_columns(self, most: int) -> PolledRecords:
        """Whole batches from the partitions in turn, until they hold `most` records."""
        parts: list[Part] = []
        left = most
        for state in self._in_turn():
            if left <= 0:
                break
            found = state.take_columns(left, self._config.check_crcs)
            left -= sum(part.columns.rows for part in found)
            parts += found
        return PolledRecords(parts)

    def _in_turn(self) -> list[PartitionState]:
        """The partitions with records, so that a busy one does not starve the others."""
        states = list(self._states.values())
        self._first = (self._first + 1) % max(len(states), 1)
        turned = states[self._first :] + states[: self._first]
        return [state for state in turned if not state.paused and state.has_records]

    def _refetch_decoded(self) -> None:
        """Fetch again what became records before, and was not handed out, so that it comes as columns."""
        for item, state in self._states.items():
            held = self._first_ready(item)
            if held is not None:
                self._drop_ready(item)
            state.refetch_decoded(held)

    async def _ends(self, partitions: Iterable[Partition], which: int) -> dict[TopicPartition, int]:
        wanted = {partition_of(item): which for item in partitions}
        self._started()
        found = await self._leaders.list_offsets(wanted, self._timeout_ms(), read_committed=self._read_committed)
        return {item: answer.offset for item, answer in found.items()}

    def _seek_by_query(self, wanted: Mapping[Partition, int]) -> None:
        for item, timestamp in wanted.items():
            self._seekable(item, None).seek_by_query(timestamp)
        self._wake()

    def _sought(self, item: TopicPartition, offset: int | None) -> None:
        if self._group is not None:
            self._group.progress.move(item, offset)
            self._group.progress.take_up(item)
            self._group.beginnings.drop(item)

    def _seekable(self, partition: Partition, offset: int | None) -> PartitionState:
        self._check_if_started()
        state = self._state(partition)
        self._sought(state.partition, offset)
        self._drop_ready(state.partition)
        return state

    def _drop_ready(self, partition: TopicPartition) -> None:
        self._keep_ready(lambda held: held != partition)

    def _first_ready(self, partition: TopicPartition) -> int | None:
        """The offset of the first record of it that was polled and not yielded."""
        return next((one.offset for one in self._ready if (one.topic, one.partition) == partition), None)

    def _keep_ready(self, wanted: Callable[[TopicPartition], bool]) -> None:
        """Drop records that iteration has polled and not yielded, of partitions that are not `wanted`."""
        kept = [item for item in self._ready if wanted(TopicPartition(item.topic, item.partition))]
        self._ready.clear()
        self._ready.extend(kept)

    def _state(self, partition: Partition) -> PartitionState:
        state = self._states.get(partition_of(partition))
        if state is None:
            raise ClientError(f"{partition_of(partition)} is not assigned to this consumer")
        return state


def partition_of(item: Partition) -> TopicPartition:
    """The partition, whichever way it is written. Raises TypeError for a topic's name alone."""
    if isinstance(item, str):
        raise TypeError(f"a partition is expected, ({item!r}, 0) say, not the name of a topic")
    return item if isinstance(item, TopicPartition) else TopicPartition(*item)


def plain_offsets(offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """The offsets, whichever way partitions and offsets are written."""
    if offsets is None:
        return None
    return {
        partition_of(item): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        for item, offset in offsets.items()
    }
