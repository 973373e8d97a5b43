"""A member of a group of the consumer protocol (KIP-848) in the simulator: heartbeats, gives back, commits."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from strandline.chaos.sim.ports import Ports
from strandline.proto.error_codes import ErrorCode
from tests.schedules.groups.site import GaveUp, Site, Wire, commit_of, fetch_offsets, find

BEAT_MS = 500.0
SESSION_MS = 6_000.0
REBALANCE_MS = 60_000
"""Longer than any failover: who is given up because it could not say that it gave back reads on until it hears so."""
ELSEWHERE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class ConsumerMember:
    """Attributes:
    acked: (virtual ms, epoch, partition, offset) of each acknowledged commit.
    owned: the partitions that it reads at this moment.
    readers: who reads what, among all members of the test: nobody takes up what another reads.
    overlaps: what broke that.
    """

    def __init__(self, site: Site, machine: str, readers: dict[int, str], *, partitions: int = 6) -> None:
        self.site = site
        self.machine = machine
        self.readers = readers
        self.partitions = partitions
        self.member_id = f"member-{machine}"
        self.instance_id: str | None = None
        self.epoch = 0
        self.epochs: list[int] = []
        self.owned: tuple[int, ...] = ()
        self.acked: list[tuple[float, int, int, int]] = []
        self.unanswered: dict[int, int] = {}
        """The last commit that had no answer: it may have been accepted."""
        self.overlaps: list[str] = []
        self.errors: list[int] = []
        self._heard_ms = 0.0
        self._offsets: dict[int, int] = {}
        self._topic_id: UUID | None = None

    def start(self) -> None:
        """In a process of its own."""
        self.site.world.spawn(self.machine, self._main)

    def kill(self) -> None:
        """The process dies, and reads nothing more."""
        self.site.world.kill(self.machine)
        self._take(())

    async def _main(self, _ports: Ports) -> None:
        while True:
            wire = None
            try:
                wire = await Wire.to(await find(self.site.cluster.names, "g"))
                while True:
                    if self.site.world.now_ms - self._heard_ms > SESSION_MS:
                        self.start_over()  # by its own clock the coordinator has given it up
                    await self.beat(wire)
                    await self._commit(wire)
                    await asyncio.sleep(BEAT_MS / 1000)
            except GaveUp:
                await asyncio.sleep(0.1)
            finally:
                if wire is not None:
                    wire.close()

    def start_over(self) -> None:
        self.epoch = 0
        self._take(())

    def _take(self, owned: tuple[int, ...]) -> None:
        for partition in self.owned:
            if partition not in owned:
                del self.readers[partition]
        for partition in owned:
            reader = self.readers.setdefault(partition, self.member_id)
            if reader != self.member_id:
                self.overlaps.append(f"{partition} is read by {reader} and {self.member_id}")
        self.owned = tuple(partition for partition in owned if self.readers[partition] == self.member_id)
        self._offsets = {one: offset for one, offset in self._offsets.items() if one in self.owned}

    async def beat(self, wire: Wire) -> int:
        """The error of one heartbeat. Raises GaveUp when another broker is to be asked."""
        owned: Any = []
        if self.owned:
            owned = [{"topic_id": self._topic_id, "partitions": self.owned}]
        answer = await wire.ask(
            "consumer_group_heartbeat",
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rack_id=None,
            rebalance_timeout=REBALANCE_MS,
            subscribed_topic_names=("t",),
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=owned,
        )
        error = int(answer.error_code)
        if error in ELSEWHERE:
            raise GaveUp(error)
        if error != 0:
            self.errors.append(error)
            self.start_over()
            return error
        self._heard_ms = self.site.world.now_ms
        self.epoch = answer.member_epoch
        self.epochs.append(self.epoch)
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            if topics:
                self._topic_id = topics[0].topic_id
            self._take(tuple(partition for topic in topics for partition in topic.partitions))
        return error

    async def _commit(self, wire: Wire) -> None:
        if not self.owned:
            return
        if not self._offsets.keys() >= set(self.owned):  # it goes on where the readers before it were
            found = await fetch_offsets(wire, "g", "t", self.partitions)
            self._offsets = {one: self._offsets.get(one, max(found[one], 0)) for one in self.owned}
        for partition in self.owned:
            self._offsets[partition] += 1
        offsets = self.unanswered = {partition: self._offsets[partition] for partition in self.owned}
        answer = await wire.ask(
            "offset_commit_of_epochs",
            group_id="g",
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            group_instance_id=None,
            topics=commit_of("t", offsets),
        )
        error = int(answer.topics[0].partitions[0].error_code)
        if error in ELSEWHERE:
            raise GaveUp(error)
        if error:
            self.errors.append(error)
        else:
            now_ms = self.site.world.now_ms
            self.acked += [(now_ms, self.epoch, partition, offset) for partition, offset in offsets.items()]
