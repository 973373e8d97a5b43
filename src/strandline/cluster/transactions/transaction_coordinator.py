"""The coordinator of transactions on one broker: the runtime with shards of transactional ids, and their topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from strandline.cluster.groups.connections import NO_CONNECTION, ConnectionNumbers, counted
from strandline.cluster.groups.coordinator import Coordinator
from strandline.cluster.groups.internal_topic import SETTLE_MS, InternalTopicConfig
from strandline.cluster.groups.partitions import OFFSETS_TOPIC, partition_of
from strandline.cluster.groups.runtime import CoordinatorRuntime, Phase
from strandline.cluster.transactions.commands import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    FindOutcomes,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    MarkerOrder,
    MarkersWritten,
    NeedsProducerId,
    Outcome,
    Producer,
    VerifyPartitions,
)
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.shard import TransactionShard
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.features import TRANSACTION_TOPIC
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, ProducerId, TopicPartition
from strandline.proto.kafka.transaction_records import NO_EPOCH, NO_ID, TransactionValue
from strandline.proto.ports import Clock
from strandline.replica.manager import ReplicaManager

WRITE_TIMEOUT_MS = 5_000
"""A change waits so long until every in-sync replica has it, before the client is told to try again."""


class Markers(Protocol):
    """Sender of markers: it tries for ever, by whatever leaders there are."""

    def send(self, order: MarkerOrder, written: Callable[[MarkerOrder], None]) -> None:
        """Write the order's marker into each of its partitions; then, in a later turn of the loop, call `written`."""

    def drop(self, state_partition: int, coordinator_epoch: LeaderEpoch) -> None:
        """Send nothing more of what this leadership of a partition of `__transaction_state` has ordered."""


class TransactionCoordinator(Coordinator[TransactionShard]):
    """Commands of transactional ids to the shard that has them.

    Methods that ask raise KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, or what
    the shard says; and ConnectionSuperseded, which closes the connection.
    """

    none_yet = "no transactional id has been used yet"

    def __init__(
        self,
        config: TransactionConfig,
        *,
        image: Callable[[], MetadataImage],
        replicas: ReplicaManager,
        controller: ControllerChannel,
        clock: Clock,
        markers: Markers,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
        connection_numbers: ConnectionNumbers,
        settle_ms: float = SETTLE_MS,
    ) -> None:
        self.config = config
        self._markers = markers
        self._new_producer_id = new_producer_id
        runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_TOPIC,
            replicas=replicas,
            clock=clock,
            make_shard=lambda partition, epoch: TransactionShard(
                config, partition, epoch, lambda: image().transaction_version, connection_numbers
            ),
            write_timeout_ms=WRITE_TIMEOUT_MS,
            on_order=lambda order: markers.send(order, self._markers_written),
            on_drop=markers.drop,
        )
        topic = InternalTopicConfig(
            TRANSACTION_TOPIC,
            config.topic_partitions,
            config.topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.topic_min_isr),
                "segment.bytes": str(config.topic_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
        super().__init__(runtime, topic, image=image, controller=controller, clock=clock, settle_ms=settle_ms)

    def _markers_written(self, order: MarkerOrder) -> None:
        self.runtime.tell(order.state_partition, MarkersWritten(order))

    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int = NO_ID,
        producer_epoch: int = NO_EPOCH,
    ) -> Producer:
        """The producer that may write under this id from now on; those before are fenced, and their transaction is
        aborted first (CONCURRENT_TRANSACTIONS: ask again).

        Raises:
            KafkaError: also PRODUCER_FENCED.
        """
        return await self._with_id(InitProducer(transactional_id, timeout_ms, producer_id, producer_epoch))

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        verify_only: bool = False,
        connection: int = NO_CONNECTION,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Make partitions part of the producer's transaction, or (`verify_only`) say which are: NONE, or
        TRANSACTION_ABORTABLE. `connection`: by which a client of the first protocol asks.

        Raises:
            KafkaError: also INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
        """
        named = transactional_id, producer_id, producer_epoch, partitions
        command = VerifyPartitions(*named) if verify_only else AddPartitions(*named, connection)
        answer: Any = counted(await self.ask(transactional_id, command))
        return dict.fromkeys(partitions, ErrorCode.NONE) if answer is None else answer

    async def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str, connection: int
    ) -> None:
        """Make the offsets of a group part of the producer's transaction. Raises KafkaError as `add_partitions`."""
        topic = self._image().topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is being created")
        partition = TopicPartition(OFFSETS_TOPIC, partition_of(group_id, len(topic.partitions)))
        await self.add_partitions(
            transactional_id, producer_id, producer_epoch, frozenset((partition,)), connection=connection
        )

    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        version: int,
        connection: int = NO_CONNECTION,
    ) -> Producer:
        """Commit or abort, by the version of the client's protocol; returns when that is decided for good, with the
        producer of the next transaction.

        Raises:
            KafkaError: also INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
        """
        named = transactional_id, producer_id, producer_epoch
        return await self._with_id(EndTransaction(*named, commit, version, connection=connection))

    async def _with_id(self, command: InitProducer | EndTransaction) -> Producer:
        """The answer of a command that may need a fresh producer id: an id is taken only where it is."""
        answer: Any = await self.ask(command.transactional_id, command)
        while isinstance(answer, NeedsProducerId):
            spare = command._replace(spare_id=await self._new_producer_id())
            answer = await self.ask(command.transactional_id, spare)
        made: Producer = counted(answer)
        return made

    async def list_transactions(self, command: ListTransactions) -> list[ListedTransaction]:
        """The ids that this broker coordinates. Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS while it is not known
        yet which there are."""
        listed: list[ListedTransaction] = []
        for hosted in list(self.runtime.hosted()):
            if hosted.phase in (Phase.FAILED, Phase.DROPPED):
                continue
            try:
                listed += await self.runtime.ask(hosted.partition, command)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:
                    raise
        return listed

    async def outcomes_of(
        self, partition: TopicPartition, producers: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[Outcome]]:
        """The partitions of transactions that this broker serves, and what they say of each producer and epoch."""
        served: list[int] = []
        outcomes = [Outcome.UNKNOWN] * len(producers)
        for hosted in list(self.runtime.hosted()):
            try:
                answers = await self.runtime.ask(hosted.partition, FindOutcomes(partition, tuple(producers)))
            except KafkaError:
                continue  # whoever asks finds it missing, and asks again
            served.append(hosted.partition)
            outcomes = [max(one, other) for one, other in zip(outcomes, answers, strict=True)]
        return served, outcomes

    async def describe(self, transactional_id: str, *, asked_ms: float | None = None) -> TransactionValue:
        """What is known of an id. Raises KafkaError also TRANSACTIONAL_ID_NOT_FOUND."""
        found: TransactionValue = await self.ask(
            transactional_id, DescribeTransaction(transactional_id), asked_ms=asked_ms
        )
        return found
