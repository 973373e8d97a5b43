"""A broker of one node for the listener's tests: real log, replicas, controller machine, service and listener.

Only the network between nodes is left out: the controller's state machine is called in the process, and what it decides
is applied at once, as if committed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from strandline.cluster.broker.broker import Broker, BrokerParts
from strandline.cluster.broker.config import BrokerConfig, ListenerConfig
from strandline.cluster.broker.handlers.fetch import FetchHandler
from strandline.cluster.broker.listener import KafkaListener
from strandline.cluster.broker.request import Action, AllowAll, Authorizer, RequestContext
from strandline.cluster.broker.sasl import ListenerSasl
from strandline.cluster.broker.scram_users import ScramUsers
from strandline.cluster.groups.config import GroupConfig
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.node.broker_role import static_settings
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.settings import DERIVED_SETTINGS
from strandline.cluster.security.plain import PlainUsers
from strandline.cluster.security.sasl import Mechanisms, SaslSettings
from strandline.cluster.security.tls_door import ListenerTls
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.marker_writes import MarkerWriter
from strandline.cluster.transactions.markers import MarkerSender
from strandline.cluster.transactions.transaction_coordinator import TransactionCoordinator
from strandline.cluster.transactions.verification import Verifier
from strandline.controller import api, broker_api, operations
from strandline.controller.machine import brokers, topics
from strandline.controller.machine.state import MachineSettings, MachineState, Result
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.features import OWN_LEVELS, level_records
from strandline.controller.metadata.image import MetadataImage, topic_resource
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord
from strandline.controller.quorum.api import LeaderAndEpoch, QuorumDescription, ReplicaDescription
from strandline.controller.survey import NodeAnswer, Survey
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.log_dirs import LogDirs
from strandline.log.real_disk import RealDisk
from strandline.proto.acls import AclBinding, AclFilter, Operation, ResourceKind
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import FatalError
from strandline.proto.ids import Endpoint, NodeId, ProducerId, TopicIdPartition, TopicPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.ports import RpcServer, RpcUnavailable, Stream, StreamHandler, UnaryHandler
from strandline.proto.system import SystemClock
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import PartitionState, ReplicaConfig

LISTENER = "PLAINTEXT"
CLUSTER_ID = "a-cluster-of-one-node"
ME = NodeId(1)


class NoNetwork:
    """There is no other node: every call finds nobody."""

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        raise RpcUnavailable(f"nobody is at {endpoint}", refused=True)

    async def open_stream(self, endpoint: Endpoint, method: str, *, timeout_ms: float) -> Stream:
        raise RpcUnavailable(f"nobody is at {endpoint}", refused=True)

    async def serve(
        self, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> RpcServer:
        raise OSError("this network has no listeners")

    async def close(self) -> None:
        return None


class OneVoter:
    """A quorum of this node alone."""

    leader_and_epoch = LeaderAndEpoch(ME, 1)

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        return Endpoint("127.0.0.1", 19091) if node_id == ME else None

    def describe(self) -> QuorumDescription:
        return QuorumDescription(ME, 1, 7, [ReplicaDescription(ME, UUID(int=5), 8, 1000, 1000)], [])


GATED = (
    operations.CREATE_TOPICS,
    operations.DELETE_TOPICS,
    operations.ELECT_LEADERS,
    operations.ALLOCATE_PRODUCER_IDS,
)


class MachineController:
    """The controller's state machine, called directly; what it decides is applied to the replicas at once."""

    def __init__(self, resolver: ConfigResolver) -> None:
        self.resolver = resolver
        self.offset = -1
        self.state = MachineState(MetadataImage(CLUSTER_ID), resolver, random.Random(1), MachineSettings(), 0.0)
        self.replicas: ReplicaManager | None = None
        self.groups: GroupCoordinator | None = None
        self.transactions: TransactionCoordinator | None = None
        self.markers: MarkerSender | None = None
        self.broker: Broker | None = None
        self.blocks = 0
        self.gate: Callable[[], Awaitable[None]] | None = None

    @property
    def image(self) -> MetadataImage:
        return self.state.image

    def commit(self, records: Sequence[MetadataRecord]) -> None:
        if not records:
            return
        before = self.image
        self.offset += len(records)
        delta = self.state.replay(records)
        self.state.adopt(delta, self.offset)
        if self.replicas is None:
            return
        changed = [
            self._partition_state(topic_id, number)
            for topic_id, numbers in delta.partitions.items()
            for number in numbers
        ]
        gone = [
            TopicIdPartition(topic_id, number)
            for topic_id in delta.deleted_topics
            for number in before.topic_by_id[topic_id].partitions
        ]
        self.replicas.apply(changed, gone, {})
        for coordinator in (self.groups, self.transactions, self.markers):
            if coordinator is not None:
                coordinator.on_metadata(delta, self.image)
        if self.broker is not None:
            self.broker.on_metadata(delta, self.image)

    def _partition_state(self, topic_id: UUID, number: int) -> PartitionState:
        topic = self.image.topic_by_id[topic_id]
        info = topic.partitions[number]
        return PartitionState(
            topic=topic.name,
            topic_id=topic_id,
            partition=number,
            replicas=info.replicas,
            isr=info.isr,
            leader=info.leader,
            leader_epoch=info.leader_epoch,
            partition_epoch=info.partition_epoch,
            min_insync_replicas=self.resolver.min_insync_replicas(self.image, topic.name, info),
            log_config=self.resolver.log_config(self.image, topic.name),
        )

    def start_broker(self, node_id: NodeId, endpoint: Endpoint, rack: str | None = None) -> None:
        """Register a broker and let it live."""
        request = broker_api.RegisterBrokerRequest(
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            incarnation_id=UUID(int=node_id),
            listeners={LISTENER: endpoint},
            internal=Endpoint("127.0.0.1", 1),
            rack=rack,
            features=broker_api.told(OWN_LEVELS),
        )
        self.run(brokers.register_broker(self.state, request, self.offset + 1, 0.0))
        epoch = self.image.brokers[node_id].broker_epoch
        beat = broker_api.Heartbeat(node_id, epoch, self.offset, want_fence=False, want_shutdown=False)
        self.run(brokers.heartbeat(self.state, beat, self.offset + 1, 0.0))

    def fence(self, node_id: NodeId) -> None:
        """The broker is taken for dead; its leaderships move."""
        self.commit(brokers.fence(self.state, node_id, "in a test"))

    def run(self, result: Result[Any]) -> Any:
        self.commit(result.records)
        return result.reply

    async def ask(self, operation: operations.Operation[Any, Any], request: Any, timeout_ms: float) -> Any:
        """As the channel; it is carried out at once."""
        if operation in GATED and self.gate is not None:
            await self.gate()
        if operation is operations.ALLOCATE_PRODUCER_IDS:
            self.blocks += 1
        return await operation.carry_out(self, request)

    # What an operation is carried out with

    @property
    def quorum(self) -> Any:
        raise AssertionError("there is no quorum")

    def now_ms(self) -> float:
        return 0.0

    async def survey(self) -> Survey:
        """Every registered broker runs this build."""
        return {one.node_id: NodeAnswer(one.incarnation_id, OWN_LEVELS, "") for one in self.image.brokers.values()}

    async def submit(self, command: Callable[[MachineState, int], Result[Any]]) -> Any:
        return self.run(command(self.state, self.offset + 1))


async def until(holds: Callable[[], object]) -> None:
    """Return once it holds: what the node does about a socket it does some turns of the loop later."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.002)


async def no_isr_changes(items: list[AlterPartitionItem]) -> list[AlterPartitionOutcome]:
    raise AssertionError(f"a single replica proposes no ISR: {items}")


class ChosenAuthorizer:
    """Judges as `chosen` does, which a test may change."""

    def __init__(self) -> None:
        self.chosen: Authorizer = AllowAll()

    @property
    def enabled(self) -> bool:
        return self.chosen.enabled

    @property
    def generation(self) -> object:
        return self.chosen.generation

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        return self.chosen.authorize(context, actions, noted=noted)

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        return self.chosen.authorize_any(context, operation, kind)

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        return self.chosen.describe(wanted)


class KafkaNode:
    """The parts, for tests to look at."""

    def __init__(
        self,
        path: Path,
        service: BrokerConfig,
        listener: ListenerConfig,
        static: dict[str, str],
        settings: dict[str, str],
    ) -> None:
        disk, clock = RealDisk(), SystemClock()
        format_log_dir(disk, str(path), CLUSTER_ID, ME, UUID(int=99))
        self.log_dir = LogDir.open(disk, str(path), clock)
        resolver = ConfigResolver({"min.insync.replicas": "1", **static}, ME)
        self.controller = MachineController(resolver)
        self.fatal: list[Exception] = []
        self.replicas = ReplicaManager(
            node_id=ME,
            cluster_id=CLUSTER_ID,
            log_dirs=LogDirs([self.log_dir]),
            clock=clock,
            believed=BelievedClock(clock),
            rng=random.Random(2),
            rpc=NoNetwork(),
            config=ReplicaConfig(),
            send_alter_partition=no_isr_changes,
            on_fatal=self.fatal.append,
        )
        self.controller.replicas = self.replicas
        self.groups = self.controller.groups = GroupCoordinator(
            GroupConfig(
                {
                    "group.min.session.timeout.ms": 100,
                    "group.initial.rebalance.delay.ms": 0,
                    "offsets.topic.num.partitions": 4,
                }
            ),
            settle_ms=0,
            image=lambda: self.controller.image,
            replicas=self.replicas,
            controller=self.controller,
            clock=clock,
            rng=random.Random(3),
        )
        writer = MarkerWriter(self.replicas, self.groups.runtime, self.failed)
        self.markers = self.controller.markers = MarkerSender(
            ME,
            broker_epoch=lambda: self.controller.image.brokers[ME].broker_epoch,
            image=lambda: self.controller.image,
            writer=writer,
            rpc=NoNetwork(),
            clock=clock,
            report=self.failed,
        )
        self.transactions = self.controller.transactions = TransactionCoordinator(
            TransactionConfig({"transaction.state.log.num.partitions": 4, "transaction.state.log.min.isr": 1}),
            settle_ms=0,
            image=lambda: self.controller.image,
            replicas=self.replicas,
            controller=self.controller,
            clock=clock,
            markers=self.markers,
            new_producer_id=self.new_producer_id,
            connection_numbers=self.groups.connection_numbers,
        )
        self.verifier = Verifier(
            ME, coordinator=self.transactions, image=lambda: self.controller.image, rpc=NoNetwork(), clock=clock
        )
        self.replicas.on_hosted(self.hosted)  # as a node does: logs may be made some turns later
        self.authorizer = ChosenAuthorizer()
        self.broker = self.controller.broker = Broker(
            BrokerParts(
                node_id=ME,
                config=service,
                image=lambda: self.controller.image,
                replicas=self.replicas,
                groups=self.groups,
                transactions=self.transactions,
                verifier=self.verifier,
                marker_writer=writer,
                controller=self.controller,
                quorum=OneVoter(),
                configs=resolver,
                settings=static_settings(NodeConfig({"node.id": str(ME), **settings})),
                derived=DERIVED_SETTINGS,
                clock=clock,
                rpc=NoNetwork(),
                broker_epoch=lambda: self.controller.image.brokers[ME].broker_epoch,
                authorizer=self.authorizer,
            )
        )
        self.listener = KafkaListener(self.broker, name=LISTENER, endpoint=Endpoint("127.0.0.1", 0), config=listener)

    def failed(self, error: BaseException) -> None:
        self.fatal.append(FatalError(repr(error)))

    async def new_producer_id(self) -> ProducerId:
        return await self.broker.next_producer_id()

    def hosted(self, tp: TopicPartition) -> None:
        self.groups.runtime.on_hosted(tp)
        self.transactions.runtime.on_hosted(tp)

    @property
    def fetch_sessions(self) -> int:
        return len(self.broker.handlers.of(FetchHandler).sessions)

    async def start(self, transactions: int = 0) -> None:
        """`transactions`: the level of transaction.version."""
        await self.listener.start()
        self.replicas.start()
        levels = {"transaction.version": transactions} if transactions else {}
        self.controller.commit(level_records(2, levels) if levels else [MetadataVersionRecord(1)])
        self.controller.start_broker(ME, self.listener.endpoint, rack="a")

    def sasl_door(self, settings: SaslSettings, plain: Mapping[str, str]) -> ListenerSasl:
        rng = random.Random(4)
        users = ScramUsers(lambda: self.controller.image, CLUSTER_ID)
        return ListenerSasl(LISTENER, Mechanisms(settings, users, PlainUsers(plain, rng), rng), SystemClock())

    async def stop(self) -> None:
        await self.listener.close()
        self.broker.close()
        self.markers.close()
        await self.replicas.close(clean=True)
        self.log_dir.close(None)
        assert not self.fatal

    def create_topic(self, name: str, partitions: int = 1, **values: str) -> UUID:
        """A topic of replication 1."""
        options = {key.replace("_", "."): value for key, value in values.items()}
        topic = api.CreatableTopic(name, partitions, 1, configs=options)
        reply = self.controller.run(topics.create_topics(self.controller.state, api.CreateTopicsRequest((topic,))))
        assert reply.topics[0].error == 0, reply
        assert self.controller.image.config(topic_resource(name)) == options
        return self.controller.image.topics[name].topic_id

    async def led(self, name: str) -> None:
        """Return once each partition has a leader here: the logs of a new topic are made in steps, some turns of the
        loop later where the machine is busy."""
        numbers = self.controller.image.topics[name].partitions

        def leads(number: int) -> bool:
            partition = self.replicas.partition(TopicPartition(name, number))
            return partition is not None and partition.leader is not None

        await until(lambda: all(map(leads, numbers)))


@asynccontextmanager
async def kafka_node(
    path: Path,
    *,
    service: BrokerConfig | None = None,
    listener: ListenerConfig | None = None,
    static: dict[str, str] | None = None,
    settings: dict[str, str] | None = None,
    tls: ListenerTls | None = None,
    sasl: SaslSettings | None = None,
    plain: Mapping[str, str] | None = None,
    transactions: int = 0,
) -> AsyncIterator[KafkaNode]:
    """A started node; at the end nothing may be left of connections, sessions or charged memory."""
    node = KafkaNode(path, service or BrokerConfig(), listener or ListenerConfig(), static or {}, settings or {})
    node.listener.tls = tls
    if sasl is not None:
        node.listener.sasl = node.sasl_door(sasl, plain or {})
    await node.start(transactions)
    try:
        yield node
    finally:
        await node.stop()
    await asyncio.sleep(0)
    assert node.listener.stats.connections == 0
    assert node.broker.memory.used_bytes == 0
    assert node.broker.kept.used_bytes == 0
    assert node.fetch_sessions == 0
