"""What compaction may take, by the checkers: where tombstones go, what they deleted has gone before (rule B28)."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.chaos.checkers.batches import StoredRecord
from strandline.chaos.checkers.compacted import CompactedRecords, compare_compacted, tombstones_go
from strandline.chaos.checkers.handled import HandledRecords
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.markers import Ends
from strandline.log.config import LogConfig

TOPIC = UUID(int=1)
OLD, OTHER = StoredRecord(0, b"k", b"old"), StoredRecord(1, b"other", b"v")
TOMBSTONE, LATER = StoredRecord(2, b"k", None), StoredRecord(3, b"k", b"later")


def seen(*records: StoredRecord) -> CompactedRecords:
    """All of them were seen on some replica."""
    known = CompactedRecords()
    known.seen = {record.offset: record for record in records}
    return known


@pytest.mark.parametrize("go", [False, True])
@pytest.mark.parametrize(
    ("here", "may_be", "only_where_they_go"),
    [
        ([OLD, OTHER, TOMBSTONE], True, False),
        ([OTHER, TOMBSTONE], True, False),
        ([OTHER], True, True),
        ([OLD, OTHER], False, False),
        ([TOMBSTONE], False, False),
    ],
)
def test_a_replica_without_a_tombstone(
    here: list[StoredRecord], go: bool, may_be: bool, only_where_they_go: bool
) -> None:
    """It may be gone, with all before it of its key; nothing else may."""
    known = seen(OLD, OTHER, TOMBSTONE)
    if may_be and (go or not only_where_they_go):
        known.check("Prefix", here, 0, 4, tombstones_go=go)
    else:
        with pytest.raises(InvariantViolated):
            known.check("Prefix", here, 0, 4, tombstones_go=go)


def test_a_value_that_follows_on_a_tombstone_stays() -> None:
    with pytest.raises(InvariantViolated):
        seen(OLD, OTHER, TOMBSTONE, LATER).check("Prefix", [OTHER], 0, 4, tombstones_go=True)


def test_what_supersedes_a_record_may_still_be_fetched() -> None:
    """A follower catches up with a leader whose log is compacted further than it has come (seed 16000123)."""
    known = seen(OLD, OTHER, TOMBSTONE)
    known.check("Prefix", [OTHER], 0, 2, tombstones_go=False, catches_up=True)
    with pytest.raises(InvariantViolated):
        known.check("Prefix", [OTHER], 0, 2, tombstones_go=False)


def test_replicas_differ_by_tombstones_alone() -> None:
    logs = {"n1": [OTHER, TOMBSTONE], "n2": [OTHER]}
    compare_compacted("t-0", logs, 4, "Identical", tombstones_go=True)
    for differing, go in ((logs, False), ({"n1": [OTHER, TOMBSTONE], "n2": [OLD, OTHER]}, True)):
        with pytest.raises(InvariantViolated):
            compare_compacted("t-0", differing, 4, "Identical", tombstones_go=go)


def test_which_topics_lose_tombstones_within_a_run() -> None:
    assert not tombstones_go(LogConfig())
    assert tombstones_go(LogConfig(delete_retention_ms=1_000))


def ledger(*acked: tuple[int, str]) -> HandledRecords:
    """These were acknowledged."""
    made = HandledRecords()
    for offset, value in acked:
        made.ack(TOPIC, 0, offset, value)
    return made


ACKED = ((0, "k=old"), (1, "other=v"), (2, "k="))


@pytest.mark.parametrize(
    ("stored", "tombstones", "violated"),
    [
        ({0: "k=old", 1: "other=v", 2: "k="}, {}, ""),
        ({1: "other=v", 2: "k="}, {}, ""),
        ({1: "other=v"}, {}, "CompactedTooMuch"),
        ({1: "other=v"}, {"k": 1}, ""),
        ({0: "k=old", 1: "other=v"}, {"k": 1}, "DeletedKeyIsBack"),
        ({2: "k="}, {"k": 1}, "CompactedTooMuch"),
        ({}, {"k": 1, "other": 1}, ""),
    ],
)
def test_what_clients_find(stored: dict[int, str], tombstones: dict[str, int], violated: str) -> None:
    """`other` may have a tombstone that was sent, never acknowledged, written all the same, and has gone."""
    found = {(0, offset): value for offset, value in stored.items()}
    if not violated:
        ledger(*ACKED).check_compacted(TOPIC, found, tombstones)
        return
    with pytest.raises(InvariantViolated) as caught:
        ledger(*ACKED).check_compacted(TOPIC, found, tombstones)
    assert caught.value.name == violated


def test_records_of_aborted_transactions_count_for_nothing() -> None:
    """One may be gone, and takes no older record with it; before its marker it is a record like others."""
    ends = Ends()
    ends.wrote(7, TOMBSTONE.offset)
    seen(OLD, OTHER, TOMBSTONE).check("Prefix", [OTHER, TOMBSTONE], 0, 4, tombstones_go=False, ends=ends)
    ends.ended(7, 3, commits=False)
    seen(OLD, OTHER, TOMBSTONE).check("Prefix", [OLD, OTHER], 0, 4, tombstones_go=False, ends=ends)
    with pytest.raises(InvariantViolated):
        seen(OLD, OTHER, TOMBSTONE).check("Prefix", [OTHER, TOMBSTONE], 0, 4, tombstones_go=False, ends=ends)
    ends.ended(7, 3, commits=True)
    with pytest.raises(InvariantViolated):
        seen(OLD, OTHER, TOMBSTONE).check("Prefix", [OLD, OTHER], 0, 4, tombstones_go=False, ends=ends)
