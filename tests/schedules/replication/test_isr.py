"""Who is in sync, and what that makes committed: schedules 8, 9, 10, 14, 15, 50."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId
from strandline.replica.core import Committed, IsrCommitted, LeaderCore
from strandline.replica.states import BrokerState
from tests.replica.fake_controller import FakeController, partition_state
from tests.replica.helpers import TP, batch
from tests.replica.leader_bench import LAG_MS, broker, brokers, committed, fetched, leader, pending, state, wrote
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import ONE, THREE, TWO, Bench


def controlled(isr: tuple[int, ...], end: int) -> tuple[FakeController, LeaderCore]:
    """A controller that knows three brokers and one partition, and the partition's leader, all of it committed."""
    controller = FakeController()
    for node in (ONE, TWO, THREE):
        controller.register(BrokerState(node, Endpoint("n", node), BrokerEpoch(-1)))
        controller.unfence(node)
    controller.create(partition_state(topic_id=UUID(int=1), isr=isr))
    core = LeaderCore(
        ONE,
        controller.state(TP),
        dict(controller.brokers),
        log_end_offset=end,
        durable_offset=end,
        high_watermark=end,
        sync_before_ack=True,
        lag_time_max_ms=LAG_MS,
        now_ms=0.0,
    )
    return controller, core


def propose(controller: FakeController, core: LeaderCore) -> None:
    """What the leader has pending reaches the controller, and its answer the leader."""
    change = core.pending
    if change is not None:
        core.answered(change, controller.alter_partition(ONE, [change.item])[0], 0.0)


@schedule(
    8, rule="B5: joining wants the broker epoch of the very fetch", mutant="another-process-inherits-what-was-fetched"
)
def test_08_a_stale_fetch_of_a_broker_that_registered_again() -> None:
    """KAFKA-15221: it had everything, lost its tail with the power, and is registered anew before its old fetch is
    judged: the ISR must not get it before its new process has fetched."""
    controller, core = controlled((1, 2), 10)
    old = controller.brokers[THREE].broker_epoch
    controller.fence(THREE)
    new = controller.register(BrokerState(THREE, Endpoint("n", THREE), BrokerEpoch(-1)), clean=False)
    controller.unfence(THREE)
    core.brokers_changed(dict(controller.brokers), 0.0)
    fetched(core, THREE, 10, epoch=old)
    for now_ms in (1.0, 1_000.0):
        core.sweep(now_ms)
        propose(controller, core)
    assert controller.state(TP).isr == (ONE, TWO)
    fetched(core, THREE, 4, epoch=new)
    propose(controller, core)
    assert controller.state(TP).isr == (ONE, TWO)
    fetched(core, THREE, 10, epoch=new)
    propose(controller, core)
    assert controller.state(TP).isr == (ONE, TWO, THREE)


@schedule(9, rule="B3: the high watermark waits for the maximal ISR", mutant="isr-instead-of-maximal")
def test_09_a_newcomer_of_whom_the_leader_has_not_heard() -> None:
    """kafka-tlaplus 6.5.2: the expansion is committed, its answer is late, the high watermark goes on with the old ISR;
    then the newcomer is elected."""
    controller, core = controlled((1, 2), 10)
    fetched(core, THREE, 10, epoch=controller.brokers[THREE].broker_epoch)
    change = pending(core)
    controller.alter_partition(ONE, [change.item])
    late = 10 * LAG_MS
    wrote(core, 20, now=late)
    fetched(core, TWO, 20, now=late, epoch=controller.brokers[TWO].broker_epoch)
    core.sweep(late + 2 * LAG_MS)
    controller.elect(TP, THREE)
    assert controller.state(TP).leader == THREE
    assert core.high_watermark <= 10, "committed, and the new leader does not have it"


@schedule(10, rule="B5: joining wants a fetch in this leader epoch", mutant="progress-outlives-the-leader-epoch")
def test_10_removed_and_added_in_one_batch_of_metadata() -> None:
    """kafka-tlaplus 6.5.4: the replica hears both, drops its log and begins an empty one; the leader hears of it in
    one, and what it knows of that replica is of the log that is gone."""
    bench = Bench(isr=(1, 2))
    controller = bench.controller

    async def scenario(bench: Bench) -> None:
        for value in (b"a", b"b", b"c"):
            await bench.append(1, value)
        await bench.until(lambda: len(bench.isr) == 3 and bench.status(3).high_watermark == 3)
        bench.broker(1).cut()
        bench.world.partition("n1", "n3")
        controller.change(TP, replicas=(ONE, TWO), isr=(ONE, TWO), leader_epoch=LeaderEpoch(1))
        controller.change(TP, replicas=(ONE, TWO, THREE), leader_epoch=LeaderEpoch(2))
        await bench.until(lambda: bench.hosted(3) is not None and bench.status(3).log_end_offset == 0)
        bench.hear_only_the_newest(1)
        await bench.world.sleep_ms(1_500)
        assert bench.isr == (ONE, TWO), "an empty replica is in sync"
        bench.world.heal()
        await bench.until(lambda: len(bench.isr) == 3)
        await bench.whole()

    bench.play(scenario)


@schedule(14, rule="B4: the ISR's commit moves the high watermark", mutant="no-recheck-when-the-isr-is-committed")
def test_14_a_shrink_is_approved() -> None:
    """KAFKA-13091: who held the high watermark is out of the ISR: it moves with that answer, or the append waits on."""
    core = leader()
    wrote(core, 10, now=1.0)
    fetched(core, TWO, 10, now=LAG_MS)
    core.sweep(LAG_MS + 2)
    assert pending(core).isr == (ONE, TWO)
    assert core.high_watermark == 0
    effects = core.answered(pending(core), committed(core), LAG_MS + 3)
    assert effects == (IsrCommitted((ONE, TWO, THREE), (ONE, TWO)), Committed(10))
    assert core.high_watermark == 10


@schedule(15, rule="B4: the high watermark waits for nobody who may not join", mutant="waits-for-the-ineligible")
def test_15_a_stopping_replica_that_keeps_up() -> None:
    """KAFKA-15021: out of the ISR for its shutdown, and at the leader's end in memory: its syncs hold up nobody."""
    core = leader(end=5, high_watermark=5)
    for node in (TWO, THREE):
        fetched(core, node, 5)
    stopping = replace(broker(NodeId(3)), in_controlled_shutdown=True)
    shrunk = replace(state(isr=(1, 2)), partition_epoch=type(core.partition_epoch)(51))
    core.metadata_changed(shrunk, brokers(three=stopping), 1.0)
    wrote(core, 10, now=2.0)
    fetched(core, THREE, 10, durable=5, now=2.0)
    fetched(core, TWO, 10, now=2.0)
    assert core.high_watermark == 10
    assert core.judge_committed() is ErrorCode.NONE


@schedule(50, rule="B2: a refused proposal stands until the partition epoch moves", mutant="a-refusal-ends-every-copy")
def test_50_refused_in_one_copy_and_committed_in_a_late_one() -> None:
    """The sender gives the first copy up; the second is refused, since the newcomer was fenced in between; the newcomer
    is unfenced and the first copy arrives. What was acked meanwhile must be on whoever is elected then."""
    bench = Bench(isr=(1, 2))
    controller = bench.controller

    async def scenario(bench: Bench) -> None:
        leader = bench.broker(1)
        leader.late = held = []
        await bench.until(lambda: bool(held))
        bench.world.partition("n1", "n3")
        bench.world.partition("n2", "n3")
        controller.fence(THREE)
        leader.late = None
        answered = bench.send(1, batch(b"acked"))
        await bench.until(answered.done)
        assert answered.result().error is ErrorCode.NONE
        controller.unfence(THREE)
        for items in held:
            controller.alter_partition(ONE, items)
        controller.elect(TP, THREE)
        elected = int(controller.state(TP).leader)
        await bench.until(lambda: bench.leads(elected))
        assert bench.values(elected) == [b"acked"], f"node {elected} leads without what was acked"

    bench.play(scenario)
