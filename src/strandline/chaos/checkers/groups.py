"""Committed offsets of consumer groups never go back without a change of generation (rule E2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.chaos.checkers.history import Commit, OffsetRead, Partition, Status
from strandline.chaos.checkers.invariant import Anomaly
from strandline.chaos.checkers.order import Analysis


@dataclass(slots=True)
class _Floor:
    """Offset below which no read of a group's offset may be, in one generation."""

    generation: int
    offset: int = -1
    because: str = ""


def committed_offsets(analysis: Analysis) -> Iterator[Anomaly]:
    """committed-offset-back: within one generation, a read of the group's offset that began after a larger one had been
    acknowledged or read. A member that commits a smaller offset by its own will lowers what is demanded."""
    by_place: dict[tuple[str, Partition], list[tuple[float, int, int, Commit | OffsetRead]]] = {}
    columns = analysis.columns
    for number, commit in enumerate(columns.commits):
        events = by_place.setdefault((commit.group, commit.partition), [])
        events.append((commit.invoked_ms, 1, number, commit))
        if commit.status is Status.OK:
            events.append((commit.completed_ms, 0, number, commit))
    reads = {}
    for number, read in enumerate(columns.offset_reads):
        events = by_place.setdefault((read.group, read.partition), [])
        events.append((read.invoked_ms, 2, number, read))
        reads[id(read)] = _Floor(read.generation)
        events.append((read.completed_ms, 3, number, read))
    for (group, partition), events in by_place.items():
        yield from _walk(group, partition, sorted(events, key=lambda event: event[:3]), reads)


def _walk(
    group: str,
    partition: Partition,
    events: list[tuple[float, int, int, Commit | OffsetRead]],
    reads: dict[int, _Floor],
) -> Iterator[Anomaly]:
    floors: dict[int, _Floor] = {}
    began: list[OffsetRead] = []
    for _, kind, _, event in events:
        floor = floors.setdefault(event.generation, _Floor(event.generation))
        if isinstance(event, Commit) and kind == 1:
            if event.offset < floor.offset and event.status is not Status.FAIL:
                floor.offset, floor.because = event.offset, f"{event.process} committed {event.offset}"
                for read in began:
                    reads[id(read)].offset = min(reads[id(read)].offset, event.offset)
        elif isinstance(event, Commit):
            if event.offset > floor.offset:
                floor.offset, floor.because = event.offset, f"{event.process} committed {event.offset}"
        elif kind == 2:
            reads[id(event)] = _Floor(event.generation, floor.offset, floor.because)
            began.append(event)
        else:
            began.remove(event)
            wanted = reads[id(event)]
            if event.offset < wanted.offset:
                facts = {
                    "group": group,
                    "generation": event.generation,
                    "read": event.offset,
                    "process": event.process,
                    "though": wanted.because,
                }
                yield Anomaly("committed-offset-back", partition, facts)
            elif event.offset > floor.offset:
                floor.offset, floor.because = event.offset, f"{event.process} read {event.offset}"
