"""Markers in a log, verified transactions, and the last stable offset (rule C6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.log.batch import Record, build_batch, parse_header
from strandline.log.config import LogConfig
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import ProducerStates, replay
from strandline.log.real_disk import RealDisk
from strandline.log.transactions import (
    AbortedTransaction,
    Marker,
    OpenTransaction,
    Verification,
    build_marker,
    read_marker,
)
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


def test_the_marker_of_the_transaction_before_leaves_what_was_asked_for_the_next(log: PartitionLog) -> None:
    """franz-go 1.20: from version 2 on a client begins its next transaction as soon as the end of the last one is
    decided, so that a leader may ask for it before the marker comes. That marker has the epoch of the next one."""
    one = TransactionalProducer(log, 1)
    one.send()
    asked = log.begin_verification(1, 1, 0, begins_at_0=True)
    one.end(commit=True)
    log.append_as_leader(one.batch(), 0, NOW_MS, verification=asked)
    late = log.begin_verification(2, 1, 0, begins_at_0=True)
    other = TransactionalProducer(log, 2)
    other.epoch = 1
    other.end(commit=False)  # of epoch 1 itself: what was asked for it is over
    other.epoch, other.sequence = 1, 0
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_as_leader(other.batch(), 0, NOW_MS, verification=late)


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
    assert len(log.open_transactions()) == 1


def test_older_coordinators_write_no_markers(log: PartitionLog) -> None:
    """One that was elected before the one that wrote the last marker; it may be that the producer is another's now."""
    one = TransactionalProducer(log, 1, version=1)
    one.send()
    one.coordinator_epoch = 5
    one.end(commit=True)
    one.send()
    one.coordinator_epoch = 4
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        one.end(commit=True)
    assert len(log.open_transactions()) == 1


def test_a_newer_epoch_does_not_go_on_with_an_older_transaction(log: PartitionLog) -> None:
    """Kafka makes one of both, so that the next marker counts for what may have been aborted. Nor does the older."""
    one = TransactionalProducer(log, 1)
    one.send()
    one.epoch, one.sequence = 2, 0
    with refused(ErrorCode.INVALID_TXN_STATE):
        one.send()
    one.epoch = 1
    one.end(commit=False)
    one.send()
    one.epoch = 1
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        one.send()


def test_115_later_batches_wait_for_the_first(log: PartitionLog) -> None:
    """KAFKA-14884: two are verified at once, and the second is there first."""
    one = TransactionalProducer(log, 1, version=1)
    first, second = one.batch(2), None
    asked = log.begin_verification(1, 0, 0, begins_at_0=False)
    one.sequence = 2
    second = one.batch(2)
    again = log.begin_verification(1, 0, 2, begins_at_0=False)
    assert again is asked
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        log.append_as_leader(second, 0, NOW_MS, verification=again)
    log.append_as_leader(first, 0, NOW_MS, verification=asked)
    assert log.append_as_leader(one.batch(2), 0, NOW_MS).base_offset == 2


def test_unknown_producers_begin_at_0_from_version_2_on(log: PartitionLog) -> None:
    """Each transaction has an epoch of its own then; what comes first has sequence 0."""
    one = TransactionalProducer(log, 1)
    one.sequence = 3
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        one.send()
    one.version = 1
    log.end_verification(Verification(1, 0, 3, begins_at_0=True, begun_ms=0))  # another asking's: nothing happens
    asked = log.begin_verification(1, 0, 3, begins_at_0=True)
    assert asked is not None
    log.end_verification(asked)
    one.send()


def test_coordinators_write_without_a_sequence(log: PartitionLog) -> None:
    """Offsets in a transaction (KIP-98): their epochs are judged, and their transaction is open."""

    def offsets() -> memoryview:
        records = [Record(0, NOW_MS, b"k", b"v")]
        return memoryview(build_batch(records, producer_id=1, producer_epoch=0, base_sequence=-1, transactional=True))

    for expected in range(3):
        asked = log.begin_verification(1, 0, -1, begins_at_0=True)
        assert (asked is None) == (expected > 0)
        result = log.append_as_leader(offsets(), 0, NOW_MS, verification=asked)
        assert result.base_offset == expected
    assert log.last_stable_offset(log.log_end_offset) == 0
    log.append_marker(Marker(1, 1, True, 0), 0, NOW_MS, transaction_version=2)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_as_leader(offsets(), 0, NOW_MS)


def test_deleted_records_of_an_open_transaction(log: PartitionLog) -> None:
    """The log start passes its first offset: the last stable offset is the log start, until the marker."""
    one = TransactionalProducer(log, 1)
    one.send(4)
    log.delete_records_before(2)
    assert log.last_stable_offset(log.log_end_offset) == 2
    one.end(commit=False)
    assert aborted(log, 2, 4) == [AbortedTransaction(1, 0, 4, 5)]
    assert committed_records(log) == []


def two_aborted(log: PartitionLog) -> list[AbortedTransaction]:
    """Fill a log of small segments with committed and aborted transactions that reach over them; those aborted."""
    one, other = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
    for number in range(6):
        one.send(2, size=200)
        other.send(1, size=200)
        one.end(commit=number % 2 == 0)
        if number % 3 == 2:
            other.end(commit=number == 2)
    assert len(log.segments) > 3
    return aborted(log, 0, int(log.log_end_offset))


SMALL = LogConfig(segment_bytes=1_000, preallocate_bytes=0)


def files(directory: Path) -> dict[str, bytes]:
    """The indexes of aborted transactions."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.txnindex"))}


@pytest.mark.parametrize("stop", ["clean", "killed", "power"])
def test_a_start_knows_what_was_aborted(tmp_path: Path, stop: str) -> None:
    """After a clean stop from the files; after any other from the batches, whatever became of the files."""
    log = open_test_log(RealDisk(), tmp_path, config=SMALL)
    known = two_aborted(log)
    assert len(known) == 4
    seen = committed_records(log)
    if stop == "clean":
        log.close()
        assert files(tmp_path)
    else:
        log.sync_now()
        log.close_files()
    if stop == "power":
        for name in files(tmp_path):
            (tmp_path / name).write_bytes(b"x" * 33)
    again = open_test_log(RealDisk(), tmp_path, config=SMALL, last_life=LastLife(clean=stop == "clean"))
    assert aborted(again, 0, int(again.log_end_offset)) == known
    assert committed_records(again) == seen
    again.close()
    third = open_test_log(RealDisk(), tmp_path, config=SMALL, last_life=LastLife(clean=True))
    assert aborted(third, 0, int(again.log_end_offset)) == known


def test_a_damaged_index_is_built_anew(tmp_path: Path) -> None:
    """It has no checksum: what cannot be is noticed when it is read."""
    log = open_test_log(RealDisk(), tmp_path, config=SMALL)
    known = two_aborted(log)
    log.close()
    before = files(tmp_path)
    for name, data in before.items():
        (tmp_path / name).write_bytes(data[:-1])
    again = open_test_log(RealDisk(), tmp_path, config=SMALL, last_life=LastLife(clean=True))
    assert aborted(again, 0, int(again.log_end_offset)) == known
    again.close()
    assert files(tmp_path) == before


def test_a_cut_forgets_what_was_aborted_behind_it(tmp_path: Path) -> None:
    """And brings back the transactions that were open there (KAFKA-12153), at every offset."""
    log = open_test_log(RealDisk(), tmp_path / "log", config=SMALL)
    known = two_aborted(log)
    end = int(log.log_end_offset)
    for offset in range(end - 1, 0, -3):
        log.truncate_to(offset)
        left = [one for one in known if one.last_offset < log.log_end_offset]
        assert aborted(log, 0, end) == left
        log.close()
        log = open_test_log(RealDisk(), tmp_path / "log", config=SMALL, last_life=LastLife(clean=True))
        assert aborted(log, 0, end) == left
        states = ProducerStates()
        replay(states, log.segments, 0, end, 0)
        starts = [one.first_offset for one in log.open_transactions()]
        assert starts == list(states.open.values())
        assert log.last_stable_offset(log.log_end_offset) == min([*starts, log.log_end_offset])


def test_114_a_start_knows_which_markers_are_not_committed(tmp_path: Path) -> None:
    """A roll or a clean stop behind a marker that is not committed: the snapshot tells of its transaction."""
    log = open_test_log(RealDisk(), tmp_path, config=SMALL)
    one = TransactionalProducer(log, 1)
    one.send(3)
    one.end(commit=True)
    log.roll()
    log.close()
    again = open_test_log(RealDisk(), tmp_path, config=SMALL, last_life=LastLife(clean=True))
    assert again.last_stable_offset(Offset(2)) == 0
    assert again.last_stable_offset(Offset(4)) == 4
