"""Markers in a log, verified transactions, and the last stable offset (rule C6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.log.batch import parse_header
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.log.transactions import AbortedTransaction, Marker, OpenTransaction, build_marker, read_marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Offset
from tests.log.helpers import client_batch, open_test_log
from tests.log.transacting import NOW_MS, TransactionalProducer, aborted, committed_records


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """An empty one."""
    return open_test_log(RealDisk(), tmp_path / "log")


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    """An append is refused with this code."""
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_markers_are_kafkas() -> None:
    """Bytes that Apache Kafka 4.3 writes for the same marker, but for offset, leader epoch and CRC."""
    batch = build_marker(Marker(7, 3, True, 5), 1000)
    header = parse_header(batch)
    assert (header.attributes, header.producer_id, header.producer_epoch, header.base_sequence) == (0x30, 7, 3, -1)
    # length 16, attributes, timestamp and offset deltas, key of 4: version and type, value of 6: version and epoch
    assert bytes(batch[61:]) == bytes.fromhex("20 00 00 00 08 0000 0001 0c 0000 00000005 00")
    assert read_marker(batch) == Marker(7, 3, True, 5)
    assert read_marker(build_marker(Marker(7, 3, False, 5), 1000)) == Marker(7, 3, False, 5)


def test_a_transaction_is_open_until_its_marker_is_committed(log: PartitionLog) -> None:
    """The last stable offset stays at its first record, and passes it with the high watermark (rule C6)."""
    log.append_as_leader(client_batch(2), 0, NOW_MS)
    one = TransactionalProducer(log, 1)
    one.send(3)
    assert log.last_stable_offset(log.log_end_offset) == 2
    assert log.last_stable_offset(Offset(1)) == 1
    assert log.open_transactions() == [OpenTransaction(1, 0, 2, NOW_MS + 4, -1)]
    one.end(commit=True)
    assert log.last_stable_offset(Offset(5)) == 2  # the marker, at 5, is not committed
    assert log.last_stable_offset(Offset(6)) == 6
    assert log.open_transactions() == []


def test_aborted_transactions_are_found_by_what_they_overlap(log: PartitionLog) -> None:
    """Of two that lie in each other both are listed, of one that lies elsewhere none."""
    one, other = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
    one.send(2)
    other.send(2)
    one.end(commit=False)
    other.end(commit=False)
    log.append_as_leader(client_batch(2), 0, NOW_MS)
    first, second = AbortedTransaction(1, 0, 4, 2), AbortedTransaction(2, 2, 5, 6)
    assert aborted(log, 0, 2) == [first]
    assert aborted(log, 0, 3) == [first, second]
    assert aborted(log, 5, 6) == [second]
    assert aborted(log, 6, 8) == []
    assert [record.offset for record in committed_records(log)] == [6, 7]


def test_the_first_batch_needs_a_verification_that_still_stands(log: PartitionLog) -> None:
    """KAFKA-14402, KAFKA-14561, KAFKA-15449: no batch of a transaction that its coordinator does not know of, or that
    has ended since it was asked."""
    one = TransactionalProducer(log, 1, version=1)
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append_as_leader(one.batch(), 0, NOW_MS)
    asked = log.begin_verification(1, 0, 0, begins_at_0=False)
    one.end(commit=False)
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append_as_leader(one.batch(), 0, NOW_MS, verification=asked)
    again = log.begin_verification(1, 0, 0, begins_at_0=False)
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append_as_leader(one.batch(), 0, NOW_MS, verification=asked)
    assert again is not None
    log.append_as_leader(one.batch(), 0, NOW_MS, verification=again)
    assert log.begin_verification(1, 0, 1, begins_at_0=False) is None


def test_plain_batches_do_not_join_a_transaction(log: PartitionLog) -> None:
    """A batch without the attribute, of a producer with an open transaction."""
    TransactionalProducer(log, 1).send()
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append_as_leader(client_batch(producer_id=1, producer_epoch=0, sequence=1), 0, NOW_MS)


def test_a_marker_of_the_last_transaction_ends_not_the_next_one(log: PartitionLog) -> None:
    """KIP-1228: from version 2 on the marker has the epoch after the transaction's; without an open one it is a marker
    that comes again (KAFKA-19999)."""
    one = TransactionalProducer(log, 1)
    one.send()
    one.end(commit=True)
    late = Marker(1, 1, True, 0)
    assert log.append_marker(late, 0, NOW_MS, transaction_version=2).base_offset == 2
    one.send()
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_marker(late, 0, NOW_MS, transaction_version=2)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        log.append_marker(Marker(1, 2, True, -1), 0, NOW_MS, transaction_version=2)
    assert len(log.open_transactions()) == 1
