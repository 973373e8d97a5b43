"""What is behind a refused batch of an idempotent producer is refused alike, until that comes again (rule C1,
schedule 52)."""

from __future__ import annotations

import pytest

from strandline.log.producer_state import REFUSAL_KEPT_MS, REFUSALS_MAX, SEQUENCE_MAX, ProducerStates, Refusal, Refusals
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.test_producer_state import header

FULL = ErrorCode.KAFKA_STORAGE_ERROR
FEW = ErrorCode.NOT_ENOUGH_REPLICAS


def judged(states: ProducerStates, sequence: int, now_ms: float = 0.0, *, epoch: int = 0) -> ErrorCode:
    """What a batch of one record is answered; it is written if that is NONE."""
    batch = header(sequence, epoch=epoch)
    try:
        original = states.check(batch, None, now_ms)
    except KafkaError as error:
        return error.code
    if original is None:
        states.update(batch, sequence, 0)
    return ErrorCode.NONE


def refuse(states: ProducerStates, sequence: int, now_ms: float = 0.0, *, epoch: int = 0) -> None:
    states.refused(1, Refusal(epoch, sequence, FULL, now_ms))


@pytest.mark.parametrize("known", [True, False])
def test_what_is_behind_a_refusal_is_refused_alike(known: bool) -> None:
    """Whether anything is known of the producer or not; once the refused one is written all goes on."""
    states = ProducerStates()
    if known:
        assert judged(states, 4) is ErrorCode.NONE
    refuse(states, 5)
    for sequence in (6, 7):
        assert judged(states, sequence) is FULL
    assert judged(states, 5) is ErrorCode.NONE
    assert not states.refusals
    assert judged(states, 6) is ErrorCode.NONE
    assert judged(states, 8) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_first_of_several_refused_ones_counts() -> None:
    """They may come, and be refused, in any order; only the answer of the first that is missing helps."""
    states = ProducerStates()
    for sequence in (7, 5, 6):
        refuse(states, sequence)
    assert judged(states, 6) is FULL
    assert judged(states, 5) is ErrorCode.NONE


def test_over_the_wrap() -> None:
    """After SEQUENCE_MAX comes 0."""
    states = ProducerStates()
    assert judged(states, SEQUENCE_MAX - 1) is ErrorCode.NONE
    refuse(states, SEQUENCE_MAX)
    assert judged(states, 0) is FULL
    assert judged(states, SEQUENCE_MAX) is ErrorCode.NONE
    assert judged(states, 0) is ErrorCode.NONE


def test_one_that_never_comes_again_is_waited_for_ten_seconds() -> None:
    """A client that has given a batch up has to learn that it is missing, so that it can number the rest anew."""
    states = ProducerStates()
    assert judged(states, 4) is ErrorCode.NONE
    refuse(states, 5)
    assert judged(states, 6, REFUSAL_KEPT_MS - 1) is FULL
    assert judged(states, 6, REFUSAL_KEPT_MS) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not states.refusals


def test_each_refusal_of_the_first_one_begins_the_wait_anew() -> None:
    """A disk may be full for long, and the client goes on trying."""
    states = ProducerStates()
    assert judged(states, 4) is ErrorCode.NONE
    for now_ms in range(0, 3 * REFUSAL_KEPT_MS, REFUSAL_KEPT_MS // 4):
        refuse(states, 5, now_ms)
        refuse(states, 6, now_ms)
        assert judged(states, 6, now_ms + 10) is FULL


def test_a_refused_retry_of_what_is_stored_holds_nothing_up() -> None:
    """The answer was lost, the retry came when too few replicas were in sync: nothing is missing."""
    states = ProducerStates()
    for sequence in range(4):
        assert judged(states, sequence) is ErrorCode.NONE
    refuse(states, 2)
    refuse(states, 3)
    assert not states.refusals
    assert judged(states, 4) is ErrorCode.NONE


def test_another_epoch_is_another_story() -> None:
    """A refusal of an earlier epoch holds the next one up no more, and a late one of it changes nothing."""
    states = ProducerStates()
    assert judged(states, 0) is ErrorCode.NONE
    refuse(states, 1)
    assert judged(states, 0, epoch=1) is ErrorCode.NONE
    assert not states.refusals
    refuse(states, 1)
    assert not states.refusals
    refuse(states, 1, epoch=2)
    refuse(states, 3, epoch=1)
    assert states.refusals.before(1, 2, 2, 0.0) is not None


def test_written_by_another_leader() -> None:
    """The refused batch came back by replication: it is missing no more."""
    states = ProducerStates()
    refuse(states, 0)
    for sequence in range(3):
        states.update(header(sequence), sequence, 0)
    assert judged(states, 3) is ErrorCode.NONE


def test_a_table_is_bounded() -> None:
    """Whoever sends batches under ever new producer ids costs no more memory than this; the latest stay."""
    refusals: Refusals[int] = Refusals()
    for producer in range(2 * REFUSALS_MAX):
        refusals.add(producer, Refusal(0, 0, FEW, 0.0))
    assert len(refusals) == REFUSALS_MAX
    assert refusals.before(2 * REFUSALS_MAX - 1, 0, 1, 0.0) is not None
    refusals.add(0, Refusal(0, 0, FEW, REFUSAL_KEPT_MS))
    assert len(refusals) == 1, "those that are waited for no more go"
