"""The controller's schedules 11, 12 and 13, its rules of B that no other test breaks down without, and rule A13."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from quorum_trial import Trial

from strandline.controller import api, broker_api
from strandline.controller.command_queue import CommandQueue
from strandline.controller.machine import brokers, topics
from strandline.controller.machine.partition_change import Election, PartitionChange
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.metadata.replay import merge
from strandline.controller.quorum.api import LeaderAndEpoch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, KafkaError
from strandline.proto.ids import NO_NODE, ZERO_UUID, Endpoint, NodeId
from strandline.proto.isr import AlterPartitionOutcome, IsrMember
from strandline.replica.core import Judgement, judge_answer
from tests.controller.conftest import MachineCluster
from tests.controller.sim_cluster import SimCluster
from tests.schedules.helpers import schedule


@schedule(
    11,
    rule="B11: an eligible replica is elected, not who lost its tail",
    mutant=(
        "unsynced-acks-count-as-synced",
        "no-eligible-replicas",
        "eligible-are-never-elected",
        "log-in-doubt-stays-eligible",
    ),
)
def test_11_the_last_in_sync_loses_its_tail() -> None:
    """KIP-966: the ISR shrinks to {2}; 2 loses power and what it had not synced, and is back first. Were it to lead,
    the others would cut off what was acknowledged while all three had it. (flush.policy=replicate: what it lost was
    acknowledged before it was synced, and its log looks whole.)"""
    cluster = MachineCluster(3, flush_policy="replicate")
    cluster.create()
    acked = ["a", "b"]
    logs = {1: ["a"], 2: list(acked), 3: list(acked)}
    cluster.alter_isr([1, 2, 3])
    cluster.fence(1)
    cluster.fence(3)
    assert cluster.partition().isr == (2,), "and with less than two in sync nothing more is acknowledged"
    cluster.fence(2)
    logs[2] = ["a"]
    cluster.start(2)
    leaders = [cluster.partition().leader]
    cluster.beat(3)
    leaders.append(cluster.partition().leader)
    for leader in leaders:
        if leader != NO_NODE:
            assert logs[leader] == acked, f"{leader} leads and lacks {acked[len(logs[leader]) :]}"
    assert leaders[-1] == 3
    assert not cluster.partition().recovering


def proposal_with_three(cluster: MachineCluster) -> AlterPartitionOutcome:
    """The leader saw broker 3 catch up, and has not heard yet what became of it since."""
    member = IsrMember(NodeId(3), cluster.image.brokers[3].broker_epoch if 3 in cluster.image.brokers else -1)
    return cluster.alter_isr([], new_isr=(IsrMember(NodeId(1), -1), IsrMember(NodeId(2), -1), member))


def shrunk() -> MachineCluster:
    """Topic t on 1, 2 and 3, led by 1; 3 is out of the ISR."""
    cluster = MachineCluster(3)
    cluster.create()
    cluster.alter_isr([1, 2])
    return cluster


@schedule(12, rule="B2: a fenced member is ineligible", mutant="fenced-member-joins")
def test_12_the_leader_brings_a_fenced_broker_back() -> None:
    """KAFKA-13916: every acks=all write would wait for a broker that is gone."""
    cluster = shrunk()
    cluster.fence(3)
    assert proposal_with_three(cluster).error is ErrorCode.INELIGIBLE_REPLICA
    assert all(cluster.image.is_active(node) for node in cluster.partition().isr)
    assert judge_answer(ErrorCode.INELIGIBLE_REPLICA) is Judgement.REFUSED, "the leader withdraws it"


@schedule(12, rule="B2: a stopping member is ineligible", mutant="stopping-member-joins")
def test_12_the_leader_brings_a_stopping_broker_back() -> None:
    """KAFKA-13916, as it was found: a controlled shutdown never ends while the leader brings the broker back."""
    cluster = shrunk()
    cluster.create("other", [[3]])
    assert cluster.beat(3, want_shutdown=True).in_controlled_shutdown
    assert proposal_with_three(cluster).error is ErrorCode.INELIGIBLE_REPLICA
    assert 3 not in cluster.partition().isr


@schedule(12, rule="B2: an unregistered member is ineligible", mutant="unregistered-member-joins")
def test_12_an_unregistered_broker_does_not_come_back() -> None:
    """The same for one that an operator has taken out."""
    cluster = shrunk()
    cluster.run(brokers.unregister_broker(cluster.state, broker_api.UnregisterBrokerRequest(NodeId(3))))
    outcome = proposal_with_three(cluster)
    assert (outcome.error, outcome.message) == (ErrorCode.INELIGIBLE_REPLICA, "Broker 3 is not registered.")
    assert 3 not in cluster.partition().isr


@schedule(13, rule="B2: NOT_CONTROLLER from the stale one, and the leader retries", mutant="stale-controller-judges")
def test_13_a_proposal_reaches_a_zombie_controller() -> None:
    """KAFKA-14154: an error that means "your picture is stale" makes the leader wait for metadata that will not come:
    the ISR sticks."""
    cluster = MachineCluster(3)
    cluster.create()
    zombie = MachineCluster(0)
    zombie.log = list(cluster.log)
    zombie.fail_over()
    cluster.fence(1)
    info = cluster.partition()
    assert (info.leader, info.isr) == (2, (2, 3))
    epochs = {"leader_epoch": info.leader_epoch, "partition_epoch": info.partition_epoch}
    answer = zombie.alter_isr([2], sender=2, **epochs)
    assert judge_answer(answer.error) is Judgement.RETRY, answer
    assert cluster.alter_isr([2], sender=2, **epochs).error is ErrorCode.NONE
    assert cluster.partition().isr == (2,)


# --- Rules B10 to B12, elections and brokers -------------------------------------------------------------------------


def elected(before: PartitionRecord, alive: set[int], **how: object) -> PartitionRecord:
    change = PartitionChange(before, acceptable=lambda node: node in alive, **how)  # type: ignore[arg-type]
    record = change.build()
    return before if record is None else merge(before, record)


def test_b_an_eligible_replica_waits_while_anybody_is_in_sync() -> None:
    """B: the ELR is elected only if the ISR is empty; its members may lack what the ISR has written since."""
    before = PartitionRecord(ZERO_UUID, 0, (1, 2, 3), (2, 3), (1,), (), NodeId(2), 4, 9, False)  # type: ignore[arg-type]
    after = elected(before, {1, 3}, min_isr=3, target_isr=(3,))
    assert (after.leader, after.isr, after.eligible_leader_replicas) == (3, (3,), (1, 2))


def test_b_an_unclean_leader_is_alone() -> None:
    """B: whoever is still in the ISR holds another log than the new leader."""
    before = PartitionRecord(ZERO_UUID, 0, (1, 2, 3), (1,), (3,), (), NodeId(1), 4, 9, False)  # type: ignore[arg-type]
    after = elected(before, {2}, min_isr=2, election=Election.UNCLEAN)
    assert (after.leader, after.isr, after.eligible_leader_replicas, after.recovering) == (2, (2,), (), True)


def test_b_a_broker_that_wants_to_stay_fenced() -> None:
    """B: unfenced when wantFence is false: its listeners may not serve yet, however much metadata it has."""
    cluster = MachineCluster(3)
    cluster.register(4)
    assert cluster.image.brokers[4].fenced
    assert cluster.beat(4, want_fence=True).fenced
    assert cluster.image.brokers[4].fenced
    assert not cluster.beat(4).fenced


def test_b_a_broker_starts_fenced_under_the_offset_of_its_registration() -> None:
    """B: the broker epoch is that offset, also behind records that end its former life in the same batch."""
    cluster = MachineCluster(3)
    cluster.create()
    cluster.now_ms += 60_000.0
    epoch = cluster.register(2)
    assert cluster.image.brokers[2].fenced
    assert epoch == len(cluster.log) - 1
    assert type(cluster.log[epoch]).__name__ == "RegisterBrokerRecord"
    assert type(cluster.log[epoch - 1]).__name__ == "PartitionChangeRecord"


def test_b_an_eligible_replica_that_stops_uncleanly_is_so_no_more() -> None:
    """B, KAFKA-15586: not in the ISR when it died, and yet it counted on for what it had in memory."""
    cluster = MachineCluster(3, flush_policy="replicate")
    cluster.create()
    cluster.fence(1)
    cluster.fence(3)
    assert cluster.partition().eligible_leader_replicas == (3,)
    cluster.register(3)
    assert cluster.partition().eligible_leader_replicas == ()


# --- Rule A13 --------------------------------------------------------------------------------------------------------


class Ledger:
    """A metadata log that appends at once and commits when the test says so."""

    def __init__(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self.max_append_bytes = 1_000_000
        self.leader_and_epoch = LeaderAndEpoch(NodeId(1), 1)

    def append(self, epoch: int, records: Sequence[bytes]) -> int:
        self.log_end_offset += len(records)
        return self.log_end_offset - 1

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        return None

    def resign(self) -> None:
        raise AssertionError("it gave up")


def active(cluster: MachineCluster) -> tuple[CommandQueue, Ledger]:
    """The commands of an active controller that stands on what the cluster has committed."""
    ledger = Ledger(len(cluster.log))
    queue = CommandQueue(ledger, lambda: pytest.fail("lost"), lambda error: pytest.fail(str(error)))
    queue.begin(cluster.state, 1)
    return queue, ledger


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a13_a_refusal_waits_for_what_it_rests_on() -> None:
    """Rule A13: the second is refused because of the first, which is not committed, and perhaps never will be."""
    cluster = MachineCluster(3)

    async def scenario() -> None:
        queue, ledger = active(cluster)
        request = broker_api.UnregisterBrokerRequest(NodeId(3))
        first = queue.submit(lambda state, _: brokers.unregister_broker(state, request))
        second = queue.submit(lambda state, _: brokers.unregister_broker(state, request))
        await turn()
        assert (first.done(), second.done()) == (False, False)
        queue.committed(ledger.log_end_offset - 1)
        assert first.done()
        error = second.exception()
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.BROKER_ID_NOT_REGISTERED

    asyncio.run(scenario())


def test_a13_a_lost_leadership_fails_what_is_unanswered() -> None:
    """Rule A13: the client must look for the new controller; its records may be committed or not."""
    cluster = MachineCluster(3)

    async def scenario() -> None:
        queue, _ = active(cluster)
        waiting = queue.submit(
            lambda state, _: brokers.unregister_broker(state, broker_api.UnregisterBrokerRequest(NodeId(3)))
        )
        await turn()
        assert not waiting.done()
        queue.end()
        assert waiting.done()
        error = waiting.exception()
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.NOT_CONTROLLER

    asyncio.run(scenario())


def test_a13_a_new_leadership_begins_on_what_is_committed() -> None:
    """Rule A13: what was decided and never committed is forgotten."""
    cluster, committed = MachineCluster(3), MachineCluster(3)

    async def scenario() -> None:
        queue, _ = active(cluster)
        request = api.CreateTopicsRequest((api.CreatableTopic("lost", 1, 1),))
        waiting = queue.submit(lambda state, _: topics.create_topics(state, request))
        await turn()
        assert queue.state is not None
        assert "lost" in queue.state.image.topics
        queue.end()
        assert waiting.exception() is not None
        queue.begin(committed.state, 3)
        assert queue.state is not None
        assert "lost" not in queue.state.image.topics

    asyncio.run(scenario())


def test_a10_a_leader_never_loads_a_snapshot() -> None:
    """Rule A10, LeaderNeverLoadSnapshot: it has everything that is committed; a snapshot for it is a broken
    invariant."""

    async def scenario(cluster: SimCluster) -> None:
        controller = cluster.active_and_other()[0].controller
        with pytest.raises(FatalError, match="active controller"):
            controller.handle_load_snapshot(1000, 9, [])

    SimCluster(1).play(scenario)


def test_a13_only_committed_records_reach_the_state() -> None:
    """Rule A13: a leader without a majority appends, and its own state machine does not hear of it."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"committed")
        trial.world.isolate(f"n{leader.number}")
        trial.append(leader, b"never")
        await trial.world.sleep_ms(500)
        assert leader.values == [b"committed"]

    trial.play(test)
