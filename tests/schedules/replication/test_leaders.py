"""What a leader accepts, answers and shows: schedules 21, 39, 41."""

from __future__ import annotations

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, NodeId
from strandline.replica.states import LATEST_TIMESTAMP
from tests.replica.helpers import TP, batch
from tests.replica.simulated import decoded
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import ONE, Bench


@schedule(
    21,
    rule="B9: min.insync.replicas, and no unclean election: unavailable, not lost",
    mutant=("no-strict-high-watermark", "acks-all-without-enough-replicas"),
)
def test_21_the_isr_shrinks_to_an_isolated_leader() -> None:
    """Jepsen 2013: alone it must not acknowledge, nor show what it alone has; when it dies nobody else may lead."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        assert (await bench.append(1, b"acked")).error is ErrorCode.NONE
        bench.world.isolate("n1")
        waits = bench.send(1, batch(b"waits"))
        await bench.until(lambda: bench.isr == (ONE,))
        await bench.until(lambda: len(bench.status(1).isr) == 1)
        assert (await bench.append(1, b"all")).error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert bench.values(1) == [b"acked", b"waits"]
        assert (await bench.append(1, b"one", acks=1)).error is ErrorCode.NONE
        await bench.until(lambda: bench.log(1).durable_offset == 3)
        await bench.world.sleep_ms(2_000)
        assert decoded(bench.read(1).data) == [b"acked"]
        assert not waits.done()
        bench.world.power_cut("n1")
        bench.controller.fence(ONE)
        await bench.world.sleep_ms(500)
        assert bench.controller.state(TP).leader == NO_NODE
        assert (await bench.append(2, b"late")).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        bench.world.heal()
        bench.broker(1).start()
        await bench.until(lambda: len(bench.isr) == 3)
        await bench.whole()
        assert bench.values(2)[0] == b"acked"

    bench.play(scenario)


@schedule(39, rule="C2: followers know the producers of what they replicate", mutant="followers-forget-producers")
def test_39_a_retry_after_the_leader_was_killed() -> None:
    """redpanda#3039: the batch is on the followers, its answer was lost with the leader: its retry is the same batch to
    the next leader, and to the one after, and after a restart."""
    bench = Bench()

    def attempt() -> memoryview:
        return batch(b"once", 3, producer_id=7, producer_epoch=0, base_sequence=0)

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"first")
        for node in (2, 3):
            bench.world.partition(f"n{node}", "n1", one_way=True)
        answer = bench.send(1, attempt())
        await bench.until(lambda: all(bench.status(node).log_end_offset == 4 for node in (2, 3)))
        assert not answer.done()
        for dies, leads in ((1, 2), (2, 1)):
            bench.world.kill(f"n{dies}")
            bench.controller.fence(NodeId(dies))
            await bench.until(lambda leads=leads: bench.leads(leads))  # type: ignore[misc]
            bench.world.heal()
            outcome = await bench.send(leads, attempt())
            assert (outcome.error, outcome.base_offset, bench.status(leads).log_end_offset) == (ErrorCode.NONE, 1, 4)
            bench.broker(dies).start()
            await bench.until(lambda: len(bench.isr) == 3)
        await bench.elect(3)
        outcome = await bench.send(3, attempt())
        assert (outcome.error, outcome.base_offset, bench.values(3)) == (ErrorCode.NONE, 1, [b"first", *[b"once"] * 3])

    bench.play(scenario)


@schedule(
    41,
    rule="B7: what a new leader inherits is committed when the ISR says so",
    mutant=("new-leader-serves-everything", "latest-offset-before-the-epoch-start"),
)
def test_41_a_new_leader_serves_what_is_committed() -> None:
    """redpanda#5090: it has a record that nobody else has, and is elected: no reader may see it, nor is there a latest
    offset, before the others have it."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"a")
        await bench.until(lambda: bench.status(2).high_watermark == 1)
        bench.world.partition("n1", "n3")
        bench.world.partition("n2", "n1", one_way=True)
        await bench.append(1, b"b", acks=1)
        await bench.until(lambda: bench.status(2).log_end_offset == 2)
        bench.world.isolate("n2")
        await bench.elect(2)
        assert decoded(bench.read(2).data) == [b"a"]
        assert bench.manager(2).list_offset(TP, LATEST_TIMESTAMP).error is ErrorCode.OFFSET_NOT_AVAILABLE
        bench.world.heal()
        await bench.until(lambda: bench.status(2).high_watermark == 2)
        assert bench.manager(2).list_offset(TP, LATEST_TIMESTAMP).offset == 2
        await bench.whole()

    bench.play(scenario)
