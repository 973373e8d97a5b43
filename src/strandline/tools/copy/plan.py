"""Rounds of a copy, and how the group notes them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

from strandline.client.producer_batch import SEQUENCE_MASK
from strandline.client.types import OffsetAndMetadata
from strandline.proto.ids import TopicPartition
from strandline.proto.json_text import read_json
from strandline.tools.copy.errors import CopyRefused, anew_words

VERSION = 1
"""Version of the notes' format."""

FIRST_ROUND_OFFSETS = 20_000
ROUND_OFFSETS_MAX = 1_000_000
ROUND_BYTES = 128 << 20
"""Approximate bytes that a round reads. An interrupted round is read again and compared. Between two rounds all records
are acknowledged and a commit is made, which takes little time compared with a round."""


@dataclass(frozen=True, slots=True)
class Round:
    """Source ranges that one round reads, and the ends of the target before it.

    Invariants:
    - what is written follows from it and from the source's records alone, in order, partition by partition;
    - `sequences` counts the records that all rounds before have written to a target partition (modulo 2^31).

    Args:
        number: 1 for a copy's first.
        ranges: of each source partition, start and end offset; they are equal where there is nothing to do.
        ends: of target partition 0, 1, ...: the offset that its next record gets.
        sequences: of them: the sequence of that record.
        producer_id, producer_epoch: under which all rounds write.
        source_id, target_id: the topics' ids; empty from brokers that have none.
        epochs: of source partitions, where known: a leader epoch in which the log reached the end of the range.
    """

    number: int
    ranges: Mapping[int, tuple[int, int]]
    ends: tuple[int, ...]
    sequences: tuple[int, ...]
    producer_id: int
    producer_epoch: int
    source_id: str
    target_id: str
    epochs: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to read."""
        return all(start == end for start, end in self.ranges.values())

    def after(self, ends: tuple[int, ...], ranges: Mapping[int, tuple[int, int]], epochs: Mapping[int, int]) -> Self:
        """The next round, when this one has brought the target's partitions to `ends`."""
        written = zip(self.ends, self.sequences, ends, strict=True)
        sequences = tuple((sequence + end - start) & SEQUENCE_MASK for start, sequence, end in written)
        number = self.number + 1
        return replace(self, number=number, ranges=ranges, ends=ends, sequences=sequences, epochs=epochs)


def next_ranges(positions: Mapping[int, int], goals: Mapping[int, int], offsets: int) -> dict[int, tuple[int, int]]:
    """About so many offsets for the next round, from each partition in proportion to what is left of it: so they come
    to their ends together, and times in the target rise as they did in the source.

    A partition with something left is given one offset at least; one with nothing left an empty range.
    """
    left = {number: max(goals.get(number, start) - start, 0) for number, start in positions.items()}
    total = sum(left.values())
    ranges: dict[int, tuple[int, int]] = {}
    for number, start in sorted(positions.items()):
        share = left[number] if total <= offsets else min(left[number], max(1, offsets * left[number] // total))
        ranges[number] = start, start + share
    return ranges


def round_offsets(read_bytes: int, read_offsets: int) -> int:
    """Offsets that the next round takes, by what was read so far, for about `ROUND_BYTES`."""
    if not read_offsets:
        return FIRST_ROUND_OFFSETS
    return max(1, min(ROUND_OFFSETS_MAX, ROUND_BYTES * read_offsets // max(read_bytes, 1)))


def to_notes(source: str, target: str, planned: Round) -> dict[TopicPartition, OffsetAndMetadata]:
    """A round as the group's commits, which `from_notes` reads: lag is what is left from the start of the round on."""
    notes: dict[TopicPartition, OffsetAndMetadata] = {}
    for number, (start, end) in planned.ranges.items():
        text = _text(planned, topic=planned.source_id, end=end)
        epoch = planned.epochs.get(number, -1)
        notes[TopicPartition(source, number)] = OffsetAndMetadata(start, text, epoch, topic_id=_id(planned.source_id))
    for number, (end, sequence) in enumerate(zip(planned.ends, planned.sequences, strict=True)):
        producer = [planned.producer_id, planned.producer_epoch]
        text = _text(planned, topic=planned.target_id, of=len(planned.ends), sequence=sequence, producer=producer)
        notes[TopicPartition(target, number)] = OffsetAndMetadata(end, text, topic_id=_id(planned.target_id))
    return notes


def from_notes(group: str, source: str, target: str, notes: Mapping[TopicPartition, OffsetAndMetadata]) -> Round | None:
    """The round that the group notes; None where it notes nothing of either topic, or of one of them its first round.

    The first round is noted right after the target was made. A coordinator that has not heard of the target yet refuses
    its part of the commit and takes the other (Kafka's, too), and the copy may end before it has tried again. It has
    written nothing by then: it begins anew, if the target is empty (`prepare_target`, schedule 84).

    Raises:
        CopyRefused: it notes something else: offsets were reset, a topic was deleted, or it is some consumers' group.
    """
    of_source = {place.partition: note for place, note in notes.items() if place.topic == source}
    of_target = {place.partition: note for place, note in notes.items() if place.topic == target}
    if not of_source and not of_target:
        return None
    try:
        if not of_source or not of_target:
            # schedule 84/half-a-first-note-is-refused
            if {int(_parsed(note)["round"]) for note in (*of_source.values(), *of_target.values())} == {1}:
                return None
            raise ValueError("nothing of the " + ("target" if of_source else "source"))
        return _read(of_source, of_target)
    except (KeyError, TypeError, ValueError) as error:
        raise CopyRefused(
            f"group {group} notes no round of a copy of {source} into {target} ({error}): its offsets were reset, a "
            f"topic was deleted, or it is another kind of group. {anew_words(target, group)}"
        ) from error


def _id(text: str) -> UUID | None:
    return UUID(text) if text else None  # schedule 63/copy-follows-into-another-topic/4


def _text(planned: Round, **more: object) -> str:
    return json.dumps({"copy": VERSION, "round": planned.number, **more}, separators=(",", ":"))


def _read(of_source: Mapping[int, OffsetAndMetadata], of_target: Mapping[int, OffsetAndMetadata]) -> Round:
    sources = {number: _parsed(note) for number, note in of_source.items()}
    targets = [_parsed(of_target[number]) for number in range(len(of_target))]
    rounds = {int(text["round"]) for text in (*sources.values(), *targets)}
    if len(rounds) != 1:
        raise ValueError(f"several rounds at once, {sorted(rounds)}")
    if {int(text["of"]) for text in targets} != {len(targets)}:
        raise ValueError(f"{len(targets)} of {targets[0]['of']} target partitions")
    producer_id, producer_epoch = targets[0]["producer"]
    [source_id] = {str(text["topic"]) for text in sources.values()}
    [target_id] = {str(text["topic"]) for text in targets}
    return Round(
        rounds.pop(),
        {number: (of_source[number].offset, int(text["end"])) for number, text in sorted(sources.items())},
        tuple(of_target[number].offset for number in range(len(targets))),
        tuple(int(text["sequence"]) for text in targets),
        int(producer_id),
        int(producer_epoch),
        source_id,
        target_id,
        {number: note.leader_epoch for number, note in sorted(of_source.items()) if note.leader_epoch >= 0},
    )


def _parsed(note: OffsetAndMetadata) -> dict[str, Any]:
    text = read_json(note.metadata or "{}")
    if not isinstance(text, dict) or text.get("copy") != VERSION:
        raise ValueError(f"not a copy's note: {note.metadata!r}")
    return text
