"""The broker: its handlers, and the parts that they share. Listeners pass the requests of connections to the handlers.

Handlers that answer from this broker's memory return at once; those that ask the controller or a coordinator are
coroutines; produce and fetch use callbacks, because they are frequent and may wait for other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from strandline.cluster.broker.api import Handlers
from strandline.cluster.broker.brokers import Brokers
from strandline.cluster.broker.client_telemetry import ClientTelemetry
from strandline.cluster.broker.config import BrokerConfig, DerivedSetting, StaticSetting
from strandline.cluster.broker.connection_limits import ConnectionLimits
from strandline.cluster.broker.first_appends import TransactionGate
from strandline.cluster.broker.handlers.acls import AclsHandler
from strandline.cluster.broker.handlers.alter_configs import AlterConfigsHandler
from strandline.cluster.broker.handlers.api_versions import ApiVersionsHandler
from strandline.cluster.broker.handlers.broker_loggers import BrokerLoggers
from strandline.cluster.broker.handlers.cluster import ClusterHandler
from strandline.cluster.broker.handlers.consumer_groups import ConsumerGroupsHandler
from strandline.cluster.broker.handlers.coordinators import CoordinatorsHandler
from strandline.cluster.broker.handlers.delete_records import DeleteRecordsHandler
from strandline.cluster.broker.handlers.describe_configs import DescribeConfigsHandler
from strandline.cluster.broker.handlers.elections import ElectionsHandler
from strandline.cluster.broker.handlers.features import FeaturesHandler
from strandline.cluster.broker.handlers.fetch import FetchHandler
from strandline.cluster.broker.handlers.group_admin import GroupAdminHandler
from strandline.cluster.broker.handlers.group_members import GroupMembersHandler
from strandline.cluster.broker.handlers.log_dirs import LogDirsHandler
from strandline.cluster.broker.handlers.metadata import AutoCreation, MetadataHandler
from strandline.cluster.broker.handlers.offset_commit import OffsetCommitHandler
from strandline.cluster.broker.handlers.offset_fetch import OffsetFetchHandler
from strandline.cluster.broker.handlers.offsets import OffsetsHandler
from strandline.cluster.broker.handlers.produce import ProduceHandler
from strandline.cluster.broker.handlers.producers import ProducersHandler
from strandline.cluster.broker.handlers.quotas import QuotasHandler
from strandline.cluster.broker.handlers.reassignments import ReassignmentsHandler
from strandline.cluster.broker.handlers.sasl import SaslAuthenticateHandler, SaslHandshakeHandler
from strandline.cluster.broker.handlers.scram_credentials import ScramCredentialsHandler
from strandline.cluster.broker.handlers.telemetry import TelemetryHandler
from strandline.cluster.broker.handlers.topic_partitions import TopicPartitionsHandler
from strandline.cluster.broker.handlers.topics import TopicsHandler
from strandline.cluster.broker.handlers.transactions import TransactionsHandler
from strandline.cluster.broker.handlers.write_markers import WriteMarkersHandler
from strandline.cluster.broker.log_levels import LogLevels
from strandline.cluster.broker.loop_time import LoopTime
from strandline.cluster.broker.memory import KeptMemory, MemoryBudget
from strandline.cluster.broker.quotas.client_quotas import ClientQuotas
from strandline.cluster.broker.request import AllowAll, Authorizer, Connection
from strandline.cluster.broker.restored_topics import FindTiers
from strandline.cluster.broker.table import APIS, served_by
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.transactions.marker_writes import MarkerWriter
from strandline.cluster.transactions.transaction_coordinator import TransactionCoordinator
from strandline.cluster.transactions.verification import Verifier
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import OWN_LEVELS, Supported
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.quorum.api import QuorumView
from strandline.proto.ids import BrokerEpoch, NodeId, ProducerId
from strandline.proto.ports import Clock, Rpc
from strandline.proto.rates import WindowShape
from strandline.replica.manager import ReplicaManager

KEPT_PART = 4
"""Divisor of the memory budget: `KeptMemory` may hold a quarter of it, in addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The parts of a node that its broker is built from.

    Attributes:
        image: returns the newest metadata image; it may return another one after an `await`.
        verifier: asks the coordinator of a transactional id, on whichever broker it is.
        marker_writer: writes transaction markers to the partitions that this broker leads.
        settings: static settings of the node, for DescribeConfigs.
        derived: settings of Kafka's that cannot be set here, for DescribeConfigs.
        broker_epoch: returns the epoch of this process's registration, -1 before it.
        authorizer: by default every principal may do everything.
        supported: the levels of features that this node's build knows.
        log_levels: levels of the process's loggers.
        find_tiers: finds the segments of a topic to be restored in the object store; None: there is no store.
    """

    node_id: NodeId
    config: BrokerConfig
    image: Callable[[], MetadataImage]
    replicas: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: Verifier
    marker_writer: MarkerWriter
    controller: ControllerChannel
    quorum: QuorumView
    configs: ConfigResolver
    settings: Sequence[StaticSetting] = ()
    derived: Sequence[DerivedSetting] = ()
    clock: Clock
    rpc: Rpc
    broker_epoch: Callable[[], BrokerEpoch]
    authorizer: Authorizer = field(default_factory=AllowAll)
    find_tiers: FindTiers | None = None
    supported: Supported = field(default_factory=lambda: OWN_LEVELS)
    log_levels: LogLevels = field(default_factory=lambda: LogLevels({}))


class Broker:
    """One broker's handlers.

    Attributes:
        memory: the budget for requests and responses of clients in progress.
        kept: the budget for state that is kept for clients between their requests.
        loop_time: accounting of the event loop's time that clients use.
        connection_limits: limits on the number of client connections.
        connection_numbers: numbers connections in the order in which they are accepted.
        handlers: one handler of each class.
        apis: the served APIs by API key, bound to the handlers.
        telemetry: metrics that clients push.
        quotas: quotas of clients and their use; None while no quota is set.
    """

    def __init__(self, parts: BrokerParts) -> None:
        config, image, authorizer, clock = parts.config, parts.image, parts.authorizer, parts.clock
        brokers = Brokers(parts.node_id, image, parts.quorum, parts.replicas, clock)
        self.clock = clock
        self.memory = MemoryBudget(config.memory_bytes)
        self.kept = KeptMemory(config.memory_bytes // KEPT_PART)
        self.loop_time = LoopTime(clock)
        self.connection_limits = ConnectionLimits(config)
        self.telemetry = ClientTelemetry(
            node_id=parts.node_id, broker_epoch=parts.broker_epoch, image=image, clock=clock
        )
        self.connection_numbers = parts.groups.connection_numbers
        self.quotas: ClientQuotas | None = None
        self._window_shape = WindowShape(config.quota_windows, config.quota_window_s * 1000)
        self._groups = parts.groups
        self._transactions = parts.transactions
        self._creation = AutoCreation(parts.controller, image, parts.configs, timeout_ms=config.request_timeout_ms)
        self._produce = ProduceHandler(
            replicas=parts.replicas,
            image=image,
            authorizer=authorizer,
            brokers=brokers,
            transactions=TransactionGate(verifier=parts.verifier, image=image, authorizer=authorizer, clock=clock),
            clock=clock,
        )
        self._fetch = FetchHandler(
            node_id=parts.node_id,
            replicas=parts.replicas,
            image=image,
            authorizer=authorizer,
            brokers=brokers,
            memory=self.memory,
            kept=self.kept,
            loop_time=self.loop_time,
            clock=clock,
            config=config,
        )
        transactions = TransactionsHandler(
            transactions=parts.transactions, groups=parts.groups, image=image, authorizer=authorizer
        )
        self._producers = ProducersHandler(
            node_id=parts.node_id,
            replicas=parts.replicas,
            image=image,
            authorizer=authorizer,
            controller=parts.controller,
            broker_epoch=parts.broker_epoch,
            transactions=transactions,
            timeout_ms=config.request_timeout_ms,
        )
        metadata = MetadataHandler(
            node_id=parts.node_id,
            image=image,
            authorizer=authorizer,
            brokers=brokers,
            creation=self._creation,
            clock=clock,
        )
        self.handlers = Handlers(
            self._produce,
            self._fetch,
            self._producers,
            transactions,
            metadata,
            ApiVersionsHandler(
                node_id=parts.node_id,
                served=[(row.api, row.first, row.last) for row in APIS.values()],
                image=image,
                supported=parts.supported,
            ),
            *_topic_handlers(parts),
            *_group_handlers(parts, brokers),
            *_cluster_handlers(parts, brokers),
            *_security_handlers(parts),
            TelemetryHandler(self.telemetry),
        )
        self.apis = served_by(self.handlers)

    async def next_producer_id(self) -> ProducerId:
        """Return an unused producer id. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        return await self._producers.next_id()

    def registered(self) -> None:
        """Begin to ask the controller for blocks of producer ids: the broker is registered."""
        self._producers.begin_to_hold_ids()

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply changed quotas of a new metadata image, from the next request on."""
        if not delta[MetadataImage.quotas]:
            return
        if self.quotas is None:
            self.quotas = ClientQuotas(self._window_shape, self.clock)
        self.quotas.set(image.quotas)
        if not image.quotas:
            self.quotas = None

    def connection_lost(self, connection: Connection) -> None:
        """Drop the throttle and the fetch sessions of a closed connection."""
        if self.quotas is not None:
            self.quotas.mutes.forget(connection)
        self._fetch.sessions.drop_all_of(connection)

    def close(self) -> None:
        """Cancel all deadlines and background tasks; pending requests are not answered any more."""
        self._groups.close()
        self._transactions.close()
        self._produce.close()
        self._fetch.close()
        self._creation.close()
        self._producers.close()


def _topic_handlers(parts: BrokerParts) -> Iterator[object]:
    config, image, authorizer, configs = parts.config, parts.image, parts.authorizer, parts.configs
    controller, replicas = parts.controller, parts.replicas
    loggers = BrokerLoggers(parts.node_id, parts.log_levels, authorizer)
    yield TopicPartitionsHandler(image=image, authorizer=authorizer, partitions_max=config.describe_partitions_max)
    yield OffsetsHandler(replicas=replicas, image=image, authorizer=authorizer)
    yield TopicsHandler(
        image=image, authorizer=authorizer, controller=controller, configs=configs, find_tiers=parts.find_tiers
    )
    yield DeleteRecordsHandler(replicas=replicas, image=image, authorizer=authorizer, configs=configs)
    yield DescribeConfigsHandler(
        node_id=parts.node_id,
        image=image,
        authorizer=authorizer,
        configs=configs,
        settings=parts.settings,
        derived=parts.derived,
        loggers=loggers,
        clock=parts.clock,
    )
    yield AlterConfigsHandler(
        image=image,
        authorizer=authorizer,
        controller=controller,
        loggers=loggers,
        timeout_ms=config.request_timeout_ms,
    )


def _group_handlers(parts: BrokerParts, brokers: Brokers) -> Iterator[object]:
    groups, image, authorizer = parts.groups, parts.image, parts.authorizer
    yield CoordinatorsHandler(
        groups=groups, transactions=parts.transactions, image=image, authorizer=authorizer, brokers=brokers
    )
    yield GroupMembersHandler(groups=groups, authorizer=authorizer)
    yield ConsumerGroupsHandler(groups=groups, image=image, authorizer=authorizer)
    yield OffsetCommitHandler(
        groups=groups, image=image, authorizer=authorizer, verifier=parts.verifier, clock=parts.clock
    )
    yield OffsetFetchHandler(groups=groups, image=image, authorizer=authorizer)
    yield GroupAdminHandler(groups=groups, authorizer=authorizer)


def _cluster_handlers(parts: BrokerParts, brokers: Brokers) -> Iterator[object]:
    yield AclsHandler(
        authorizer=parts.authorizer, controller=parts.controller, timeout_ms=parts.config.request_timeout_ms
    )
    yield QuotasHandler(
        image=parts.image,
        authorizer=parts.authorizer,
        controller=parts.controller,
        timeout_ms=parts.config.request_timeout_ms,
    )
    yield ElectionsHandler(image=parts.image, authorizer=parts.authorizer, controller=parts.controller)
    yield ReassignmentsHandler(image=parts.image, authorizer=parts.authorizer, controller=parts.controller)
    yield FeaturesHandler(authorizer=parts.authorizer, controller=parts.controller)
    yield LogDirsHandler(replicas=parts.replicas, authorizer=parts.authorizer)
    yield WriteMarkersHandler(
        node_id=parts.node_id, writer=parts.marker_writer, image=parts.image, authorizer=parts.authorizer
    )
    yield ClusterHandler(
        node_id=parts.node_id,
        image=parts.image,
        authorizer=parts.authorizer,
        brokers=brokers,
        controller=parts.controller,
        quorum=parts.quorum,
        rpc=parts.rpc,
        timeout_ms=parts.config.request_timeout_ms,
    )


def _security_handlers(parts: BrokerParts) -> Iterator[object]:
    yield SaslHandshakeHandler()
    yield SaslAuthenticateHandler()
    yield ScramCredentialsHandler(
        image=parts.image,
        authorizer=parts.authorizer,
        controller=parts.controller,
        timeout_ms=parts.config.request_timeout_ms,
    )
