"""Verification of transactional writes (KIP-890): a leader asks the coordinator whether the partition belongs to the
producer's transaction (protocol version 1), or has it added (version 2).

A leader asks before the first batch of a transaction. Otherwise a batch that arrives after the end of its transaction
would start a new one, which nobody would ever end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from strandline.cluster.transactions.marker_writes import NamedPartition
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import NodeId, ProducerId, TopicPartition
from strandline.proto.messages.fields import Int32, Int64
from strandline.proto.messages.method import call, handler, method
from strandline.proto.ports import Clock, Rpc, RpcError, UnaryHandler

CALL_MS = 5_000.0
"""Milliseconds to wait for the coordinator's answer. To add a partition it has to write and replicate a record."""


@dataclass(frozen=True, slots=True)
class VerifyPartitionsRequest:
    """Question of a leader's broker to the coordinator of a transactional id.

    Attributes:
        node_id: the broker that asks.
        add: True to add the partitions, and begin a transaction if none is open; False only to check them.
    """

    node_id: Annotated[NodeId, Int32(1)]
    transactional_id: Annotated[str, 2]
    producer_id: Annotated[ProducerId, Int64(3)]
    producer_epoch: Annotated[int, Int32(4)]
    partitions: Annotated[tuple[NamedPartition, ...], 5]
    add: Annotated[bool, 6]


@dataclass(frozen=True, slots=True)
class VerifyPartitionsReply:
    """Answer: one error code for each partition of the request, in its order."""

    errors: Annotated[tuple[ErrorCode, ...], 1]


VERIFY_PARTITIONS = method("/strandline.v1.Node/VerifyPartitions", VerifyPartitionsRequest, VerifyPartitionsReply)
"""RPC method VerifyPartitions, which every broker serves."""

Answers = Mapping[TopicPartition, ErrorCode]


class Coordinator(Protocol):
    """Transaction coordinator on this broker, as the verifier uses it."""

    def placed(self, transactional_id: str) -> PartitionRecord | None:
        """Partition of `__transaction_state` that holds the id; None while the topic does not exist."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        verify_only: bool,
    ) -> Answers:
        """Answers of the shard that holds the id, by partition. Raises KafkaError."""


@dataclass
class VerificationFigures:
    """Metrics of a broker's verifications: questions to coordinators, partitions refused, and seconds waited for
    answers."""

    questions: int = 0
    failures: int = 0
    seconds: float = 0.0


class Verifier:
    """Asks coordinators for one broker, and answers other brokers for the broker's own coordinator."""

    def __init__(
        self,
        node_id: NodeId,
        *,
        coordinator: Coordinator,
        image: Callable[[], MetadataImage],
        rpc: Rpc,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._image = image
        self._rpc = rpc
        self._clock = clock
        self.figures = VerificationFigures()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Answers:
        """Ask about partitions of a producer's transaction. Returns an error code for each: the coordinator's, or
        COORDINATOR_NOT_AVAILABLE or NETWORK_EXCEPTION if there is no answer."""
        begun_ms = self._clock.monotonic_ms()
        answers = await self._verified(transactional_id, producer_id, producer_epoch, partitions, add=add)
        self.figures.questions += 1
        self.figures.seconds += (self._clock.monotonic_ms() - begun_ms) / 1000
        self.figures.failures += sum(code is not ErrorCode.NONE for code in answers.values())
        return answers

    async def _verified(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Answers:
        placed = self._coordinator.placed(transactional_id)
        if placed is None or not placed.has_leader:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if placed.leader == self._node_id:
            return await self._ask_here(transactional_id, producer_id, producer_epoch, partitions, add=add)
        broker = self._image().brokers.get(placed.leader)
        if broker is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        request = VerifyPartitionsRequest(
            self._node_id,
            transactional_id,
            ProducerId(producer_id),
            producer_epoch,
            tuple(NamedPartition(*partition) for partition in partitions),
            add,
        )
        try:
            reply = await call(self._rpc, broker.internal, VERIFY_PARTITIONS, request, timeout_ms=CALL_MS)
        except (RpcError, ProtocolError):
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        if len(reply.errors) != len(partitions):
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        return dict(zip(partitions, reply.errors, strict=True))

    async def _ask_here(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Answers:
        try:
            return await self._coordinator.add_partitions(
                transactional_id, producer_id, producer_epoch, frozenset(partitions), verify_only=not add
            )
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)

    # Questions of other brokers

    def handlers(self) -> dict[str, UnaryHandler]:
        """RPC handlers for the node's internal listener."""
        return {VERIFY_PARTITIONS.path: handler(VERIFY_PARTITIONS, self._answer)}

    async def _answer(self, request: VerifyPartitionsRequest) -> VerifyPartitionsReply:
        partitions = [one.place for one in request.partitions]
        answers = await self._ask_here(
            request.transactional_id, request.producer_id, request.producer_epoch, partitions, add=request.add
        )
        return VerifyPartitionsReply(
            tuple(answers.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) for partition in partitions)
        )
