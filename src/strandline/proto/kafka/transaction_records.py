"""Kafka's key and value schemas of `__transaction_state`, so that Kafka's own tools can read it.

A key has version 0. Values are read in versions 0 and 1 and written in version 1, which is flexible (KIP-915): the
level of `transaction.version` at which there are transactions at all stands above that of builds that cannot read it.

One field is Strandline's own, tagged with a number that is far from Kafka's: the last epoch of the producer. Kafka has
it in memory alone (KAFKA-20310), so that after a failover a request that is repeated is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, NamedTuple

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.declared import Field, Int8, Int16, Int32, Int64, RecordType, Seen, String
from strandline.proto.kafka.keyed_record import Record

NO_ID = -1
"""Value that stands for "no producer id"."""

NO_EPOCH = -1
"""Value that stands for "no producer epoch"."""

NEVER = -1
"""Value that stands for "no timestamp"."""

LAST_EPOCH_TAG = 10_000


class TransactionState(IntEnum):
    """State of a transactional id, with Kafka's numbers.

    Kafka's Dead (6) and PrepareEpochFence (7) stand in no log: an id that expires has a tombstone, and a producer is
    fenced by the record that aborts its transaction.
    """

    title: str

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"

    def __new__(cls, number: int, title: str) -> TransactionState:
        member = int.__new__(cls, number)
        member._value_ = number
        member.title = title
        return member

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided while some partition may still lack its marker."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_over(self) -> bool:
        """True if no transaction is open or being ended."""
        return not self.is_prepared and self is not TransactionState.ONGOING


class TransactionKey(NamedTuple):
    """Key of the record of a transactional id."""

    transactional_id: String


class TopicPartitions(NamedTuple):
    """Partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


_STATES = {int(state): state for state in TransactionState}


def _state_read(number: int) -> TransactionState:
    state = _STATES.get(number)
    if state is None:
        raise ProtocolError(f"A transaction in state {number}")
    return state


def _partitions_read(topics: tuple[TopicPartitions, ...] | None) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(one.topic, number) for one in topics or () for number in one.partitions)


def _partitions_written(partitions: Iterable[TopicPartition]) -> list[TopicPartitions] | None:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return [TopicPartitions(topic, tuple(numbers)) for topic, numbers in topics.items()]


class TransactionValue(NamedTuple):
    """A transactional id.

    Attributes:
        producer_id, producer_epoch: of the producer that may write; while a transaction is being ended, of its markers.
        previous_id: the id before, where the epochs of that one were used up.
        next_id: the id from the end of this transaction on, where the epochs of this one are used up.
        partitions: of the transaction, if one is open or being ended.
        updated_ms, started_ms: wall times of the last change and of the transaction's first partition; -1 none.
        client_version: version of the protocol by which the transaction was ended: 2 if that raised the epoch.
        last_epoch: the epoch before, whose producer may repeat the request that raised it; -1: it may not.
    """

    producer_id: Int64
    previous_id: Annotated[Int64, Field("1+", tag=0, default=NO_ID)]
    next_id: Annotated[Int64, Field("1+", tag=1, default=NO_ID)]
    producer_epoch: Int16
    timeout_ms: Int32
    state: Annotated[TransactionState, Seen(Int8, _state_read, int)]
    partitions: Annotated[
        frozenset[TopicPartition], Seen(tuple[TopicPartitions, ...] | None, _partitions_read, _partitions_written)
    ]
    updated_ms: Int64
    started_ms: Int64
    client_version: Annotated[Int16, Field("1+", tag=2, default=0)] = 0
    last_epoch: Annotated[Int16, Field("1+", tag=LAST_EPOCH_TAG, default=NO_EPOCH)] = NO_EPOCH


TRANSACTION = RecordType(
    "TransactionLogValue", TransactionKey, (0,), TransactionValue, versions="0-1", flexible="1+", written=1
)


def transaction_record(transactional_id: str, value: TransactionValue | None) -> Record:
    """A transactional id, or (None) that it has expired."""
    return TRANSACTION.record(TransactionKey(transactional_id), value)  # rule C4/a-failover-forgets-the-last-epoch
