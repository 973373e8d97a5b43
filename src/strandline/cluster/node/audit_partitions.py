"""Destination of a broker's audit lines: a partition of `__audit` that it leads, or one that another broker leads.

A broker that leads no partition of the topic (it has just restarted, joined after the topic was created, or is about to
stop) sends its lines to a leader by a call between nodes, so that they do not wait in memory for an election that may
never happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

from strandline.cluster.broker.handlers.produce import ZSTD_VERSION_MIN, batch_fault
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.audit import AUDIT_TOPIC
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.messages.fields import Int32
from strandline.proto.messages.method import call, handler, method
from strandline.proto.ports import Rpc, RpcError, UnaryHandler
from strandline.replica.partition import Append, AppendDone
from strandline.replica.states import ACKS_ALL

CALL_MS = 10_000.0
"""Timeout in ms of the call to a leader, which answers once all in-sync replicas have the lines."""


@dataclass(frozen=True, slots=True)
class AppendAuditRequest:
    """Request of a broker to the leader of a partition of `__audit`: append these lines.

    Attributes:
        node_id: the broker whose lines they are.
        partition: partition of `__audit`.
        batch: one record batch of format 2.
    """

    node_id: Annotated[NodeId, Int32(1)]
    partition: Annotated[int, Int32(2)]
    batch: Annotated[bytes, 3]


@dataclass(frozen=True, slots=True)
class AppendAuditReply:
    """Result of an append: NONE once all in-sync replicas have the batch, or an error and its message."""

    error: Annotated[ErrorCode, 1]
    message: Annotated[str, 2] = ""


APPEND_AUDIT = method("/strandline.v1.Node/AppendAudit", AppendAuditRequest, AppendAuditReply)
"""Call between brokers; request and reply are sent without an envelope."""


class Appends(Protocol):
    """Replica manager, as used here."""

    def append(self, tp: TopicPartition, batches: memoryview, acks: int, done: AppendDone) -> Append | None:
        """Append as `ReplicaManager.append` does."""


class EnsuresTopic(Protocol):
    """Part that creates the topic if it does not exist (`InternalTopic`)."""

    async def ensure(self) -> None:
        """Return once the topic exists. Raises KafkaError."""


class AuditPartitions:
    """Appends audit lines of this broker, and those that other brokers send to it."""

    def __init__(
        self,
        node_id: NodeId,
        *,
        topic: EnsuresTopic,
        image: Callable[[], MetadataImage],
        replicas: Appends,
        rpc: Rpc,
    ) -> None:
        self._node_id = node_id
        self._topic = topic
        self._image = image
        self._replicas = replicas
        self._rpc = rpc
        self._last = -1
        self._turn = int(node_id)

    async def append(self, batch: bytearray) -> AppendAuditReply:
        """Append one batch here or at another broker. NONE: all in-sync replicas have it. After REQUEST_TIMED_OUT,
        NOT_LEADER_OR_FOLLOWER and NOT_ENOUGH_REPLICAS_AFTER_APPEND the batch may have been written."""
        try:
            topic = await self._find_topic()
        except KafkaError as error:
            return AppendAuditReply(error.code, error.message)
        partition = self._choose(topic)
        if partition is None:
            return AppendAuditReply(ErrorCode.LEADER_NOT_AVAILABLE, f"no partition of {AUDIT_TOPIC} has a leader")
        self._last = partition.partition
        if partition.leader == self._node_id:
            return await self._append_here(partition.partition, batch)
        return await self._give(partition, bytes(batch))

    async def _find_topic(self) -> TopicInfo:
        if AUDIT_TOPIC not in self._image().topics:
            await self._topic.ensure()
        topic = self._image().topics.get(AUDIT_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{AUDIT_TOPIC} is being created")
        return topic

    def _choose(self, topic: TopicInfo) -> PartitionRecord | None:
        """Return a partition led here, else one with any leader, or None. The partition used last is preferred, as
        lines are read in order within a partition only."""
        with_leader = [one for one in topic.partitions.values() if one.has_leader]
        here = [one for one in with_leader if one.leader == self._node_id]
        possible = here or with_leader
        for one in possible:
            if one.partition == self._last:
                return one
        return possible[self._turn % len(possible)] if possible else None

    async def _append_here(self, partition: int, batch: bytearray) -> AppendAuditReply:
        ended: asyncio.Future[Append] = asyncio.get_running_loop().create_future()

        def done(outcome: Append) -> None:
            if not ended.done():
                ended.set_result(outcome)

        place = TopicPartition(AUDIT_TOPIC, partition)
        waiting = self._replicas.append(place, memoryview(batch), ACKS_ALL, done)
        try:
            outcome = await ended
        finally:
            if waiting is not None:
                waiting.cancel(ErrorCode.REQUEST_TIMED_OUT)
        return AppendAuditReply(outcome.error, outcome.message)

    async def _give(self, partition: PartitionRecord, batch: bytes) -> AppendAuditReply:
        leader = self._image().brokers.get(partition.leader)
        if leader is None:
            return AppendAuditReply(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {partition.leader} is not registered")
        request = AppendAuditRequest(self._node_id, partition.partition, batch)
        try:
            return await call(self._rpc, leader.internal, APPEND_AUDIT, request, timeout_ms=CALL_MS)
        except (RpcError, ProtocolError) as error:
            self._last = -1
            self._turn += 1  # that broker may be down, or too old to know this call: try another leader
            words = f"broker {partition.leader} did not take the lines: {error}"
            return AppendAuditReply(ErrorCode.REQUEST_TIMED_OUT, words)

    # Lines of other brokers

    def handlers(self) -> dict[str, UnaryHandler]:
        """Return the handlers for the node's internal listener, by method."""
        return {APPEND_AUDIT.path: handler(APPEND_AUDIT, self._take)}

    async def _take(self, request: AppendAuditRequest) -> AppendAuditReply:
        batch = bytearray(request.batch)
        fault = batch_fault(memoryview(batch), ZSTD_VERSION_MIN)
        if fault is not None:
            return AppendAuditReply(*fault)
        try:
            async with asyncio.timeout(CALL_MS / 1000):
                return await self._append_here(request.partition, batch)
        except TimeoutError:
            return AppendAuditReply(ErrorCode.REQUEST_TIMED_OUT, "not every replica in sync has the lines yet")
