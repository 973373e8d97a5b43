"""Checks of services: every acknowledged record of a topic that lives is handled, and none is skipped.

| violation | says |
|---|---|
| HandledAtLeastOnce | an acknowledged record of a living topic was not handled by its group, and is no dead letter |
| CommittedUnhandled | the group has committed past a record that nobody has handled |
| CopiedOnce | a copy's target holds other records than its source, or one of them twice |
| AckedIsStored | a record is not where its acknowledgement said |
| DeletedIsGone | a record is there whose deletion was answered |
| CompactedTooMuch | compaction took a record that no later one of its key supersedes |
| DeletedKeyIsBack | a tombstone's time was over and it has gone, and a record before it of its key is there |
| TailMissesNothing | a consumer that began at the end has gone past an acknowledged record that it was not given |
| ExpiredTooMuch | retention.bytes took more than what was too much |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from uuid import UUID

from strandline.chaos.checkers.invariant import InvariantViolated

SHOWN_MAX = 10
"""Maximum values listed per violation."""


@dataclass
class HandledRecords:
    """Promises to clients, and what became of them, over all incarnations of their process.

    Args:
        may_die: of a value: its handler may give up on it, so that it goes to the dead letters.
    """

    may_die: Callable[[str], bool] = lambda _: False
    handled: set[str] = field(default_factory=set)
    """Values whose handler came to its end, at least once."""
    acked: dict[tuple[UUID, int], dict[int, str]] = field(default_factory=dict)
    """(topic id, partition) -> offset -> value, acknowledged by all in-sync replicas."""
    deleted: dict[UUID, None] = field(default_factory=dict)
    """Topics whose deletion was asked for."""

    def ack(self, topic_id: UUID, partition: int, offset: int, value: str) -> None:
        """Note that a record was acknowledged."""
        self.acked.setdefault((topic_id, partition), {})[offset] = value

    def values(self, topic_id: UUID) -> Iterator[str]:
        """All that was acknowledged of a topic."""
        for (known, _), values in self.acked.items():
            if known == topic_id:
                yield from values.values()

    def ends(self, topic_id: UUID) -> dict[int, int]:
        """End behind the last acknowledged record of each partition."""
        return {partition: max(values) + 1 for (known, partition), values in self.acked.items() if known == topic_id}

    def unhandled(self, topic_id: UUID) -> list[str]:
        """Values that were acknowledged, are not handled yet, and are no case for the dead letters."""
        return [value for value in self.values(topic_id) if value not in self.handled and not self.may_die(value)]

    def check_committed(self, group: str, topic_id: UUID, partition: int, offset: int) -> None:
        """Check a group's committed offset, read after all that was handled up to now. Raises InvariantViolated."""
        skipped = [
            (at, value)
            for at, value in sorted(self.acked.get((topic_id, partition), {}).items())
            if at < offset and value not in self.handled and not self.may_die(value)
        ]
        if skipped:
            facts = {"group": group, "topic_id": topic_id, "partition": partition, "skipped": skipped[:SHOWN_MAX]}
            raise InvariantViolated("CommittedUnhandled", f"offset {offset} is committed", **facts)

    def check_at_the_end(self, topic_id: UUID, letters: Iterable[str]) -> None:
        """Check at the end, when everything was read to its end. Raises InvariantViolated."""
        dead = set(letters)
        missing = [value for value in self.values(topic_id) if value not in self.handled and value not in dead]
        if missing:
            facts = {"topic_id": topic_id, "count": len(missing), "values": missing[:SHOWN_MAX]}
            raise InvariantViolated("HandledAtLeastOnce", "acknowledged records came to nobody", **facts)

    def check_stored(self, topic_id: UUID, stored: Mapping[tuple[int, int], str]) -> None:
        """`stored`: (partition, offset) -> value, of the whole topic. Raises InvariantViolated."""
        for (known, partition), values in self.acked.items():
            for offset, value in values.items() if known == topic_id else ():
                found = stored.get((partition, offset))
                if found != value:
                    facts = {"partition": partition, "offset": offset, "acked": value, "found": found}
                    raise InvariantViolated("AckedIsStored", "another record is there, or none", **facts)

    def check_trimmed(self, topic_id: UUID, stored: Mapping[tuple[int, int], str], *, asked: int, deleted: int) -> None:
        """Check as `check_stored` does, for a topic of one partition: what was asked to be deleted, below `asked`,
        may be gone; what was answered to be, below `deleted`, is. Raises InvariantViolated."""
        kept = {(0, offset): value for offset, value in self.acked.get((topic_id, 0), {}).items() if offset < asked}
        self.check_stored(topic_id, kept | dict(stored))
        back = sorted(offset for _, offset in stored if offset < deleted)
        if back:
            facts = {"deleted_before": deleted, "offsets": back[:SHOWN_MAX]}
            raise InvariantViolated("DeletedIsGone", "deleted records are there", **facts)

    def check_tail(self, topic_id: UUID, began: int, position: int, seen: Set[int]) -> None:
        """Check a consumer of a topic of one partition: it stood at `began` first, stands at `position` now, and was
        given the records at the offsets `seen`. Raises InvariantViolated."""
        acked = self.acked.get((topic_id, 0), {})
        passed = sorted(offset for offset in acked if began <= offset < position and offset not in seen)
        if passed:
            facts = {"began": began, "position": position, "passed": [(at, acked[at]) for at in passed[:SHOWN_MAX]]}
            raise InvariantViolated("TailMissesNothing", "acknowledged records passed a consumer by", **facts)

    def check_expired(self, topic_id: UUID, stored: Mapping[tuple[int, int], str], *, least: int) -> None:
        """Check as `check_stored` does, for a topic of one partition from whose front records go by its size: where
        some are gone, `least` records are left. Raises InvariantViolated."""
        start = min((offset for _, offset in stored), default=self.ends(topic_id).get(0, 0))
        if start and len(stored) < least:
            facts = {"start": start, "records": len(stored), "least": least}
            raise InvariantViolated("ExpiredTooMuch", "fewer records are left than the topic's size keeps", **facts)
        self.check_trimmed(topic_id, stored, asked=start, deleted=0)

    def check_compacted(
        self, topic_id: UUID, stored: Mapping[tuple[int, int], str], tombstones: Mapping[str, int]
    ) -> None:
        """Check a compacted topic of one partition, values as `key=value`: what was acknowledged is there, unless a
        later record of its key is, or was. `tombstones`: so many were sent of each key. Each may be gone, and then
        nothing of its key is there that lies before it. Raises InvariantViolated."""
        acked = self.acked.get((topic_id, 0), {})
        last: dict[str, int] = {}
        first: dict[str, int] = {}
        for (_, offset), value in sorted(stored.items()):
            last[_key(value)] = offset
            first.setdefault(_key(value), offset)
        deletions: dict[str, list[int]] = {}
        for offset, value in acked.items():
            if value == f"{_key(value)}=":
                deletions.setdefault(_key(value), []).append(offset)
        for offset, value in acked.items():
            key, found = _key(value), stored.get((0, offset))
            if found == value:
                continue
            facts = {"offset": offset, "acked": value, "found": found}
            if key in tombstones and offset in deletions.get(key, ()):
                if first.get(key, offset) < offset:
                    facts |= {"before": first[key]}
                    raise InvariantViolated(
                        "DeletedKeyIsBack", "its tombstone is gone, and what it deleted is not", **facts
                    )
                continue
            # One that was not acknowledged may have been written, and be gone.
            unsure = tombstones.get(key, 0) > len(deletions.get(key, ()))
            superseded = max((last.get(key, -1), *deletions.get(key, ()))) if key in tombstones else last.get(key, -1)
            if found is not None or (superseded < offset and not unsure):
                raise InvariantViolated("CompactedTooMuch", "another record is there, or none", **facts)


def _key(value: str) -> str:
    return value.partition("=")[0]


def check_copied(source: Sequence[str], target: Sequence[str]) -> None:
    """Each record of the source is in the target once, and nothing else. Raises InvariantViolated."""
    wanted, found = Counter(source), Counter(target)
    if wanted != found:
        facts = {
            "missing": sorted((wanted - found).elements())[:SHOWN_MAX],
            "too_many": sorted((found - wanted).elements())[:SHOWN_MAX],
        }
        raise InvariantViolated("CopiedOnce", "the copy differs from its source", **facts)
