"""Findings: what recovery found in a node's logs, reported to the controller, which decides with them which replica may
lead after a crash.

A finding must not be lost before the controller has it. A log whose tail was cut, or a partition made anew for a
missing one, looks whole to the next start. So findings that are not intact are written to `recovery-findings` first,
and stay there until the registration that reported them is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import structlog

from strandline.log.checkpoints import decode_checked, encode_checked
from strandline.log.disk import Disk, read_file, write_file_durably
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import NO_EPOCH, ZERO_UUID, LeaderEpoch, Offset, TopicId, TopicPartition

log = structlog.get_logger("strandline.log")

FINDINGS = "recovery-findings"

UNKNOWN_END = Offset(-1)
"""End offset of a log that could not be opened."""


class LogCondition(IntEnum):
    """Degrees of damage to a log, from best to worst. The numbers are used on the wire and on disk."""

    INTACT = 0
    """Every byte that recovery read is part of a whole batch, up to zeros or the end of the file."""
    CUT = 1
    """A tail that was not zeros was cut: a torn write or a rotten batch, which look alike."""
    LACKING = 2
    """The log ends below what the directory's own checkpoints prove, is missing though they name it, or was refused; or
    its whole directory was replaced, taken away, or is an older copy."""
    AWAY = 3
    """Its directory, one of several, is offline: nothing is known of the log, and it is not served."""


@dataclass(frozen=True, slots=True)
class RecoveryFinding:
    """Finding about one partition's log.

    Attributes:
        topic_id: topic's id; zero if it is not known, as the directory is gone.
        log_end_offset: end after recovery; -1 if the log cannot be used.
        last_epoch: leader epoch of the last record; -1 if there is none, or the log cannot be used.
    """

    topic_id: TopicId
    log_end_offset: Offset
    last_epoch: LeaderEpoch
    condition: LogCondition


NOTHING_LEFT = RecoveryFinding(ZERO_UUID, UNKNOWN_END, NO_EPOCH, LogCondition.LACKING)


class Findings:
    """Findings of this start, made worse by those of earlier starts that the controller does not have yet.

    Invariants:
    - after `keep`, every finding that is not intact is durable;
    - findings leave the file only by `committed`.
    """

    def __init__(self, disk: Disk, directory: str, present: Iterable[TopicPartition]) -> None:
        """`present`: the partitions that have a directory."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{FINDINGS}"
        self._found: dict[TopicPartition, RecoveryFinding] = {}
        self._earlier = self._read(present)  # schedule 45/earlier-findings-are-not-read
        self._kept = dict(self._earlier)

    def _read(self, present: Iterable[TopicPartition]) -> dict[TopicPartition, LogCondition]:
        """Read the findings of earlier starts. If the file does not parse, every log counts as cut, so that none looks
        better than it is."""
        if not self._disk.exists(self._path):
            return {}
        advice = "Nothing is to be done: every log here counts as cut."
        try:
            return dict(decode_checked(self._path, read_file(self._disk, self._path), _entry, advice))
        except CorruptLogError as error:
            log.error("what earlier starts found cannot be read", error=str(error))
            return dict.fromkeys(present, LogCondition.CUT)

    def add(self, tp: TopicPartition, finding: RecoveryFinding) -> None:
        """Add a finding. It does not improve one of an earlier start, or an earlier one of this start."""
        known = self._found.get(tp)
        worst = max(
            finding.condition,
            self._earlier.get(tp, LogCondition.INTACT),
            LogCondition.INTACT if known is None else known.condition,
        )
        self._found[tp] = RecoveryFinding(finding.topic_id, finding.log_end_offset, finding.last_epoch, worst)

    def add_missing(self, proven: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Add the partitions that have no log here: those `proven` by the checkpoints, and those of earlier starts.
        Return the former."""
        lacking = [tp for tp in proven if tp not in self._found]
        for tp in lacking:
            self._found[tp] = NOTHING_LEFT
        for tp, condition in self._earlier.items():
            if tp not in self._found:
                self._found[tp] = RecoveryFinding(ZERO_UUID, UNKNOWN_END, NO_EPOCH, condition)
        return lacking

    @property
    def all(self) -> Mapping[TopicPartition, RecoveryFinding]:
        """Findings to report."""
        return self._found

    def unkept(self) -> list[TopicPartition]:
        """Return the partitions whose finding is worse than the one on disk."""
        return [
            tp for tp, finding in self._found.items() if finding.condition > self._kept.get(tp, LogCondition.INTACT)
        ]

    def keep(self) -> None:
        """Make the findings durable, before a tail is cut or a partition is made anew. Raises DiskError."""
        if self.unkept():  # schedule 45/findings-are-not-kept
            worse = {tp: one.condition for tp, one in self._found.items() if one.condition > LogCondition.INTACT}
            lines = (f"{tp.topic} {tp.partition} {worse[tp].name.lower()}" for tp in sorted(worse))
            write_file_durably(self._disk, self._path, encode_checked(lines))
            self._kept = worse

    def drop(self, tp: TopicPartition) -> None:
        """Drop a partition's finding, because the partition lies in another directory of the node."""
        self._found.pop(tp, None)

    def distrust(self, tp: TopicPartition) -> None:
        """Mark a log as lacking records, whatever it looks like, because it is an older copy."""
        self._found[tp] = replace(self._found[tp], condition=LogCondition.LACKING)

    def committed(self) -> None:
        """Forget the findings, and their file: the controller has them in the metadata. Raises DiskError."""
        self._found.clear()
        self._earlier.clear()
        if self._disk.exists(self._path):
            self._disk.unlink(self._path)  # schedule 45/findings-are-told-for-ever
            self._disk.sync_dir(self._directory)
        self._kept = {}


def _entry(line: str) -> tuple[TopicPartition, LogCondition]:
    topic, partition, condition = line.split()
    try:
        return TopicPartition(topic, int(partition)), LogCondition[condition.upper()]
    except KeyError:
        raise ValueError(condition) from None
