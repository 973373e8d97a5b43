"""The checkers' model of the transactions in a log, on batches made by hand: each rule is broken once."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from strandline.chaos.checkers.batches import parse
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.markers import LogTransactions

TRANSACTIONAL, CONTROL = 0x10, 0x20


def varint(value: int) -> bytes:
    raw, out = (value << 1) ^ (value >> 63), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


class Log:
    """Batches that follow on each other, given to the model."""

    def __init__(self) -> None:
        self.model = LogTransactions("t-0")

    def data(self, producer_id: int, epoch: int, *values: str, transactional: bool = True) -> int:
        body = b"".join(self._record(delta, None, value.encode()) for delta, value in enumerate(values))
        return self._take(TRANSACTIONAL if transactional else 0, producer_id, epoch, len(values), body)

    def marker(self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> int:
        body = self._record(0, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch))
        return self._take(TRANSACTIONAL | CONTROL, producer_id, epoch, 1, body)

    @staticmethod
    def _record(delta: int, key: bytes | None, value: bytes) -> bytes:
        told = varint(-1) if key is None else varint(len(key)) + key
        inside = b"\0" + varint(0) + varint(delta) + told + varint(len(value)) + value + varint(0)
        return varint(len(inside)) + inside

    def _take(self, attributes: int, producer_id: int, epoch: int, count: int, body: bytes) -> int:
        base = self.model.next_offset
        covered = struct.pack(">hiqqqhii", attributes, count - 1, 0, 0, producer_id, epoch, -1, count) + body
        head = struct.pack(">iBI", 0, 2, crc32c(covered))
        content = struct.pack(">qi", base, len(head) + len(covered)) + head + covered
        self.model.take(parse(content), content)
        return base


def test_the_last_stable_offset_is_the_first_of_the_oldest_open_transaction() -> None:
    log = Log()
    log.data(-1, -1, "plain", transactional=False)
    first = log.data(7, 0, "a", "b")
    log.data(8, 0, "c")
    log.marker(7, 1, commit=True)
    stable = log.model.stable
    assert [stable[1], stable[3], stable[4], stable[5]] == [1, first, first, 3]
    log.marker(8, 1, commit=False)
    assert stable[log.model.next_offset] == log.model.next_offset
    assert log.model.visible == {0: "plain", 1: "a", 2: "b"}
    assert log.model.aborted == {3: "c"}
    assert log.model.open == 0


def test_a_marker_that_is_written_again_ends_nothing() -> None:
    log = Log()
    log.data(7, 0, "a")
    log.marker(7, 1, commit=True)
    log.marker(7, 1, commit=True)
    assert log.model.repeated == 1


def test_a_marker_of_the_transaction_before_must_not_end_the_next() -> None:
    log = Log()
    log.data(7, 0, "a")
    log.marker(7, 1, commit=True)
    log.data(7, 1, "b")
    with pytest.raises(InvariantViolated, match="OneMarkerInEffect"):
        log.marker(7, 1, commit=True)


def test_data_behind_the_marker_of_their_transaction_are_seen() -> None:
    log = Log()
    log.data(7, 0, "a")
    log.marker(7, 1, commit=False)
    with pytest.raises(InvariantViolated, match="ProducerEpochsRise"):
        log.data(7, 0, "late")


def test_a_marker_of_an_older_coordinator_is_seen() -> None:
    log = Log()
    log.data(7, 0, "a")
    log.marker(7, 1, commit=True, coordinator_epoch=3)
    log.data(7, 1, "b")
    with pytest.raises(InvariantViolated, match="CoordinatorEpochsRise"):
        log.marker(7, 2, commit=True, coordinator_epoch=2)


def test_plain_data_within_a_transaction_are_seen() -> None:
    log = Log()
    log.data(7, 0, "a")
    with pytest.raises(InvariantViolated, match="PlainDataInATransaction"):
        log.data(7, 0, "b", transactional=False)


def test_data_of_two_epochs_in_one_transaction_are_seen() -> None:
    log = Log()
    log.data(7, 0, "a")
    with pytest.raises(InvariantViolated, match="OneEpochATransaction"):
        log.data(7, 1, "b")


def test_under_the_first_protocol_a_marker_has_the_epoch_of_its_transaction() -> None:
    """Of producers that are known to speak it; of none is it older."""
    log = Log()
    log.model = LogTransactions("t-0", {7})
    log.data(7, 3, "a")
    log.marker(7, 3, commit=True)
    assert log.model.visible == {0: "a"}
    log.data(8, 3, "b")
    with pytest.raises(InvariantViolated, match="OneMarkerInEffect"):
        log.marker(8, 3, commit=True)
