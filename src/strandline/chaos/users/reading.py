"""Users that read: by polls, one by one and as columns, who pause, seek and ask, and whose calls are cut short."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from strandline.chaos.checkers.history import Partition
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.users import ConsumedRecord, ConsumerPosition
from strandline.chaos.users.calls import CallInterrupted, CallMaker, Exited
from strandline.chaos.users.shared import Shared, shown, shown_columns
from strandline.client.errors import DeserializationFailed
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition

_BUSY_ACTS = 60
"""Acts of one consumer after which it rests between two: the schedules are what counts."""
_REST_S = 1.0
_CALM_REST_S = 0.1
"""Seconds between two acts while what is left is read: within a minute."""
_AGAIN_SHARE = 0.01
"""Share of the acts after which the consumer is closed, and another one begins."""
_TIMES_MS = 6_000
"""Seeks by time go up to so far back."""

Act = Callable[[Any, CallMaker], Awaitable[None]]


def number_of(value: str) -> int:
    """Number of a value, as `writing` numbers them."""
    return int(value[1:].rstrip("."))


class Reader:
    """One user with one consumer after the other, which names its partitions and reads from the beginning."""

    subscribed = False

    def __init__(self, shared: Shared, name: str, does: str, wall_ms: Callable[[], float]) -> None:
        """`does`: see `UserOptions.readers`."""
        self.shared = shared
        self.name = name
        self.stand = ConsumerPosition(name, shared.ledger)
        self._does = does
        self._wall_ms = wall_ms
        self._exited: set[str] = set()
        self._acts = self.weights()
        self._begun = 0

    def weights(self) -> list[tuple[int, Act]]:
        """Acts of the consumer, and how often it does each."""
        acts: list[tuple[int, Act]] = [
            (40, self._poll), (15, self._step), (6, self._pause), (10, self._resume), (5, self._seek),
            (3, self._seek_by_question), (6, self._position), (2, self._end), (2, self._first_at), (2, self._take_back),
        ]  # fmt: skip
        return acts if self._does == "deserializes" else [*acts, (12, self._poll_columns)]

    async def live(self, hands: CallMaker) -> None:
        """Read for as long as its process lives."""
        while True:
            self._begun += 1
            self.stand = ConsumerPosition(f"{self.name}-{self._begun}", self.shared.ledger)
            consumer = hands.consumer(self.settings())
            await self.begin(consumer, hands)
            await self._use(consumer, hands)
            await self.leave(consumer, hands)

    def settings(self) -> dict[str, Any]:
        """Settings of its consumers."""
        given: dict[str, Any] = {"auto_offset_reset": "earliest", "check_crcs": False}
        if self._does == "deserializes":
            given["value_deserializer"] = self._meaning
        return {**self.shared.options.consumer, **given, **self.shared.login}

    async def begin(self, consumer: Any, hands: CallMaker) -> None:
        """Say what to read."""
        await hands.call(consumer.assign, [TopicPartition(*one) for one in self.shared.partitions], cut=False)
        for one in self.shared.partitions:
            self.stand.seek(one, 0)  # nothing is ever deleted
        self.shared.stands[self.name] = self.stand

    async def leave(self, consumer: Any, hands: CallMaker) -> None:
        """Close it, if need be twice."""
        try:
            try:
                await hands.call(consumer.close)
            except CallInterrupted:
                await hands.call(consumer.close, cut=False)
        except StrandlineError as error:
            self.shared.failed(error)

    async def _use(self, consumer: Any, hands: CallMaker) -> None:
        weights, acts = [weight for weight, _ in self._acts], [act for _, act in self._acts]
        done = 0
        while True:
            done += 1
            if self.shared.calm:
                await self.calm_down(consumer, hands)
                act: Act = self._poll
            else:
                [act] = hands.rng.choices(acts, weights)
                if hands.rng.random() < _AGAIN_SHARE:
                    return
            try:
                await act(consumer, hands)
            except CallInterrupted:
                pass
            except DeserializationFailed as failure:
                await self._step_over(consumer, hands, failure)
            except StrandlineError as error:
                self.shared.failed(error)
                await hands.sleep(0.05)
            self.shared.acts[act.__name__.strip("_")] += 1
            rest_s = _CALM_REST_S if self.shared.calm else _REST_S
            await hands.sleep(hands.rng.uniform(0, rest_s if done > _BUSY_ACTS else 0.02))

    async def calm_down(self, consumer: Any, hands: CallMaker) -> None:
        """Read everything that is left."""
        try:
            if consumer.paused():
                await self._resume(consumer, hands)
            for where, offset in list(self.stand.next.items()):
                if offset is None and not self.subscribed:  # at the end there may be no record that shows it
                    self.stand.told(where, await hands.call(consumer.position, TopicPartition(*where)))
        except StrandlineError as error:
            self.shared.failed(error)

    # --- records ---

    def _meaning(self, data: bytes) -> str:
        """A deserializer that fails at some records for ever, and ends the program at others, once."""
        value = data.decode()
        number = number_of(value)
        if number % 13 == 5:
            raise ValueError(f"{number} means nothing")
        if number % 17 == 3 and value not in self._exited:
            self._exited.add(value)
            raise SystemExit(1)
        return value

    def take(self, records: list[ConsumedRecord], invoked_ms: float) -> None:
        """Take the records that one call gave. Raises InvariantViolated."""
        stand = self.stand
        self.shared.note_poll(stand.who, records, stand.generation, invoked_ms=invoked_ms, subscribed=self.subscribed)
        stand.given(records)

    async def call_for_records(self, hands: CallMaker, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call as `hands.call` does; a deserializer that exits has cost nothing."""
        while True:
            try:
                return await hands.call(function, *arguments)
            except Exited:
                self.shared.acts["exit"] += 1

    async def _poll(self, consumer: Any, hands: CallMaker) -> None:
        invoked_ms, most = self.shared.now_ms(), hands.rng.choice((None, 1, 5, 50))
        timeout_s = hands.rng.choice((0.0, 0.1, 0.5))
        records = await self.call_for_records(hands, consumer.poll, timeout_s, most)
        self.take([shown(one) for one in records], invoked_ms)

    async def _step(self, consumer: Any, hands: CallMaker) -> None:
        """Read records one by one, for a while."""
        for _ in range(hands.rng.randint(1, 8)):
            invoked_ms = self.shared.now_ms()
            record = await self.call_for_records(hands, consumer.next_record, hands.rng.choice((0.0, 0.2)))
            if record is None:
                return
            self.take([shown(record)], invoked_ms)

    async def _poll_columns(self, consumer: Any, hands: CallMaker) -> None:
        invoked_ms, most = self.shared.now_ms(), hands.rng.choice((None, 1, 20))
        polled = await self.call_for_records(hands, consumer.poll_columns, hands.rng.choice((0.0, 0.2)), most)
        self.take(shown_columns(polled), invoked_ms)

    async def _step_over(self, consumer: Any, hands: CallMaker, failure: DeserializationFailed) -> None:
        """Step over a record that means nothing: it stands there until the user goes on behind it."""
        where = Partition(failure.topic, failure.partition)
        self.stand.told(where, failure.offset)
        self.shared.acts["fails"] += 1
        if self.shared.calm or hands.rng.random() < 0.5:
            await self._seek_to(consumer, hands, where, failure.offset + 1)

    # --- where to read ---

    def _some(self, rng: random.Random) -> list[Partition]:
        held = sorted(self.stand.next)
        return rng.sample(held, rng.randint(1, len(held))) if held else []

    async def _pause(self, consumer: Any, hands: CallMaker) -> None:
        some = self._some(hands.rng)
        await hands.call(consumer.pause, *(TopicPartition(*one) for one in some), cut=False)
        self.stand.paused.update(some)

    async def _resume(self, consumer: Any, hands: CallMaker) -> None:
        paused = sorted(self.stand.paused)
        told = sorted(Partition(*one) for one in consumer.paused())
        if told != paused and not self.subscribed:  # a group may have taken one in a poll that was cut short
            facts = {"who": self.stand.who, "paused": paused, "told": told}
            raise InvariantViolated("PausedIsSilent", "other partitions are paused than were", **facts)
        await hands.call(consumer.resume, *(TopicPartition(*one) for one in told), cut=False)
        self.stand.paused.clear()

    async def _seek(self, consumer: Any, hands: CallMaker) -> None:
        """Seek back, to the very beginning, or a few records ahead if there are enough."""
        for where in self._some(hands.rng):
            stood = self.stand.next.get(where) or 0
            ahead = min(stood + 3, self.shared.ledger.end(where))
            await self._seek_to(
                consumer, hands, where, hands.rng.choice((0, max(stood - 5, 0), stood, max(ahead, stood)))
            )

    async def _seek_to(self, consumer: Any, hands: CallMaker, where: Partition, offset: int) -> None:
        if offset == 0 and hands.rng.random() < 0.5:
            await hands.call(consumer.seek_to_beginning, TopicPartition(*where), cut=False)
        else:
            await hands.call(consumer.seek, TopicPartition(*where), offset, cut=False)
        self.stand.seek(where, offset)

    async def _seek_by_question(self, consumer: Any, hands: CallMaker) -> None:
        """Seek to the end, or to a time: where that is, a leader says, later."""
        for where in self._some(hands.rng):
            if hands.rng.random() < 0.3:
                self.stand.seek_end(where)
                await hands.call(consumer.seek_to_end, TopicPartition(*where), cut=False)
            else:
                time_ms = int(self._wall_ms()) - hands.rng.randint(-2_000, _TIMES_MS)
                self.stand.seek_time(where, time_ms)
                await hands.call(consumer.seek_to_timestamp, {TopicPartition(*where): time_ms}, cut=False)

    async def _take_back(self, consumer: Any, hands: CallMaker) -> None:
        """Put records back that an iteration has delivered: they are not handled, and are delivered again."""
        invoked_ms = self.shared.now_ms()
        record = await self.call_for_records(hands, consumer.next_record, 0.1)
        if record is None:
            return
        self.take([shown(record)], invoked_ms)
        await hands.call(consumer.take_back, None, cut=False)
        self.stand.seek(Partition(record.topic, record.partition), record.offset)

    # --- questions ---

    async def _position(self, consumer: Any, hands: CallMaker) -> None:
        for where in self._some(hands.rng):
            generation = self.stand.generation
            position = await hands.call(consumer.position, TopicPartition(*where))
            if generation == self.stand.generation:
                self.stand.told(where, position)

    async def _end(self, consumer: Any, hands: CallMaker) -> None:
        acked = {where: self.shared.ledger.end(where) for where in self._some(hands.rng)}
        ends = await hands.call(consumer.end_offsets, [TopicPartition(*where) for where in acked])
        for where, end in acked.items():
            self.shared.ledger.check_end(self.stand.who, where, ends[TopicPartition(*where)], end)

    async def _first_at(self, consumer: Any, hands: CallMaker) -> None:
        """Check that what a look-up by time finds has that time, or a later one, and is the first."""
        time_ms = int(self._wall_ms()) - hands.rng.randint(-2_000, _TIMES_MS)
        acked = {where: self.shared.ledger.end(where) for where in self._some(hands.rng)}
        wanted = {TopicPartition(*where): time_ms for where in acked}
        found = await hands.call(consumer.offsets_for_times, wanted)
        for where, end in acked.items():
            answer = found[TopicPartition(*where)]
            if answer is not None and answer.timestamp_ms < time_ms:
                facts = {"partition": str(where), "time": time_ms, "told": answer}
                raise InvariantViolated("FirstAtTime", "a look-up by time found an earlier record", **facts)
            self.shared.ledger.lookups.append((where, time_ms, end if answer is None else answer.offset))
