"""Where records wait: which batch takes one, and what its memory counts (invariants of `client.sender`)."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.client.config import ProducerConfig
from strandline.client.errors import ClosedError
from strandline.client.open_batches import OpenBatches
from strandline.client.producer_batch import ThreadFutures
from strandline.client.sender import Accumulator, PartitionQueue
from strandline.log.batch import decode_records
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

WHERE = TopicPartition("t", 0)


class Harness:
    """The accumulator of a producer for threads, with the open batches of topic t."""

    def __init__(self, **settings: Any) -> None:
        self.woken = 0
        self.accumulator = Accumulator(ProducerConfig(settings), ThreadFutures().results, SystemClock(), self._wake)
        self.open_batches = OpenBatches(1, None)

    def _wake(self) -> None:
        self.woken += 1

    def short(self, value: bytes) -> Any:
        return self.open_batches.append(value, None, (), 0, None)

    def send(self, value: bytes) -> Any:
        future = self.short(value)
        if future is None:
            future = self.accumulator.append(WHERE, 5, None, value, headers=(), open_batches=self.open_batches)
        return future

    @property
    def queue(self) -> PartitionQueue:
        return self.accumulator.queues[WHERE]

    def values(self) -> list[list[bytes | None]]:
        """Of each batch that waits, which is then sealed."""
        for batch in self.queue.waiting:
            batch.seal()
        return [[record.value for record in decode_records(batch.encode())] for batch in self.queue.waiting]


@pytest.mark.parametrize("end", ["take", "drop"])
def test_a_batch_that_was_taken_or_dropped_takes_no_record(end: str) -> None:
    """Its bytes are on their way, or its futures have their error."""
    harness = Harness()
    harness.send(b"first")
    [batch] = harness.queue.waiting
    if end == "take":
        assert harness.accumulator.take(harness.queue) is batch
    else:
        harness.accumulator.drop(harness.queue, batch)
    assert harness.short(b"second") is None
    assert harness.send(b"second") is not None
    assert batch.count == 1
    assert harness.values() == [[b"second"]]
    harness.accumulator.release(batch)
    harness.accumulator.release(harness.accumulator.take(harness.queue))
    assert harness.accumulator.memory.used == 0


def test_of_a_partitions_batches_only_the_last_is_open() -> None:
    """A thread that holds older open batches must not write into the batch before: its records would change places."""
    harness = Harness(batch_size=1_000)
    harness.send(b"a" * 300)
    older = harness.open_batches
    harness.open_batches = OpenBatches(1, None)
    harness.send(b"b" * 900)
    assert older.append(b"c", None, (), 0, None) is None
    harness.send(b"c")
    assert harness.values() == [[b"a" * 300], [b"b" * 900, b"c"]] or harness.values()[1:] == [[b"b" * 900], [b"c"]]


def test_nothing_is_taken_after_close() -> None:
    harness = Harness()
    harness.send(b"first")
    harness.accumulator.close(ClosedError("the producer was closed"))
    assert harness.short(b"second") is None
    with pytest.raises(ClosedError):
        harness.send(b"second")
    assert harness.values() == [[b"first"]]


def test_a_new_batch_wakes_the_sender_and_no_other_record_does() -> None:
    """What a wake-up costs is shared by a batch."""
    harness = Harness(batch_size=1_000)
    woken = []
    for _ in range(14):
        harness.send(b"x" * 100)
        woken.append(harness.woken)
    assert woken == [1] * 8 + [2] * 6
    assert [len(batch) for batch in harness.values()] == [8, 6]


def test_a_batch_that_waits_behind_a_request_of_its_partition_grows() -> None:
    """Up to batch.size.max, and the sender is woken at batch.size as always: it takes the batch as soon as it can.
    With nothing under way a batch ends at batch.size (row S26)."""
    harness = Harness(batch_size=1_000, batch_size_max=4_000)
    for _ in range(9):
        harness.send(b"x" * 100)
    assert [batch.count for batch in harness.queue.waiting] == [8, 1]
    harness.queue.on_wire.append(harness.accumulator.take(harness.queue))
    woken = []
    for _ in range(36):
        harness.send(b"x" * 100)
        woken.append(harness.woken)
    assert [batch.count for batch in harness.queue.waiting] == [34, 3]
    assert harness.queue.waiting[0].builder.size_bytes <= 4_000
    assert woken == [2] * 7 + [3] * 26 + [4] * 3
    assert harness.short(b"x") is not None  # the fast path goes into the batch that is open


def test_a_batch_that_waits_behind_a_full_one_grows() -> None:
    """A burst comes faster than its sender: one batch of batch.size, and then larger ones."""
    harness = Harness(batch_size=1_000, batch_size_max=4_000)
    for _ in range(60):
        harness.send(b"x" * 100)
    assert [batch.count for batch in harness.queue.waiting] == [8, 34, 18]


def test_a_batch_of_a_size_that_was_asked_for_does_not_grow() -> None:
    """By default it may. Where batch.size was set it says how large a batch is; and without sequences the halves of one
    that is too large would come behind what was sent after it (seed 12000195)."""
    for settings, count in (
        ({}, 900),
        ({"batch_size": 16_385}, 150),
        ({"acks": 1}, 150),
        ({"max_request_size": 20_000}, 180),
    ):
        harness = Harness(**settings)
        harness.send(b"x" * 100)
        harness.queue.on_wire.append(harness.accumulator.take(harness.queue))
        for _ in range(900):
            harness.send(b"x" * 100)
        assert harness.queue.waiting[0].count == pytest.approx(count, abs=15)


def test_what_finds_no_room_leaves_nothing_behind() -> None:
    """No batch without records is sent, which could not be encoded, nor waited for by a flush; and room that was given
    back is there again."""
    harness = Harness(buffer_memory=500)
    assert harness.send(b"x" * 300) is not None
    assert harness.send(b"x" * 300) is None
    taken, flushed = harness.accumulator.take(harness.queue), list[bool]()
    assert harness.accumulator.is_due(harness.queue, 0.0, 1e15) == float("inf")
    harness.accumulator.start_flush(lambda: flushed.append(True))
    assert harness.accumulator.busy_queues() == []
    harness.accumulator.release(taken)
    assert not flushed
    harness.accumulator.complete(taken)
    assert flushed
    assert harness.send(b"x" * 300) is not None
    assert harness.accumulator.memory.used == 321
