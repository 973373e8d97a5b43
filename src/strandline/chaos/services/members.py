"""Members of the services' groups: each handles records in a style of its own, and is cancelled and begun again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from strandline.chaos.checkers.history import Commit, History, OffsetRead, Partition, Status
from strandline.chaos.services.options import JOBS, is_poison
from strandline.chaos.services.shared import Shared
from strandline.chaos.workload import Ports
from strandline.client.aio import Consumer
from strandline.client.types import ConsumerRecord
from strandline.proto.ids import TopicPartition
from strandline.tools.handling import handle_async

GO_ON_SHARE = 0.6
"""Share of the interrupted members that continue with the same consumer, where that is allowed."""
CLOSE_SHARE = 0.7
"""Share of the other members that close it; the rest leave it alone, as a member that hangs."""


class Member:
    """One member, over one incarnation of its process.

    Args:
        reads: a topic, and whether it is subscribed to; else its first partition is named.
    """

    def __init__(
        self, shared: Shared, history: History, now_ms: Callable[[], float],
        *, name: str, style: str, group: str, reads: tuple[str, bool],
    ) -> None:  # fmt: skip
        self._shared = shared
        self._history = history
        self._now_ms = now_ms
        self._name = name
        self._style = style
        self._group = group
        self._reads = reads
        self._all_handled = True
        """True: all records that were handed out are handled, so the same consumer may be asked for more."""
        self._all_committed = True
        """True: everything that was handled in a style that commits by itself is committed: else nobody would, if no
        record came after."""

    async def live(self, ports: Ports) -> None:
        """Work until cancelled, or until an error; begin again, by the same consumer where that skips nothing."""
        styles = {"poll": self._polls, "commit": self._commits, "iterate": self._iterates, "run": self._runs}
        shared, rng = self._shared, ports.rng
        consumer: Consumer | None = None
        while True:
            consumer = consumer or self._begin(ports)
            self._all_handled = self._all_committed = True
            ended = await shared.cancellable(self._name, styles[self._style](consumer, rng))
            shared.end_task(ended)
            may_go_on = self._style == "run" or (self._all_handled and self._all_committed)
            if not (may_go_on and rng.random() < GO_ON_SHARE):
                if rng.random() < CLOSE_SHARE or not isinstance(ended, asyncio.CancelledError):
                    shared.end_task(await shared.cancellable(f"{self._name} closes", consumer.close()))
                consumer = None
            await asyncio.sleep(0.1)

    def _begin(self, ports: Ports) -> Consumer:
        own_commits = {"enable_auto_commit": False} if self._style == "commit" else {}
        consumer = self._shared.consumer(ports, group_id=self._group, **own_commits)
        topic, subscribes = self._reads
        if subscribes:
            consumer.subscribe(topic)
        else:
            consumer.assign([(topic, 0)])
        return consumer

    async def _handle(self, record: ConsumerRecord, rng: random.Random) -> None:
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.003)))
        self._shared.ledger.handled.add((record.value or b"").decode())

    async def _poll_once(self, consumer: Consumer, rng: random.Random) -> list[ConsumerRecord]:
        """The records of a poll count as done with the next one, so they have to be."""
        records = await consumer.poll(0.5, rng.choice((1, 5, 50)))
        self._all_handled = not records
        for record in records:
            await self._handle(record, rng)
        self._all_handled = True
        return records

    async def _polls(self, consumer: Consumer, rng: random.Random) -> None:
        while True:
            await self._poll_once(consumer, rng)

    async def _iterates(self, consumer: Consumer, rng: random.Random) -> None:
        while True:
            record = await anext(consumer)
            self._all_handled = False
            await self._handle(record, rng)
            self._all_handled = True

    async def _runs(self, consumer: Consumer, rng: random.Random) -> None:
        async def handler(record: ConsumerRecord) -> None:
            if record.topic == JOBS and is_poison((record.value or b"").decode()):
                raise ValueError("poison")
            await self._handle(record, rng)

        await handle_async(consumer, handler, attempts=2, backoff_ms=20)

    # --- commits of one's own ---

    async def _commits(self, consumer: Consumer, rng: random.Random) -> None:
        while True:
            records = await self._poll_once(consumer, rng)
            ends = {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
            self._all_committed = not ends
            if ends:
                await self._commit(consumer, ends)
            self._all_committed = True
            if ends and rng.random() < 0.2:
                await self._read_back(consumer, list(ends))

    async def _commit(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> None:
        generation = consumer.state.generation
        commits = [
            Commit(self._name, self._group, self._place(consumer, item), end, generation, invoked_ms=self._now_ms())
            for item, end in ends.items()
        ]
        for commit in commits:
            self._history.commit(commit)
            commit.status = Status.INFO
        await consumer.commit(ends)
        for commit in commits:
            commit.status, commit.completed_ms = Status.OK, self._now_ms()

    async def _read_back(self, consumer: Consumer, items: list[TopicPartition]) -> None:
        """Check what the group has committed, if that was one generation of one topic all the while. What is
        committed of a topic goes with it, and a client may hear of the deletion later than of the answer."""
        generation, invoked_ms = consumer.state.generation, self._now_ms()
        ids = {item: consumer.topic_id(item) for item in items}
        places = {item: self._place(consumer, item) for item in items}
        found = await consumer.committed(items)
        if consumer.state.generation != generation or generation < 0:
            return
        for item, stored in found.items():
            if places[item] == self._place(consumer, item) and ids[item] not in self._shared.ledger.deleted:
                offset = -1 if stored is None else stored.offset
                read = OffsetRead(self._name, self._group, places[item], offset, generation, invoked_ms, self._now_ms())
                self._history.offset_read(read)

    @staticmethod
    def _place(consumer: Consumer, item: TopicPartition) -> Partition:
        """Each topic of one name is a topic of its own."""
        return Partition(f"{item.topic}#{consumer.topic_id(item)}", item.partition)
