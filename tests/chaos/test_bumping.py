"""The producer that plays librdkafka: what it does with the answers that our own client is careful about."""

from __future__ import annotations

from functools import partial

import pytest

from strandline.chaos.bumping import BumpingSequencer
from strandline.client.config import ProducerConfig
from strandline.client.producer_batch import ProducerBatch, ThreadFutures
from strandline.client.sender import Accumulator
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import StrandlineError
from strandline.proto.system import SystemClock
from tests.client.test_idempotence import WHERE, Harness

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Bumping(Harness):
    """Batches come from an accumulator, as a producer's do."""

    def __init__(self) -> None:
        super().__init__()
        self.fatal: list[StrandlineError] = []
        config = ProducerConfig({"linger.ms": 0})
        self.accumulator = Accumulator(config, ThreadFutures().results, SystemClock(), lambda: None)
        make = partial(BumpingSequencer, self.accumulator)
        self.sequencer = make(config, self.sequencer._session, lambda: None, self.fatal.append)
        self.sequencer.producer_id = 7

    def add(self, records: int = 1) -> ProducerBatch:
        for number in range(records):
            assert self.accumulator.append(WHERE, number, None, b"x", headers=()) is not None
        self.queue = self.accumulator.queues[WHERE]
        self.queue.waiting[-1].seal()
        return self.queue.waiting[-1]


@pytest.fixture
def pipeline() -> tuple[Bumping, list[ProducerBatch]]:
    """Three batches are on their way, the first ones of their producer."""
    harness = Bumping()
    batches = []
    for _ in range(3):
        harness.add()
        batches.append(harness.send())
    return harness, batches


def test_several_travel_from_the_first_one_on(pipeline: tuple[Bumping, list[ProducerBatch]]) -> None:
    """Our own client sends the first batch of a producer id alone."""
    assert [batch.numbers.base_sequence for batch in pipeline[1]] == [0, 1, 2]


def test_out_of_order_behind_an_unanswered_batch_numbers_all_anew(
    pipeline: tuple[Bumping, list[ProducerBatch]],
) -> None:
    """Also the first one, although it may be stored."""
    harness, batches = pipeline
    harness.refuse(batches[1], OUT_OF_ORDER)
    harness.refuse(batches[2], OUT_OF_ORDER)
    harness.queue.on_wire.remove(batches[0])
    harness.queue.requeue(batches[0])
    assert harness.sequencer.may_send(harness.queue)
    assert [(batch.numbers.producer_epoch, batch.numbers.base_sequence) for batch in batches] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert not harness.fatal


def test_out_of_order_to_the_first_without_an_answer_is_the_end(
    pipeline: tuple[Bumping, list[ProducerBatch]],
) -> None:
    """Nothing before it can have been lost on the way: client and broker contradict each other."""
    harness, batches = pipeline
    assert not harness.sequencer.refused(harness.queue, batches[0], OUT_OF_ORDER)
    assert len(harness.fatal) == 1


def test_an_ack_holds_for_what_waits_before_it(pipeline: tuple[Bumping, list[ProducerBatch]]) -> None:
    """The first failed and waits for another attempt, the second is on the wire: the third's ack acks the first."""
    harness, batches = pipeline
    harness.queue.on_wire.remove(batches[0])
    harness.queue.requeue(batches[0])
    used = harness.accumulator.memory.used
    harness.answer(batches[2], written=True)
    assert [batch.done for batch in batches[:2]] == [True, False]
    assert harness.accumulator.memory.used < used
    assert harness.queue.numbered == batches[1:]
    assert not harness.queue.waiting
