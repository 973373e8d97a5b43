"""What a node is as a broker: its session, its replicas, its service and the listeners of its clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from strandline.cluster.broker.listener import KafkaListener
from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.node.replica_feed import (
    ReplicaFeed,
    assigned_partitions,
    isr_proposer,
    replica_offsets,
    topic_findings,
    unserved_replicas,
)
from strandline.cluster.node.settings import (
    coordinator_config,
    listener_config,
    replica_config,
    service_config,
    session_config,
    static_settings,
)
from strandline.controller.api import RegisterBrokerRequest
from strandline.controller.broker_session import BrokerSession
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.log.disk import DiskError
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, Endpoint
from strandline.proto.tasks import spawn
from strandline.replica.manager import ReplicaManager

if TYPE_CHECKING:
    from strandline.cluster.node.node import Node

log = structlog.get_logger("strandline.node")

CONTROLLERLESS_MS = 1000.0
"""A stopping broker that has had no session with a controller for so long stops without being let go."""


class BrokerRole:
    """Life of a broker: register; replay the metadata up to the own registration; open the replicas on it; serve
    clients; be unfenced.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self.resolver = ConfigResolver(config.dynamic, config.node)
        self.channel = ControllerChannel(node.quorum, node.rpc, node.clock, node.rng)
        node.publisher.subscribe_leader(self.channel.handle_leader_change)
        self.replicas = ReplicaManager(
            node_id=config.node,
            cluster_id=node.cluster_id,
            log_dir=node.log_dir,
            disk=node.disk,
            clock=node.clock,
            rng=node.rng,
            rpc=node.rpc,
            config=replica_config(config),
            send_alter_partition=isr_proposer(config.node, self.channel, lambda: self.session.broker_epoch),
            on_fatal=node.fatal,
            on_change=self._tell_controller,
        )
        self.groups = GroupCoordinator(
            coordinator_config(config),
            image=lambda: node.publisher.image,
            replicas=self.replicas,
            controller=self.channel,
            clock=node.clock,
            rng=node.rng,
        )
        self.service = BrokerService(
            node_id=config.node,
            config=service_config(config),
            image=lambda: node.publisher.image,
            replicas=self.replicas,
            groups=self.groups,
            controller=self.channel,
            quorum=node.quorum,
            configs=self.resolver,
            settings=static_settings(config),
            clock=node.clock,
            rpc=node.rpc,
            broker_epoch=lambda: self.session.broker_epoch,
        )
        self.listeners = [
            KafkaListener(self.service, name=listener.name, endpoint=listener.endpoint, config=listener_config(config))
            for listener in config.client_listeners
        ]
        self._unopened = list(self.listeners)
        self._serving: asyncio.Task[None] | None = None
        self.session: BrokerSession
        self._feed = ReplicaFeed(config.node, self.resolver, self.replicas)
        self._feeding = False

    async def bind(self) -> None:
        """Open those of the clients' listeners that shall take any free port, for the registration tells it.

        The others open once the metadata are caught up, so that nobody is answered from the past.
        """
        await self._open_listeners([listener for listener in self.listeners if listener.endpoint.port == 0])

    async def _open_listeners(self, listeners: list[KafkaListener]) -> None:
        for listener in listeners:
            await listener.start()
            self._unopened.remove(listener)

    def start(self, internal: Endpoint) -> None:
        """Register and hold the session; `internal` is where other nodes reach this one. Raises DiskError."""
        node = self._node
        config = node.config
        lives = node.log_dir.begin_life(node.incarnation_id)
        clean_epoch = node.log_dir.clean_shutdown_broker_epoch
        registration = RegisterBrokerRequest(
            cluster_id=node.cluster_id,
            node_id=config.node,
            incarnation_id=node.incarnation_id,
            listeners={
                listener.name: config.advertised(listener.name, listener.endpoint) for listener in self.listeners
            },
            internal=internal,
            rack=config.broker_rack or None,
            directory_id=node.log_dir.directory_id,
            previous_broker_epoch=NO_BROKER_EPOCH if clean_epoch is None else BrokerEpoch(clean_epoch),
            lives=lives,
            replaces=lives[-2] if len(lives) > 1 else None,
            findings=topic_findings(node.log_dir.findings.all),
            flush_policy=config.dynamic.get("flush.policy", ""),
        )
        self.session = BrokerSession(
            registration=registration,
            channel=self.channel,
            publisher=node.publisher,
            rpc=node.rpc,
            clock=node.clock,
            config=session_config(config),
            collect_offsets=lambda: replica_offsets(self.replicas),
            collect_unserved=lambda: unserved_replicas(self.replicas),
            disk_full=lambda: self.replicas.disk_room.full,
            on_fatal=node.fatal,
            ready=lambda: self._feeding and not self._unopened,
            on_registered=self._registered,
        )
        self.replicas.start()
        node.publisher.subscribe(self._await_own_registration)
        self.session.start()

    def _registered(self, broker_epoch: BrokerEpoch) -> None:
        self.replicas.set_broker_epoch(broker_epoch)
        self.service.run(self.service.hold_producer_ids())

    def _tell_controller(self) -> None:
        """Of a replica that failed or has no leader, of a full disk: with a heartbeat that does not wait."""
        self.session.wake()

    async def wait_ready(self) -> None:
        """Return once the controller has unfenced this broker."""
        await self.session.wait_unfenced()

    @property
    def caught_up(self) -> bool:
        """The metadata reach this process's own registration."""
        return self._feeding

    @property
    def ready(self) -> bool:
        """The broker is unfenced, by its own image."""
        return self._feeding and not self.session.fenced

    async def stop(self, clean: bool) -> None:
        """Hand over the leaderships (if `clean`), then close everything."""
        if clean and not await self._hand_over():
            log.warning("the controller did not let this broker go; it stops all the same")
        if self._serving is not None:
            self._serving.cancel()
        for listener in self.listeners:
            await listener.close()
        self.service.close()
        await self.session.close()
        await self.replicas.close(clean)

    async def _hand_over(self) -> bool:
        """A controlled shutdown, given up early where there is no controller to ask (the whole cluster stops), or in a
        hurry."""
        timeout_ms = self._node.config.controlled_shutdown_timeout_ms
        asking = asyncio.ensure_future(self.session.controlled_shutdown(timeout_ms))
        hurried = asyncio.ensure_future(self._node.hurried.wait())
        waiting: list[asyncio.Future[Any]] = [asking, hurried]
        alone_ms = 0.0
        while not asking.done() and not hurried.done() and alone_ms < CONTROLLERLESS_MS:
            await asyncio.wait(waiting, timeout=CONTROLLERLESS_MS / 4000, return_when=asyncio.FIRST_COMPLETED)
            alone_ms = 0.0 if self.session.connected else alone_ms + CONTROLLERLESS_MS / 4
        hurried.cancel()
        asking.cancel()
        return asking.done() and not asking.cancelled() and asking.result()

    def _await_own_registration(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        """Begin to follow the metadata once they reach this process's registration: what stands before it tells of
        leaderships that an earlier process had."""
        own = image.brokers.get(self._node.config.node)
        if self._feeding or own is None or own.incarnation_id != self._node.incarnation_id:
            return
        try:
            self._node.log_dir.registered(own.incarnation_id)
        except DiskError as error:
            self._node.fatal(error)
            return
        self._feeding = True
        self.replicas.set_broker_epoch(own.broker_epoch)
        # As the controller has it on record: by that it judges what a restart of this broker loses.
        self.replicas.set_flush_policy("replicate" if own.acks_unsynced else "ack")
        # Before anything is hosted: a new topic of an old name begins with nothing of the old one.
        self.replicas.strays.set_aside(assigned_partitions(image, self._node.config.node))
        self._node.publisher.unsubscribe(self._await_own_registration)
        self._node.publisher.subscribe(self._feed.on_metadata)
        self._node.publisher.subscribe(self.groups.on_metadata)
        self._serving = spawn(self._serve(), self._node.fatal)

    async def _serve(self) -> None:
        try:
            await self._open_listeners(list(self._unopened))
        except OSError as error:
            self._node.fatal(error)
            return
        self.session.wake()
