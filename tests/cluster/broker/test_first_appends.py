"""First appends of transactions: what a producer is told of the coordinator's answer, by the version of its request
(rule C5)."""

from __future__ import annotations

import pytest

from strandline.cluster.broker.first_appends import told_to_producer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.produce import FIRST, LAST

AGAIN = ErrorCode.NOT_ENOUGH_REPLICAS
"""The error on which a client of any version sends again, and does not ask for metadata."""

TABLE = [
    # answer of the coordinator; told in versions below 11, in 11, from 12 on
    (ErrorCode.CONCURRENT_TRANSACTIONS, AGAIN, AGAIN, ErrorCode.CONCURRENT_TRANSACTIONS),  # KAFKA-18662
    (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE, *[ErrorCode.TRANSACTION_ABORTABLE] * 2),
    (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, *[ErrorCode.TRANSACTION_ABORTABLE] * 2),
    (ErrorCode.PRODUCER_FENCED, *[ErrorCode.INVALID_PRODUCER_EPOCH] * 3),
    (ErrorCode.INVALID_PRODUCER_EPOCH, *[ErrorCode.INVALID_PRODUCER_EPOCH] * 3),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, *[ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3),
    (ErrorCode.UNKNOWN_SERVER_ERROR, *[ErrorCode.UNKNOWN_SERVER_ERROR] * 3),
    (ErrorCode.NOT_COORDINATOR, *[AGAIN] * 3),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *[AGAIN] * 3),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, *[AGAIN] * 3),
    (ErrorCode.NETWORK_EXCEPTION, *[AGAIN] * 3),
    (ErrorCode.OPERATION_NOT_ATTEMPTED, *[AGAIN] * 3),
    # Of the coordinator's own write: said of the data they would mean that the batch may stand in the log.
    (ErrorCode.REQUEST_TIMED_OUT, *[AGAIN] * 3),
    (ErrorCode.NOT_ENOUGH_REPLICAS, *[AGAIN] * 3),
    (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, *[AGAIN] * 3),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, *[AGAIN] * 3),
    (ErrorCode.KAFKA_STORAGE_ERROR, *[AGAIN] * 3),
]


@pytest.mark.parametrize(("answer", "below_11", "in_11", "since_12"), TABLE, ids=[row[0].name for row in TABLE])
def test_what_a_producer_is_told(answer: ErrorCode, below_11: ErrorCode, in_11: ErrorCode, since_12: ErrorCode) -> None:
    """Kafka's translation, by version."""
    for version in range(FIRST, LAST + 1):
        expected = below_11 if version < 11 else in_11 if version == 11 else since_12
        assert told_to_producer(answer, version) is expected, version


def test_nothing_tells_of_a_batch_that_may_be_written() -> None:
    """A refused first append was not written: no answer may say that nobody knows."""
    indeterminate = {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
    for code in ErrorCode:
        for version in range(FIRST, LAST + 1):
            assert told_to_producer(code, version) not in indeterminate
