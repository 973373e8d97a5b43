"""Cost of faults: how long no partition's record was acknowledged."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from strandline.chaos.checkers.history import Partition, Send

NO_FAULT = "(none)"
"""The times between faults, as a kind: what a gap is anyway."""


@dataclass
class Window:
    """One fault, from its strike until the cluster was whole again. Times in milliseconds of the machine's clock."""

    kind: str
    began_ms: float
    undone_ms: float = 0.0
    whole_ms: float = 0.0


@dataclass
class AckTimes:
    """Times at which each partition's records were acknowledged under acks=all, by whomever."""

    times_ms: dict[Partition, list[float]] = field(default_factory=dict)

    def note(self, sends: Iterable[Send]) -> None:
        """Note sends that have ended."""
        for send in sends:
            if send.acked:
                insort(self.times_ms.setdefault(send.partition, []), send.completed_ms)

    def gap_ms(self, partition: Partition, begin_ms: float, end_ms: float) -> float:
        """The longest time without an ack that touches [begin, end], from the last ack before to the first after."""
        times = self.times_ms.get(partition, [])
        first = max(0, bisect_right(times, begin_ms) - 1)
        last = min(len(times), bisect_left(times, end_ms) + 1)
        return max((after - before for before, after in pairwise(times[first:last])), default=end_ms - begin_ms)

    def quiet_gap_ms(self, partition: Partition, begin_ms: float, end_ms: float) -> float:
        """The longest time without an ack within [begin, end] alone."""
        times = self.times_ms.get(partition, [])
        inside = times[bisect_left(times, begin_ms) : bisect_right(times, end_ms)]
        return max(after - before for before, after in pairwise([begin_ms, *inside, end_ms]))

    def acked_since(self, partition: Partition, since_ms: float) -> bool:
        """Whether the partition had an ack since then."""
        times = self.times_ms.get(partition)
        return times is not None and times[-1] >= since_ms

    def within(self, begin_ms: float, end_ms: float) -> int:
        """Number of acks in [begin, end]."""
        return sum(bisect_right(times, end_ms) - bisect_left(times, begin_ms) for times in self.times_ms.values())


def table(windows: list[Window], acks: AckTimes, partitions: list[Partition]) -> list[dict[str, Any]]:
    """One row a kind, milliseconds: `times`, `gap_median_ms` and `gap_max_ms` over faults and partitions,
    `whole_max_ms`, from the undoing until every replica was in sync, and `acks` meanwhile."""
    rows = []
    kinds: dict[str, list[Window]] = {}
    for window in windows:
        kinds.setdefault(window.kind, []).append(window)
    for kind in sorted(kinds, key=lambda kind: (kind == NO_FAULT, kind)):
        mine = kinds[kind]
        measure = acks.quiet_gap_ms if kind == NO_FAULT else acks.gap_ms
        gaps = [measure(where, one.began_ms, one.whole_ms) for one in mine for where in partitions]
        rows.append(
            {
                "fault": kind,
                "times": len(mine),
                "gap_median_ms": round(median(gaps)),
                "gap_max_ms": round(max(gaps)),
                "whole_max_ms": round(max(one.whole_ms - one.undone_ms for one in mine)),
                "acks": sum(acks.within(one.began_ms, one.whole_ms) for one in mine),
            }
        )
    return rows
