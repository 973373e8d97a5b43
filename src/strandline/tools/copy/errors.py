"""Errors of a copy: what it refuses to do, and what it finds.

ClientError
└── CopyError
    ├── CopyRefused       it cannot be done as asked: nothing was written
    ├── RecordsDeleted    records were deleted from the source before they were copied
    ├── SourceCut         the source's log was cut before records that were copied
    ├── ForeignRecords    somebody else writes into the target
    ├── CopyChanged       what the target holds is not what the round writes: the copy is not the one that was begun
    └── CopyTakenOver     another copy was started, and goes on where this one was
"""

from __future__ import annotations

from typing import Any

from strandline.client.errors import ClientError
from strandline.proto.ids import TopicPartition


def anew_words(target: str, group: str) -> str:
    """Advice on how to begin a copy anew."""
    return f"To begin anew: strandline topic delete {target} --yes; strandline group delete {group} --yes"


class CopyError(ClientError):
    """A copy cannot go on. What is written stays; the same copy started again goes on from there."""


class CopyRefused(CopyError):
    """The copy cannot be done as asked, and nothing was written."""


class RecordsDeleted(CopyError):
    """The records from `start` up to, not including, `end` of a source partition were deleted before their copy."""

    def __init__(self, place: TopicPartition, start: int, end: int) -> None:
        self.place = place
        self.start = start
        self.end = end
        super().__init__(
            f"{place}: the records of offsets {start} to {end - 1} were deleted (by retention, or by a trim) before "
            "they were copied. --accept-deleted (accept_deleted=True) goes on without them"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.place, self.start, self.end))


class SourceCut(CopyError):
    """The copy has read a source partition up to `position`, and its log has other records from `cut_at` on since."""

    def __init__(self, place: TopicPartition, position: int, cut_at: int, target: str, group: str) -> None:
        self.place = place
        self.position = position
        self.cut_at = cut_at
        self.target = target
        self.group = group
        super().__init__(
            f"{place}: it was read up to offset {position}, but its log was cut at offset {cut_at} since, and has "
            "other records from there on: by an unclean election, or a restore that lost its newest. The copy has "
            f"records that the source has no longer. {anew_words(target, group)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.place, self.position, self.cut_at, self.target, self.group))


class ForeignRecords(CopyError):
    """A record at `offset` of a target partition was not written by the copy of `group`."""

    def __init__(self, place: TopicPartition, offset: int, group: str) -> None:
        self.place = place
        self.offset = offset
        self.group = group
        super().__init__(
            f"{place}: at offset {offset} lies a record that this copy has not written: somebody else writes into "
            f"{place.topic}. Keys keep their order only where the copy writes alone, so it ends here. If it had come "
            f"to its end before and the topic is in use, leave all as it is. {anew_words(place.topic, group)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.place, self.offset, self.group))


class CopyChanged(CopyError):
    """A record at `offset` of a target partition was written by this copy, which would write another one there now."""

    def __init__(self, place: TopicPartition, offset: int, group: str) -> None:
        self.place = place
        self.offset = offset
        self.group = group
        super().__init__(
            f"{place}: at offset {offset} lies another record than this copy writes there. Was it begun with another "
            "transform, or with one that is not deterministic? Then finish it as it was begun. "
            f"{anew_words(place.topic, group)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.place, self.offset, self.group))


class CopyTakenOver(CopyError):
    """Another copy with the same group was started: it goes on, and this one ends. Nothing is written twice."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(
            f"another copy was started with the group {group}: it goes on where this one was, and this one ends. "
            "Nothing is lost or written twice"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.group,))
