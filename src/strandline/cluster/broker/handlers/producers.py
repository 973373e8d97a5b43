"""InitProducerId (22): ids of idempotent producers, from blocks that the controller allocates and never reuses.
DescribeProducers (61): the producers that a partition remembers to detect duplicates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.handlers.transactions import TransactionsHandler
from strandline.cluster.broker.request import Authorizer, RequestContext, allowed, refusal, topic
from strandline.controller import operations
from strandline.controller.broker_api import AllocateProducerIdsRequest, ProducerIdBlock
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage
from strandline.log.producer_state import ProducerEntry
from strandline.proto.acls import CLUSTER, Operation, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import BrokerEpoch, NodeId, ProducerId, TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.steps import Mapped, Steps, each, grouped
from strandline.proto.tasks import shared, spawn
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import Role

log = structlog.get_logger("strandline.broker")

PREFETCH_BELOW = 100
"""Remaining producer ids of a block of 1,000 below which the next block is requested, before a producer has to wait."""

RETRY_MS = 500.0
"""Milliseconds to wait after a failed request for the first block."""

_NO_IDS = ProducerIdBlock(ProducerId(0), 0)


class ProducersAnswer(NamedTuple):
    """The producers that a partition remembers, or an error."""

    topic: str
    partition: int
    error: ErrorCode
    message: str = ""
    producers: Sequence[ProducerEntry] = ()


class ProducersHandler:
    """Gives out producer ids, and describes the producers of partitions."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        replicas: ReplicaManager,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        controller: ControllerChannel,
        broker_epoch: Callable[[], BrokerEpoch],
        transactions: TransactionsHandler,
        timeout_ms: float,
    ) -> None:
        self._node_id = node_id
        self._transactions = transactions
        self._replicas = replicas
        self._image = image
        self._authorizer = authorizer
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._timeout_ms = timeout_ms
        self._left = self._next = _NO_IDS
        self._lease: asyncio.Future[None] | None = None
        self._holding: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop asking for the first block."""
        if self._holding is not None:
            self._holding.cancel()

    # InitProducerId

    async def init_producer_id(self, call: Call) -> Any:
        """Answer InitProducerId. Without a transactional id the producer gets a fresh id with epoch 0, whatever id it
        had before (KIP-360): ids of idempotent producers are never given out twice.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED; COORDINATOR_NOT_AVAILABLE, on which clients try again, while no
                controller answers; with a transactional id, as `TransactionsHandler.init_producer_id`.
        """
        if call.request.transactional_id is not None:
            return await self._transactions.init_producer_id(call)
        if not self._may_write_somewhere(call.context):
            raise refusal(call.context, Operation.IDEMPOTENT_WRITE, CLUSTER)
        return part(error_code=ErrorCode.NONE, producer_id=await self.next_id(), producer_epoch=0)

    async def next_id(self) -> ProducerId:
        """Return an unused producer id. Raises KafkaError COORDINATOR_NOT_AVAILABLE while no controller answers."""
        while self._left.count == 0:
            if self._next.count > 0:
                self._left, self._next = self._next, _NO_IDS
            else:
                await self._lease_block()
        producer_id = self._left.first_producer_id
        # rule C3/producer-id-is-given-twice
        self._left = ProducerIdBlock(ProducerId(producer_id + 1), self._left.count - 1)
        if self._left.count < PREFETCH_BELOW and self._next.count == 0:
            self._start_lease()
        return producer_id

    def _may_write_somewhere(self, context: RequestContext) -> bool:
        """Return whether the principal may write idempotently: the WRITE right on any topic is enough (KIP-679)."""
        return self._authorizer.authorize_any(context, Operation.WRITE, ResourceKind.TOPIC) or allowed(
            self._authorizer, context, Operation.IDEMPOTENT_WRITE, CLUSTER
        )

    def begin_to_hold_ids(self) -> None:
        """Begin to ask for a block in the background, when the broker starts: new producers then need no controller,
        and can write while a majority of controllers is away (rows S34, S45)."""
        self.close()
        self._holding = spawn(self.hold_ids(), _log_failure)

    async def hold_ids(self) -> None:
        """Ask for a block of producer ids until there is one."""
        while self._left.count + self._next.count == 0:
            try:
                await self._lease_block()
            except KafkaError:
                await asyncio.sleep(RETRY_MS / 1000)

    async def _lease_block(self) -> None:
        """Wait for a block; all waiting producers share one request to the controller."""
        await shared(self._start_lease())

    def _start_lease(self) -> asyncio.Future[None]:
        if self._lease is None:
            self._lease = asyncio.ensure_future(self._ask_for_block())
            # Waiters get the error of a failure; after a failed prefetch a block is requested again when needed.
            self._lease.add_done_callback(lambda lease: lease.cancelled() or lease.exception())
        return self._lease

    async def _ask_for_block(self) -> None:
        try:
            self._next = await self._controller.ask(
                operations.ALLOCATE_PRODUCER_IDS,
                AllocateProducerIdsRequest(node_id=self._node_id, broker_epoch=self._broker_epoch()),
                self._timeout_ms,
            )
        except KafkaError as error:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no block of producer ids from the controller: {error}"
            ) from error
        finally:
            self._lease = None

    # DescribeProducers

    def describe(self, call: Call) -> Steps[Any]:
        """Answer DescribeProducers: one answer per partition, in order. Any replica answers (`kafka-transactions.sh
        --broker-id` asks each).

        Errors: TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER if this broker has no
        replica, KAFKA_STORAGE_ERROR if its replica is offline.
        """
        answers = yield from each(partial(self._producers, call.context), _wanted(call))
        topics = yield from grouped((answer.topic, answer) for answer in answers)
        return part(topics=Mapped(_described, topics, topics.values()))

    def _producers(self, context: RequestContext, wanted: tuple[str, int]) -> ProducersAnswer:
        name, number = wanted
        if not allowed(self._authorizer, context, Operation.READ, topic(name)):
            denied = refusal(context, Operation.READ, topic(name))
            return ProducersAnswer(name, number, denied.code, denied.message)
        if self._image().partition(name, number) is None:
            return ProducersAnswer(name, number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = self._replicas.partition(TopicPartition(name, number))
        if partition is None:
            return ProducersAnswer(name, number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.role is Role.OFFLINE or partition.log is None:
            return ProducersAnswer(name, number, ErrorCode.KAFKA_STORAGE_ERROR)
        return ProducersAnswer(name, number, ErrorCode.NONE, "", partition.log.producers.entries())


def _log_failure(error: BaseException) -> None:
    log.error("internal error: no block of producer ids was asked for", exc_info=error)


def _wanted(call: Call) -> list[tuple[str, int]]:
    asked = [(topic.name, number) for topic in call.request.topics for number in topic.partition_indexes]
    return list(dict.fromkeys(asked))


def _described(name: str, answers: list[ProducersAnswer]) -> Any:
    return part(name=name, partitions=Mapped(_partition, answers))


def _partition(answer: ProducersAnswer) -> Any:
    return part(
        partition_index=answer.partition,
        error_code=answer.error,
        error_message=answer.message or None,
        active_producers=Mapped(_producer, answer.producers),
    )


def _producer(entry: ProducerEntry) -> Any:
    last = entry.batches[-1] if entry.batches else None
    return part(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=-1 if last is None else last.last_sequence,
        last_timestamp=entry.last_timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.transaction_start,
    )


ROWS = (
    by_schema(Api.INIT_PRODUCER_ID, (0, 5), ProducersHandler, ProducersHandler.init_producer_id),
    by_schema(Api.DESCRIBE_PRODUCERS, (0, 0), ProducersHandler, ProducersHandler.describe),
)
