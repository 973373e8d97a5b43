"""What is done, and what may be committed, however records are handed out (rows S64, S65)."""

from __future__ import annotations

from strandline.client.groups.commits import Progress
from strandline.client.types import ConsumerRecord, OffsetAndMetadata
from strandline.proto.ids import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def record(where: TopicPartition, offset: int) -> ConsumerRecord:
    return ConsumerRecord(*where, offset, 0, 0, None, b"", (), 3)


def offsets(progress: Progress) -> dict[TopicPartition, int]:
    return {item: offset.offset for item, offset in progress.to_commit().items()}


def test_an_iteration_is_done_record_by_record() -> None:
    """The record that is being handled is never among what is committed, across partitions too."""
    progress = Progress()
    expected: dict[TopicPartition, int] = {}
    last: ConsumerRecord | None = None
    for where, offset in [(A, 0), (A, 1), (B, 0), (A, 2), (B, 1), (B, 2), (A, 3)]:
        progress.step(record(where, offset))
        if last is not None:
            expected[TopicPartition(last.topic, last.partition)] = last.offset + 1
        assert offsets(progress) == expected
        last = record(where, offset)
    progress.finish()
    assert offsets(progress) == {A: 4, B: 3}
    assert progress.to_commit()[A] == OffsetAndMetadata(4, "", 3)


def test_what_an_interrupt_kept_from_the_caller_is_not_done() -> None:
    """The iteration has stepped to it, and has it still; of another record that says nothing."""
    progress = Progress()
    for offset in range(3):
        progress.step(record(A, offset))
    progress.keep(record(A, 2))
    progress.finish()
    assert offsets(progress) == {A: 2}
    progress.step(record(A, 2))
    progress.keep(record(A, 3))
    progress.finish()
    assert offsets(progress) == {A: 3}


def test_what_is_polled_as_columns_is_done_with_the_next_poll() -> None:
    """Each partition's offset behind its last record, with its leader epoch."""
    progress = Progress()
    progress.hand_behind({A: OffsetAndMetadata(7, "", 3), B: OffsetAndMetadata(2, "", 4)})
    assert offsets(progress) == {}
    progress.finish()
    assert progress.to_commit() == {A: OffsetAndMetadata(7, "", 3), B: OffsetAndMetadata(2, "", 4)}


def test_polls_seeks_and_what_is_committed_already() -> None:
    """A poll's records are done with the next; a seek takes back what was handed out; nothing is committed twice."""
    progress = Progress()
    progress.start(A, OffsetAndMetadata(5))
    progress.reach(A, 5)
    assert offsets(progress) == {}
    progress.hand([record(A, 5), record(A, 6), record(B, 0)])
    assert offsets(progress) == {}
    progress.finish()
    assert offsets(progress) == {A: 7, B: 1}
    progress.was_committed(A, 7)
    assert offsets(progress) == {B: 1}
    progress.step(record(A, 7))
    progress.move(A, 7)
    progress.finish()
    assert offsets(progress) == {B: 1}
    progress.step(record(B, 1))
    progress.forget([B])
    progress.finish()
    assert offsets(progress) == {}


def test_a_place_that_was_sought_is_done_with_the_next_poll() -> None:
    """Of seed 18001587: whoever holds record 54 and seeks to 55, where it stands anyway, is not done with 54. A seek
    back to what is done, or without a record in hand, is done at once."""
    progress = Progress()
    progress.move(A, 50)
    assert offsets(progress) == {A: 50}
    progress.hand([record(A, offset) for offset in range(50, 55)])
    progress.move(A, 55)
    assert offsets(progress) == {A: 50}
    progress.move(A, 52)
    assert offsets(progress) == {A: 50}
    progress.finish()
    assert offsets(progress) == {A: 52}
    progress.hand([record(A, 52)])
    progress.move(A, 40)
    assert offsets(progress) == {A: 40}
    progress.hand([record(B, 0)])
    progress.move(B, 1)
    assert offsets(progress) == {A: 40}, "nothing of B was ever done"
    progress.finish()
    assert offsets(progress) == {A: 40, B: 1}
