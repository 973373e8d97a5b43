"""First appends of transactions: before a leader appends the first batch of a transaction to a partition, it asks the
transaction coordinator, and translates its error for the producer (KIP-890).

If the transaction is open already in all partitions of a request, the coordinator is not asked. Otherwise it is asked
once for all others: for Produce up to version 11 whether the client has added them, from version 12 on to add them.
While the coordinator still ends the previous transaction, the leader asks again, not the client (KAFKA-18654).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from strandline.cluster.broker.request import NO_TRANSACTIONS, Authorizer, RequestContext, allowed, refusal, transaction
from strandline.controller.metadata.image import MetadataImage
from strandline.log.batch import BatchHeader, parse_header
from strandline.log.partition_log import PartitionLog
from strandline.log.transactions import Verification
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock

ABORTABLE_SINCE = 11
"""First version of Produce whose clients know TRANSACTION_ABORTABLE."""

ADDED_SINCE = 12
"""First version of Produce whose clients let the leaders add partitions to a transaction, and know
CONCURRENT_TRANSACTIONS (KAFKA-18662). Each of their transactions has a producer epoch of its own."""

AGAIN_MS = (5.0, 100.0)
"""First and longest pause in ms before the coordinator is asked again, if the end of the previous transaction took
longer than the coordinator lets an addition wait (rule C30), or if its build is older. Kafka's first pause is 20 ms."""

AGAIN_MS_MAX = 2_000.0
"""Maximum milliseconds for which the coordinator is asked again, before the producer gets the error."""

Refusal = tuple[ErrorCode, str]

_TOLD: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    **dict.fromkeys(
        (
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
        ),
        # Nothing was written. On this error all clients send again, and do not fetch new metadata.
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ),
}
"""Error of the coordinator -> error that producers of any version get; errors not listed are passed on unchanged."""


def told_to_producer(code: ErrorCode, version: int) -> ErrorCode:
    """Return the error for the response to Produce, in this version, for an error of the coordinator."""
    if code is ErrorCode.CONCURRENT_TRANSACTIONS:
        # rule C5/concurrent-transactions-to-clients-that-do-not-know-it
        return code if version >= ADDED_SINCE else ErrorCode.NOT_ENOUGH_REPLICAS
    if code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
        return ErrorCode.TRANSACTION_ABORTABLE if version >= ABORTABLE_SINCE else ErrorCode.INVALID_TXN_STATE
    return _TOLD.get(code, code)  # rule C5/coordinators-errors-as-they-are


class Asks(Protocol):
    """Client of transaction coordinators on any broker (`transactions.verification.Verifier`)."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Ask whether the partitions are part of the open transaction, or (`add`) to add them; returns their errors."""


async def ask_again(
    verifier: Asks,
    clock: Clock,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Sequence[TopicPartition],
    *,
    add: bool,
    timeout_ms: float,
) -> dict[TopicPartition, ErrorCode]:
    """Return the coordinator's error for each partition. While the coordinator still ends the previous transaction, it
    is asked again, for `timeout_ms` and `AGAIN_MS_MAX` at most."""
    until_ms = clock.monotonic_ms() + min(timeout_ms, AGAIN_MS_MAX)
    pause_ms, longest_ms = AGAIN_MS
    answers: dict[TopicPartition, ErrorCode] = {}
    left = list(partitions)
    while True:
        answers |= await verifier.verify(transactional_id, *producer, left, add=add)
        left = [tp for tp in left if answers.get(tp) is ErrorCode.CONCURRENT_TRANSACTIONS]
        # rule C5/concurrent-transactions-at-once
        if not left or clock.monotonic_ms() + pause_ms > until_ms:
            return answers
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(pause_ms * 2, longest_ms)


class Asked(NamedTuple):
    """A batch about which the coordinator must be asked: the log that it is for, and the verification begun there."""

    log: PartitionLog
    verification: Verification


_NOTHING_ASKED: Mapping[TopicPartition, Asked] = {}
_NOTHING_REFUSED: Mapping[TopicPartition, KafkaError] = {}


class FirstAppends(NamedTuple):
    """Checks that a request with a transactional id needs before its append.

    Attributes:
        refusal: error for which no partition of the request may be written; None: there is none.
        producer: producer id and epoch of its batches; -1 if it has no transactional batch.
        asked: the batches about which the coordinator must be asked, by partition: the transaction is not open there.
        refused: errors of partitions whose batch is not appended.
    """

    refusal: Refusal | None = None
    producer: tuple[int, int] = (-1, -1)
    asked: Mapping[TopicPartition, Asked] = _NOTHING_ASKED
    refused: Mapping[TopicPartition, KafkaError] = _NOTHING_REFUSED


class TransactionGate:
    """Checks the first appends of transactions on one broker."""

    def __init__(
        self, *, verifier: Asks, image: Callable[[], MetadataImage], authorizer: Authorizer, clock: Clock
    ) -> None:
        self._verifier = verifier
        self._image = image
        self._authorizer = authorizer
        self._clock = clock

    def begin(
        self,
        context: RequestContext,
        transactional_id: str,
        batches: Iterable[tuple[TopicPartition, PartitionLog, memoryview]],
    ) -> FirstAppends:
        """Check rights and batches of a request, and begin the verifications that it needs."""
        resource = transaction(transactional_id)
        if not allowed(self._authorizer, context, Operation.WRITE, resource):
            denied = refusal(context, Operation.WRITE, resource)
            return FirstAppends((denied.code, denied.message))
        if self._image().transaction_version == 0:
            return FirstAppends((ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS))
        producer: tuple[int, int] | None = None
        asked: dict[TopicPartition, Asked] = {}
        refused: dict[TopicPartition, KafkaError] = {}
        for tp, log, batch in batches:
            header = parse_header(batch)
            if not header.is_transactional:
                continue
            # rule C5/two-producers-in-one-request
            if producer not in (None, (header.producer_id, header.producer_epoch)):
                words = (
                    f"a request has batches of one producer and epoch; {tp} has {header.producer_id} after {producer}"
                )
                return FirstAppends((ErrorCode.INVALID_PRODUCER_ID_MAPPING, words))
            producer = header.producer_id, header.producer_epoch
            try:
                verification = _begin(log, header, begins_at_0=context.version >= ADDED_SINCE)
            except KafkaError as error:
                refused[tp] = error
                continue
            if verification is not None:
                asked[tp] = Asked(log, verification)
        return FirstAppends(None, producer or (-1, -1), asked, refused)

    async def verify(
        self, context: RequestContext, transactional_id: str, first: FirstAppends, timeout_ms: float
    ) -> dict[TopicPartition, KafkaError]:
        """Ask the coordinator about `first.asked`. Return the errors of partitions whose batch is not appended,
        including those of `first.refused`."""
        answers = await ask_again(
            self._verifier,
            self._clock,
            transactional_id,
            first.producer,
            list(first.asked),
            add=context.version >= ADDED_SINCE,
            timeout_ms=timeout_ms,
        )
        refused = dict(first.refused)
        for tp, (log, verification) in first.asked.items():
            code = answers.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is not ErrorCode.NONE:  # rule C5/appends-without-the-coordinators-word
                words = f"the coordinator of {transactional_id!r} does not let {tp} into a transaction: {code.name}"
                refused[tp] = KafkaError(told_to_producer(code, context.version), words)
                if not refused[tp].code.retriable:
                    log.end_verification(verification)
        return refused


def _begin(log: PartitionLog, header: BatchHeader, *, begins_at_0: bool) -> Verification | None:
    """Return the verification that one partition's batch needs, or None. Raises KafkaError for an invalid batch."""
    if header.producer_id < 0 or header.base_sequence < 0:  # rule C5/clients-write-without-a-sequence
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "a batch of a transaction has a producer id and a sequence: this one has not"
        )
    return log.begin_verification(
        header.producer_id, header.producer_epoch, header.base_sequence, begins_at_0=begins_at_0
    )
