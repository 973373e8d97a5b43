"""Transaction coordinator of one broker. It routes commands to shards of transactional ids; each shard keeps its state
in one partition of `__transaction_state`."""

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
"""Milliseconds that a change may take to reach every in-sync replica, before the client is told to retry."""


class Markers(Protocol):
    """Sender of transaction markers. It retries without limit, and follows changes of leaders."""

    def send(self, order: MarkerOrder, written: Callable[[MarkerOrder], None]) -> None:
        """Write the order's marker into each of its partitions. Then call `written`, in a later turn of the loop."""

    def drop(self, state_partition: int, coordinator_epoch: LeaderEpoch) -> None:
        """Stop sending the markers ordered by the leader of a partition of `__transaction_state` in this epoch."""


class TransactionCoordinator(Coordinator[TransactionShard]):
    """Transaction coordinator of one broker: it sends each command to the shard of its transactional id.

    Methods that send commands raise KafkaError NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or
    COORDINATOR_NOT_AVAILABLE, or the shard's error; or ConnectionSuperseded, which closes the client's connection.
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
        """Give the transactional id a producer, and fence the earlier ones. An open transaction of theirs is aborted
        first; meanwhile CONCURRENT_TRANSACTIONS tells the client to retry.

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
        """Add partitions to the producer's transaction, or (`verify_only`) check that they belong to it. Returns NONE
        for each partition, or TRANSACTION_ABORTABLE for one that does not belong to it.

        Args:
            connection: number of the connection, for clients of the protocol from before KIP-890.

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
        """Add the offsets of a group to the producer's transaction. Raises KafkaError as `add_partitions` does."""
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
        """Commit or abort a transaction. Returns once the decision is durable, with the producer id and epoch for the
        next transaction.

        Args:
            version: FIRST_VERSION or EPOCH_VERSION, the client's protocol.
            connection: number of the connection, for clients of FIRST_VERSION.

        Raises:
            KafkaError: also INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
        """
        named = transactional_id, producer_id, producer_epoch
        return await self._with_id(EndTransaction(*named, commit, version, connection=connection))

    async def _with_id(self, command: InitProducer | EndTransaction) -> Producer:
        """Run a command that may need a fresh producer id; an id is allocated only if it does."""
        answer: Any = await self.ask(command.transactional_id, command)
        while isinstance(answer, NeedsProducerId):
            spare = command._replace(spare_id=await self._new_producer_id())
            answer = await self.ask(command.transactional_id, spare)
        made: Producer = counted(answer)
        return made

    async def list_transactions(self, command: ListTransactions) -> list[ListedTransaction]:
        """The transactional ids that this broker coordinates. Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS while a
        shard is still being loaded."""
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
        """Ask this broker's shards for the outcomes of transactions that are open in the log of `partition`.

        Args:
            producers: (producer id, producer epoch) of each transaction.

        Returns:
            The partitions of `__transaction_state` that answered, and one outcome for each of `producers`.
        """
        served: list[int] = []
        outcomes = [Outcome.UNKNOWN] * len(producers)
        for hosted in list(self.runtime.hosted()):
            try:
                answers = await self.runtime.ask(hosted.partition, FindOutcomes(partition, tuple(producers)))
            except KafkaError:
                continue  # the caller sees that this partition did not answer, and asks again
            served.append(hosted.partition)
            outcomes = [max(one, other) for one, other in zip(outcomes, answers, strict=True)]
        return served, outcomes

    async def describe(self, transactional_id: str, *, asked_ms: float | None = None) -> TransactionValue:
        """State of one transactional id. Raises KafkaError also with TRANSACTIONAL_ID_NOT_FOUND."""
        found: TransactionValue = await self.ask(
            transactional_id, DescribeTransaction(transactional_id), asked_ms=asked_ms
        )
        return found
