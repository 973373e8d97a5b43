"""Producer state against a model that keeps every batch a producer ever wrote (rule C1)."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.log.batch import BatchHeader
from strandline.log.producer_state import (
    BATCHES_KEPT,
    SEQUENCE_MAX,
    ProducerStates,
    SnapshotDamaged,
    decode_snapshot,
)
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


def header(
    sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0, timestamp: int = 50, attributes: int = 0
) -> BatchHeader:
    """Header of a producer's batch."""
    return BatchHeader(0, 49, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer, epoch, sequence, count)


class Model:
    """All batches of one producer id, in order: (epoch, first sequence, last sequence, first offset)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int]] = []

    def judge(self, epoch: int, first: int, last: int) -> object:
        """An offset for a duplicate, an error code, or None to write."""
        if not self.batches:
            return None
        current, _, last_written, _ = self.batches[-1]
        if epoch < current:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > current:
            return None if first == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        same_epoch = [b for b in self.batches if b[0] == epoch][-BATCHES_KEPT:]
        for _, a, b, offset in reversed(same_epoch):
            if (a, b) == (first, last):
                return offset
        expected = 0 if last_written == SEQUENCE_MAX else last_written + 1
        return None if first == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


ATTEMPTS = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 2), st.sampled_from(["next", "again", "any"]), st.integers(0, 6)),
    max_size=60,
)


@given(ATTEMPTS)
@example([(1, 0, "any", 0), (1, 0, "next", 2), (1, 0, "any", 1)])  # the first of three again, and one of two
@settings(max_examples=150)
def test_against_the_model(attempts: list[tuple[int, int, str, int]]) -> None:
    """Five batches are remembered, an exact match among them is a duplicate, anything else must follow."""
    states = ProducerStates()
    models = {1: Model(), 2: Model()}
    offset = 0
    for producer, epoch, kind, number in attempts:
        model = models[producer]
        first, count = number, number + 1
        if kind == "next" and model.batches:
            first = model.batches[-1][2] + 1
        elif kind == "again" and model.batches:
            _, first, last, _ = model.batches[max(0, len(model.batches) - 1 - number)]
            count = last - first + 1
        batch = header(first, count, producer=producer, epoch=epoch)
        expected = model.judge(epoch, first, first + count - 1)
        if isinstance(expected, ErrorCode):
            with pytest.raises(KafkaError) as caught:
                states.check(batch)
            assert caught.value.code is expected
            continue
        found = states.check(batch)
        assert (found.first_offset if found else None) == expected
        if expected is None:
            states.update(batch, offset, 1000)
            model.batches.append((epoch, first, first + count - 1, offset))
            offset += count


def test_sequences_wrap() -> None:
    """After 2^31-1 comes 0, in the middle of a batch as well."""
    states = ProducerStates()
    states.update(header(SEQUENCE_MAX - 1, 2), 0, 1)
    assert states.check(header(0)) is None
    states.update(header(0, 1), 2, 1)
    wrapping = header(1, 1)
    assert states.check(wrapping) is None
    across = ProducerStates()
    across.update(header(SEQUENCE_MAX, 3), 0, 1)  # SEQUENCE_MAX, 0, 1
    assert across.check(header(2)) is None
    with pytest.raises(KafkaError):
        across.check(header(1, 5))
    duplicate = across.check(header(SEQUENCE_MAX, 3))
    assert duplicate is not None
    assert duplicate.last_offset == 2


def test_a_new_epoch_knows_nothing_of_the_older_ones_batches() -> None:
    """The same sequences come again in a new epoch and are new: taken for duplicates they would be lost."""
    states = ProducerStates()
    for epoch in (0, 1):
        for sequence in (0, 1):
            batch = header(sequence, epoch=epoch)
            assert states.check(batch) is None
            states.update(batch, 2 * epoch + sequence, 1)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """Its records may all have been deleted by retention."""
    assert ProducerStates().check(header(1234)) is None


def test_several_batches_in_one_append() -> None:
    """The second is judged by the first, which is not in the state yet."""
    states = ProducerStates()
    assert states.check(header(3, 2), header(0, 3)) is None
    with pytest.raises(KafkaError) as caught:
        states.check(header(4, 2), header(0, 3))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(KafkaError) as caught:
        states.check(header(0, 1, epoch=1), header(0, 3, epoch=2))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_expiry_follows_this_node_and_not_the_records() -> None:
    """A producer that writes ten years old records is not forgotten while it writes."""
    states = ProducerStates()
    states.update(header(0, producer=1, timestamp=1), 0, 1_000_000)
    states.update(header(0, producer=2, timestamp=9_000_000), 1, 1_000)
    assert states.expire(1_000_500, 86_400) == 1
    assert [entry.producer_id for entry in states.entries()] == [1]
    assert states.expire(1_000_000 + 86_400, 86_400) == 1
    assert len(states) == 0


def test_an_open_transaction_does_not_expire() -> None:
    """Its producer id is needed until the marker comes, which ends it. The marker counts as seen (KAFKA-9144): a
    coordinator's epoch that is forgotten may go back."""
    states = ProducerStates()
    states.update(header(0, attributes=0x10), 0, 1)
    assert states.expire(10**9, 1) == 0
    states.end(header(-1, attributes=0x30), Marker(1, 0, True, 5), 1, 500)
    assert states.expire(509, 10) == 0
    assert [entry.coordinator_epoch for entry in states.entries()] == [5]
    assert states.expire(510, 10) == 1


def filled() -> ProducerStates:
    """Two producers, one with more batches than are kept."""
    states = ProducerStates()
    for i in range(7):
        states.update(header(i * 2, 2, producer=5), i * 2, 100)
    states.update(header(0, 3, producer=6, epoch=3), 14, 200)
    return states


def test_snapshot_round_trip_keeps_all_five() -> None:
    """Retries of five batches in flight are recognised after a restart, too."""
    states = filled()
    loaded = ProducerStates()
    loaded.load_snapshot(states.encode_snapshot(), 777)
    for before, after in zip(states.entries(), loaded.entries(), strict=True):
        assert (before.producer_id, before.epoch, before.batches) == (after.producer_id, after.epoch, after.batches)
        assert after.last_seen_ms == 777
    assert loaded.encode_snapshot() == states.encode_snapshot()


def test_a_snapshot_keeps_a_batch_over_the_wrap_of_sequences() -> None:
    """Its first sequence is not in the row: it is counted back from the last one, over 0."""
    states = ProducerStates()
    states.update(header(SEQUENCE_MAX, 3), 10, 1)  # SEQUENCE_MAX, 0, 1
    loaded = ProducerStates()
    loaded.load_snapshot(states.encode_snapshot(), 777)
    duplicate = loaded.check(header(SEQUENCE_MAX, 3))
    assert duplicate is not None
    assert duplicate.first_offset == 10
    assert loaded.check(header(2)) is None


def test_snapshot_is_kafkas_format() -> None:
    """ProducerSnapshot version 1: a loader that keeps one row a producer ends with its newest batch."""
    data = filled().encode_snapshot()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert version == 1
    assert crc == crc32c(data[6:])
    assert count == BATCHES_KEPT + 1
    last_by_producer = {row.producer_id: row for row in decode_snapshot(data)}
    row = last_by_producer[5]
    assert (row.epoch, row.last_sequence, row.last_offset, row.offset_delta) == (0, 13, 13, 1)
    assert (row.timestamp_ms, row.coordinator_epoch, row.transaction_start) == (50, -1, -1)


def test_every_truncation_and_flip_of_a_snapshot_is_found() -> None:
    """KAFKA-9892: a half-written or damaged snapshot is never believed."""
    data = filled().encode_snapshot()
    for size in range(len(data)):
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(data[:size])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(bytes(damaged))
