"""What the service needs of the parts below it, as small protocols: the seams that its own tests can stand on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from strandline.controller.api import (
    AllocateProducerIdsRequest,
    AlterConfigsReply,
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsReply,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ProducerIdBlock,
    TopicOutcomes,
)
from strandline.controller.quorum.api import LeaderAndEpoch, QuorumDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId, TopicPartition


class AppendOutcome(Protocol):
    """How one partition's append ended: `strandline.replica` tells it, once."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def message(self) -> str: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def log_append_time_ms(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def synced_replicas(self) -> tuple[NodeId, ...]: ...


class PendingAppend(Protocol):
    """An append with acks=all that waits for the high watermark."""

    def cancel(self, error: ErrorCode) -> None:
        """Stop waiting: the outcome is `error` (the batch stays in the log). Nothing happens when it has ended."""


class ReadOutcome(Protocol):
    """What a read of one partition gave."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def next_offset(self) -> int: ...


class OffsetOutcome(Protocol):
    """An offset found by `list_offset`; -1 where there is none."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class EpochEndOutcome(Protocol):
    """The largest epoch not above the one asked for, and its end offset; -1 and -1 where there is none."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class Replicas(Protocol):
    """The partitions of this broker (`strandline.replica.manager.ReplicaManager`)."""

    def append(
        self, tp: TopicPartition, batches: memoryview, acks: int, done: Callable[[AppendOutcome], None]
    ) -> PendingAppend | None:
        """Append one batch as leader; `done` is called exactly once, perhaps before this returns.

        The view is the caller's receive buffer: nothing may look at it after this returns.
        """

    def read(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        current_leader_epoch: int = -1,
        min_one_batch: bool = True,
    ) -> ReadOutcome | None:
        """Committed batches from `offset` on; None: they are not in memory, ask `read_cold`."""

    def read_cold(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        current_leader_epoch: int = -1,
        min_one_batch: bool = True,
    ) -> Awaitable[ReadOutcome]:
        """As `read`, off the event loop where the bytes are cold."""

    def on_high_watermark(self, tp: TopicPartition, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once when more can be read, or nothing more will be (leadership lost).

        Returns how to withdraw.
        """

    def list_offset(self, tp: TopicPartition, timestamp: int, *, current_leader_epoch: int = -1) -> OffsetOutcome:
        """The offset for a time, or for Kafka's special timestamps -1 (latest) to -3 (of the largest timestamp)."""

    def epoch_end_offset(self, tp: TopicPartition, *, current_leader_epoch: int, epoch: int) -> EpochEndOutcome:
        """Where an epoch ended, as the leader knows it."""


class Controller(Protocol):
    """The active controller, wherever it runs (`strandline.controller.channel.ControllerChannel`).

    Each call is answered only after what it did is committed. Raises KafkaError.
    """

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsReply: ...
    async def delete_topics(self, request: DeleteTopicsRequest) -> TopicOutcomes: ...
    async def create_partitions(self, request: CreatePartitionsRequest) -> TopicOutcomes: ...
    async def incremental_alter_configs(self, request: AlterConfigsRequest) -> AlterConfigsReply: ...
    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> ProducerIdBlock: ...


class QuorumView(Protocol):
    """The metadata quorum as this node sees it (`strandline.controller.quorum.quorum.Quorum`)."""

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch: ...

    def describe(self) -> QuorumDescription: ...

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None: ...
