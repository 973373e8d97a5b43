"""What a coordinator knows is what its log says: schedules 37, 43 and 44, this one without transactions."""

from __future__ import annotations

import asyncio
from pathlib import Path

from strandline.chaos.sim.ports import Ports
from strandline.proto.error_codes import ErrorCode
from tests.schedules.groups.one_broker import ME, OTHER, OneBroker
from tests.schedules.groups.site import GaveUp, Member, Site, Wire, fetch_offsets, find
from tests.schedules.helpers import schedule


@schedule(37, rule="C8: loading is keyed by leader epoch", mutant="coordinator-keeps-its-shard-over-an-epoch")
async def test_37_the_coordinator_epoch_does_not_go_back(tmp_path: Path) -> None:
    """KAFKA-9144's kind: a coordinator that has missed an epoch takes what it knew for what holds. Its leadership is
    lost, another commits, and it is elected again; it hears of both elections as one change."""
    broker = OneBroker(tmp_path)
    broker.elect(ME, 0)
    broker.publish()
    assert await broker.commit(5) is ErrorCode.NONE
    broker.elect(OTHER, 1)
    broker.replicate(9, leader_epoch=1)
    broker.elect(ME, 2)
    broker.publish()
    assert await broker.offset() == 9, "what another coordinator committed in between"
    await broker.close()


@schedule(43, rule="C8: a static member's return is durable before it is answered", mutant="static-rejoin-not-stored")
def test_43_a_failover_does_not_bring_the_old_member_back() -> None:
    """KAFKA-10284: a static member restarts and is given a new id; the coordinator dies; the next one knows the old id,
    fences the living process and lets the dead one's commits in."""

    async def story(site: Site) -> None:
        for name in ("old", "new"):
            site.world.add_machine(name)
        old, new = Member(site, "old"), Member(site, "new")
        for member in (old, new):
            member.instance_id = "a"
            await site.process(member.machine, lambda _ports, member=member: join_once(site, member))
        assert old.member_id != new.member_id
        victim = site.led("g")
        site.world.kill(victim)
        await site.until(lambda: site.led("g") != victim, "another coordinates", within_ms=20_000)
        assert await site.process("old", lambda _ports: beat_once(site, old)) == ErrorCode.FENCED_INSTANCE_ID
        assert await site.process("new", lambda _ports: beat_once(site, new)) == ErrorCode.NONE

    Site(43).play(story, t=6)


async def join_once(site: Site, member: Member) -> None:
    while True:
        wire = await Wire.to(await find(site.cluster.names, member.group))
        try:
            if await member.join(wire) is not None:
                return
        except GaveUp:
            await asyncio.sleep(0.1)


async def beat_once(site: Site, member: Member) -> int:
    while True:
        wire = await Wire.to(await find(site.cluster.names, member.group))
        error = await member.beat(wire)
        if error not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            return error
        await asyncio.sleep(0.1)


@schedule(44, rule="C8: memory is what the log says", mutant="coordinator-applies-refused-writes")
async def test_44_a_refused_commit_is_nowhere(tmp_path: Path) -> None:
    """redpanda#31483's kind, without transactions: the state that answers differs from the one that a replay of the log
    gives. A commit is refused, for too few replicas are in sync; then the coordinator loads its log anew."""
    broker = OneBroker(tmp_path)
    broker.elect(ME, 0)
    broker.publish()
    assert await broker.commit(5) is ErrorCode.NONE
    broker.elect(ME, 0, change=1, min_isr=2)
    assert await broker.commit(7) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.elect(ME, 0, change=2)
    live = await broker.offset()
    broker.elect(ME, 5)
    broker.publish()
    assert live == await broker.offset() == 5
    await broker.close()


@schedule(44, rule="C8: nothing is told that is not committed", mutant="coordinator-reads-ahead")
def test_44_a_read_does_not_run_ahead() -> None:
    """The same in time: a coordinator is cut off from the other replicas with a client at its side, which commits and
    reads. What is written and not committed may not be shown: the next coordinator does not have it."""

    async def story(site: Site) -> None:
        member = Member(site, "beside")
        site.world.add_machine("beside")
        coordinator = site.led("g")
        others = [name for name in site.cluster.names if name != coordinator]
        shown: list[int] = []

        async def beside(_ports: Ports) -> None:
            wire = await Wire.to(coordinator)
            assert await member.commit(wire, {0: 5}) == 0
            for name in others:
                site.world.partition(coordinator, name)
            committing = asyncio.ensure_future(member.commit(await Wire.to(coordinator), {0: 6}))
            for _ in range(12):
                await asyncio.sleep(0.5)
                reader = await Wire.to(coordinator)
                try:
                    shown.append((await fetch_offsets(reader, "g", "t", 1))[0])
                except GaveUp:
                    pass
                finally:
                    reader.close()
            committing.cancel()

        await site.process("beside", beside)
        await site.until(lambda: site.led("g") != coordinator, "another coordinates", within_ms=20_000)
        (committed,) = await site.offsets("g", "t", 1)
        assert all(offset <= committed for offset in shown), f"{shown} was shown, {committed} is committed"

    Site(42).play(story, t=1)
