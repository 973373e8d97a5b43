"""Which batch may go out, under which number (KIP-98, KIP-360; rule C1)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from strandline.client.batch_sender import ContinuedSequencer, SequencesBefore
from strandline.client.config import ProducerConfig
from strandline.client.open_batches import Memory
from strandline.client.producer_batch import OpenRecords, ProducerBatch, ThreadFutures
from strandline.client.sender import (
    EPOCH_MAX,
    REMEMBERED_BATCHES,
    PartitionQueue,
    Sequencer,
)
from strandline.client.session import Session
from strandline.log.batch import parse_header
from strandline.log.compression import Codec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

WHERE = TopicPartition("t", 0)


class Harness:
    """A partition's queue with a sequencer that has producer id 7 and asks for another one by `asked`."""

    def __init__(self, before: SequencesBefore | None = None) -> None:
        config = ProducerConfig({})
        session = Session("127.0.0.1:1", config, clock=SystemClock(), rng=random.Random(1))
        self.asked = 0
        self.sequencer = (
            Sequencer(config, session, lambda: None, lambda error: None)
            if before is None
            else ContinuedSequencer(config, session, lambda: None, lambda error: None, before)
        )
        self.sequencer._fetch_producer_id = self._ask  # type: ignore[method-assign]
        if before is None:
            self.sequencer.producer_id = 7
        self.queue = PartitionQueue(WHERE)
        self.number = 0

    def _ask(self) -> None:
        self.asked += 1

    def add(self, records: int = 10) -> ProducerBatch:
        self.number += 1
        results = ThreadFutures().results(WHERE)
        memory = Memory(1 << 20, 1 << 20, 1 << 20)
        batch = ProducerBatch((self.number,), WHERE, OpenRecords.of(memory, results, Codec.NONE), results, 0.0)
        for _ in range(records):
            assert batch.records.append(1, None, b"x", ()) is not None
        batch.seal()
        self.queue.waiting.append(batch)
        return batch

    def send(self) -> ProducerBatch:
        assert self.sequencer.may_send(self.queue)
        batch = self.queue.waiting.popleft()
        self.sequencer.number(self.queue, batch)
        self.queue.on_wire.append(batch)
        return batch

    def answer(self, batch: ProducerBatch, *, written: bool) -> None:
        self.queue.on_wire.remove(batch)
        self.sequencer.resolve(self.queue, batch, written=written)

    def refuse(self, batch: ProducerBatch, code: ErrorCode) -> None:
        self.queue.on_wire.remove(batch)
        assert self.sequencer.refused(self.queue, batch, code)
        batch.attempts += 1
        self.queue.requeue(batch)


@pytest.fixture
def known() -> Harness:
    """A partition whose log holds a first batch of this producer: sequences go on at 10."""
    harness = Harness()
    harness.add()
    harness.answer(harness.send(), written=True)
    return harness


def numbers(batch: ProducerBatch) -> tuple[int, int, int]:
    header = parse_header(batch.encode())
    return header.producer_id, header.producer_epoch, header.base_sequence


def test_sequences_count_records() -> None:
    """KIP-98: each batch begins where the last ended."""
    harness = Harness()
    starts = []
    for size in (3, 5, 2):
        harness.add(size)
        batch = harness.send()
        starts.append(numbers(batch))
        harness.answer(batch, written=True)
    assert starts == [(7, 0, 0), (7, 0, 3), (7, 0, 8)]


def test_sequences_wrap_to_zero(known: Harness) -> None:
    """Rule C1: after 2^31 - 1 comes 0."""
    known.queue.next_sequence = 2**31 - 4
    known.add(10)
    first = known.send()
    known.add(1)
    assert numbers(first)[2] == 2**31 - 4
    assert numbers(known.send())[2] == 6


def test_a_retry_keeps_its_sequence(known: Harness) -> None:
    """Else the broker could not tell it from a new batch."""
    known.add()
    batch = known.send()
    known.queue.on_wire.remove(batch)
    known.queue.requeue(batch)
    assert known.send() is batch
    assert numbers(batch) == (7, 0, 10)


def test_retries_are_queued_in_order_whatever_order_they_come_back_in(known: Harness) -> None:
    for _ in range(4):
        known.add()
    sent = [known.send() for _ in range(3)]
    for batch in (sent[1], sent[2], sent[0]):
        known.queue.on_wire.remove(batch)
        known.queue.requeue(batch)
    assert [known.send() for _ in range(3)] == sent


def test_at_most_five_ahead_of_the_first_without_an_answer(known: Harness) -> None:
    """The ones behind it count even when acknowledged: the broker remembers five batches, whatever their fate."""
    for _ in range(7):
        known.add()
    sent = [known.send() for _ in range(REMEMBERED_BATCHES)]
    assert not known.sequencer.may_send(known.queue)
    for batch in sent[1:]:
        known.answer(batch, written=True)
    assert not known.sequencer.may_send(known.queue)
    known.answer(sent[0], written=True)
    assert known.sequencer.may_send(known.queue)


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_refused_behind_another_is_only_sent_again(known: Harness, code: ErrorCode) -> None:
    """The one before it is still out: that is why the broker refused."""
    for _ in range(2):
        known.add()
    first, second = known.send(), known.send()
    known.refuse(second, code)
    known.answer(first, written=True)
    assert known.send() is second
    assert numbers(second) == (7, 0, 20)


def test_refused_first_in_line_starts_the_next_epoch_once_nothing_is_out(known: Harness) -> None:
    """KIP-360: none of them was written; all are numbered from 0, in order, when the last is back."""
    for _ in range(3):
        known.add()
    sent = [known.send() for _ in range(3)]
    known.refuse(sent[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not known.sequencer.may_send(known.queue)
    known.refuse(sent[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    known.refuse(sent[2], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert [known.send() for _ in range(3)] == sent
    assert [numbers(batch) for batch in sent] == [(7, 1, 0), (7, 1, 10), (7, 1, 20)]


@pytest.mark.parametrize("burnt", ["refused", "used up"])
def test_a_new_producer_id_where_the_epoch_cannot_grow(known: Harness, burnt: str) -> None:
    """INVALID_PRODUCER_EPOCH, or epoch 32767: ask for another id, and wait for it."""
    known.add()
    batch = known.send()
    code = ErrorCode.INVALID_PRODUCER_EPOCH
    if burnt == "used up":
        known.queue.producer_epoch, code = EPOCH_MAX, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    known.refuse(batch, code)
    assert not known.sequencer.may_send(known.queue)
    assert known.asked == 1
    known.sequencer.producer_id = 8
    assert known.send() is batch
    assert numbers(batch) == (8, 0, 0)
    assert not known.queue.known


def test_the_first_batch_of_an_id_travels_alone() -> None:
    """A leader that knows nothing of the id takes any sequence."""
    harness = Harness()
    harness.add()
    harness.add()
    first = harness.send()
    assert not harness.sequencer.may_send(harness.queue)
    harness.answer(first, written=True)
    assert harness.sequencer.may_send(harness.queue)


@pytest.mark.parametrize("size", [2, 3, 9])
def test_halves_share_the_range_of_the_whole(known: Harness, size: int) -> None:
    """MESSAGE_TOO_LARGE: the halves take the sequences that their records had."""
    known.add(size)
    batch = known.send()
    halves = batch.split(Codec.NONE)
    middle = size // 2
    assert [numbers(half)[2] for half in halves] == [10, 10 + middle]
    assert [half.count for half in halves] == [middle, size - middle]
    assert sum(half.reserved_bytes for half in halves) == batch.reserved_bytes
    assert all(half.results is batch.results for half in halves)
    assert [(half.first, half.first + half.count) for half in halves] == [(0, middle), (middle, size)]
    assert halves[0].order < halves[1].order < (batch.id + 1,)


def test_other_errors_are_not_of_sequences(known: Harness) -> None:
    known.add()
    batch: Any = known.send()
    assert not known.sequencer.refused(known.queue, batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize("start", [0, 500, 2**31 - 4])
def test_sequences_of_a_producer_before_are_continued(start: int) -> None:
    """Under its id and epoch, from where it stood; the first batch travels alone: its leader may know nothing of it."""
    harness = Harness(SequencesBefore(9, 2, {WHERE: start} if start else {}))
    harness.add(5)
    harness.add(5)
    first = harness.send()
    assert numbers(first) == (9, 2, start)
    assert not harness.sequencer.may_send(harness.queue)
    harness.answer(first, written=True)
    assert numbers(harness.send()) == (9, 2, (start + 5) % 2**31)
    assert harness.asked == 0


def test_continued_sequences_are_never_changed() -> None:
    """A batch that comes before its turn is sent again as it was; one that is refused at its turn fails: its records
    may be in the log already, sent by the producer before."""
    harness = Harness(SequencesBefore(9, 2, {WHERE: 100}))
    for _ in range(3):
        harness.add()
    harness.answer(harness.send(), written=True)
    second, third = harness.send(), harness.send()
    harness.refuse(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert numbers(third) == (9, 2, 120)
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for code in (out_of_order, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH):
        assert not harness.sequencer.refused(harness.queue, second, code)
    harness.answer(second, written=False)
    assert numbers(harness.send()) == (9, 2, 120)
    assert not harness.sequencer.refused(harness.queue, third, out_of_order)
    assert harness.asked == 0
