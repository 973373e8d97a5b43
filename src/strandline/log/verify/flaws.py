"""Flaws: what can be wrong in a log directory, and what a start of its node does about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """Kind of a flaw."""

    BATCH = "batch"
    """Bytes that are no batch, or not the one that was written there: a torn end, or rot."""
    GAP = "gap"
    """A segment does not begin where the one before it ends."""
    EPOCHS = "leader-epochs"
    INDEX = "index"
    TIME_INDEX = "time-index"
    ABORTED_INDEX = "aborted-index"
    SNAPSHOT = "producer-snapshot"
    CHECKPOINT = "checkpoint"
    IDENTITY = "identity"
    """The file that says whose directory it is, or which topic's."""
    SHORT = "short"
    """The checkpoints prove that more was durable here than there is."""
    QUORUM = "quorum"
    """A file of the metadata quorum."""
    LEFT_OVER = "left-over"


class AtStart(StrEnum):
    """Action of a start upon a flaw."""

    CUT = "cut"
    """The log is cut there, and the controller learns of it."""
    HEAL = "heal"
    """A start builds it anew, or the replica fetches it again from another one."""
    REMOVE = "remove"
    REFUSE = "refuse"
    """The log, or the node, is not started with it."""
    IGNORE = "ignore"
    """A start leaves it as it is; it does no harm."""
    BELIEVE = "believe"
    """Nothing notices: answers may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One thing that is wrong.

    Attributes:
        file: path in the directory.
        partition: `topic-partition`; empty for what is of the directory itself.
        found: what is wrong, in words.
        position: byte in the file; -1 where none is meant.
        offset: of the first record that it concerns; -1 where none is meant.
        next_offset: the first one behind that is whole; -1: none is.
        does: what a start does, and what helps where that does not, in words.
    """

    file: str
    partition: str
    kind: Kind
    found: str
    position: int = -1
    offset: int = -1
    next_offset: int = -1
    at_start: AtStart = AtStart.IGNORE
    does: str = ""


@dataclass(slots=True)
class Counted:
    """Amount that was looked at."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0


FLAWS_MAX = 1000
"""Flaws told of one partition: a disk that gives back noise must not fill the memory. What is beyond is counted."""


@dataclass(slots=True)
class FlawList:
    """The flaws of one partition, in the order in which they were met."""

    flaws: list[Flaw] = field(default_factory=list)
    left_out: int = 0

    def add(self, flaw: Flaw) -> None:
        """Note one."""
        if len(self.flaws) < FLAWS_MAX:
            self.flaws.append(flaw)
        else:
            self.left_out += 1
