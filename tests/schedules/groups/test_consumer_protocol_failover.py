"""A group of the consumer protocol over the death of its coordinators (KIP-848): no member, epoch or
commit is lost, and no partition has two readers. Production nodes and listeners in virtual time."""

from __future__ import annotations

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.proto.error_codes import ErrorCode
from tests.schedules.groups.consumer_member import SESSION_MS, ConsumerMember
from tests.schedules.groups.site import GaveUp, Site, Wire
from tests.schedules.helpers import schedule

PARTITIONS = 6
PROGRESS_MS_MAX = 3_000.0


def members_of(site: Site, count: int = 3) -> list[ConsumerMember]:
    readers: dict[int, str] = {}
    members = []
    for number in range(count):
        site.world.add_machine(f"m{number}")
        members.append(ConsumerMember(site, f"m{number}", readers, partitions=PARTITIONS))
        members[-1].start()
    return members


async def everybody_commits(site: Site, members: list[ConsumerMember], within_ms: float) -> float:
    """How long it takes until every partition has a commit that is acknowledged after now, by its one reader."""
    began_ms = site.world.now_ms

    def done() -> bool:
        since = [one for member in members for at, _, one, _ in member.acked if at >= began_ms]
        return set(since) == set(range(PARTITIONS)) and sorted(
            partition for member in members for partition in member.owned
        ) == list(range(PARTITIONS))

    await site.until(done, "every partition is committed to", within_ms=within_ms)
    return site.world.now_ms - began_ms


def check(members: list[ConsumerMember], committed: list[int]) -> None:
    assert not [overlap for member in members for overlap in member.overlaps]
    last: dict[int, tuple[float, int]] = {}
    for member in members:
        for at, _, partition, offset in member.acked:
            last[partition] = max(last.get(partition, (0.0, 0)), (at, offset))
        rising = [epoch for epoch in member.epochs if epoch > 0]
        assert rising == sorted(rising), f"{member.member_id} was told {rising}"
    for partition, (_, acked) in last.items():
        unanswered = [member.unanswered.get(partition, 0) for member in members]
        assert committed[partition] in {acked, *(offset for offset in unanswered if offset > acked)}, partition


@pytest.mark.parametrize("seed", range(3))
def test_the_coordinator_dies_while_members_move(seed: int) -> None:
    """Killed, cut off or without power while a member comes or goes: the next one goes on from where that was."""

    async def story(site: Site) -> None:
        members = members_of(site)
        await everybody_commits(site, members, 20_000)
        for turn in range(3):
            moved = members[turn]
            moved.kill()
            victim = await site.lose_coordinator("g", site.faults()[(turn - seed) % 3])
            members.append(ConsumerMember(site, moved.machine, moved.readers))
            members[-1].member_id += f"-{turn}"
            members[-1].start()
            await everybody_commits(site, members, 3 * SESSION_MS + PROGRESS_MS_MAX)
            await site.bring_back(victim)
        for member in members:
            if site.world.process(member.machine) is not None:
                member.kill()
        check(members, await site.offsets("g", "t", PARTITIONS))

    Site(seed).play(story, t=PARTITIONS)


def test_a_crash_of_the_coordinator_moves_nothing() -> None:
    """Members keep their epochs and partitions, and are not told anything else than that."""

    async def story(site: Site) -> None:
        members = members_of(site)
        await everybody_commits(site, members, 20_000)
        await everybody_commits(site, members, 20_000)
        before = [(member.epoch, member.owned) for member in members]
        victim = site.led("g")
        site.world.kill(victim)
        assert await everybody_commits(site, members, 20_000) <= PROGRESS_MS_MAX
        assert [(member.epoch, member.owned) for member in members] == before
        assert not [error for member in members for error in member.errors]

    Site(12).play(story, t=PARTITIONS)


@schedule(42, rule="C8: what a member was told stands in the log", mutant="epoch-told-before-it-is-committed")
def test_42_no_member_is_told_what_a_failover_takes_back() -> None:
    """redpanda#6018's kind: a coordinator is cut off from the other replicas, with a client at its side that joins.
    What it would tell it is in its memory alone. The client must not read partitions that the next coordinator, which
    does not know it, gives to others."""

    async def story(site: Site) -> None:
        site.world.add_machine("beside")
        joining = ConsumerMember(site, "beside", {})
        coordinator = site.led("g")
        others = [name for name in site.cluster.names if name != coordinator]

        async def beside(_ports: Ports) -> None:
            wire = await Wire.to(coordinator)
            for name in others:
                site.world.partition(coordinator, name)
            try:
                await joining.beat(wire)
            except GaveUp:
                return

        await site.process("beside", beside)
        await site.until(lambda: site.led("g") != coordinator, "another coordinates", within_ms=20_000)
        site.world.heal()
        (other,) = members_of(site, 1)
        await everybody_commits(site, [other], 30_000)
        assert not joining.owned, f"{joining.owned} of a member that nobody knows"
        assert joining.epoch == 0
        assert ErrorCode.UNKNOWN_MEMBER_ID not in joining.errors

    Site(42).play(story, t=PARTITIONS)
