"""Schedules 117 to 119: readers of committed transactions over elections, restarts and the object store."""

from __future__ import annotations

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from tests.replica.helpers import TP
from tests.replica.test_tier_transactions import consume
from tests.replica.tiered import Tiers
from tests.replica.transactional import Transactional, committed, end, send_marker, shown, write
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import Bench

EVERYWHERE = (1, 2, 3)


async def ordered_until_done(bench: Bench, producer: Transactional, *, commit: bool) -> None:
    """What a coordinator does: it sends the marker to whoever leads, until one says that it is committed."""
    while True:
        leader = int(bench.controller.state(TP).leader)
        order = send_marker(bench, leader, producer, commit=commit)
        await bench.until(order.done)
        if order.result().error is ErrorCode.NONE:
            return
        await bench.world.sleep_ms(100)


async def stable_everywhere(bench: Bench, offset: int, values: list[bytes]) -> None:
    """Every replica shows these values, up to this last stable offset."""

    def reached(node: int) -> bool:
        return bench.leads(node) or bench.status(node).role.value == "follower"

    await bench.until(lambda: all(bench.hosted(node) is not None and reached(node) for node in EVERYWHERE))
    await bench.until(lambda: all(committed(bench, node).last_stable_offset == offset for node in EVERYWHERE))
    for node in EVERYWHERE:
        assert shown(committed(bench, node)) == values


@schedule(
    117,
    rule="C12: a marker counts, and is answered, once it is committed",
    mutant="a-marker-is-answered-at-its-append",
)
def test_117_a_marker_dies_with_its_leader() -> None:
    """krabka 0.8: the marker is in the log of a leader alone, which dies. Readers have not gone by it, its coordinator
    sends it to the next leader, and nobody is stuck behind a transaction that has ended."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        producer = Transactional(7)
        await bench.append(1, b"a")
        await write(bench, 1, producer, b"b")
        await bench.until(lambda: all(bench.status(node).high_watermark == 2 for node in EVERYWHERE))
        bench.world.partition("n1", "n2")
        bench.world.partition("n1", "n3")
        bench.broker(1).cut()
        order = send_marker(bench, 1, producer, commit=True)
        await bench.until(lambda: bench.log(1).log_end_offset == 3)
        assert committed(bench, 1).last_stable_offset == 1
        assert shown(committed(bench, 1)) == [b"a"]
        await bench.elect(2)
        assert committed(bench, 2).last_stable_offset == 1
        bench.world.heal()
        bench.broker(1).reach()
        await bench.until(order.done)
        if order.result().error is not ErrorCode.NONE:
            await ordered_until_done(bench, producer, commit=True)
        await bench.append(2, b"c")
        await stable_everywhere(bench, 4, [b"a", b"b", b"c"])

    bench.play(scenario)  # type: ignore[arg-type]
    assert bench.fatals == []


@schedule(118, rule="C13: nothing at or above the last stable offset", mutant="reads-of-open-transactions")
def test_118_the_last_stable_offset_is_ahead_of_what_a_replica_knows() -> None:
    """redpanda#10097: a replica restarts, or leads, with a high watermark and before it knows of the transactions below
    it: it shows records that are aborted since. Here each knows them before it is asked, by snapshot and log, after a
    clean stop and after a crash; and the last stable offset of a new leader is at most its high watermark."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        first, second = Transactional(7), Transactional(8)
        await bench.append(1, b"a")
        await write(bench, 1, first, b"b")
        await write(bench, 1, second, b"c")
        await bench.append(1, b"d")
        for node in EVERYWHERE:
            await bench.until(lambda node=node: bench.status(node).high_watermark == 4)  # type: ignore[misc]
        for node in (3, 2, 1):
            bench.world.kill(f"n{node}")
            bench.controller.fence(NodeId(node))
            bench.broker(node).start()
            await bench.until(lambda node=node: bench.hosted(node) is not None)  # type: ignore[misc]
            await bench.until(lambda node=node: NodeId(node) in bench.isr and len(bench.isr) == 3)  # type: ignore[misc]
            outcome = committed(bench, node)
            assert outcome.last_stable_offset <= outcome.high_watermark
            assert shown(outcome) == [b"a"]
        leader = int(bench.controller.state(TP).leader)
        await end(bench, leader, second, commit=True)
        other = next(node for node in EVERYWHERE if node != leader)
        await bench.elect(other)
        outcome = committed(bench, other)
        assert outcome.last_stable_offset == 1
        assert shown(outcome) == [b"a"]
        await ordered_until_done(bench, first, commit=False)
        await stable_everywhere(bench, 6, [b"a", b"c", b"d"])

    bench.play(scenario)  # type: ignore[arg-type]
    assert bench.fatals == []


@schedule(
    119,
    rule="C13: each sidecar names all that was aborted in its segment",
    mutant="aborted-records-of-the-tier-are-shown",
)
def test_119_a_segment_leaves_and_its_markers_stay() -> None:
    """Records of an aborted transaction are in the object store, its marker is in a log alone. The log begins anew
    elsewhere, or is lost with its cluster: whoever looks for the marker to tell what was aborted finds none."""
    bench = Tiers(min_insync_replicas=1)

    async def scenario(bench: Tiers) -> None:
        producer = Transactional(7)
        await write(bench, 1, producer, b"aborted")
        await bench.fill(10)
        await end(bench, 1, producer, commit=False)
        last = max(bench.log(1).bases)
        assert last <= 11, "the marker is in the active segment"
        await bench.until(lambda: bench.tier.end_offset == last)
        await bench.leave_out(2, 3)
        bench.world.kill("n1")
        bench.controller.fence(NodeId(1))
        bench.world.machines["n3"].disk.wipe()
        bench.broker(3).start()
        await bench.world.sleep_ms(200)
        bench.controller.elect_uncleanly(TP, NodeId(3))
        await bench.until(lambda: bench.leads(3))
        assert await consume(bench, 3) == [b"%d" % number for number in range(last - 1)]

    bench.play(scenario)  # type: ignore[arg-type]
    assert bench.fatals == []
