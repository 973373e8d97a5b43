"""A handler called with every record, what is tried again, and what becomes of a record that it never takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable

from strandline.client.aio.consumer import Consumer as AsyncConsumer
from strandline.client.consumer import Consumer
from strandline.client.types import ConsumerRecord
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock
from strandline.tools.dead_letters import DeadLetters

_LOOK_S = 0.5
"""Seconds between two checks whether a run without records was told to stop."""

_JOINING = ("joining", "rebalancing", "lost")
"""States of a consumer that has no partitions for now, and gets some: that no record comes then tells nothing."""


@dataclass(slots=True)
class Report:
    """Counts of a run: records handled, attempts that raised, records that went to `<topic>.dead`."""

    handled: int = 0
    failures: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Retries:
    """Policy of retries: attempts for each record, and the pauses between. Raises ConfigError."""

    attempts: int
    backoff_ms: float
    backoff_max_ms: float

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError("attempts", self.attempts, "at least 1")
        if self.backoff_ms < 0 or self.backoff_max_ms < 0:
            raise ConfigError("backoff_ms", min(self.backoff_ms, self.backoff_max_ms), "0 or more")

    def pause_ms(self, failed: int) -> float:
        """Milliseconds before the next attempt, after `failed` failed ones."""
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
        """True while some record is to be tried again."""
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
        """Note that the record is handled."""
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
        """Seconds to wait for a record before looking again."""
        rests = [one.again_ms for one in self._failing.values() if one.paused]
        return min([_LOOK_S, *(max(at - self.now_ms, 0.0) / 1000 for at in rests)])


def _same(one: ConsumerRecord, other: ConsumerRecord) -> bool:
    """True if both are one record: in a topic that was made anew, another record has the same offset."""
    return (one.offset, one.timestamp_ms, one.leader_epoch) == (other.offset, other.timestamp_ms, other.leader_epoch)


class _Run:
    """One run: what is settled, what waits for its next attempt, since when no record has come."""

    def __init__(
        self, consumer: AsyncConsumer | Consumer, retries: Retries, clock: Clock, idle_s: float | None
    ) -> None:
        self.report = Report()
        self._consumer = consumer
        self._failures = Failures(retries, clock)
        self._idle_s = idle_s
        self._idle_since_ms: float | None = None
        self._settled: ConsumerRecord | None = None

    def wait_s(self) -> float:
        """Let partitions go on whose rest is over; how long to wait for a record then."""
        if not self._failures.waiting:
            return _LOOK_S
        due = self._failures.due(self._consumer.assignment())
        if due:
            self._consumer.resume(*due)
        return self._failures.wait_s()

    def idle(self) -> bool:
        """Note that no record came; True if that has gone on for long enough to end."""
        if self._consumer.state.name in _JOINING:
            self._idle_since_ms = None
            return False
        now = self._failures.now_ms
        self._idle_since_ms = self._idle_since_ms or now
        if self._idle_s is None or self._failures.waiting:
            return False
        return now - self._idle_since_ms >= self._idle_s * 1000

    def came(self) -> None:
        """Note that a record came."""
        self._idle_since_ms = None

    def failed(self, record: ConsumerRecord) -> int | None:
        """The attempts that were made in vain; None: the record comes again, and its partition rests until then."""
        self.report.failures += 1
        attempts, again = self._failures.failed(record)
        if not again:
            return attempts
        self._consumer.pause((record.topic, record.partition))
        self._consumer.take_back(self._settled)
        return None

    def handled(self, record: ConsumerRecord) -> None:
        """Note that the handler took it."""
        if self._failures.waiting:
            self._failures.settled(record)
        self.report.handled += 1
        self._settled = record

    def buried(self, record: ConsumerRecord) -> None:
        """Note that the record became a dead letter."""
        self.report.dead_letters += 1
        self._settled = record

    def interrupted(self) -> None:
        """Settle nothing more: what is not settled comes again (schedule 64: an interruption loses no record)."""
        self._consumer.take_back(self._settled)

    def end(self) -> None:
        """End the rest of every partition."""
        resting = self._failures.resting(self._consumer.assignment())
        if resting:
            self._consumer.resume(*resting)


async def handle_async(
    consumer: AsyncConsumer,
    handler: Callable[[ConsumerRecord], Awaitable[object] | object],
    *,
    attempts: int = 5,
    backoff_ms: float = 200,
    backoff_max_ms: float = 30_000,
    dead_letters: bool = True,
    idle_s: float | None = None,
) -> Report:
    """Call `handler` with every record, one at a time, until `consumer.stop()`.

    A record whose handler or deserializer raises is tried again, `attempts` times in all, with growing pauses in
    which other partitions go on; then it is sent to `<topic>.dead` with its cause and origin, and the partition
    moves on. It counts as done, and is committed, only after that is acknowledged by all in-sync replicas.

    Args:
        handler: a function or coroutine function of one record.
        attempts: how often a record is tried, at least once.
        backoff_ms, backoff_max_ms: the first pause, and the longest; each is twice the one before.
        dead_letters: False: the last error is raised instead, and the record is not done.
        idle_s: return when no record came for so long; None: never. Time in which the group shares out its
            partitions does not count.

    Raises:
        Exception: of the handler, without dead letters; of poll; of sending the dead letter.
    """
    run = _Run(consumer, Retries(attempts, backoff_ms, backoff_max_ms), consumer.session.clock, idle_s)
    letters = DeadLetters(consumer) if dead_letters else None
    try:
        while not consumer.stopped:
            record = await consumer.next_record(run.wait_s(), raw=True)
            if record is None:
                if run.idle():
                    break
                continue
            run.came()
            try:
                result = handler(consumer.deserialized(record))
                if isawaitable(result):
                    await result
            except Exception as error:
                tried = run.failed(record)
                if tried is None:
                    continue
                if letters is None:
                    raise
                await letters.send(record, error, tried)
                run.buried(record)
            else:
                run.handled(record)
    except BaseException:  # a cancellation too
        run.interrupted()
        raise
    else:
        consumer.finish_run()
    finally:
        run.end()
        consumer.start_anew()
        if letters is not None:
            await letters.close()
    return run.report


def handle(
    consumer: Consumer,
    handler: Callable[[ConsumerRecord], object],
    *,
    attempts: int = 5,
    backoff_ms: float = 200,
    backoff_max_ms: float = 30_000,
    dead_letters: bool = True,
    idle_s: float | None = None,
) -> Report:
    """Handle records as `handle_async` does, with a blocking consumer: `handler` is called in this thread."""
    run = _Run(consumer, Retries(attempts, backoff_ms, backoff_max_ms), consumer.inner.session.clock, idle_s)
    letters = DeadLetters(consumer.inner) if dead_letters else None
    try:
        while not consumer.stopped:
            record = consumer.next_record(run.wait_s(), raw=True)
            if record is None:
                if run.idle():
                    break
                continue
            run.came()
            try:
                handler(consumer.deserialized(record))
            except Exception as error:
                tried = run.failed(record)
                if tried is None:
                    continue
                if letters is None:
                    raise
                consumer.wait(partial(letters.send, record, error, tried))
                run.buried(record)
            else:
                run.handled(record)
    except BaseException:  # Ctrl-C too
        run.interrupted()
        raise
    else:
        consumer.finish_run()
    finally:
        run.end()
        consumer.inner.start_anew()
        if letters is not None:
            consumer.wait(letters.close)
    return run.report
