"""What every consumer does: positions, seeks, pauses, fetching ahead within bounds, questions to the leaders."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, Unpack
from uuid import UUID

from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClientError, ClosedError, TopicReplaced
from strandline.client.fetcher import Fetcher, Lookups, PartitionState
from strandline.client.leaders import Leaders
from strandline.client.limits import Limit, limited
from strandline.client.polled import Part, PolledRecords
from strandline.client.session import Session
from strandline.client.settings import ConsumerSettings
from strandline.client.tasks import Tasks, log
from strandline.client.types import EARLIEST, LATEST, ConsumerRecord, OffsetAndTimestamp
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock, Rng

Partition = TopicPartition | tuple[str, int]

T = TypeVar("T", list[ConsumerRecord], PolledRecords)


class Reader:
    """Reads partitions from given offsets; knows nothing of groups. See `Consumer`."""

    _lookups: type[Lookups] = Lookups
    """What makes of leaders' answers a place to read from."""

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
        """What goes on between the calls has ended with an internal error."""
        self._closed = False
        self._first = 0
        self._ready: deque[ConsumerRecord] = deque()

    # -- what to read, and from where -------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions and no others. Positions of those that stay are kept."""
        self._hold(partitions)
        if self._fetcher is not None:
            self.session.metadata.set_wanted(dict.fromkeys(item.topic for item in self._states))

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
        """Go on from the first record at or after a time (ms since 1970), or from the end where there is none."""
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

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _gather(
        self, until_ms: float, most: int, take: Callable[[int], T], look: Callable[[float], Awaitable[bool]]
    ) -> T:
        """Up to `most` of what `take` finds; waits until `until_ms` (monotonic) for a first record.

        `look` is called before each look, with `until_ms`; where it says so, nothing may be handed out yet.
        Others on this loop have a turn before, even when records lie there: a backlog must not hold the loop.
        """
        fetcher = self._started()
        await asyncio.sleep(0)
        while True:
            self._raise_if_broken()
            if fetcher.replaced:
                fetcher.replaced = False
                await self._begin_anew()
            records = take(most if await look(until_ms) else 0)
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

    # -- questions --------------------------------------------------------------------------------------------------

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
        """The first record at or after each time (ms), None where there is none. Raises as `end_offsets`."""
        wanted = {partition_of(item): timestamp_ms for item, timestamp_ms in timestamps_ms.items()}
        self._started()
        found = await self._leaders.list_offsets(wanted, self._timeout_ms())
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

    @property
    def fetch_requests_sent(self) -> int:
        """Fetch requests since the start, for tests and metrics."""
        return 0 if self._fetcher is None else self._fetcher.requests_sent

    # -- topics that are made anew ----------------------------------------------------------------------------------

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
        """Of the topic that has the name now, if that is another one than the position's."""
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

    @property
    def _beginning(self) -> str:
        """Where a partition begins that has no position, in words."""
        return f"auto.offset.reset={self._config.auto_offset_reset}"

    async def _call_on_replaced(self) -> None:
        """No listeners."""

    # -- inside -----------------------------------------------------------------------------------------------------

    def _broke(self, error: ClientError) -> None:
        self._broken = self._broken or error
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher.notify()

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken.with_traceback(None)

    def _limit(self) -> Limit:
        """Of a call that begins now. Raises ClosedError, ClientError: this client cannot be called here."""
        self.session.check()
        timeout_ms = self._timeout_ms()
        return Limit(timeout_ms, f"no answer within default.api.timeout.ms={timeout_ms:.0f}")

    def _timeout_ms(self) -> float:
        return self._config.default_api_timeout_ms

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

    def take_over(self, other: Reader) -> None:
        """Start with the assignment, pauses and positions of another consumer, which is not asked to stop."""
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

    def _place(self) -> None:
        """Have the positions found that come from elsewhere than the partitions' leaders."""

    @limited
    async def lag(self, partitions: Iterable[Partition] | None = None) -> dict[TopicPartition, int]:
        """How many offsets lie between the next record to be handed out and the end, per partition (None: all
        assigned). What is paused counts too. Raises as `position` and `end_offsets`.
        """
        wanted = self.assignment() if partitions is None else [partition_of(item) for item in partitions]
        ends = await self.end_offsets(wanted) if wanted else {}
        return {item: max(end - await self.position(item), 0) for item, end in ends.items()}

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
        """What became records before, and was not handed out, is to come as columns."""
        for item, state in self._states.items():
            held = self._first_ready(item)
            if held is not None:
                self._drop_ready(item)
            state.refetch_decoded(held)

    async def _ends(self, partitions: Iterable[Partition], which: int) -> dict[TopicPartition, int]:
        wanted = {partition_of(item): which for item in partitions}
        self._started()
        found = await self._leaders.list_offsets(
            wanted,
            self._timeout_ms(),
            read_committed=self._config.isolation_level == "read_committed",
        )
        return {item: answer.offset for item, answer in found.items()}

    def _seek_by_query(self, wanted: Mapping[Partition, int]) -> None:
        for item, timestamp in wanted.items():
            self._seekable(item, None).seek_by_query(timestamp)
        self._wake()

    def _sought(self, item: TopicPartition, offset: int | None) -> None:
        """The caller goes on from an offset, or from one that is looked up."""

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
