"""A group that is rolled from the classic to the consumer protocol and back while its coordinators die (KIP-848,
"Online migration"): no member is stuck, no commit is lost, no partition has two readers. In virtual time."""

from __future__ import annotations

import pytest

from strandline.chaos.sim.seeds import split
from strandline.proto.error_codes import ErrorCode
from tests.schedules.groups.consumer_member import SESSION_MS as CONSUMER_SESSION_MS
from tests.schedules.groups.consumer_member import ConsumerMember
from tests.schedules.groups.site import SESSION_MS, Member, Site

PARTITIONS = 6
WITHIN_MS = 3 * (SESSION_MS + CONSUMER_SESSION_MS) + 10_000.0

GIVES_UP = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""On these a client ends."""


class Rolled:
    """Two members, replaced one by one."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.rng = split(seed, "rolled")
        self.readers: dict[int, str] = {}
        self.all: list[Member | ConsumerMember] = []
        self.alive: list[Member | ConsumerMember] = []

    def start(self, kind: type[Member] | type[ConsumerMember]) -> None:
        machine = f"m{len(self.all)}"
        self.site.world.add_machine(machine)
        member: Member | ConsumerMember
        if kind is Member:
            member = Member(self.site, machine, partitions=PARTITIONS)
        else:
            member = ConsumerMember(self.site, machine, self.readers, partitions=PARTITIONS)
        member.start()
        self.all.append(member)
        self.alive.append(member)

    def end_first(self) -> None:
        """A classic member says that it leaves, or dies; one of the other kind dies."""
        member = self.alive.pop(0)
        if isinstance(member, ConsumerMember):
            member.kill()
        elif self.rng.random() < 0.5:
            member.leaving = True
        else:
            self.site.world.kill(member.machine)

    async def everybody_reads(self) -> None:
        """Each partition has a commit that is acknowledged from now on."""
        since_ms = self.site.world.now_ms

        def done() -> bool:
            acked = {one for member in self.alive for at, _, one, _ in member.acked if at >= since_ms}
            return acked == set(range(PARTITIONS))

        await self.site.until(done, "every partition is committed to", within_ms=WITHIN_MS)

    async def lose_the_coordinator(self) -> None:
        """In the middle of whatever goes on; the next one goes on with it."""
        await self.site.world.sleep_ms(self.rng.uniform(0, 2_500))
        victim = await self.site.lose_coordinator("g", self.rng.choice(self.site.faults()))
        await self.everybody_reads()
        await self.site.bring_back(victim)

    def check(self, committed: list[int]) -> None:
        """Commits of a partition rise from reader to reader: each went on where the one before it was."""
        for partition in range(PARTITIONS):
            acked = sorted(
                (at, offset) for member in self.all for at, _, one, offset in member.acked if one == partition
            )
            offsets = [offset for _, offset in acked]
            assert offsets == sorted(set(offsets)), f"partition {partition} was committed to like this: {offsets}"
            assert committed[partition] == offsets[-1]
        for member in self.all:
            assert not GIVES_UP & set(member.errors), member.errors
            if isinstance(member, ConsumerMember):
                assert not member.overlaps


@pytest.mark.parametrize("seed", range(3))
def test_a_group_is_rolled_up_and_down_over_dying_coordinators(seed: int) -> None:
    """In each step one member is replaced by one of the other protocol, and a coordinator goes meanwhile."""

    async def story(site: Site) -> None:
        group = Rolled(site, seed)
        for _ in range(2):
            group.start(Member)
        await group.everybody_reads()
        for kind in (ConsumerMember, ConsumerMember, Member, Member):
            group.start(kind)
            group.end_first()
            await group.lose_the_coordinator()
            await group.everybody_reads()
        assert all(isinstance(member, Member) for member in group.alive)

        def agree() -> bool:
            return len({member.generation for member in group.alive if isinstance(member, Member)}) == 1

        await site.until(agree, "they are a classic group, of one generation", within_ms=WITHIN_MS)
        for member in group.alive:
            site.world.kill(member.machine)
        group.check(await site.offsets("g", "t", PARTITIONS))

    Site(seed).play(story, t=PARTITIONS)
