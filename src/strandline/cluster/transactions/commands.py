"""Commands to a shard of transactional ids, its answers, and the orders that it gives. Errors are raised as KafkaError.

The first protocol is the one of clients before Kafka 4.0 (`FIRST_VERSION`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from strandline.cluster.groups.connections import NO_CONNECTION
from strandline.log.transactions import Marker
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.transaction_records import NO_EPOCH, NO_ID

FIRST_VERSION = 1
"""Protocol of clients before Kafka 4.0: a producer keeps its epoch from one InitProducerId to the next."""

EPOCH_VERSION = 2
"""Protocol of KIP-890: each end of a transaction raises the producer's epoch."""


class Producer(NamedTuple):
    """A producer id and its epoch: the answer to InitProducer and EndTransaction."""

    producer_id: int
    epoch: int


class NeedsProducerId(NamedTuple):
    """Answer to a command that needs a fresh producer id: repeat it with `spare_id` set."""


class InitProducer(NamedTuple):
    """Start a producer, and fence the earlier one with the same transactional id. Answered with its `Producer`.

    Attributes:
        producer_id, producer_epoch: those of a producer that continues after an error (KIP-360), else -1.
        timeout_ms: milliseconds after which a transaction of this producer is aborted.
        spare_id: a fresh producer id, in case the command needs one; -1 for none.

    Errors: CONCURRENT_TRANSACTIONS (retry soon), PRODUCER_FENCED.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    spare_id: int = NO_ID


class AddPartitions(NamedTuple):
    """Add partitions to the producer's transaction; the first one begins the transaction. Answered with None, or
    `Superseded`. The command waits for a limited time while another change of the transactional id, or the end of the
    previous transaction, is in progress.

    Attributes:
        connection: number of the connection, for a client of the first protocol.

    Errors: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS (retry soon).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    connection: int = NO_CONNECTION


class VerifyPartitions(NamedTuple):
    """Ask whether partitions belong to the producer's transaction. Answered with one ErrorCode for each partition:
    NONE, or TRANSACTION_ABORTABLE if it does not. Errors are those of AddPartitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    """Commit or abort a transaction. Answered once the decision is durable, with the `Producer` of the next
    transaction, or `Superseded`.

    Attributes:
        version: FIRST_VERSION or EPOCH_VERSION, from the version of the client's request.
        spare_id: a fresh producer id, in case the command needs one; -1 for none.
        connection: number of the connection, for a client of the first protocol.

    Errors: those of AddPartitions, and INVALID_TXN_STATE.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    version: int
    spare_id: int = NO_ID
    connection: int = NO_CONNECTION


class MarkerOrder(NamedTuple):
    """Order to write the marker of a decided transaction into each of its partitions. It is retried until each
    partition has the marker or is deleted.

    Attributes:
        state_partition: partition of `__transaction_state` whose leader made the decision.
        number: unique among the orders of one shard.
        marker: the marker to write; its producer epoch may exceed that of the data.
        transaction_version: 2 if ending the transaction raised the epoch, so that the marker's producer epoch exceeds
            that of the data (KIP-1228).
    """

    transactional_id: str
    state_partition: int
    number: int
    marker: Marker
    partitions: frozenset[TopicPartition]
    transaction_version: int


class MarkersWritten(NamedTuple):
    """Report that every partition of an order has its marker or is deleted. Answered with None."""

    order: MarkerOrder


class ListTransactions(NamedTuple):
    """List transactional ids and their states. Answered with `ListedTransaction`s. An empty filter selects all.

    Attributes:
        states: names of states, as Kafka spells them.
        producer_ids: ids of producers.
        duration_ms: select open transactions that have lasted longer than this; negative selects all.
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class Outcome(IntEnum):
    """Outcome of a transaction that is named by its producer id and epoch."""

    UNKNOWN = 0
    """The coordinator does not know the producer, or the producer has begun a later transaction."""
    OPEN = 1
    """The transaction is open; the coordinator will end it."""
    COMMITTED = 2
    ABORTED = 3


class FindOutcomes(NamedTuple):
    """Ask for the outcomes of transactions that are open in a partition's log. Answered with one `Outcome` for each.

    Attributes:
        producers: (producer id, producer epoch) of each transaction.
    """

    partition: TopicPartition
    producers: tuple[tuple[int, int], ...]


class DescribeTransaction(NamedTuple):
    """Describe one transactional id. Answered with its TransactionValue. Error: TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str
