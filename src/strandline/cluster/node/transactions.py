"""Transactions in a node: their coordinator, the markers that it sends, and what other brokers ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.node.parts import NodeParts
from strandline.cluster.transactions.marker_writes import MarkerWriter
from strandline.cluster.transactions.markers import MarkerSender
from strandline.cluster.transactions.transaction_coordinator import TransactionCoordinator
from strandline.cluster.transactions.verification import Verifier
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.proto.ids import BrokerEpoch, ProducerId
from strandline.proto.ports import UnaryHandler
from strandline.replica.manager import ReplicaManager


class NodeTransactions:
    """Parts of one broker.

    Attributes:
        coordinator: of the transactional ids whose partition this broker leads.
        verifier: asks the coordinator of a transactional id, wherever it is.
        writer: ends transactions in the partitions that this broker leads.
        markers: the coordinator's, to the leaders of their partitions.
    """

    def __init__(
        self,
        node: NodeParts,
        channel: ControllerChannel,
        replicas: ReplicaManager,
        groups: GroupCoordinator,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        new_producer_id: Callable[[], Awaitable[ProducerId]],
    ) -> None:
        self.writer = MarkerWriter(replicas, groups.runtime, node.fatal)
        self.markers = MarkerSender(
            node.config.node,
            broker_epoch=broker_epoch,
            image=lambda: node.publisher.image,
            writer=self.writer,
            rpc=node.rpc,
            clock=node.clock,
            report=node.fatal,
        )
        self.coordinator = TransactionCoordinator(
            node.config.transactions,
            image=lambda: node.publisher.image,
            replicas=replicas,
            controller=channel,
            clock=node.clock,
            markers=self.markers,
            new_producer_id=new_producer_id,
        )
        self.verifier = Verifier(
            node.config.node, coordinator=self.coordinator, image=lambda: node.publisher.image, rpc=node.rpc
        )

    def follow(self, publisher: ImagePublisher) -> None:
        """Follow the metadata, behind the replicas."""
        publisher.subscribe(self.coordinator.on_metadata)
        publisher.subscribe(self.markers.on_metadata)

    def handlers(self) -> dict[str, UnaryHandler]:
        """Handlers that the node's internal listener has to serve for other brokers."""
        return {**self.writer.handlers(), **self.verifier.handlers()}
