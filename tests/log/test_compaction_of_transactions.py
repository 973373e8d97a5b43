"""Compaction of a log with transactions (rule C11): aborted data goes and wins nothing, markers outlive their data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.log.batch import Record, build_batch
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.log.transactions import AbortedTransaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.compacting import COMPACTED, NOW_MS, assert_no_hole, cleanable, compact, headers, put
from tests.log.helpers import open_test_log
from tests.log.transacting import TransactionalProducer, aborted, committed_records


class Writer(TransactionalProducer):
    """Writes keys and values."""

    def put(self, *pairs: tuple[str, str | None]) -> None:
        """One batch in the open transaction, or in a new one."""
        verification = self.log.begin_verification(
            self.producer_id, self.epoch, self.sequence, begins_at_0=self.version >= 2
        )
        items = [Record(0, NOW_MS, key.encode(), None if value is None else value.encode()) for key, value in pairs]
        batch = build_batch(
            items,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.log.append_as_leader(memoryview(batch), 0, NOW_MS, verification=verification)
        self.sequence += len(pairs)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """An empty one, whose segments are closed by the tests."""
    return open_test_log(RealDisk(), tmp_path / "log", config=replace(COMPACTED, segment_bytes=100_000))


def seen(log: PartitionLog) -> list[tuple[str, str | None]]:
    """Key and value of each record that a committed reader gets."""
    return [
        ((one.key or b"").decode(), None if one.value is None else one.value.decode()) for one in committed_records(log)
    ]


def markers(log: PartitionLog) -> list[int]:
    """Offsets of the markers."""
    return [header.base_offset for header in headers(log) if header.is_control]


def roll(log: PartitionLog) -> None:
    """Close the active segment, durably."""
    log.roll()
    log.sync_now()


def test_aborted_records_go_at_once_and_win_nothing(log: PartitionLog) -> None:
    """The value before them stays; that of a committed transaction takes its place."""
    put(log, ("a", "1"), ("b", "1"))
    one = Writer(log, 1)
    one.put(("a", "aborted"))
    one.end(commit=False)
    one.put(("b", "2"))
    one.end(commit=True)
    roll(log)
    done = compact(log, limit=int(log.last_stable_offset(log.log_end_offset)))
    assert seen(log) == [("a", "1"), ("b", "2")]
    assert (done.records, done.removed) == (4, 2)
    assert markers(log) == [3, 5]
    assert_no_hole(log)


def test_a_pass_ends_at_an_open_transaction(log: PartitionLog) -> None:
    """Whether its records supersede others is not known."""
    put(log, ("a", "1"))
    roll(log)
    one = Writer(log, 1)
    one.put(("a", "2"))
    roll(log)
    put(log, ("b", "1"))
    roll(log)
    stable = int(log.last_stable_offset(log.log_end_offset))
    assert stable == 1
    assert cleanable(log, NOW_MS, stable).end == 1
    compact(log, limit=stable)
    one.end(commit=False)
    assert seen(log) == [("a", "1"), ("b", "1")]


def test_state_carries_over_segments(log: PartitionLog) -> None:
    """KAFKA-8351, KAFKA-5196, KAFKA-20036: a transaction over several segments, which are written anew one by one and a
    few into one. Its marker lies in the last."""
    one, other = Writer(log, 1), Writer(log, 2)
    for number in range(4):
        one.put((f"k{number}", "aborted"))
        other.put((f"k{number}", str(number)))
        roll(log)
    one.end(commit=False)
    other.end(commit=True)
    roll(log)
    log.config = replace(log.config, segment_bytes=350)
    compact(log, limit=int(log.last_stable_offset(log.log_end_offset)))
    assert 1 < len(log.segments) - 1 < 5
    assert seen(log) == [(f"k{number}", str(number)) for number in range(4)]
    assert all(header.count == 0 for header in headers(log) if header.producer_id == 1 and not header.is_control)
    assert_no_hole(log)


def test_116_aborted_transactions_behind_the_keys_are_known(log: PartitionLog) -> None:
    """KAFKA-13727: the map is full in the middle of a segment. What was aborted behind that is aborted too: its marker
    stays, and no reader sees its records."""
    for number in range(8):
        put(log, (f"k{number}", "1"))
    one = Writer(log, 1)
    one.put(("a", "aborted"), ("b", "aborted"))
    one.end(commit=False)
    put(log, ("z", "1"))
    roll(log)
    for _ in range(3):
        compact(log, limit=int(log.last_stable_offset(log.log_end_offset)), buffer_bytes=42 * 6)
        assert "aborted" not in {value for _, value in seen(log)}
    assert [key for key, _ in seen(log)] == [f"k{number}" for number in range(8)] + ["z"]


def test_markers_outlive_their_data(log: PartitionLog) -> None:
    """KAFKA-8522: each stays until a pass meets no batch of its transaction, and then for delete.retention.ms."""
    one = Writer(log, 1)
    one.put(("a", "1"))
    one.end(commit=True)
    one.put(("b", "aborted"))
    one.end(commit=False)
    one.put(("a", "2"))
    one.end(commit=True)
    roll(log)
    put(log, ("x", "1"))
    stable = int(log.last_stable_offset(log.log_end_offset))
    compact(log, limit=stable)
    log.cleaned_to = type(log.cleaned_to)(0)
    assert markers(log) == [1, 3, 5]
    assert not any(header.has_delete_horizon for header in headers(log))
    compact(log, limit=stable, now_ms=NOW_MS + 5)
    log.cleaned_to = type(log.cleaned_to)(0)
    horizons = {one.base_offset: one.base_timestamp for one in headers(log) if one.has_delete_horizon}
    assert horizons == {1: NOW_MS + 1_005, 3: NOW_MS + 1_005}
    compact(log, limit=stable, now_ms=NOW_MS + 1_005)
    log.cleaned_to = type(log.cleaned_to)(0)
    assert markers(log) == [1, 3, 5]
    done = compact(log, limit=stable, now_ms=NOW_MS + 1_006)
    assert (markers(log), done.markers_removed) == ([5], 2)
    assert seen(log) == [("a", "2"), ("x", "1")]
    assert_no_hole(log)


def test_keys_that_look_like_a_marker_are_no_markers(log: PartitionLog) -> None:
    """A marker is never a key: a record of the same bytes takes none (krabka 0.8-dev), and none takes it."""
    one = Writer(log, 1)
    one.put(("a", "1"))
    one.end(commit=True)
    put(log, ("\0\0\0\1", "1"), ("\0\0\0\0", "1"))
    one.put(("b", "1"))
    one.end(commit=True)
    roll(log)
    compact(log, limit=int(log.last_stable_offset(log.log_end_offset)))
    assert markers(log) == [1, 5]
    assert seen(log) == [("a", "1"), ("\0\0\0\1", "1"), ("\0\0\0\0", "1"), ("b", "1")]


def test_the_last_marker_tells_a_producers_epoch(log: PartitionLog, tmp_path: Path) -> None:
    """A replica that begins with the compacted log fences who is fenced here (rule C2)."""
    one = Writer(log, 1)
    one.put(("a", "1"))
    one.end(commit=False)
    roll(log)
    for day in range(4):
        log.cleaned_to = type(log.cleaned_to)(0)
        compact(log, limit=int(log.last_stable_offset(log.log_end_offset)), now_ms=NOW_MS + day * 10**8)
    other = open_test_log(RealDisk(), tmp_path / "other", config=COMPACTED)
    read = log.read(0, 1 << 20, int(log.log_end_offset))
    assert read is not None
    other.append_as_follower(memoryview(bytearray(read.data)))
    [entry] = other.producers.entries()
    assert (entry.epoch, entry.coordinator_epoch) == (1, 0)


def test_what_was_aborted_is_known_after_a_pass(log: PartitionLog, tmp_path: Path) -> None:
    """By the cleaned segment's own index: for a reader that has got the records from the old one, and asks now."""
    one = Writer(log, 1)
    put(log, ("b", "1"))
    one.put(("a", "aborted"))
    roll(log)
    one.end(commit=False)
    roll(log)
    known = aborted(log, 0, 9)
    done = compact(log, limit=int(log.last_stable_offset(log.log_end_offset)))
    assert (done.removed, aborted(log, 0, 9), known) == (1, known, [AbortedTransaction(1, 1, 2, 3)])
    log.close()
    again = open_test_log(RealDisk(), tmp_path / "log", config=COMPACTED, last_life=LastLife(clean=True))
    assert (seen(again), aborted(again, 0, 9)) == ([("b", "1")], known)


@pytest.mark.parametrize("damage", ["other", "unused", "first", "missing"])
def test_a_damaged_index_removes_nothing(log: PartitionLog, tmp_path: Path, damage: str) -> None:
    """A flipped bit, so that another is named as aborted, one that is not there, or a part; or the file has gone."""
    put(log, ("a", "1"))
    one, other = Writer(log, 1), Writer(log, 3)
    one.put(("a", "aborted"))
    one.put(("c", "aborted"))
    other.put(("b", "1"))
    one.end(commit=False)
    roll(log)
    other.put(("b", "2"))
    other.end(commit=True)
    roll(log)
    log.close()
    [path] = (tmp_path / "log").glob("*.txnindex")
    data = path.read_bytes()
    at, bit = {"other": (9, 2), "unused": (9, 8), "first": (17, 3), "missing": (0, 0)}[damage]
    path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
    if damage == "missing":
        path.unlink()
    again = open_test_log(RealDisk(), tmp_path / "log", config=COMPACTED, last_life=LastLife(clean=True))
    before = again.size_bytes
    with pytest.raises(KafkaError) as caught:
        compact(again, limit=int(again.log_end_offset))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert again.size_bytes == before
