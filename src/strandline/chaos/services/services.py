"""All services of a run together: their process, what is watched meanwhile, and what is judged in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from strandline.chaos.checkers.handled import check_copied
from strandline.chaos.checkers.history import History
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.services.altered import EXPIRING_LEAST, Altered
from strandline.chaos.services.members import Member
from strandline.chaos.services.options import (
    ALTERED,
    COMPACTED,
    COPIED,
    COPIER,
    EXPIRING,
    FLEETING,
    JOBS,
    LETTERS,
    RESTING,
    TRIMMED,
    VISITORS,
    WORKERS,
    ServiceOptions,
)
from strandline.chaos.services.resting import Resting
from strandline.chaos.services.shared import Shared
from strandline.chaos.services.topics import SAFE, Topics, shown
from strandline.chaos.workload import Ports
from strandline.log.config import INT64_MAX
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.tools.copy.engine import Engine
from strandline.tools.copy.errors import CopyError, CopyTakenOver
from strandline.tools.copy.target import TargetSpec

WATCH_S = 1.0


class Services:
    """The services of one run, over all incarnations of their process.

    Attributes:
        calm: nothing is cancelled any more.
    """

    def __init__(
        self, bootstrap: str, options: ServiceOptions, history: History, now_ms: Callable[[], float],
        login: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.calm = False
        self.shared = Shared(bootstrap, options, login)
        self._options = options
        self._history = history
        self._now_ms = now_ms
        self._topics = Topics(self.shared)
        self._altered = Altered(self.shared, self._topics)
        self._resting = Resting(self.shared, self._topics, lambda: self.calm)
        self._committed: dict[tuple[UUID, int], int] = {}
        self._broken: BaseException | None = None

    async def main(self, ports: Ports) -> None:
        """Run the services' process."""
        self.shared.begin()
        self._resting.begin()
        options = self._options
        await self._topics.make_jobs(ports)
        members = [
            self._member(f"{style}-{number}", style, WORKERS, (JOBS, True))
            for number, style in enumerate(options.members)
        ]
        members.append(self._member("visitor", options.visitor, VISITORS, (FLEETING, options.subscribes)))
        work = [self._topics.feed(ports), self._topics.make_and_delete(ports), self._watch(ports), self._cancel(ports)]
        work += [member.live(ports) for member in members]
        if options.copy:
            work.append(self._copy(ports))
        if options.alters:
            work += [self._altered.feed(ports), self._altered.trim(ports), self._altered.alter(ports)]
        if options.rests:
            work += [self._resting.feed(ports), self._resting.tail(ports)]
        try:
            async with asyncio.TaskGroup() as group:
                for one in work:
                    group.create_task(one)
        except BaseExceptionGroup as several:
            self._broken = several.exceptions[0]

    def _member(self, name: str, style: str, group: str, reads: tuple[str, bool]) -> Member:
        return Member(
            self.shared, self._history, self._now_ms, name=name, style=style, group=group, reads=reads,
        )  # fmt: skip

    @property
    def settled(self) -> bool:
        """True if everything that was acknowledged of the topics that live is handled, or in the dead letters: all jobs
        are committed.

        Raises:
            InvariantViolated: a service has seen what must not be.
        """
        if self._broken is not None:
            raise self._broken
        jobs_id = self._topics.jobs_id
        fed = self._topics.fed and self._topics.visited and (self._altered.fed or not self._options.alters)
        fed = fed and (self._resting.fed or not self._options.rests)
        if jobs_id is None or self.open or not fed:
            return False
        ends = self.shared.ledger.ends(jobs_id)
        return all(self._committed.get((jobs_id, number), 0) >= end for number, end in ends.items())

    @property
    def open(self) -> list[str]:
        """Names of what is still to be handled."""
        living = [topic for topic in (self._topics.jobs_id, self._topics.fleeting_id) if topic is not None]
        return [value for topic in living for value in self.shared.ledger.unhandled(topic)]

    @property
    def ages(self) -> bool:
        """True if there are tombstones whose time is to pass: `let_tombstones_go`."""
        return self._options.alters and self._options.tombstones_go

    async def let_tombstones_go(self, ports: Ports) -> None:
        """A process of its own, once everything is settled."""
        await self._altered.let_tombstones_go(ports)

    @property
    def deletable(self) -> dict[str, int]:
        """Topic -> below which offset its records may be gone from the cluster: deleted, or over its size."""
        return {TRIMMED: self._altered.asked, RESTING: self._resting.asked, EXPIRING: INT64_MAX}

    def figures(self) -> dict[str, object]:
        """Counts of what was tried."""
        ledger = self.shared.ledger
        return {
            "acked": sum(map(len, ledger.acked.values())),
            "handled": len(ledger.handled),
            "cancelled": self.shared.cancelled,
            "errors": dict(self.shared.errors),
            "records_deleted": self._altered.deleted,
            "rests": self._resting.rounds,
            "settings_changed": self._altered.changes,
        }

    async def _cancel(self, ports: Ports) -> None:
        while not self.calm:
            await asyncio.sleep(ports.rng.expovariate(1000 / self._options.cancel_gap_ms))
            if not self.calm:
                self.shared.cancel_one(ports.rng)

    async def _watch(self, ports: Ports) -> None:
        """Check that what is committed was handled. Raises InvariantViolated."""
        watched = {WORKERS: (JOBS, self._options.partitions), VISITORS: (FLEETING, 1)}
        consumers = {group: self.shared.consumer(ports, group_id=group, enable_auto_commit=False) for group in watched}
        while True:
            await asyncio.sleep(WATCH_S)
            for group, (topic, count) in watched.items():
                try:
                    await consumers[group].partitions_for(topic)
                    found = await consumers[group].committed([TopicPartition(topic, number) for number in range(count)])
                except StrandlineError as error:
                    self.shared.failed(error)
                    continue
                for item, stored in found.items():
                    if stored is not None and stored.topic_id is not None:
                        self.shared.ledger.check_committed(group, stored.topic_id, item.partition, stored.offset)
                        self._committed[stored.topic_id, item.partition] = stored.offset

    # --- the copy ---

    def _engine(self, ports: Ports, *, follow: bool) -> Engine:
        settings = {"request_timeout_ms": 5_000, "delivery_timeout_ms": 20_000, **self.shared.login}
        return Engine(
            self.shared.bootstrap, JOBS, COPIED, group=COPIER, wish=TargetSpec(2, configs=SAFE), transform=None,
            follow=follow, accept_deleted=False, settings=settings, on_progress=lambda _done, _all: None,
            clock=ports.clock, rng=ports.rng,
        )  # fmt: skip

    async def _copy(self, ports: Ports) -> None:
        while True:
            await asyncio.sleep(ports.rng.uniform(0, 4))
            engine = self._engine(ports, follow=ports.rng.random() < 0.5)
            ended = await self.shared.cancellable("copy", engine.run())
            if isinstance(ended, CopyError) and not isinstance(ended, CopyTakenOver):
                raise InvariantViolated("CopiedOnce", f"a copy that was begun does not go on: {ended}") from ended
            self.shared.end_task(ended)

    # --- the end ---

    async def look_at_the_end(self, ports: Ports) -> None:
        """Read everything once more by fresh clients, and judge it. Raises InvariantViolated."""
        jobs_id, fleeting_id, ledger = self._topics.jobs_id, self._topics.fleeting_id, self.shared.ledger
        assert jobs_id is not None
        assert fleeting_id is not None
        async with self.shared.admin(ports) as admin:
            died = LETTERS in await admin.list_topics()
        jobs = await self._whole(ports, JOBS)
        letters = await self._whole(ports, LETTERS) if died else {}
        ledger.check_at_the_end(jobs_id, letters.values())
        ledger.check_at_the_end(fleeting_id, ())
        ledger.check_stored(jobs_id, jobs)
        ledger.check_stored(fleeting_id, await self._whole(ports, FLEETING))
        if self._options.alters:
            await self._look_at_the_altered(ports)
        if self._options.rests:
            resting = self._resting
            assert resting.topic_id is not None
            stored = await self._whole(ports, RESTING)
            ledger.check_trimmed(resting.topic_id, stored, asked=resting.asked, deleted=resting.deleted)
        if self._options.copy:
            await self._engine(ports, follow=False).run()
            check_copied(list(jobs.values()), list((await self._whole(ports, COPIED)).values()))

    async def _look_at_the_altered(self, ports: Ports) -> None:
        altered, ledger = self._altered, self.shared.ledger
        assert altered.trimmed_id is not None
        assert altered.altered_id is not None
        assert altered.expiring_id is not None
        ledger.check_stored(altered.altered_id, await self._whole(ports, ALTERED))
        trimmed = await self._whole(ports, TRIMMED)
        ledger.check_trimmed(altered.trimmed_id, trimmed, asked=altered.asked, deleted=altered.deleted)
        assert altered.compacted_id is not None
        compacted = await self._whole(ports, COMPACTED)
        sent = {key: count for (topic_id, key), count in altered.tombstones.items() if topic_id == altered.compacted_id}
        ledger.check_compacted(altered.compacted_id, compacted, sent if self._options.tombstones_go else {})
        ledger.check_expired(altered.expiring_id, await self._whole(ports, EXPIRING), least=EXPIRING_LEAST)

    async def _whole(self, ports: Ports, topic: str) -> dict[tuple[int, int], str]:
        """(partition, offset) -> value."""
        found: dict[tuple[int, int], str] = {}
        async with self.shared.consumer(ports) as consumer:
            places = [TopicPartition(topic, number) for number in await consumer.partitions_for(topic)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for record in await consumer.poll(0.5):
                    key = None if record.key is None else record.key.decode()
                    found[record.partition, record.offset] = shown(key, record.value)
        return found
