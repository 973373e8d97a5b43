"""One message harms no quorum: schedules 61 and 62. What no node could replay is refused before it is appended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from strandline.controller import api
from strandline.controller.machine.state import Result
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    BrokerChangeRecord,
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from strandline.controller.operations import CREATE_TOPICS
from strandline.controller.quorum.methods import METHODS
from strandline.controller.raft.config import EPOCH_LEAD_MAX
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    OffsetAndEpoch,
    ReplicaKey,
    Request,
    Response,
    VoteRequest,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.ports import RpcError
from tests.controller.sim_cluster import CLUSTER, Node, SimCluster, endpoint
from tests.schedules.helpers import schedule

NEW = UUID(int=77)


def partition(number: int = 0, topic_id: UUID = NEW, **changes: object) -> PartitionRecord:
    fields: dict[str, object] = {
        "topic_id": topic_id,
        "partition": number,
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "recovering": False,
    }
    return PartitionRecord(**{**fields, **changes})  # type: ignore[arg-type]


def registration(**changes: object) -> RegisterBrokerRecord:
    fields: dict[str, object] = {
        "node_id": 9,
        "incarnation_id": UUID(int=9),
        "broker_epoch": 9,
        "listeners": {},
        "internal": Endpoint("n9", 1),
    }
    return RegisterBrokerRecord(**{**fields, **changes})  # type: ignore[arg-type]


UNREPLAYABLE: dict[str, Callable[[MetadataImage, UUID], list[MetadataRecord]]] = {
    "an existing topic id": lambda _, a: [TopicRecord("b", a), partition(topic_id=a)],
    "an existing topic name": lambda _, a: [TopicRecord("a", NEW), partition()],
    "a topic without partitions": lambda _, a: [TopicRecord("b", NEW)],
    "a gap in the partitions": lambda _, a: [TopicRecord("b", NEW), partition(1)],
    "partitions of an unknown topic": lambda _, a: [partition()],
    "replicas twice": lambda _, a: [TopicRecord("b", NEW), partition(replicas=(1, 1, 2))],
    "negative replicas": lambda _, a: [TopicRecord("b", NEW), partition(replicas=(-5,), isr=(-5,), leader=-5)],
    "a negative epoch": lambda _, a: [TopicRecord("b", NEW), partition(leader_epoch=-3)],
    "an ISR outside the replicas": lambda _, a: [PartitionChangeRecord(a, 0, isr=(1, 9))],
    "a leader outside the ISR": lambda _, a: [PartitionChangeRecord(a, 0, leader=9)],
    "an unknown partition": lambda _, a: [PartitionChangeRecord(a, 17, isr=(1,))],
    "an unknown topic to remove": lambda _, a: [RemoveTopicRecord(NEW)],
    "a topic removed twice": lambda _, a: [RemoveTopicRecord(a), RemoveTopicRecord(a)],
    "an unknown broker to change": lambda _, a: [BrokerChangeRecord(9, 1, fenced=True)],
    "another epoch of a broker": lambda _, a: [BrokerChangeRecord(1, 99_999, fenced=True)],
    "an unknown broker to unregister": lambda _, a: [UnregisterBrokerRecord(9, 1)],
    "a negative node id": lambda _, a: [registration(node_id=-1)],
    "a node id beyond its field": lambda _, a: [registration(node_id=2**40)],
    "a negative broker epoch": lambda _, a: [registration(broker_epoch=-1)],
    "an unknown kind of resource": lambda _, a: [ConfigRecord(77, "x", "y", "z")],
    "a producer id given out already": lambda image, a: [ProducerIdsRecord(1, 1, image.next_producer_id)],
    "a newer metadata version": lambda _, a: [MetadataVersionRecord(99)],
}


def one_topic(scenario: Callable[[SimCluster, Node, UUID], Awaitable[None]], *, seed: int = 1) -> None:
    """Three nodes and topic `a`; the scenario gets the active controller; then every node must live and go on."""
    cluster = SimCluster(seed)

    async def whole(cluster: SimCluster) -> None:
        await cluster.create("a", [[1, 2, 3]])
        active, _ = cluster.active_and_other()
        await scenario(cluster, active, active.publisher.image.topics["a"].topic_id)
        assert active.controller.active, "the controller stays what it was"
        await cluster.create("last", [[1, 2, 3], [2, 3, 1]])
        await cluster.restart_all()
        for node in cluster.nodes.values():
            assert node.publisher.image.topics.keys() == {"a", "last"}

    cluster.play(whole)


@schedule(
    61, rule="A16: replay before the append", mutant=("appended-before-it-is-replayed", "topic-id-is-taken-twice")
)
def test_61_a_record_that_cannot_be_replayed() -> None:
    """CreateTopics proposes the id of a topic that is there: committed, no node could replay what comes after it. Every
    command's records are replayed before they are appended; the caller gets the refusal, and nothing else happens."""

    async def scenario(cluster: SimCluster, active: Node, topic_id: UUID) -> None:
        stolen = api.CreatableTopic("b", num_partitions=2, replication_factor=3, topic_id=topic_id)
        reply = await cluster.on(2, lambda node: node.channel.ask(CREATE_TOPICS, api.CreateTopicsRequest((stolen,))))
        assert reply.topics[0].error is ErrorCode.INVALID_REQUEST
        assert "'a'" in reply.topics[0].message
        end = active.quorum.log_end_offset
        for what, records in UNREPLAYABLE.items():
            image = active.publisher.image
            with pytest.raises(KafkaError, match="no node could replay") as refused:
                await run(cluster, active, records(image, topic_id))
            assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR, what
        assert active.quorum.log_end_offset == end, "nothing was appended"

    one_topic(scenario)


async def run(cluster: SimCluster, active: Node, records: list[MetadataRecord]) -> None:
    """A command of the controller that comes to these records."""

    async def inside(node: Node) -> None:
        await node.controller._queue.submit(lambda state, offset: Result(None, records))

    await cluster.on(active.node, inside)


def test_61_a_refusal_leaves_the_commands_of_its_turn_alone() -> None:
    """Commands of one turn share an append: the refused one is not in it, and the others are answered."""

    async def scenario(cluster: SimCluster, active: Node, topic_id: UUID) -> None:
        async def inside(node: Node) -> None:
            queue = node.controller._queue
            good = queue.submit(lambda state, offset: Result(None, [ConfigRecord(2, "a", "retention.ms", "1")]))
            bad = queue.submit(lambda state, offset: Result(None, [RemoveTopicRecord(NEW)]))
            better = queue.submit(lambda state, offset: Result(None, [ConfigRecord(2, "a", "retention.ms", "2")]))
            await good
            with pytest.raises(KafkaError, match="no node could replay"):
                await bad
            await better

        await cluster.on(active.node, inside)
        assert active.publisher.image.configs[2, "a"] == {"retention.ms": "2"}  # type: ignore[index]

    one_topic(scenario)


def test_61_more_than_a_batch_may_hold_is_refused() -> None:
    """One command that comes to more bytes than the quorum appends at once: an error to its caller, no fallen node."""

    async def scenario(cluster: SimCluster, active: Node, topic_id: UUID) -> None:
        records: list[MetadataRecord] = [ConfigRecord(2, "a", f"x{number}", "y" * 1_000_000) for number in range(9)]
        with pytest.raises(KafkaError, match="Ask for less at once") as refused:
            await run(cluster, active, records)
        assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE

    one_topic(scenario)


def test_61_a_decision_of_the_controllers_own_that_is_refused_does_not_spin() -> None:
    """The controller's own commands have no caller: a refusal is logged, and they rest a while."""

    async def scenario(cluster: SimCluster, active: Node, topic_id: UUID) -> None:
        tries = []

        def bad(now_ms: float) -> None:
            tries.append(now_ms)
            active.controller._queue.run_now(lambda state, offset: Result(None, [RemoveTopicRecord(NEW)]))

        own = active.controller._run_own_commands
        active.controller._run_own_commands = bad  # type: ignore[method-assign]
        for _ in range(50):
            await run(cluster, active, [ConfigRecord(2, "a", "retention.ms", "1")])
        await cluster.world.sleep_ms(3_000)
        active.controller._run_own_commands = own  # type: ignore[method-assign]
        assert 1 <= len(tries) <= 6

    one_topic(scenario)


class Stranger:
    """Somebody who reaches a node's internal port and sends it what he likes."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster

    async def send(self, node: int, request: Request) -> Response:
        """One quorum request to `node`, and its answer."""
        method = METHODS[type(request)]
        payload = method.request.encode(request)

        async def call(other: Node) -> bytes:
            return await other.ports.rpc.call(endpoint(node), method.path, payload, timeout_ms=1000)

        try:
            answer = await self.cluster.on(1 + node % 3, call)
        except RpcError as error:
            raise AssertionError(f"node {node} does not answer any more: {error}") from error
        return method.reply.decode(answer)


def voter(node: int) -> ReplicaKey:
    return ReplicaKey(NodeId(node), UUID(int=node))


def storm(epoch: int, *, target: int, leader: int) -> list[Request]:
    """Every request by which a peer may make an epoch known."""
    nothing = OffsetAndEpoch(0, 0)
    far = OffsetAndEpoch(2**62, epoch - 1)
    return [
        BeginQuorumEpochRequest(CLUSTER, NodeId(leader), epoch, voter(target)),
        EndQuorumEpochRequest(CLUSTER, NodeId(leader), epoch, (voter(target),)),
        VoteRequest(CLUSTER, voter(leader), epoch, voter(target), nothing, True),
        VoteRequest(CLUSTER, voter(leader), epoch, voter(target), far, False),
        FetchRequest(CLUSTER, voter(leader), epoch, 0, 0, 0, 0, 1000),
        FetchSnapshotRequest(CLUSTER, voter(leader), epoch, nothing, 0, 1000),
    ]


@schedule(62, rule="A17: bound what a peer may make durable", mutant="any-epoch-is-adopted")
def test_62_an_epoch_near_the_last() -> None:
    """BeginQuorumEpoch of epoch 2^31 - 1 (or a Vote, or EndQuorumEpoch): adopted, it is durable, and no election can
    open a higher one. What nobody can have reached by elections is refused."""

    async def scenario(cluster: SimCluster, active: Node, topic_id: UUID) -> None:
        stranger = Stranger(cluster)
        epoch = active.quorum.leader_and_epoch.epoch
        for claimed in (2**31 - 1, 2**31 - 2, 2**30, epoch + EPOCH_LEAD_MAX + 1):
            for target in cluster.nodes:
                for request in storm(claimed, target=target, leader=1 + target % 3):
                    answer = await stranger.send(target, request)
                    assert answer.error is not ErrorCode.NONE, request
                    assert answer.epoch == epoch, request

    one_topic(scenario)


@schedule(62, rule="A17: an equal epoch has one leader", mutant="another-leader-of-the-epoch-kills")
def test_62_another_leader_in_an_equal_epoch() -> None:
    """A follower is told that somebody else leads the epoch in which it follows a leader: it says no, and lives."""

    async def scenario(cluster: SimCluster, active: Node, topic_id: UUID) -> None:
        stranger = Stranger(cluster)
        leader, epoch = active.quorum.leader_and_epoch
        for target in cluster.nodes:
            other = next(node for node in cluster.nodes if node not in (target, leader))
            for request in storm(epoch, target=target, leader=other)[:2]:
                answer = await stranger.send(target, request)
                assert answer.error is ErrorCode.INVALID_REQUEST
                assert (answer.leader_id, answer.epoch) == (leader, epoch)

    one_topic(scenario)


def test_62_epochs_that_only_climb_are_bounded_by_what_was_proven() -> None:
    """Rule A17: whoever climbs step by step gets no further than the bound above the last epoch that a voter has
    proven."""

    async def scenario(cluster: SimCluster, active: Node, topic_id: UUID) -> None:
        target = next(node for node in cluster.nodes if node != active.node)
        before = cluster.nodes[target].quorum.leader_and_epoch.epoch
        cluster.world.isolate(f"n{target}")  # nobody proves it anything
        call = cluster.nodes[target].quorum.rpc_handlers()[0]

        async def inside(node: Node, request: Request) -> Response:
            method = METHODS[type(request)]
            return method.reply.decode(await call[method.path](method.request.encode(request)))

        for claimed in range(before, before + 3 * EPOCH_LEAD_MAX, 50):
            request = BeginQuorumEpochRequest(CLUSTER, NodeId(1 + target % 3), claimed, voter(target))
            await cluster.on(target, lambda node, request=request: inside(node, request))  # type: ignore[misc]
        reached = cluster.nodes[target].quorum.leader_and_epoch.epoch
        assert before < reached <= before + EPOCH_LEAD_MAX
        cluster.world.heal()
        await cluster.until(cluster.healthy)

    one_topic(scenario)
