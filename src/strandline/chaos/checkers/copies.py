"""Invariants of where the committed records are (kafka-tlaplus kip_966_properties), and of what readers are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from strandline.chaos.checkers.batches import NotABatch
from strandline.chaos.checkers.history import Partition, Poll, Value
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.partitions import Known
from strandline.chaos.checkers.stored import find_directory, segments_in, stored_headers
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_names import DirNode


class CopyChecks:
    """Checks of where committed records are.

    - LeaderCandidateCompleteness: every member of the committed ISR and ELR that the controller could elect now has
      everything that was ever committed, elected or not; of the ELR but those whose disk did not give back a tail.
    - InDoubtCompleteness: where the ISR is empty, one of the eligible or of the members in doubt has it: so has the
      leader for the greatest log of them.
    - NoCommittedRecordLostGlobally: some disk has it, whether its node lives or not.
    """

    def check_candidates(self, known: Known, candidates: Iterable[int], log_ends: Mapping[int, int]) -> None:
        """`log_ends`: log end offsets of the brokers whose running process is the registered one."""
        for node in candidates:
            end = log_ends.get(int(node), known.committed_end)
            if end < known.on_disks_end:
                facts = {"partition": known.name, "node": int(node), "log_end": end, "committed": known.committed_end}
                raise InvariantViolated("LeaderCandidateCompleteness", "a member of ISR or ELR lacks records", **facts)

    def check_in_doubt(
        self,
        known: Known,
        members: Iterable[int],
        log_ends: Mapping[int, int],
        others: Mapping[int, tuple[SimDisk, str]],
    ) -> None:
        """`members` eligible or in doubt of a partition whose ISR is empty; the others as in `check_somewhere`."""
        counting = {int(node) for node in members}
        ends = {node: end for node, end in log_ends.items() if node in counting}
        places = {node: place for node, place in others.items() if node in counting}
        if counting and not self._is_somewhere(known, ends, places):
            facts = {"partition": known.name, "committed": known.committed_end, "in_doubt": sorted(counting)}
            raise InvariantViolated("InDoubtCompleteness", "no member in doubt has all committed records", **facts)

    def check_somewhere(
        self, known: Known, log_ends: Mapping[int, int], others: Mapping[int, tuple[SimDisk, str]]
    ) -> None:
        """`log_ends` of those who have opened their logs; disk and directory of the `others`, dead or about to."""
        if self._is_somewhere(known, log_ends, others):
            return
        facts = {"partition": known.name, "committed": known.committed_end, "log_ends": dict(log_ends)}
        raise InvariantViolated("NoCommittedRecordLostGlobally", "no disk has all committed records", **facts)

    def _is_somewhere(
        self, known: Known, log_ends: Mapping[int, int], others: Mapping[int, tuple[SimDisk, str]]
    ) -> bool:
        return max(log_ends.values(), default=0) >= known.on_disks_end or any(
            _has(disk, directory, known) for disk, directory in others.values()
        )


def _has(disk: SimDisk, directory: str, known: Known) -> bool:
    """True if the log has the last committed batch or, where all of them were deleted, the empty segment that begins
    behind them."""
    end = known.committed_end
    if known.log_start >= end:
        node = find_directory(disk, directory)
        if isinstance(node, DirNode) and any(base >= end for base, _ in segments_in(node)):
            return True
    try:
        return any(header.next_offset >= end for header, _ in stored_headers(disk, directory, start=end - 1))
    except NotABatch:
        return False  # a torn end, before which it is not


class ConsistentRead:
    """Check of reads: a record that was read at an offset is the only one ever read there (kafka-tlaplus
    kip_966_properties)."""

    def __init__(self) -> None:
        self._shown: dict[tuple[Partition, int], Value] = {}
        self._looked = 0

    def check(self, polls: Sequence[Poll]) -> None:
        """Check all polls so far: looks at those that came since."""
        for poll in polls[self._looked :]:
            for partition, offset, value in poll.records:
                shown = self._shown.setdefault((partition, offset), value)
                if shown != value:
                    facts = {"partition": str(partition), "offset": offset, "values": [shown, value]}
                    raise InvariantViolated("ConsistentRead", f"{poll.process} is shown another record", **facts)
        self._looked = len(polls)
