"""The broker role of a node: session with the controller, replicas, handlers, and listeners for clients."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from strandline.cluster.broker.audit import Audit
from strandline.cluster.broker.broker import Broker, BrokerParts
from strandline.cluster.broker.config import StaticSetting
from strandline.cluster.broker.listener import KafkaListener
from strandline.cluster.node.audit_trail import audit_partitions_of, audit_trail_of
from strandline.cluster.node.authorization import authorizer_of
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_security import listener_setting
from strandline.cluster.node.coordinators import Coordinators
from strandline.cluster.node.parts import NodeParts
from strandline.cluster.node.replica_feed import (
    ReplicaFeed,
    assigned_partitions,
    isr_proposer,
    knows_topics,
    replica_offsets,
    replicas_without_room,
    rotten_replicas,
    topic_findings,
    unserved_replicas,
    upkeep_config,
)
from strandline.cluster.node.sasl import NodeSasl
from strandline.cluster.node.settings import DERIVED_SETTINGS
from strandline.cluster.node.tiered import NodeTier
from strandline.controller.broker_api import RegisterBrokerRequest, told
from strandline.controller.broker_session import BrokerSession
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import METADATA_FEATURE
from strandline.controller.metadata.image import MetadataImage
from strandline.log.disk import DiskError
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, Endpoint, ProducerId
from strandline.proto.ports import UnaryHandler
from strandline.proto.tasks import spawn
from strandline.replica.manager import ReplicaManager

log = structlog.get_logger("strandline.node")

CONTROLLERLESS_MS = 1000.0
"""Milliseconds without a controller session after which a stopping broker stops without the controller's consent."""


class BrokerRole:
    """The broker of a node. It registers, replays the metadata up to its own registration, opens the replicas by them,
    serves clients, and is unfenced.
    """

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        config = node.config
        self.resolver = ConfigResolver(config.dynamic, config.node)
        self.channel = ControllerChannel(node.quorum, node.publisher, node.rpc, node.clock, node.rng)
        node.publisher.subscribe_leader(self.channel.handle_leader_change)
        self.tier: NodeTier | None = None
        if config.tier.enabled:
            self.tier = NodeTier(
                node,
                self.channel,
                broker_epoch=lambda: self.session.broker_epoch,
                in_session=lambda: self.session.connected and not self.session.fenced,
            )
        self.replicas = ReplicaManager(
            node_id=config.node,
            cluster_id=node.cluster_id,
            log_dirs=node.log_dirs,
            clock=node.clock,
            believed=node.believed,
            rng=node.rng,
            rpc=node.rpc,
            config=upkeep_config(config.replica, self.resolver, node.publisher.image),
            send_alter_partition=isr_proposer(config.node, self.channel, lambda: self.session.broker_epoch),
            on_fatal=node.fatal,
            on_change=self._tell_controller,
            tier=None if self.tier is None else self.tier.parts,
        )
        self.coordinators = Coordinators(
            node,
            self.replicas,
            self.channel,
            broker_epoch=lambda: self.session.broker_epoch,
            new_producer_id=self._new_producer_id,
        )
        self._feeding = False
        self._audit_partitions = audit_partitions_of(node, self.replicas, self.channel)
        self.audit_trail = audit_trail_of(config, self._audit_partitions, node.clock, node.believed)
        self.authorizer = authorizer_of(
            config, lambda: node.publisher.image, lambda: self._feeding, node.clock, self.audit_trail
        )
        self.kafka = Broker(
            BrokerParts(
                node_id=config.node,
                config=config.broker,
                image=lambda: node.publisher.image,
                replicas=self.replicas,
                groups=self.coordinators.groups,
                transactions=self.coordinators.transactions,
                verifier=self.coordinators.verifier,
                marker_writer=self.coordinators.marker_writer,
                controller=self.channel,
                quorum=node.quorum,
                configs=self.resolver,
                settings=static_settings(config),
                derived=DERIVED_SETTINGS,
                clock=node.clock,
                rpc=node.rpc,
                broker_epoch=lambda: self.session.broker_epoch,
                authorizer=self.authorizer,
                find_tiers=None if self.tier is None else self.tier.find_tiers,
                supported=node.publisher.supported,
                log_levels=node.log_levels,
            )
        )
        self.listeners = self._make_listeners()
        self._audit = Audit(self.audit_trail)
        if self.audit_trail is not None:
            for kafka in self.listeners:
                kafka.apis = self._audit.intercept(kafka.apis)
                if kafka.sasl is not None:
                    kafka.sasl.audit = self._audit.login
        self._unopened = list(self.listeners)
        self._serving: asyncio.Task[None] | None = None
        self.session: BrokerSession
        self._feed = ReplicaFeed(config.node, self.resolver, self.replicas)

    def _make_listeners(self) -> list[KafkaListener]:
        sasl = NodeSasl(self._node)
        return [
            KafkaListener(
                self.kafka,
                name=listener.name,
                endpoint=listener.endpoint,
                config=self._node.config.listener,
                tls=self._node.tls.of(listener.name),
                sasl=sasl.of(listener.name),
            )
            for listener in self._node.config.client_listeners
        ]

    async def bind(self) -> None:
        """Open the client listeners configured with port 0, because the registration contains their real ports.

        The others open once the metadata are caught up, so that no client gets outdated answers.
        """
        await self._open_listeners([listener for listener in self.listeners if listener.endpoint.port == 0])

    async def _open_listeners(self, listeners: list[KafkaListener]) -> None:
        for listener in listeners:
            await listener.start()
            self._unopened.remove(listener)

    def start(self, internal: Endpoint) -> None:
        """Register and hold the session. `internal`: endpoint at which other nodes reach this one. Raises DiskError."""
        node = self._node
        config = node.config
        lives = node.log_dirs.begin_life(node.incarnation_id)
        # schedule 45/findings-are-dropped-before-they-are-committed
        clean_epoch = node.log_dirs.clean_shutdown_broker_epoch
        # schedule 45/findings-are-dropped-before-they-are-committed/2
        registration = RegisterBrokerRequest(
            cluster_id=node.cluster_id,
            node_id=config.node,
            incarnation_id=node.incarnation_id,
            listeners={
                listener.name: config.advertised(listener.name, listener.endpoint) for listener in self.listeners
            },
            internal=internal,
            rack=config.broker_rack or None,
            directory_id=node.log_dirs.first.directory_id,
            previous_broker_epoch=NO_BROKER_EPOCH if clean_epoch is None else BrokerEpoch(clean_epoch),
            lives=lives,
            replaces=lives[-2] if len(lives) > 1 else None,
            findings=topic_findings(node.log_dirs.findings),
            flush_policy=config.dynamic.get("flush.policy", ""),
            min_metadata_version=node.publisher.supported[METADATA_FEATURE].first,
            max_metadata_version=node.publisher.supported[METADATA_FEATURE].last,
            features=told(node.publisher.supported),
        )
        self.session = BrokerSession(
            registration=registration,
            channel=self.channel,
            publisher=node.publisher,
            rpc=node.rpc,
            clock=node.clock,
            config=config.session,
            collect_offsets=lambda: replica_offsets(self.replicas),
            collect_unserved=lambda: unserved_replicas(self.replicas),
            collect_rotten=lambda: rotten_replicas(self.replicas),
            collect_without_room=lambda: replicas_without_room(self.replicas),
            disk_full=lambda: self.replicas.directories.full,
            on_fatal=node.fatal,
            ready=lambda: self._feeding and not self._unopened,
            on_registered=self._registered,
            held=lambda: node.quorum.held_since_start,
        )
        self.replicas.start()
        if self.tier is not None:
            self.tier.start()
        if self.audit_trail is not None:
            self.audit_trail.start(node.fatal)
        node.publisher.subscribe(self._await_own_registration)
        self.session.start()

    def _registered(self, broker_epoch: BrokerEpoch) -> None:
        self.replicas.set_broker_epoch(broker_epoch)
        self.kafka.registered()

    async def _new_producer_id(self) -> ProducerId:
        """Return an unused producer id."""
        return await self.kafka.next_producer_id()

    def _tell_controller(self) -> None:
        """Send a heartbeat at once: a replica failed or has no leader, or a disk is full."""
        self.session.wake()

    def unary_handlers(self) -> dict[str, UnaryHandler]:
        """Return the handlers of calls by other brokers for the node's internal listener, by method."""
        return {**self._audit_partitions.handlers(), **self.coordinators.handlers()}

    async def wait_ready(self) -> None:
        """Return once the controller has unfenced this broker."""
        await self.session.wait_unfenced()

    @property
    def caught_up(self) -> bool:
        """True once the metadata have reached this process's registration."""
        return self._feeding

    @property
    def ready(self) -> bool:
        """True if the broker is unfenced, according to its own image."""
        return self._feeding and not self.session.fenced

    async def stop(self, clean: bool) -> None:
        """Hand over the leaderships (if `clean`), then close everything."""
        if clean and self.audit_trail is not None:
            await self.audit_trail.flush(self._node.hurried)  # while partitions of the topic are led here
        if clean and not await self._hand_over():
            log.warning("the controller did not let this broker go; it stops all the same")
        if self._serving is not None:
            self._serving.cancel()
        for listener in self.listeners:
            await listener.close()
        self.kafka.close()
        self.coordinators.markers.close()
        self.coordinators.lost_markers.close()
        self._audit.close()
        if self.audit_trail is not None:
            if clean:
                await self.audit_trail.flush(self._node.hurried)
            self.audit_trail.close()
        await self.session.close()
        await self.replicas.close(clean)
        if self.tier is not None:
            await self.tier.close()

    async def _hand_over(self) -> bool:
        """Hand over the leaderships in a controlled shutdown. Return whether the controller agreed in time. It is given
        up early if no controller answers (the whole cluster stops), or if the stop is hurried."""
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
        """Begin to follow the metadata once they have reached this process's registration: earlier records tell of
        leaderships of an earlier process."""
        own = image.brokers.get(self._node.config.node)
        # rule B17/strays-by-metadata-of-the-past
        if self._feeding or own is None or own.incarnation_id != self._node.incarnation_id:
            return
        try:
            self._node.log_dirs.registered(own.incarnation_id)
        except DiskError as error:
            self._node.fatal(error)
            return
        self._feeding = True
        self.replicas.set_broker_epoch(own.broker_epoch)
        # The policy that the controller has recorded, by which it judges what a restart of this broker loses.
        self.replicas.set_flush_policy("replicate" if own.acks_unsynced else "ack")
        # Before any replica is hosted, so that a new topic does not get data of a deleted one with the same name.
        assigned = assigned_partitions(image, self._node.config.node)
        self.replicas.directories.set_strays_aside(assigned, knows_topics=knows_topics(image))  # rule B17/strays-stay
        self._node.publisher.unsubscribe(self._await_own_registration)
        self._node.publisher.subscribe(self._feed.on_metadata)
        self.coordinators.follow()
        self._node.publisher.subscribe(self.kafka.on_metadata)
        self._serving = spawn(self._serve(), self._node.fatal)

    async def _serve(self) -> None:
        try:
            await self._open_listeners(list(self._unopened))
        except OSError as error:
            self._node.fatal(error)
            return
        self.session.wake()


def static_settings(config: NodeConfig) -> list[StaticSetting]:
    """Return the settings that cannot change while the node runs, for DescribeConfigs."""
    rows = dict(config.rows)
    rows |= {name: of[1] for name in config.given if (of := listener_setting(name)) is not None}
    return [StaticSetting(name, row, config.given.get(name)) for name, row in rows.items()]
