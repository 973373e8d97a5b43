"""`resting`: a topic that is empty most of the time, while leaders come and go, and a consumer at its end.

A few records come, are read, and are deleted. The consumer begins with `auto.offset.reset=latest`, and believes every
answer to the question where an epoch ended (`chaos.other_clients`): no record that is acknowledged after it has its
place may pass it by.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from uuid import UUID

from strandline.chaos.other_clients import ValidatingConsumer
from strandline.chaos.services.options import RESTING
from strandline.chaos.services.shared import Shared
from strandline.chaos.services.topics import SAFE, Topics
from strandline.chaos.workload import Ports
from strandline.client.aio import Admin, Producer
from strandline.client.types import NewTopic
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition

_REST_S = 1.5
_BURST_MAX = 4
_RETRY_S = 0.1
_PLACE = TopicPartition(RESTING, 0)


class Resting:
    """State over all incarnations of the services' process.

    Attributes:
        fed: there will be no more rounds.
        rounds: so many have ended: written, read and deleted.
        asked: records below may be gone: their deletion was asked for.
        deleted: records below are gone: it was answered.
    """

    def __init__(self, shared: Shared, topics: Topics, calm: Callable[[], bool]) -> None:
        """`calm`: faults have ended, and the rounds are to."""
        self.topic_id: UUID | None = None
        self.fed = False
        self.rounds = 0
        self.asked = 0
        self.deleted = 0
        self._shared = shared
        self._topics = topics
        self._calm = calm
        self._sent = 0
        self._position = -1
        self._made = asyncio.Event()
        self._moved = asyncio.Event()

    def begin(self) -> None:
        """Begin in another process: no consumer has its place."""
        self._position = -1
        self._made, self._moved = asyncio.Event(), asyncio.Event()

    async def feed(self, ports: Ports) -> None:
        """Make the topic; round after round."""
        rng, producer = ports.rng, self._shared.producer(ports)
        async with self._shared.admin(ports) as admin:
            self.topic_id = await self._topics.create(
                admin, NewTopic(RESTING, 1, 3, SAFE | self._shared.options.tiered)
            )
            self._made.set()
            await self._stands_at(0)
            while not self.fed:
                await asyncio.sleep(rng.expovariate(1 / _REST_S))
                last = self._calm()
                await self._round(self.topic_id, producer, admin, rng)
                self.fed = last

    async def _round(self, topic_id: UUID, producer: Producer, admin: Admin, rng: random.Random) -> None:
        """Run one round: a few records are acknowledged, read, deleted."""
        for _ in range(rng.randint(1, _BURST_MAX)):
            self._sent += 1
            await self._topics.send(producer, topic_id, RESTING, f"r{self._sent}", 0, wait=True)
        end = self._shared.ledger.ends(topic_id).get(0, 0)
        await self._stands_at(end)
        self.asked = max(self.asked, end)
        try:
            await admin.delete_records({_PLACE: end})
            self.deleted = max(self.deleted, end)
        except StrandlineError as error:
            self._shared.failed(error)
        self.rounds += 1

    async def _stands_at(self, offset: int) -> None:
        """The consumer does, or beyond it."""
        while self._position < offset:
            self._moved.clear()
            await self._moved.wait()

    async def tail(self, ports: Ports) -> None:
        """Begin at the end, and read on. Raises InvariantViolated."""
        shared = self._shared
        await self._made.wait()
        assert self.topic_id is not None
        latest = {"auto_offset_reset": "latest", "metadata_max_age_ms": 1_000}
        given = {**shared.options.consumer, **latest, **shared.login}
        consumer = ValidatingConsumer(shared.bootstrap, clock=ports.clock, rng=ports.rng, **given)
        consumer.assign([_PLACE])
        began: int | None = None
        seen: set[int] = set()
        while True:
            try:
                if began is None:
                    began = await consumer.position(_PLACE)
                seen.update(record.offset for record in await consumer.poll(0.5))
                self._position = await consumer.position(_PLACE)
            except StrandlineError as error:
                shared.failed(error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._moved.set()
            shared.ledger.check_tail(self.topic_id, began, self._position, seen)
