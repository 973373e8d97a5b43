"""A copy's rounds and notes (row S17): pure. What runs on a cluster is in tests/acceptance/test_topic_copy.py."""

from __future__ import annotations

import pickle
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.partitioner import partition_of_key
from strandline.client.types import ConsumerRecord, OffsetAndMetadata
from strandline.proto.ids import TopicPartition
from strandline.tools.copy.errors import (
    CopyChanged,
    CopyRefused,
    CopyTakenOver,
    ForeignRecords,
    RecordsDeleted,
    SourceCut,
)
from strandline.tools.copy.plan import (
    FIRST_ROUND_OFFSETS,
    ROUND_BYTES,
    ROUND_OFFSETS_MAX,
    Round,
    from_notes,
    next_ranges,
    round_offsets,
    to_notes,
)
from strandline.tools.copy.writer import partition_for

OFFSETS = st.integers(0, 2**40)
PARTITIONS = st.dictionaries(st.integers(0, 50), st.tuples(OFFSETS, st.integers(0, 100_000)), min_size=1, max_size=20)


@given(PARTITIONS, st.integers(1, 50_000))
def test_rounds_cover_each_offset_once(partitions: dict[int, tuple[int, int]], size: int) -> None:
    """From the start to the goal of each partition without a gap; no round is much larger than it should be, and each
    but the last one brings something."""
    positions = {number: start for number, (start, _) in partitions.items()}
    goals = {number: start + count for number, (start, count) in partitions.items()}
    rounds = 0
    while positions != goals:
        ranges = next_ranges(positions, goals, size)
        assert ranges.keys() == positions.keys()
        assert all(start == positions[number] <= end <= goals[number] for number, (start, end) in ranges.items())
        taken = sum(end - start for start, end in ranges.values())
        assert 0 < taken <= size + len(positions)
        positions = {number: end for number, (_, end) in ranges.items()}
        rounds += 1
        if rounds > 200:
            break  # small rounds of many offsets: what was said of each of them is said
    if positions == goals:
        assert all(start == end for start, end in next_ranges(positions, goals, size).values())


@given(st.dictionaries(st.integers(0, 20), OFFSETS, min_size=1), st.dictionaries(st.integers(0, 20), OFFSETS))
def test_a_goal_behind_the_position_is_none(positions: dict[int, int], goals: dict[int, int]) -> None:
    """A new leader may know of fewer committed records than were read: nothing is read again."""
    for number, (start, end) in next_ranges(positions, goals, 1000).items():
        assert start == positions[number]
        assert start <= end <= max(start, goals.get(number, start))


@given(st.integers(0, 2**50), st.integers(0, 2**40))
def test_rounds_are_bounded(read_bytes: int, read_offsets: int) -> None:
    """By bytes, as far as known, and by offsets; there is always one to read."""
    offsets = round_offsets(read_bytes, read_offsets)
    assert 1 <= offsets <= ROUND_OFFSETS_MAX
    if read_offsets and offsets > 1:
        assert offsets * read_bytes <= ROUND_BYTES * read_offsets
    assert round_offsets(0, 0) == FIRST_ROUND_OFFSETS


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    count = draw(st.integers(1, 30))
    starts = draw(st.dictionaries(st.integers(0, 30), st.tuples(OFFSETS, st.integers(0, 9)), min_size=1, max_size=9))
    ends = draw(st.lists(OFFSETS, min_size=count, max_size=count))
    sequences = draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))
    ranges = {number: (start, start + size) for number, (start, size) in sorted(starts.items())}
    return Round(
        draw(st.integers(1, 3) | st.integers(1, 2**40)),
        ranges,
        tuple(ends),
        tuple(sequences),
        4001,
        0,
        str(UUID(int=1)),
        str(UUID(int=2)),
        {number: number + 7 for number in sorted(starts) if draw(st.booleans())},
    )


@given(rounds())
def test_a_round_is_read_as_it_was_noted(planned: Round) -> None:
    """What the group notes is the round, and lag counts from its start; a note is a small part of the 4096 bytes that
    brokers take as metadata (offset.metadata.max.bytes)."""
    notes = to_notes("orders", "orders2", planned)
    assert from_notes("group", "orders", "orders2", notes) == planned
    assert {place.partition: note.offset for place, note in notes.items() if place.topic == "orders"} == {
        number: start for number, (start, _) in planned.ranges.items()
    }
    assert max(len(note.metadata) for note in notes.values()) < 300
    assert from_notes("group", "orders", "orders2", {}) is None
    assert from_notes("group", "other", "others", notes) is None


@given(rounds(), st.data())
def test_a_note_that_was_changed_is_refused(planned: Round, data: st.DataObject) -> None:
    """Offsets that were reset lose the note; those of a deleted topic are gone; a mixture of two rounds is none."""
    notes = to_notes("orders", "orders2", planned)
    place = data.draw(st.sampled_from(sorted(notes)))
    other = to_notes("orders", "orders2", planned.after(planned.ends, planned.ranges, {}))
    changed: list[dict[TopicPartition, OffsetAndMetadata]] = [
        notes | {place: OffsetAndMetadata(0)},
        notes | {place: OffsetAndMetadata(0, "by hand")},
    ]
    without = {known: note for known, note in notes.items() if known.topic != place.topic}
    if planned.number > 1:
        changed.append(without)
    else:
        assert from_notes("group", "orders", "orders2", without) is None, "half of the first commit (schedule 84)"
    if len(notes) > 1:
        changed.append(notes | {place: other[place]})
    if place.topic == "orders2" and len(planned.ends) > 1:
        changed.append({known: note for known, note in notes.items() if known != place})
    for wrong in changed:
        with pytest.raises(CopyRefused, match="notes no round"):
            from_notes("group", "orders", "orders2", wrong)


@given(rounds(), st.lists(st.integers(0, 2**20), min_size=30, max_size=30))
def test_sequences_count_what_was_written(planned: Round, written: list[int]) -> None:
    """The next round's sequences are those that come next, beyond 2^31 too."""
    ends = tuple(end + count for end, count in zip(planned.ends, written, strict=False))
    following = planned.after(ends, {0: (5, 5)}, {})
    assert following.number == planned.number + 1
    assert following.ends == ends
    for before, after, count in zip(planned.sequences, following.sequences, written, strict=False):
        assert after == (before + count) % 2**31


@given(st.none() | st.binary(max_size=20), st.integers(0, 9), st.integers(0, 2**40), st.integers(1, 40))
def test_a_record_goes_where_clients_send_it(key: bytes | None, partition: int, offset: int, count: int) -> None:
    """By its key as every client; without one by where it came from, so that it comes to the same place again."""
    record = ConsumerRecord("orders", partition, offset, 0, 0, key, b"", (), 0)
    expected = (partition + offset) % count if key is None else partition_of_key(key, count)
    assert partition_for(record, count) == expected


def test_errors_travel() -> None:
    """They pickle, and say what to do."""
    place = TopicPartition("orders2", 3)
    for error in (
        RecordsDeleted(place, 5, 9), SourceCut(place, 9, 5, "t", "g"),
        ForeignRecords(place, 7, "g"), CopyChanged(place, 7, "g"), CopyTakenOver("g"),
    ):  # fmt: skip
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
    assert "orders2-3: at offset 7" in str(ForeignRecords(place, 7, "g"))
    assert "offsets 5 to 8 were deleted" in str(RecordsDeleted(place, 5, 9))
