"""Topics of the simulated services: `jobs`, which gets records all the time, and `fleeting`, which is deleted and
created again."""

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
"""Settings of all these topics. With two in-sync replicas required, a deposed leader alone acknowledges nothing."""

VISITS = (5, 10, 20, 40)
"""Number of records that `fleeting` gets after a creation: chosen at random, so that it has fewer or more than
before."""


def shown(key: str | None, value: bytes | None) -> str:
    """Text of a record in the ledger of acknowledged records. It includes the key, if there is one; `value` is None for
    a tombstone."""
    text = "" if value is None else value.decode()
    return text if key is None else f"{key}={text}"


class Topics:
    """Progress of the work on both topics. It survives the services' process, so that a restarted one continues.

    Attributes:
        jobs_id, fleeting_id: ids of the existing topics; None while they do not exist.
        fed: True once all jobs are acknowledged.
        visited: True once the last `fleeting` topic has all its records.
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
        """Create `jobs`, which is never deleted."""
        async with self._shared.admin(ports) as admin:
            if self.jobs_id is None:
                self.jobs_id = await self.create(
                    admin, NewTopic(JOBS, self._shared.options.partitions, 3, SAFE | self._shared.options.tiered)
                )

    async def feed(self, ports: Ports) -> None:
        """Send all jobs; after some of them, wait for the answer before the next."""
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
        """Create, fill and delete `fleeting` repeatedly. The last one is not deleted."""
        rng, producer = ports.rng, self._shared.producer(ports)
        async with self._shared.admin(ports) as admin:
            while not self.visited:
                if self.fleeting_id is None:
                    made = await self.create(admin, NewTopic(FLEETING, 1, 3, SAFE | self._shared.options.tiered))
                    if made in self._shared.ledger.deleted:  # the deleted topic still exists: its deletion failed
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
        """Create a topic, unless an earlier attempt has created it. Returns its id."""
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
        """Delete a topic. Returns once it does not exist any more."""
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
        """Send a record, and enter it into the ledger when it is acknowledged.

        A record is not entered if the client's metadata named the deleted topic when it was sent or acknowledged:
        brokers with the same old metadata may have written it to that topic.
        """

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
