"""Flaws that can be found in a log directory, and what a node does about them when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """Kind of a flaw."""

    BATCH = "batch"
    """Bytes that are not a valid batch, or not the batch that was written: a torn end, or rot."""
    GAP = "gap"
    """A segment does not begin at the offset where the one before ends."""
    EPOCHS = "leader-epochs"
    INDEX = "index"
    TIME_INDEX = "time-index"
    ABORTED_INDEX = "aborted-index"
    SNAPSHOT = "producer-snapshot"
    CHECKPOINT = "checkpoint"
    IDENTITY = "identity"
    """The file with the ids of the directory's cluster and node, or of the partition's topic."""
    SHORT = "short"
    """The log ends before an offset that the checkpoints say was durable."""
    QUORUM = "quorum"
    """A file of the metadata quorum."""
    LEFT_OVER = "left-over"


class AtStart(StrEnum):
    """Reaction of a starting node to a flaw."""

    CUT = "cut"
    """The node truncates the log at the flaw, and reports that to the controller."""
    HEAL = "heal"
    """The node rebuilds the file, or fetches the data again from another replica."""
    REMOVE = "remove"
    REFUSE = "refuse"
    """The node does not start, or leaves this log closed."""
    IGNORE = "ignore"
    """The node leaves the flaw as it is; it does no harm."""
    BELIEVE = "believe"
    """The node does not notice the flaw, and its answers may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One flaw: something wrong with a file.

    Attributes:
        file: path of the file, relative to the directory.
        partition: `topic-partition`; "" for a file of the directory itself.
        found: what is wrong, as a sentence.
        position: byte position in the file; -1 if it does not apply.
        offset: offset of the first damaged record; -1 if it does not apply.
        next_offset: offset of the first intact record after the damage; -1 if there is none.
        does: what the node does when it starts, and what an operator can do, as a sentence.
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
    """Amounts of data checked."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0


FLAWS_MAX = 1000
"""Maximum flaws listed for one partition; the others are only counted. A disk full of garbage must not fill memory."""


@dataclass(slots=True)
class FlawList:
    """Flaws of one partition, in the order in which they were found."""

    flaws: list[Flaw] = field(default_factory=list)
    left_out: int = 0

    def add(self, flaw: Flaw) -> None:
        """Add a flaw, or count it if the list is full."""
        if len(self.flaws) < FLAWS_MAX:
            self.flaws.append(flaw)
        else:
            self.left_out += 1
