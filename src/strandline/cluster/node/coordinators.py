"""The coordinators of a node's broker, for groups and for transactions, with the parts that write and check transaction
markers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.node.parts import NodeParts
from strandline.cluster.transactions.lost_markers import LostMarkers
from strandline.cluster.transactions.marker_writes import MarkerWriter
from strandline.cluster.transactions.markers import MarkerSender
from strandline.cluster.transactions.transaction_coordinator import TransactionCoordinator
from strandline.cluster.transactions.verification import Verifier
from strandline.controller.channel import ControllerChannel
from strandline.proto.ids import BrokerEpoch, ProducerId, TopicPartition
from strandline.proto.ports import UnaryHandler
from strandline.replica.manager import ReplicaManager


class Coordinators:
    """The group coordinator and the transaction coordinator of a broker.

    Attributes:
        groups: coordinator of consumer groups.
        transactions: coordinator of transactional ids.
        markers: sends the markers of decided transactions to the leaders of their partitions.
        marker_writer: writes markers to partitions that this broker leads.
        verifier: asks the coordinator of a transactional id, on whichever broker it is.
        lost_markers: ends transactions that an unclean election has left open, or that are open for too long.
    """

    def __init__(
        self,
        node: NodeParts,
        replicas: ReplicaManager,
        channel: ControllerChannel,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        new_producer_id: Callable[[], Awaitable[ProducerId]],
    ) -> None:
        config = node.config
        self._node = node
        self.groups = GroupCoordinator(
            config.groups,
            image=lambda: node.publisher.image,
            replicas=replicas,
            controller=channel,
            clock=node.clock,
            rng=node.rng,
        )
        self.marker_writer = MarkerWriter(replicas, self.groups.runtime, node.fatal)
        self.markers = MarkerSender(
            config.node,
            broker_epoch=broker_epoch,
            image=lambda: node.publisher.image,
            writer=self.marker_writer,
            rpc=node.rpc,
            clock=node.clock,
            report=node.fatal,
        )
        self.transactions = TransactionCoordinator(
            config.transactions,
            image=lambda: node.publisher.image,
            replicas=replicas,
            controller=channel,
            clock=node.clock,
            markers=self.markers,
            new_producer_id=new_producer_id,
            connection_numbers=self.groups.connection_numbers,
        )
        self.verifier = Verifier(
            config.node,
            coordinator=self.transactions,
            image=lambda: node.publisher.image,
            rpc=node.rpc,
            clock=node.clock,
        )
        self.lost_markers = LostMarkers(
            config.node,
            coordinator=self.transactions,
            replicas=replicas,
            writer=self.marker_writer,
            image=lambda: node.publisher.image,
            rpc=node.rpc,
            clock=node.clock,
            config=config.transactions,
            report=node.fatal,
        )
        replicas.on_hosted(self._hosted)

    def _hosted(self, tp: TopicPartition) -> None:
        """Tell the coordinators that a partition's log is open, which may be later than its leadership."""
        self.lost_markers.look(tp)
        self.groups.runtime.on_hosted(tp)
        self.transactions.runtime.on_hosted(tp)

    def follow(self) -> None:
        """Subscribe to the metadata; the replicas must be subscribed before."""
        for follower in (self.lost_markers, self.groups, self.transactions, self.markers):
            self._node.publisher.subscribe(follower.on_metadata)

        self.lost_markers.start()

    def handlers(self) -> dict[str, UnaryHandler]:
        """Return the handlers of calls by other brokers for the node's internal listener, by method."""
        return {**self.marker_writer.handlers(), **self.verifier.handlers(), **self.lost_markers.handlers()}
