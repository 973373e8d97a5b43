"""Combined nodes of the simulator: real quorum, publisher, controller, channel and broker session; no data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from strandline.chaos.sim.ports import Ports
from strandline.controller import api, broker_api, methods
from strandline.controller.broker_api import ReplicaOffsets, TopicFindings
from strandline.controller.broker_session import BrokerSession, BrokerSessionConfig
from strandline.controller.channel import ControllerChannel
from strandline.controller.controller import Controller, ControllerConfig, ping_handler
from strandline.controller.metadata.features import METADATA_FEATURE, OWN_LEVELS, Supported
from strandline.controller.metadata.publisher import ImagePublisher, ImageRehearsal
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.operations import ALTER_PARTITION, CREATE_TOPICS
from strandline.controller.quorum.api import QuorumConfig, Voter
from strandline.controller.quorum.quorum import Quorum
from strandline.log.findings import LogCondition
from strandline.proto.ids import NO_EPOCH, Endpoint, Offset
from strandline.proto.isr import AlterPartitionItem, IsrMember
from tests.stage import Stage

T = TypeVar("T")

CLUSTER = "sim-cluster"
PORT = 19000


def endpoint(node: int) -> Endpoint:
    return Endpoint(f"n{node}", PORT)


class Node:
    """One process: everything of a combined node but its data."""

    def __init__(self, cluster: SimCluster, node: int, ports: Ports) -> None:
        self.node = node
        self.ports = ports
        self.cluster = cluster
        self.fatal: list[BaseException] = []
        self.offsets: list[ReplicaOffsets] = []
        self.ready = True
        incarnation = UUID(int=ports.rng.getrandbits(128))
        self.quorum = Quorum(
            node_id=node,
            directory_id=UUID(int=node),
            cluster_id=CLUSTER,
            voters=[Voter(voter, UUID(int=voter), endpoint(voter)) for voter in range(1, cluster.voters + 1)],
            is_voter=node <= cluster.voters,
            disk=ports.disk,
            clock=ports.clock,
            rng=ports.rng,
            rpc=ports.rpc,
            data_dir="/data",
            config=QuorumConfig(),
            on_fatal=self.fatal.append,
        )
        self.supported = cluster.supported.get(node, OWN_LEVELS)
        self.publisher = ImagePublisher(CLUSTER, self.supported)
        self.quorum.register(self.publisher)
        self.quorum.rehearse_on(ImageRehearsal(self.publisher))
        self.controller = Controller(
            node_id=node,
            quorum=self.quorum,
            publisher=self.publisher,
            rpc=ports.rpc,
            clock=ports.clock,
            rng=ports.rng,
            config=cluster.config.replaced(machine=cluster.config.machine.replaced(supported=self.supported)),
            on_fatal=self.fatal.append,
        )
        self.quorum.register(self.controller)
        self.channel = ControllerChannel(self.quorum, self.publisher, ports.rpc, ports.clock, ports.rng)
        self.session = BrokerSession(
            registration=self.told(cluster.registration(node, incarnation)),
            channel=self.channel,
            publisher=self.publisher,
            rpc=ports.rpc,
            clock=ports.clock,
            config=BrokerSessionConfig(),
            collect_offsets=lambda: self.offsets,
            on_fatal=self.fatal.append,
            ready=lambda: self.ready,
        )
        self.incarnation = incarnation
        self.answers_as = incarnation
        """Which process its address says it is."""

    def told(self, request: broker_api.RegisterBrokerRequest) -> broker_api.RegisterBrokerRequest:
        """The registration with what this node's build knows."""
        first, last = self.supported[METADATA_FEATURE]
        features = broker_api.told(self.supported)
        return replace(request, features=features, min_metadata_version=first, max_metadata_version=last)

    async def run(self) -> None:
        unary, streams = self.quorum.rpc_handlers()
        more, session = self.controller.rpc_handlers()
        ping = {methods.PING.path: ping_handler(self.node, self.answers_as, self.supported)}
        await self.ports.rpc.serve(endpoint(self.node), {**unary, **more, **ping}, {**streams, **session})
        await self.quorum.start()
        self.session.start()
        await asyncio.Event().wait()

    def partition(self, topic: str, number: int = 0) -> PartitionRecord:
        info = self.publisher.image.partition(topic, number)
        assert info is not None
        return info


class SimCluster(Stage):
    """So many combined nodes; the scenario begins when all brokers are unfenced."""

    poll_ms = 1.0

    def __init__(self, seed: int, nodes: int = 3, config: ControllerConfig | None = None) -> None:
        super().__init__(seed, [f"n{node}" for node in range(1, nodes + 1)])
        self.voters = nodes
        self.config = config or ControllerConfig()
        self.nodes: dict[int, Node] = {}
        self.supported: dict[int, Supported] = {}
        """What a node's build knows, where it is not this one's."""
        self.ever: list[Node] = []
        self.lives: dict[int, list[UUID]] = {}

    async def begin(self) -> None:
        for node in range(1, self.voters + 1):
            self.start(node)
        await self.until(self.healthy)

    def judge(self) -> None:
        super().judge()
        assert not [error for node in self.nodes.values() for error in node.fatal]

    def registration(self, node: int, incarnation: UUID) -> broker_api.RegisterBrokerRequest:
        """Of a process on a directory that remembers all its lives, and finds every log of every topic intact."""
        lives = self.lives.setdefault(node, [])
        before = lives[-1] if lives else None
        lives.append(incarnation)
        known = max((one.publisher.image for one in self.ever), key=lambda image: image.offset, default=None)
        topics = () if known is None else tuple(known.topics.values())
        return broker_api.RegisterBrokerRequest(
            CLUSTER,
            node,
            incarnation,
            {"PLAINTEXT": Endpoint(f"n{node}", 9092)},
            endpoint(node),
            directory_id=UUID(int=node),
            lives=tuple(lives),
            replaces=before,
            features=broker_api.told(OWN_LEVELS),
            findings=tuple(
                TopicFindings(
                    topic.name,
                    topic.topic_id,
                    tuple(topic.partitions),
                    (Offset(0),) * len(topic.partitions),
                    (NO_EPOCH,) * len(topic.partitions),
                    (LogCondition.INTACT,) * len(topic.partitions),
                )
                for topic in topics
            ),
        )

    def healthy(self) -> bool:
        """All nodes run, all brokers are unfenced, one controller is active."""
        return (
            len(self.nodes) == self.voters
            and self.active is not None
            and all(not node.session.fenced for node in self.nodes.values())
        )

    def start(self, node: int, *, ready: bool = True, answers_as: UUID | None = None) -> None:
        """Start a process of a node; where `answers_as` is given, its address leads to that other process of it."""

        async def main(ports: Ports) -> None:
            self.nodes[node] = Node(self, node, ports)
            self.ever.append(self.nodes[node])
            self.nodes[node].ready = ready
            self.nodes[node].answers_as = answers_as or self.nodes[node].incarnation
            await self.nodes[node].run()

        self.world.spawn(f"n{node}", main)

    def kill(self, *machines: int | str) -> None:
        super().kill(*machines)
        self._forget_the_dead()

    def power_cut(self, *machines: int | str) -> None:
        super().power_cut(*machines)
        self._forget_the_dead()

    def _forget_the_dead(self) -> None:
        self.nodes = {number: node for number, node in self.nodes.items() if self.is_alive(number)}

    async def restart_all(self) -> None:
        """Each node is killed and started, one right after the other; all is well again when it returns."""
        for number in list(self.nodes):
            self.kill(number)
            self.start(number)
            await self.until(lambda number=number: number in self.nodes)  # type: ignore[misc]
        await self.until(self.healthy)

    @property
    def active(self) -> Node | None:
        """The living active controller; None while there is not exactly one."""
        active = [node for node in self.nodes.values() if node.controller.active]
        return active[0] if len(active) == 1 else None

    def active_and_other(self) -> tuple[Node, Node]:
        """The active controller, and a node that is not."""
        active = self.active
        assert active is not None
        return active, next(node for node in self.nodes.values() if node is not active)

    async def on(self, node: int, call: Callable[[Node], Awaitable[T]]) -> T:
        """Run something inside a node's process."""
        return await self.inside(node, lambda: call(self.nodes[node]))

    async def create(self, name: str, replicas: list[list[int]], **configs: str) -> None:
        """Create a topic by way of some node's channel, and wait until all nodes have it."""
        topic = api.CreatableTopic(
            name,
            assignments=tuple(api.ReplicaAssignment(number, tuple(nodes)) for number, nodes in enumerate(replicas)),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        node = min(self.nodes)
        reply = await self.on(node, lambda node: node.channel.ask(CREATE_TOPICS, api.CreateTopicsRequest((topic,))))
        assert reply.topics[0].error == 0, reply
        await self.until(lambda: all(name in node.publisher.image.topics for node in self.nodes.values()))

    async def join_isr(self, topic: str, number: int) -> None:
        """The leader proposes all replicas as its ISR, as if they had caught up."""
        _, witness = self.active_and_other()
        info = witness.partition(topic, number)

        async def propose(node: Node) -> None:
            image = node.publisher.image
            item = AlterPartitionItem(
                image.topics[topic].topic_id,
                number,
                info.leader_epoch,
                info.partition_epoch,
                tuple(IsrMember(replica, image.brokers[replica].broker_epoch) for replica in info.replicas),
            )
            request = broker_api.AlterPartitionRequest(node.node, node.session.broker_epoch, (item,))
            outcome = (await node.channel.ask(ALTER_PARTITION, request)).outcomes[0]
            assert outcome.error == 0, outcome

        await self.on(info.leader, propose)

    def registered(self, node: int) -> UUID | None:
        """The incarnation that is on record for a broker, by the active controller's committed image."""
        info = None if self.active is None else self.active.publisher.image.brokers.get(node)
        return None if info is None else info.incarnation_id

    def is_registered(self, node: int) -> bool:
        """The node's living process is the one on record."""
        return node in self.nodes and self.registered(node) == self.nodes[node].incarnation

    def is_fenced(self, node: int) -> bool:
        """By the active controller's committed image."""
        active, _ = self.active_and_other()
        return active.publisher.image.brokers[node].fenced

    def epochs(self) -> dict[int, int]:
        """Broker epochs as the active controller's committed image has them."""
        active, _ = self.active_and_other()
        return {node: info.broker_epoch for node, info in active.publisher.image.brokers.items()}
