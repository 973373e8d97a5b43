"""Rows that need a network to cut or a power line to pull: production nodes and clients in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Admin
from strandline.client.types import NewTopic
from tests.chaos.site import Site
from tests.stage import READY_MS

in_both_layouts = pytest.mark.parametrize(("split", "seeds"), [(False, 3), (True, 2)], ids=["combined", "split"])


@in_both_layouts
def test_s50_a_minority_side_takes_no_writes(split: bool, seeds: int) -> None:
    """Row S50: the leader is cut off from the other two with a client beside it: acks=all never succeeds there, the
    others elect and go on; after healing the histories agree."""

    async def story(site: Site) -> None:
        await site.create("t")
        await site.send(site.cluster.bootstrap, "t", 0, 20)
        old = site.leader("t")
        others = [name for name in site.cluster.names if name != old]
        for other in others:
            site.world.partition(old, other)
            site.world.partition("beside", other)
        await site.send(f"{old}:9092", "t", 100, 103, machine="beside")
        assert site.refused == [b"100", b"101", b"102"]
        await site.until(lambda: site.leader("t") != old, "the majority has elected")
        majority = [name for name in others if name in site.cluster.brokers]
        await site.send(",".join(f"{name}:9092" for name in majority), "t", 20, 40)
        assert len(site.acked) == 40
        site.world.heal()
        await site.cluster.wait_in_sync(READY_MS)
        site.cluster.inspect()
        values = await site.read("t")
        assert [values[offset] for offset in site.acked.values()] == list(site.acked)

    for seed in range(seeds):
        Site(seed, split).play(story)


@in_both_layouts
def test_s47_power_cut_of_every_node_loses_nothing_acked(split: bool, seeds: int) -> None:
    """Row S47: flush.policy=ack: the power of all nodes fails, unsynced bytes are gone; every acked record is there."""

    async def story(site: Site) -> None:
        await site.create("t")
        sending = asyncio.ensure_future(site.send(site.cluster.bootstrap, "t", 0, 300))
        await site.until(lambda: len(site.acked) >= 50, "a part is acknowledged")
        for name in site.cluster.names:
            site.world.power_cut(name)
        before = dict(site.acked)
        await site.world.sleep_ms(500)
        for name in site.cluster.names:
            site.cluster.start(name)
        await sending
        await site.cluster.wait_in_sync(READY_MS)
        site.cluster.inspect()
        values = await site.read("t")
        assert len(before) >= 50
        assert all(values[offset] == value for value, offset in {**site.acked, **before}.items())

    for seed in range(seeds):
        Site(seed, split).play(story)


@in_both_layouts
def test_s46_only_who_has_everything_committed_leads_the_quorum(split: bool, seeds: int) -> None:
    """Row S46: a controller that was away while topics were made never leads before it has caught up; what was
    committed stays."""

    async def story(site: Site) -> None:
        site.world.isolate("n3")
        await site.until(lambda: _quorum_leader(site)[1] in ("n1", "n2"), "a leader of the two")
        near = ",".join(f"{name}:9092" for name in site.cluster.brokers if name != "n3")

        async def work(ports: Ports) -> None:
            async with Admin(near, clock=ports.clock, rng=ports.rng) as admin:
                for number in range(5):
                    await admin.create_topics([NewTopic(f"t{number}", 1, 2)])

        await site.process("client", work)
        epoch, leader = _quorum_leader(site)
        assert leader in ("n1", "n2")
        behind_log_end = site.cluster.live["n3"].node.quorum.log_end_offset
        assert behind_log_end < site.cluster.live[leader].node.quorum.high_watermark
        # The one that had everything dies as the one that had not comes back: both of the others must agree on a log.
        site.world.kill(leader)
        site.world.heal()
        await site.until(lambda: _quorum_leader(site)[0] > epoch, "another leads")
        site.cluster.observe()
        image = site.cluster.newest_image()
        assert image is not None
        assert {f"t{number}" for number in range(5)} <= image.topics.keys()

    for seed in range(seeds):
        Site(seed, split).play(story)


def _quorum_leader(site: Site) -> tuple[int, str]:
    """The newest epoch in which a living node takes itself for the leader, and its name; (-1, "") if none does. One
    that is cut off may do so in an older epoch."""
    leading = [
        (live.node.quorum.leader_and_epoch.epoch, f"n{live.number}")
        for live in site.cluster.nodes()
        if live.node.quorum.leader_and_epoch.leader_id == live.number
    ]
    return max(leading, default=(-1, ""))
