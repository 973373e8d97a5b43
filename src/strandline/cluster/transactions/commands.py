"""Commands of a shard of transactions, its answers, and the orders that it gives. Errors come as KafkaError."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from strandline.cluster.groups.connections import NO_CONNECTION
from strandline.log.transactions import Marker
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.transaction_records import NO_EPOCH, NO_ID

FIRST_VERSION = 1
"""Protocol of clients before Kafka 4: an epoch lasts from one InitProducerId to the next."""

EPOCH_VERSION = 2
"""Protocol of KIP-890: each end of a transaction raises the epoch."""


class Producer(NamedTuple):
    """A producer id and its epoch. The answer of InitProducer and EndTransaction."""

    producer_id: int
    epoch: int


class NeedsProducerId(NamedTuple):
    """Answer to a command that lacks a fresh producer id: give it again, with one."""


class InitProducer(NamedTuple):
    """A producer begins, and fences the one before. Answered with its `Producer`.

    Attributes:
        producer_id, producer_epoch: of a producer that goes on after an error (KIP-360), else -1.
        timeout_ms: a transaction of this producer that lasts longer is aborted.
        spare_id: a fresh producer id, if the command needs one; -1 none.

    Errors: CONCURRENT_TRANSACTIONS (again soon), PRODUCER_FENCED.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    spare_id: int = NO_ID


class AddPartitions(NamedTuple):
    """Partitions become part of the producer's transaction, which begins with the first. Answered with None, or
    `Superseded`. It waits a while for the change of the id that is under way, and for the end of the transaction
    before.

    Attributes:
        connection: by which a client of the first protocol asks.

    Errors: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    connection: int = NO_CONNECTION


class VerifyPartitions(NamedTuple):
    """Ask whether partitions are part of the producer's transaction. Answered with one ErrorCode a partition: NONE or
    TRANSACTION_ABORTABLE. Errors as of AddPartitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    """Commit or abort, answered when that is decided for good: with the `Producer` of the next transaction, or
    `Superseded`.

    Attributes:
        version: of the client's protocol, by the version of its request.
        spare_id: a fresh producer id, if the command needs one; -1 none.
        connection: by which a client of the first protocol asks.

    Errors: as of AddPartitions, and INVALID_TXN_STATE.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    version: int
    spare_id: int = NO_ID
    connection: int = NO_CONNECTION


class MarkerOrder(NamedTuple):
    """Order to write a decided transaction's marker into each of its partitions: for ever, until each has taken it or
    is deleted.

    Attributes:
        state_partition: of `__transaction_state`, whose leader decided it.
        number: tells this order from every other of the same shard.
        marker: its epoch may be above that of the data.
        transaction_version: 2 if the end raised the epoch, so that the marker's is above that of the data (KIP-1228).
    """

    transactional_id: str
    state_partition: int
    number: int
    marker: Marker
    partitions: frozenset[TopicPartition]
    transaction_version: int


class MarkersWritten(NamedTuple):
    """Every partition of an order has its marker, or is deleted. Answered with None."""

    order: MarkerOrder


class ListTransactions(NamedTuple):
    """Answered with `ListedTransaction`s. Empty filters let everything through.

    Attributes:
        states: Kafka's titles.
        duration_ms: of transactions that have lasted longer; negative: of all.
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class Outcome(IntEnum):
    """What a coordinator says of a transaction of which only producer id and epoch are known."""

    UNKNOWN = 0
    """It does not know the producer, or the producer has gone on since."""
    OPEN = 1
    """It is open, and will be ended."""
    COMMITTED = 2
    ABORTED = 3


class FindOutcomes(NamedTuple):
    """What became of transactions that are open in a partition's log. Answered with a `Outcome` for each.

    Attributes:
        producers: id and epoch of each.
    """

    partition: TopicPartition
    producers: tuple[tuple[int, int], ...]


class DescribeTransaction(NamedTuple):
    """Answered with its TransactionValue; TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str
