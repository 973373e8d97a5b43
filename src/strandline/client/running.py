"""`Consumer.run`: a handler, what is tried again, and what becomes of a record that it never takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Protocol
from uuid import UUID

from strandline.client.dead_letters import DeadLetters
from strandline.client.groups.listening import ConsumerState
from strandline.client.types import ConsumerRecord
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock

_LOOK_S = 0.5
"""How often a run without records looks whether it was told to stop."""

_JOINING = ("joining", "rebalancing", "lost")
"""States of a consumer that has no partitions for now, and gets some: that no record comes then tells nothing."""


class _Runs(Protocol):
    """What a run needs of a consumer, blocking or not."""

    @property
    def stopped(self) -> bool: ...
    @property
    def state(self) -> ConsumerState: ...
    def assignment(self) -> list[TopicPartition]: ...
    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None: ...
    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None: ...
    def deserialized(self, raw: ConsumerRecord) -> ConsumerRecord: ...
    def take_back(self, settled: ConsumerRecord | None) -> None: ...
    def finish_run(self) -> None: ...


class RunsAsync(_Runs, Protocol):
    """The consumer of `strandline.client.aio`."""

    async def next_record(self, timeout_s: float, *, raw: bool) -> ConsumerRecord | None: ...
    def topic_id(self, partition: TopicPartition) -> UUID | None: ...


class RunsBlocking(_Runs, Protocol):
    """The blocking consumer."""

    def next_record(self, timeout_s: float, *, raw: bool) -> ConsumerRecord | None: ...


@dataclass(slots=True)
class RunReport:
    """What a run did: records handled, attempts that raised, records that went to `<topic>.dead`."""

    handled: int = 0
    failures: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a record is tried, and the pauses between. Raises ConfigError."""

    attempts: int
    backoff_ms: float
    backoff_max_ms: float

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError("attempts", self.attempts, "at least 1")
        if self.backoff_ms < 0 or self.backoff_max_ms < 0:
            raise ConfigError("backoff_ms", min(self.backoff_ms, self.backoff_max_ms), "0 or more")

    def pause_ms(self, failed: int) -> float:
        """Before the next attempt, after so many that failed."""
        return float(min(self.backoff_ms * 2.0 ** min(failed - 1, 30), self.backoff_max_ms))


@dataclass(slots=True)
class _Failing:
    record: ConsumerRecord
    attempts: int
    again_ms: float
    paused: bool


class Failures:
    """The records that failed and wait for their next attempt: at most one per partition, the others behind it."""

    def __init__(self, retries: Retries, clock: Clock) -> None:
        self._retries = retries
        self._clock = clock
        self._failing: dict[TopicPartition, _Failing] = {}

    @property
    def now_ms(self) -> float:
        """The monotonic clock."""
        return self._clock.monotonic_ms()

    @property
    def waiting(self) -> bool:
        """Some record is to be tried again."""
        return bool(self._failing)

    def failed(self, record: ConsumerRecord) -> tuple[int, bool]:
        """The attempts made so far, and whether there is to be another one: then the partition rests."""
        where = TopicPartition(record.topic, record.partition)
        before = self._failing.get(where)
        attempts = 1 if before is None or not _same(before.record, record) else before.attempts + 1
        if attempts >= self._retries.attempts:
            self._failing.pop(where, None)
            return attempts, False
        again_ms = self.now_ms + self._retries.pause_ms(attempts)
        self._failing[where] = _Failing(record, attempts, again_ms, True)
        return attempts, True

    def settled(self, record: ConsumerRecord) -> None:
        """The record is handled."""
        self._failing.pop(TopicPartition(record.topic, record.partition), None)

    def due(self, assigned: list[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose rest is over; those that went to another consumer are forgotten."""
        for item in [item for item in self._failing if item not in assigned]:
            del self._failing[item]
        now = self.now_ms
        found = [item for item, one in self._failing.items() if one.paused and one.again_ms <= now]
        for item in found:
            self._failing[item].paused = False
        return found

    def resting(self, assigned: list[TopicPartition]) -> list[TopicPartition]:
        """Partitions that are paused for a record that is to be tried again."""
        return [item for item, one in self._failing.items() if one.paused and item in assigned]

    def wait_s(self) -> float:
        """How long to wait for a record before looking again."""
        rests = [one.again_ms for one in self._failing.values() if one.paused]
        return min([_LOOK_S, *(max(at - self.now_ms, 0.0) / 1000 for at in rests)])


def _same(one: ConsumerRecord, other: ConsumerRecord) -> bool:
    """Of a topic that was made anew a record is another one at the same offset."""
    return (one.offset, one.timestamp_ms, one.leader_epoch) == (other.offset, other.timestamp_ms, other.leader_epoch)


def _expired(failures: Failures, since_ms: float | None, idle_s: float | None) -> bool:
    if idle_s is None or since_ms is None or failures.waiting:
        return False
    return failures.now_ms - since_ms >= idle_s * 1000


async def run_async(
    consumer: RunsAsync,
    handler: Callable[[ConsumerRecord], Awaitable[object] | object],
    failures: Failures,
    letters: DeadLetters | None,
    idle_s: float | None,
) -> RunReport:
    """See `strandline.client.aio.Consumer.run`."""
    report = RunReport()
    idle_ms: float | None = None
    settled: ConsumerRecord | None = None
    try:
        while not consumer.stopped:
            consumer.resume(*failures.due(consumer.assignment()))
            record = await consumer.next_record(failures.wait_s(), raw=True)
            if record is None:
                idle_ms = None if consumer.state.name in _JOINING else idle_ms or failures.now_ms
                if _expired(failures, idle_ms, idle_s):
                    break
                continue
            idle_ms = None
            try:
                result = handler(consumer.deserialized(record))
                if isawaitable(result):
                    await result
            except Exception as error:
                report.failures += 1
                attempts, again = failures.failed(record)
                if again:
                    consumer.pause((record.topic, record.partition))
                    consumer.take_back(settled)
                    continue
                if letters is None:
                    raise
                topic_id = consumer.topic_id(TopicPartition(record.topic, record.partition))
                await letters.send(record, error, attempts, topic_id)
                report.dead_letters += 1
            else:
                failures.settled(record)
                report.handled += 1
            settled = record
    except BaseException:  # a cancellation too: what is not settled comes again (schedule 64)
        consumer.take_back(settled)
        raise
    consumer.finish_run()
    return report


def run_blocking(
    consumer: RunsBlocking,
    handler: Callable[[ConsumerRecord], object],
    failures: Failures,
    send: Callable[[ConsumerRecord, BaseException, int], None] | None,
    idle_s: float | None,
) -> RunReport:
    """See `strandline.client.Consumer.run`; the handler runs in the caller's thread."""
    report = RunReport()
    idle_ms: float | None = None
    settled: ConsumerRecord | None = None
    try:
        while not consumer.stopped:
            due = failures.due(consumer.assignment()) if failures.waiting else []
            if due:
                consumer.resume(*due)
            record = consumer.next_record(failures.wait_s() if failures.waiting else _LOOK_S, raw=True)
            if record is None:
                idle_ms = None if consumer.state.name in _JOINING else idle_ms or failures.now_ms
                if _expired(failures, idle_ms, idle_s):
                    break
                continue
            idle_ms = None
            try:
                handler(consumer.deserialized(record))
            except Exception as error:
                report.failures += 1
                attempts, again = failures.failed(record)
                if again:
                    consumer.pause((record.topic, record.partition))
                    consumer.take_back(settled)
                    continue
                if send is None:
                    raise
                send(record, error, attempts)
                report.dead_letters += 1
            else:
                if failures.waiting:
                    failures.settled(record)
                report.handled += 1
            settled = record
    except BaseException:  # Ctrl-C too: what is not settled comes again (schedule 64)
        consumer.take_back(settled)
        raise
    consumer.finish_run()
    return report
