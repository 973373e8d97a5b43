"""A group over the death of its coordinators: no acknowledged commit is lost, no partition has two owners, and the
group goes on soon. Production nodes and listeners in virtual time."""

from __future__ import annotations

import pytest

from tests.schedules.groups.site import SESSION_MS, Member, Site

MEMBERS = 3
PARTITIONS = 6

PROGRESS_MS_MAX = 3_000.0
"""The group makes progress again within 3 s beyond the session rules."""


def members_of(site: Site) -> list[Member]:
    members = []
    for number in range(MEMBERS):
        site.world.add_machine(f"m{number}")
        members.append(Member(site, f"m{number}", partitions=PARTITIONS))
        members[-1].start()
    return members


def check(members: list[Member], committed: list[int]) -> None:
    """Nothing acknowledged is lost, and each partition has one owner a generation."""
    best: dict[int, int] = {}
    for member in members:
        for _, _, partition, offset in member.acked:
            best[partition] = max(best.get(partition, 0), offset)
    assert len(best) == PARTITIONS
    for partition, offset in best.items():
        assert committed[partition] >= offset, f"{offset} of partition {partition} was acknowledged: {committed}"
    generations = {generation for member in members for generation in member.owned}
    for generation in generations:
        owned = [partition for member in members for partition in member.owned.get(generation, ())]
        assert len(owned) == len(set(owned)), f"generation {generation}: {owned}"


async def everybody_commits(site: Site, members: list[Member], within_ms: float) -> float:
    """How long it takes until every partition has a commit that is acknowledged after now."""
    began_ms = site.world.now_ms

    def done() -> bool:
        return all(
            any(at >= began_ms and one == partition for member in members for at, _, one, _ in member.acked)
            for partition in range(PARTITIONS)
        )

    await site.until(done, "every partition is committed to", within_ms=within_ms)
    return site.world.now_ms - began_ms


@pytest.mark.parametrize("seed", range(4))
def test_the_coordinator_dies_again_and_again(seed: int) -> None:
    """Killed, cut off or without power, then back: the next one has every commit and knows every member."""

    async def story(site: Site) -> None:
        members = members_of(site)
        await everybody_commits(site, members, 20_000)
        for turn in range(3):
            victim = await site.lose_coordinator("g", site.faults()[(turn - seed) % 3])
            await everybody_commits(site, members, 2 * SESSION_MS + PROGRESS_MS_MAX)
            await site.bring_back(victim)
        for member in members:
            site.world.kill(member.machine)
        check(members, await site.offsets("g", "t", PARTITIONS))

    Site(seed).play(story, t=PARTITIONS)


def test_progress_after_a_crash() -> None:
    """kill -9 of the coordinator: every partition has an acknowledged commit within 3 s. Members beat every second, so
    a second of it is theirs."""

    async def story(site: Site) -> None:
        members = members_of(site)
        await everybody_commits(site, members, 20_000)
        settled = members[0].generation
        for _ in range(2):
            victim = site.led("g")
            site.world.kill(victim)
            assert await everybody_commits(site, members, 20_000) <= PROGRESS_MS_MAX
            await site.bring_back(victim)
        assert {member.generation for member in members} == {settled}, "a crash of the coordinator is no rebalance"

    Site(11).play(story, t=PARTITIONS)


def test_a_dead_member_is_replaced_within_its_session() -> None:
    """Rows S58, S59, S85: its partitions go to the others within the session timeout and what a rebalance takes."""

    async def story(site: Site) -> None:
        members = members_of(site)
        await everybody_commits(site, members, 20_000)
        site.world.kill(members[0].machine)
        survivors = members[1:]
        took_ms = await everybody_commits(site, survivors, 20_000)
        assert took_ms <= SESSION_MS + PROGRESS_MS_MAX
        members[1].leaving = True
        took_ms = await everybody_commits(site, members[2:], 20_000)
        assert took_ms <= PROGRESS_MS_MAX, "who leaves is not waited for"
        check(members, await site.offsets("g", "t", PARTITIONS))

    Site(5).play(story, t=PARTITIONS)
