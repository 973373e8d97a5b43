"""What is done, and what may be committed, however records are handed out (rows S64, S65)."""

from __future__ import annotations

from strandline.client.groups.progress import Progress
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


def test_a_seek_beyond_what_is_in_hand_is_committed_with_the_next_poll() -> None:
    """The caller is at work on record 6, and has said where to go on: a process that dies now has not done it."""
    progress = Progress()
    progress.start(A, OffsetAndMetadata(5))
    progress.hand([record(A, 5)])
    progress.finish()
    progress.hand([record(A, 6)])
    progress.move(A, 7)
    assert offsets(progress) == {}
    progress.finish()
    assert offsets(progress) == {A: 7}
    progress.move(A, 9)
    assert offsets(progress) == {A: 9}, "nothing is in hand"
    progress.hand([record(A, 9)])
    progress.move(A, 3)
    assert offsets(progress) == {A: 3}, "everything before it was done"


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
