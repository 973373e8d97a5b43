"""What a reader of committed records gets of a log with transactions in it, in every way of reading (rule C18)."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest

from strandline.client.fetcher import Chunk, PartitionState
from strandline.log.batch import Record, build_batch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition

WHERE = TopicPartition("t", 0)
ABORT, COMMIT, LEADER_CHANGE = 0, 1, 2
WAYS = ("poll", "columns")


def data(offset: int, producer_id: int, *values: bytes, transactional: bool = True) -> bytearray:
    records = [Record(0, 1, None, value) for value in values]
    return build_batch(
        records, base_offset=offset, leader_epoch=0, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        transactional=transactional,
    )  # fmt: skip


def marker(offset: int, producer_id: int, kind: int) -> bytearray:
    record = Record(0, 1, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 5))
    return build_batch(
        [record], base_offset=offset, leader_epoch=0, producer_id=producer_id, producer_epoch=0, transactional=True,
        control=True,
    )  # fmt: skip


def answer(*batches: bytearray, aborted: tuple[tuple[int, int], ...] = (), committed: bool = True) -> Chunk:
    return Chunk(memoryview(b"".join(batches)), aborted, committed, 1 << 40)


def values(way: str, *chunks: Chunk, start: int = 0) -> tuple[list[bytes], PartitionState]:
    state = PartitionState(WHERE)
    state.seek(start)
    found: list[bytes] = []
    for chunk in chunks:
        state.add(chunk)
        while state.has_records and state.error is None:
            if way == "poll":
                found += [record.value for record in state.take(2, True)]
            else:
                for part in state.take_columns(2, True):
                    ends = memoryview(part.columns.value_ends).cast("i")
                    found += [bytes(part.columns.values[low:high]) for low, high in pairwise(ends)]
    return found, state


@pytest.mark.parametrize("way", WAYS)
def test_aborted_records_and_markers_are_left_out(way: str) -> None:
    """Two producers' transactions lie across each other; what is no part of one passes, whoever wrote it."""
    log = (
        data(0, 1, b"a", b"b"), data(2, 2, b"c"), data(3, 9, b"plain", transactional=False), marker(4, 1, ABORT),
        data(5, 2, b"d"), data(6, 1, b"again"), marker(7, 2, COMMIT), marker(8, 1, COMMIT),
    )  # fmt: skip
    found, state = values(way, answer(*log, aborted=((1, 0),)))
    assert found == [b"c", b"plain", b"d", b"again"]
    assert state.position == 9  # behind the last marker: nothing is left to be read
    found, _ = values(way, answer(*log, aborted=((1, 0),), committed=False))
    assert found == [b"a", b"b", b"c", b"plain", b"d", b"again"]


@pytest.mark.parametrize("way", WAYS)
def test_an_abort_lasts_over_answers_and_from_the_middle(way: str) -> None:
    """Each answer lists the transactions that reach into it: one that began before, or ends later, too."""
    first = (data(0, 1, b"a"), data(1, 2, b"b"))
    second = (data(2, 1, b"c"), marker(3, 1, ABORT), data(4, 1, b"d"))
    third = (data(5, 1, b"e"), marker(6, 1, ABORT), data(7, 1, b"f"), marker(8, 1, COMMIT))
    answers = (
        answer(*first, aborted=((1, 0),)), answer(*second, aborted=((1, 0), (1, 4))), answer(*third, aborted=((1, 4),)),
    )  # fmt: skip
    assert values(way, *answers)[0] == [b"b", b"f"]
    assert values(way, answer(*second, marker(5, 1, COMMIT), aborted=((1, 0),)), start=2)[0] == [b"d"]


@pytest.mark.parametrize("way", WAYS)
def test_control_batches_of_other_kinds_are_no_records(way: str) -> None:
    """Nor do they end an abort (KIP-595 knows more of them, and others may come)."""
    log = (data(0, 1, b"a"), marker(1, 1, LEADER_CHANGE), data(2, 1, b"b"), marker(3, 1, ABORT), data(4, 1, b"c"))
    assert values(way, answer(*log, marker(5, 1, COMMIT), aborted=((1, 0),)))[0] == [b"c"]


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_marker_is_told_with_its_place(way: str) -> None:
    """A flipped bit in it could show what was aborted; the records before it are handed out first."""
    rotten = marker(3, 1, ABORT)
    rotten[-10] ^= 1  # within the key: another type of marker, by a CRC that does not hold
    found, state = values(way, answer(data(0, 2, b"a"), data(1, 1, b"b", b"c"), rotten, aborted=((1, 1),)))
    assert found == [b"a"]
    assert isinstance(state.error, KafkaError)
    assert state.error.code is ErrorCode.CORRUPT_MESSAGE
    assert state.error.figures["partition"] == "t-0"
    assert state.error.figures["base_offset"] == 3
