"""What every group of operations stands on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from strandline.cluster.broker.service.authorizer import AllowAll, Authorizer
from strandline.cluster.broker.service.memory import MemoryBudget
from strandline.cluster.broker.service.ports import Controller, Quorum
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.controller.api import ProducerIdBlock
from strandline.controller.metadata.config_key import ConfigType
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.deadlines import Deadlines
from strandline.proto.ids import BrokerEpoch, Endpoint, NodeId, ProducerId
from strandline.proto.ports import Clock, Rpc
from strandline.replica.manager import ReplicaManager

log = structlog.get_logger("strandline.service")

NO_TRANSACTIONS = "transactions are not served by this version of Strandline"

PRODUCE_GRANULARITY_MS = 100.0
"""Timeouts of produce requests are seconds: the wheel may be coarse."""

FETCH_GRANULARITY_MS = 5.0
"""A long poll ends this much late at most."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Limits and switches of the service, under Kafka's names where Kafka has them.

    Attributes:
        fetch_max_bytes: most bytes of one fetch answer, whatever the client asks for (`fetch.max.bytes`).
        rack_aware_fetch: consumers are sent to a replica in sync in their own rack (`replica.selector.class`, KIP-392).
        fetch_session_slots: most incremental fetch sessions (`max.incremental.fetch.session.cache.slots`).
        memory_bytes: limit of the memory budget.
        describe_partitions_max: most partitions in one DescribeTopicPartitions answer
            (`max.request.partition.size.limit`).
        request_timeout_ms: how long an operation without a timeout of its own may wait for the controller.
    """

    fetch_max_bytes: int = 55 * 1024 * 1024
    rack_aware_fetch: bool = False
    fetch_session_slots: int = 1000
    memory_bytes: int = 256 * 1024 * 1024
    describe_partitions_max: int = 2000
    request_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class StaticSetting:
    """A setting of the node's file that cannot change while it runs, as DescribeConfigs tells it.

    `value` is None for a secret; `is_default` when the file does not name it.
    """

    name: str
    value: str | None
    type: ConfigType
    doc: str
    is_default: bool


NO_PRODUCER_IDS = ProducerIdBlock(ProducerId(0), 0)


class Base:
    """The parts of the node that the operations use.

    Attributes:
        image: the newest metadata image; the same call may see another one after an `await`.
        broker_epoch: of this process's registration, -1 before it.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        config: ServiceConfig,
        image: Callable[[], MetadataImage],
        replicas: ReplicaManager,
        groups: GroupCoordinator,
        controller: Controller,
        quorum: Quorum,
        configs: ConfigResolver,
        settings: Sequence[StaticSetting] = (),
        clock: Clock,
        rpc: Rpc,
        broker_epoch: Callable[[], BrokerEpoch],
        authorizer: Authorizer | None = None,
    ) -> None:
        self.node_id = node_id
        self.config = config
        self.image = image
        self.replicas = replicas
        self.groups = groups
        self.controller = controller
        self.quorum = quorum
        self.configs = configs
        self.settings = tuple(settings)
        self.clock = clock
        self.rpc = rpc
        self.broker_epoch = broker_epoch
        self.authorizer: Authorizer = authorizer if authorizer is not None else AllowAll()
        self.memory = MemoryBudget(config.memory_bytes)
        self.produce_deadlines = Deadlines(clock, PRODUCE_GRANULARITY_MS)
        self.fetch_deadlines = Deadlines(clock, FETCH_GRANULARITY_MS)

        self._tasks: dict[asyncio.Task[None], None] = {}
        self._being_created: dict[str, None] = {}
        self._fenced_since: dict[NodeId, float] = {}
        self._producer_ids_left = NO_PRODUCER_IDS
        self._producer_ids_next = NO_PRODUCER_IDS
        self._lease: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Drop every deadline and background task; nothing is answered any more."""
        self.groups.close()
        self.produce_deadlines.close()
        self.fetch_deadlines.close()
        for task in list(self._tasks):
            task.cancel()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry on with `work` in the background, for clients: an exception out of it is logged, and fells nothing."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            log.error("a background operation failed", exc_info=task.exception())

    def endpoint_of(self, node_id: int, listener: str) -> Endpoint | None:
        """Where clients of a listener reach a live broker, or None."""
        broker = self.image().brokers.get(NodeId(node_id))
        return None if broker is None or broker.fenced else broker.listeners.get(listener)
