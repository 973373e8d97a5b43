"""Compacted partitions: each replica compacts by itself, so that their bytes differ. What must be equal are the records
that are there; and what is not there has a later record of its key. Nothing else may vanish.

Records of aborted transactions count for nothing: they may go, and take no other record with them (rule C11).

Most runs keep tombstones (`delete.retention.ms` is longer than they last), so a tombstone is a record like others.
Where they go, one that went has taken all that lies before it of its key: else that is back (rule B28).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.chaos.checkers.batches import NotABatch, StoredRecord, records
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.markers import Ends, ends_of
from strandline.chaos.checkers.stored import stored_batches
from strandline.chaos.sim.disk import SimDisk
from strandline.log.config import LogConfig

SHOWN_MAX = 10
_KEPT_MS = LogConfig().delete_retention_ms


class CompactedRecords:
    """All committed records of one compacted partition that were seen anywhere in a run."""

    def __init__(self) -> None:
        self.seen: dict[int, StoredRecord] = {}
        self.ends = Ends()
        """Transactions and markers that were seen on any replica."""

    def check(
        self,
        name: str,
        stored: Iterable[StoredRecord],
        low: int,
        high: int,
        *,
        tombstones_go: bool,
        catches_up: bool = False,
        ends: Ends | None = None,
        **facts: object,
    ) -> None:
        """`stored`: all records of one replica's log; those in [low, high) are committed. `name` is the invariant's.
        `ends`: the transactions of that log, and how they ended.
        `catches_up`: it ends before what is committed, and its leader's log is compacted: what supersedes a record that
        is not here may still come.

        Raises:
            InvariantViolated: one differs from what was seen, or has vanished although no later one has its key.
        """
        self.ends.learn(ends)
        here = {record.offset: record for record in stored}
        last = {record.key: record.offset for record in here.values() if not self.ends.aborted(record.offset)}
        for offset, record in here.items():
            if low <= offset < high and self.seen.setdefault(offset, record) != record:
                facts |= {"offset": offset, "here": record, "elsewhere": self.seen[offset]}
                raise InvariantViolated(name, "committed records differ", **facts)
        if catches_up:
            return
        gone = [
            record
            for offset, record in self.seen.items()
            if low <= offset < high
            and offset not in here
            and last.get(record.key, -1) < offset
            and not self.ends.aborted(offset)
        ]
        if gone and tombstones_go:
            deleted = {record.key for record in gone if record.value is None and record.key not in last}
            newest = {
                record.key: record
                for _, record in sorted(self.seen.items())
                if record.offset < high and not self.ends.aborted(record.offset)
            }
            gone = [one for one in gone if one.key not in deleted or newest[one.key].value is not None]
        if gone:
            facts |= {"count": len(gone), "records": gone[:SHOWN_MAX]}
            raise InvariantViolated(name, "compaction took records that nothing supersedes", **facts)


def tombstones_go(config: LogConfig) -> bool:
    """True if compaction takes tombstones within a run."""
    return config.delete_retention_ms < _KEPT_MS


def stored_records(disk: SimDisk, directory: str) -> tuple[list[StoredRecord], Ends]:
    """All records of a partition's log but its markers, in order, up to a torn end; and how its transactions ended."""
    found: list[StoredRecord] = []
    ends = Ends()
    try:
        for batch, content in stored_batches(disk, directory):
            inside = records(batch, content)
            if not ends_of(ends, inside, content):
                found += inside
    except NotABatch:
        pass  # what is below the log's end was looked at before
    return found, ends


def compare_compacted(
    directory: str, logs: Mapping[str, list[StoredRecord]], end: int, invariant: str, *, tombstones_go: bool
) -> None:
    """At the end of a run: below `end`, which is committed everywhere, all replicas have the same last record of each
    key, but for those that hold a later one already; or none, where it is a tombstone. Raises InvariantViolated."""
    union: dict[int, StoredRecord] = {}
    for name, found in logs.items():
        for record in found:
            if record.offset < end and union.setdefault(record.offset, record) != record:
                facts = {"partition": directory, "node": name, "here": record, "elsewhere": union[record.offset]}
                raise InvariantViolated(invariant, "committed records differ", **facts)
    last = {union[offset].key: union[offset] for offset in sorted(union)}
    for name, found in logs.items():
        own = {record.key: record.offset for record in found}
        lacking = [
            record
            for key, record in last.items()
            if own.get(key, -1) < record.offset and not (tombstones_go and record.value is None and key not in own)
        ]
        if lacking:
            lacks = {"partition": directory, "node": name, "below": end, "lacks": lacking[:SHOWN_MAX]}
            raise InvariantViolated(invariant, "the last record of a key is not there", **lacks)
