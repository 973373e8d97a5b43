"""Bits that rot below the high watermark, on nodes in use and on nodes that come back (rule B19)."""

from __future__ import annotations

import pytest

from strandline.chaos.checkers.stored import stored_headers
from strandline.proto.marks import counts
from tests.schedules.helpers import schedule
from tests.schedules.recovery.ruin import CHECKPOINT_MS, DIRECTORY, TP, Ruin, both_layouts

LENGTH = 11
"""The byte of a batch that has the lowest bits of its length."""


class Rotting(Ruin):
    """A cluster whose bits turn over while it is in use."""

    def rot(self, name: str, number: int, byte: int = -1) -> None:
        """A bit turns over in a batch, by its place in the log; the checkers do not judge it before it is healed.
        `byte`: of the batch; -1: its last one."""
        header, place = list(stored_headers(self.disk(name), DIRECTORY))[number]
        self.disk(name).rot(self._newest_segment(name), place.position + byte % header.size, 0)

    def content(self, name: str) -> bytes:
        """Of the partition's segment on a machine."""
        return self.disk(name).files()[self._newest_segment(name)].rstrip(b"\0")

    def is_whole(self, name: str) -> bool:
        """As the replica there knows."""
        log = self._replica(name).log
        return log is not None and not log.rot

    async def is_healed(self, name: str, before: bytes) -> None:
        """The same bytes in the same place, and in the ISR again."""
        await self.until(lambda: self.content(name)[: len(before)] == before, f"{name} has not got its bytes back")
        await self.until(lambda: self.is_whole(name), f"{name} does not know that it is whole")
        await self.until(lambda: len(self.partition().isr) == 3, f"the ISR is {self.partition().isr}")
        assert not self.disk(name).look_for_rot(DIRECTORY)


@both_layouts
@schedule(
    80,
    rule="B19: a replica that has rotted steps aside, and gets its batches back",
    mutant=("rot-is-not-reported", "rotten-leader-leads-on", "holes-stay", "rot-is-not-scrubbed"),
)
def test_80_a_leaders_log_rots(split: bool) -> None:
    """A bit turns over in the middle of a leader's log; a reader comes. It gets every value from another leader; the
    replica is healed by that one."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        leader = ruin.leader_name
        assert leader is not None
        before = ruin.content(leader)
        found = reached("rot-found")
        ruin.rot(leader, 7)
        assert ruin.content(leader) != before
        await ruin.nothing_is_lost()
        assert reached("rot-found") > found
        await ruin.is_healed(leader, before)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Rotting(80, split).play(story)


@schedule(80, rule="B19: what nobody reads is found by the scrub", mutant="no-scrub")
def test_80_the_scrub_finds_what_nobody_reads() -> None:
    """A bit turns over in a follower's log, which nobody reads from: it leaves the ISR, and is healed."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        leader = ruin.leader_name
        assert leader is not None
        follower = ruin.others(leader)[0]
        before = ruin.content(follower)
        ruin.rot(follower, 3)
        await ruin.is_healed(follower, before)
        assert ruin.leader_name == leader
        await ruin.nothing_is_lost()

    Rotting(81, settings={"log.scrub.interval.ms": "1000"}).play(story)


@schedule(
    80,
    rule="B19: replicas heal each other, each with what the other has",
    mutant="holes-stay",
)
def test_80_every_replica_rots_elsewhere() -> None:
    """An honest copy of every record is in the ISR, and no replica is whole: nothing may be cut to heal one of them."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        before = ruin.content(ruin.brokers[0])
        for number, name in enumerate(ruin.brokers):
            ruin.rot(name, 3 + 4 * number)
        for name in ruin.brokers:
            await ruin.is_healed(name, before)
        await ruin.nothing_is_lost()

    Rotting(82, settings={"log.scrub.interval.ms": "1000"}).play(story)


@schedule(80, rule="B19: a replica is healed whatever comes in between", mutant="no-scrub")
@pytest.mark.parametrize("seed", range(3))
def test_80_the_power_fails_while_it_is_healed(seed: int) -> None:
    """The bytes that came are not on the disk yet: the replica is in no ISR for them, and is healed anew."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        leader = ruin.leader_name
        assert leader is not None
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        before = ruin.content(leader)
        mended = reached("rot-mended")
        ruin.rot(leader, 5)
        await ruin.until(lambda: reached("rot-mended") > mended, "nothing is mended")
        ruin.power_cut(leader)
        await ruin.world.sleep_ms(1_000)
        ruin.start(leader)
        await ruin.until(lambda: len(ruin.partition().isr) == 3, "it is not back")
        await ruin.until(lambda: ruin.content(leader)[: len(before)] == before, "it is not healed")
        await ruin.nothing_is_lost()

    Rotting(seed, settings={"log.scrub.interval.ms": "1000"}).play(story)


@schedule(80, rule="B19: what was healed counts once it is on the disk", mutant="mended-holes-are-not-synced")
def test_80_the_power_fails_once_it_is_whole() -> None:
    """The replica is in the ISR again for what it says that it has."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        leader = ruin.leader_name
        assert leader is not None
        before = ruin.content(leader)
        ruin.rot(leader, 5)
        await ruin.nothing_is_lost()
        await ruin.is_healed(leader, before)
        ruin.power_cut(leader)
        assert ruin.content(leader)[: len(before)] == before
        ruin.start(leader)
        await ruin.nothing_is_lost()

    Rotting(85).play(story)


@both_layouts
@schedule(81, rule="B19: a refused log is fetched again where another replica leads", mutant="refused-logs-stay")
def test_81_a_log_is_refused_after_a_kill(split: bool) -> None:
    """Rot below the recovery point; the leader is killed, and comes back. It needs no operator; what was there stays on
    the disk until the replica is in the ISR."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        leader = ruin.leader_name
        assert leader is not None
        before = ruin.content(leader)
        ruin.kill(leader)
        ruin.rot(leader, 3)
        await ruin.write(20, 30)
        aside = reached("rotten-log-set-aside")
        ruin.start(leader)
        await ruin.until(lambda: reached("rotten-log-set-aside") > aside, "it is not set aside")
        await ruin.until(lambda: len(ruin.partition().isr) == 3, "it is not back")
        assert ruin.content(leader)[: len(before)] == before
        await ruin.until(
            lambda: not any(path.endswith("-rotten") for path in directories(ruin, leader)), "what was set aside stays"
        )
        await ruin.nothing_is_lost()

    Rotting(83, split).play(story)


@schedule(81, rule="B19: the last copy is not set aside", mutant="refused-logs-are-set-aside-by-anybody")
def test_81_nobody_else_leads() -> None:
    """All are killed; the one that comes back alone is refused. Its log stays in place, for it may be the only one."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        leader = ruin.leader_name
        assert leader is not None
        other, last = ruin.others(leader)
        await ruin.fall_in_turn(other, leader, last)
        ruin.rot(last, 3)
        ruin.start(last)
        await ruin.world.sleep_ms(8_000)
        assert TP in ruin.cluster.live[last].node.log_dirs.first.offline
        assert any(path == DIRECTORY for path in directories(ruin, last))
        ruin.start(other, leader)
        await ruin.until(lambda: len(ruin.partition().isr) == 3, "it is not back")
        await ruin.nothing_is_lost()

    Rotting(84, split=True).play(story)


@both_layouts
@schedule(
    88,
    rule="B19: a log is not cut inside of what has rotted; what lies before the cut is healed first",
    mutant=("what-rotted-before-a-cut-stays", "rot-that-a-cut-meets-is-not-told", "watermark-beyond-a-hole"),
)
def test_88_a_log_is_cut_inside_of_a_hole(split: bool) -> None:
    """A leader is cut off with a record that nobody else has, and the length of an older batch rots there: where any
    batch behind it begins nobody can tell. It comes back, and has to give up that one record and no other."""

    async def story(ruin: Rotting) -> None:
        await ruin.write(0, 20)
        old = ruin.leader_name
        assert old is not None
        before = ruin.content(old)
        for name in (name for name in ruin.cluster.names if name != old):
            ruin.world.partition(old, name)
            ruin.world.partition("beside", name)
        await ruin.send(ruin.cluster.bootstrap, "t", 100, 101, "beside")
        assert ruin.refused == [b"100"]
        assert ruin.content(old)[: len(before)] == before
        assert len(ruin.content(old)) > len(before), "it has what nobody else has"
        await ruin.until(lambda: ruin.leader_name not in (old, None), "nobody else leads")
        await ruin.write(20, 30)
        healed = reached("healed-before-a-cut")
        ruin.rot(old, 7, LENGTH)
        ruin.world.heal()
        await ruin.is_healed(old, before)
        assert reached("healed-before-a-cut") > healed
        await ruin.nothing_is_lost()

    Rotting(88, split).play(story)


def reached(mark: str) -> int:
    return counts().get(mark, 0)


def directories(ruin: Rotting, name: str) -> set[str]:
    return {path.rpartition("/")[0] for path in ruin.disk(name).files()}
