"""The services' topics: `jobs`, which is fed, and `fleeting`, which is deleted and made anew."""

from __future__ import annotations

import asyncio
from uuid import UUID

from strandline.chaos.services.options import FLEETING, JOBS
from strandline.chaos.services.shared import Shared
from strandline.chaos.workload import Ports
from strandline.client.aio import Admin, Producer
from strandline.client.errors import UnknownTopic
from strandline.client.types import Ack, NewTopic
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError

SAFE = {"min.insync.replicas": "2"}
"""Settings of all topics here: an acknowledgement is a promise, and a deposed leader gives none."""

VISITS = (5, 10, 20, 40)
"""Records that `fleeting` gets, each time that it is made: fewer or more than it had before."""


def shown(key: str | None, value: bytes | None) -> str:
    """A record as the ledger has it; of a compacted topic with its key, and without a value for a tombstone."""
    text = "" if value is None else value.decode()
    return text if key is None else f"{key}={text}"


class Topics:
    """State over all incarnations of the services' process: one that is killed goes on where it was.

    Attributes:
        jobs_id, fleeting_id: of the topics that live, once they do.
        fed: all jobs are answered.
        visited: the last of the `fleeting` topics has all its records.
    """

    def __init__(self, shared: Shared) -> None:
        self.jobs_id: UUID | None = None
        self.fleeting_id: UUID | None = None
        self.fed = False
        self.visited = False
        self._shared = shared
        self._jobs = 0
        self._made = 0
        self._visits = self._visits_wanted = 0

    async def make_jobs(self, ports: Ports) -> None:
        """Make the topic that stays."""
        async with self._shared.admin(ports) as admin:
            if self.jobs_id is None:
                self.jobs_id = await self.create(
                    admin, NewTopic(JOBS, self._shared.options.partitions, 3, SAFE | self._shared.options.tiered)
                )

    async def feed(self, ports: Ports) -> None:
        """Send jobs, some of them one by one."""
        options, rng = self._shared.options, ports.rng
        producer = self._shared.producer(ports)
        assert self.jobs_id is not None
        while self._jobs < options.records:
            self._jobs += 1
            await asyncio.sleep(rng.uniform(0, 2 * options.gap_ms) / 1000)
            where, wait = rng.randrange(options.partitions), rng.random() < 0.2
            work = self.send(producer, self.jobs_id, JOBS, f"j{self._jobs}", where, wait=wait)
            self._shared.end_task(await self._shared.cancellable("feed", work))
        await producer.flush()
        self.fed = True

    async def make_and_delete(self, ports: Ports) -> None:
        """`fleeting`: made, filled, deleted, made anew; the last one stays."""
        rng, producer = ports.rng, self._shared.producer(ports)
        async with self._shared.admin(ports) as admin:
            while not self.visited:
                if self.fleeting_id is None:
                    made = await self.create(admin, NewTopic(FLEETING, 1, 3, SAFE | self._shared.options.tiered))
                    if made in self._shared.ledger.deleted:  # its deletion did not take place, whatever the answer was
                        await self.delete(admin, FLEETING)
                        continue
                    self.fleeting_id, self._visits, self._visits_wanted = made, 0, rng.choice(VISITS)
                    self._made += 1
                slowly = rng.random() < 0.5
                while self._visits < self._visits_wanted:
                    self._visits += 1
                    value = f"f{self._made}:{self._visits}"
                    await self.send(producer, self.fleeting_id, FLEETING, value, 0, wait=slowly)
                    await asyncio.sleep(rng.uniform(0, 0.1) if slowly else 0)
                await producer.flush()
                if self._made > self._shared.options.anew:
                    self.visited = True
                    return
                await asyncio.sleep(rng.uniform(0, 3))
                self._shared.ledger.deleted[self.fleeting_id] = None
                self.fleeting_id = None
                await self.delete(admin, FLEETING)
                await asyncio.sleep(rng.choice((0.0, 0.0, 2.0, 6.0)))

    async def create(self, admin: Admin, new: NewTopic) -> UUID:
        """The topic under a name that is free, or was taken by an attempt before; its id."""
        while True:
            try:
                made = (await admin.create_topics([new]))[new.name].topic_id
                if made is not None:
                    return made
            except StrandlineError as error:
                self._shared.failed(error)
                if isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    found = await self._id_of(admin, new.name)
                    if found is not None:
                        return found
            await asyncio.sleep(0.2)

    async def _id_of(self, admin: Admin, name: str) -> UUID | None:
        try:
            [described] = await admin.describe_topics([name])
        except StrandlineError as error:
            self._shared.failed(error)
            return None
        return described.topic_id

    async def delete(self, admin: Admin, name: str) -> None:
        """Return once it is gone."""
        while True:
            try:
                await admin.delete_topics([name])
                return
            except UnknownTopic:
                return
            except StrandlineError as error:
                self._shared.failed(error)
            await asyncio.sleep(0.2)

    async def send(
        self,
        producer: Producer,
        topic_id: UUID,
        topic: str,
        value: str | None,
        partition: int,
        *,
        wait: bool,
        key: str | None = None,
    ) -> None:
        """What is not acknowledged promises nothing. Nor does what was sent, or answered, while the client took the
        name for the topic that was deleted: brokers that had not heard of it either may have written it there."""

        def is_meant() -> bool:
            return producer.session.metadata.topic_id(topic) in (None, topic_id)

        was_meant = is_meant()

        def answered(future: asyncio.Future[Ack]) -> None:
            self._answered(topic_id, shown(key, content), future, promises=was_meant and is_meant())

        content = None if value is None else value.encode()
        try:
            future = await producer.send(topic, content, key=None if key is None else key.encode(), partition=partition)
            future.add_done_callback(answered)
            if wait:
                await asyncio.wait([future])
        except StrandlineError as error:
            self._shared.failed(error)

    def _answered(self, topic_id: UUID, value: str, future: asyncio.Future[Ack], *, promises: bool) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._shared.failed(error)
        elif promises and not future.cancelled() and future.result().offset >= 0:
            self._shared.ledger.ack(topic_id, future.result().partition, future.result().offset, value)
