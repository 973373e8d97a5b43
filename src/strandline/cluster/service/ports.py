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
from strandline.controller.ports import QuorumView
from strandline.controller.quorum.api import QuorumDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.replica.states import AppendOutcome, EpochEnd, ListedOffset, ReadOutcome


class PendingAppend(Protocol):
    """An append with acks=all that waits for the high watermark."""

    def cancel(self, error: ErrorCode) -> None:
        """Stop waiting: the outcome is `error` (the batch stays in the log). Nothing happens when it has ended."""


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

    def list_offset(self, tp: TopicPartition, timestamp: int, *, current_leader_epoch: int = -1) -> ListedOffset:
        """The offset for a time, or for Kafka's special timestamps -1 (latest) to -3 (of the largest timestamp)."""

    def epoch_end_offset(self, tp: TopicPartition, *, current_leader_epoch: int, epoch: int) -> EpochEnd:
        """Where an epoch ended, as the leader knows it."""


class Controller(Protocol):
    """The active controller, wherever it runs (`strandline.controller.channel.ControllerChannel`).

    Each call is answered only after what it did is committed. Raises KafkaError; REQUEST_TIMED_OUT when no controller
    has answered within `timeout_ms`.
    """

    async def create_topics(self, request: CreateTopicsRequest, timeout_ms: float) -> CreateTopicsReply: ...
    async def delete_topics(self, request: DeleteTopicsRequest, timeout_ms: float) -> TopicOutcomes: ...
    async def create_partitions(self, request: CreatePartitionsRequest, timeout_ms: float) -> TopicOutcomes: ...
    async def incremental_alter_configs(self, request: AlterConfigsRequest, timeout_ms: float) -> AlterConfigsReply: ...
    async def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, timeout_ms: float
    ) -> ProducerIdBlock: ...


class Quorum(QuorumView, Protocol):
    """The metadata quorum as this node sees it (`strandline.controller.quorum.quorum.Quorum`)."""

    def describe(self) -> QuorumDescription: ...
