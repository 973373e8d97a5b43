"""Records of `__transaction_state`, held against Kafka's schema by hand, byte for byte."""

from __future__ import annotations

import pytest

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.keyed_record import Record
from strandline.proto.kafka.transaction_records import (
    TRANSACTION,
    TransactionKey,
    TransactionState,
    TransactionValue,
    transaction_record,
)

VALUE = TransactionValue(
    producer_id=7,
    previous_id=-1,
    next_id=-1,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 5)}),
    updated_ms=1_000,
    started_ms=900,
)
FIXED = (7).to_bytes(8, "big") + (3).to_bytes(2, "big") + (60_000).to_bytes(4, "big") + b"\x01"
TIMES = (1_000).to_bytes(8, "big") + (900).to_bytes(8, "big")
V0 = (
    b"\x00\x00" + FIXED
    + b"\x00\x00\x00\x02"
    + b"\x00\x01a" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01"
    + b"\x00\x01b" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x05"
    + TIMES
)  # fmt: skip
V1 = (
    b"\x00\x01" + FIXED
    + b"\x03"
    + b"\x02a" + b"\x03" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01" + b"\x00"
    + b"\x02b" + b"\x02" + b"\x00\x00\x00\x05" + b"\x00"
    + TIMES
)  # fmt: skip


def test_bytes_are_kafkas() -> None:
    """Version 1 is written, versions 0 and 1 are read."""
    record = transaction_record("id", VALUE)
    assert record == Record(b"\x00\x00\x00\x02id", V1 + b"\x00")
    assert TRANSACTION.read_key(record.key) == TransactionKey("id")
    assert TRANSACTION.read(V1 + b"\x00") == VALUE
    assert TRANSACTION.read(V0) == VALUE
    assert transaction_record("id", None) == Record(b"\x00\x00\x00\x02id", None)


def test_tags_are_kafkas_and_one_is_our_own() -> None:
    """KAFKA-20310: the last epoch is in the log. Kafka passes over a tag that it does not know."""
    value = VALUE._replace(previous_id=5, next_id=9, client_version=2, last_epoch=2)
    tags = (
        b"\x04"
        + b"\x00\x08" + (5).to_bytes(8, "big")
        + b"\x01\x08" + (9).to_bytes(8, "big")
        + b"\x02\x02" + (2).to_bytes(2, "big")
        + b"\x90\x4e\x02" + (2).to_bytes(2, "big")
    )  # fmt: skip
    record = transaction_record("id", value)
    assert record.value == V1 + tags
    assert TRANSACTION.read(V1 + tags) == value
    of_two_phase_commit = b"\x01" + b"\x03\x02" + (4).to_bytes(2, "big")
    assert TRANSACTION.read(V1 + of_two_phase_commit) == VALUE


def test_no_partitions() -> None:
    """Kafka writes null for an id without a transaction."""
    empty = VALUE._replace(state=TransactionState.EMPTY, partitions=frozenset())
    raw = transaction_record("id", empty).value
    assert raw is not None
    assert TRANSACTION.read(raw) == empty
    null = b"\x00\x00" + FIXED[:-1] + b"\x00" + b"\xff\xff\xff\xff" + TIMES
    assert TRANSACTION.read(null) == empty


@pytest.mark.parametrize("state", [6, 7, 8, 127])
def test_a_state_that_stands_in_no_log_is_refused(state: int) -> None:
    """Dead and PrepareEpochFence are of Kafka's memory alone."""
    with pytest.raises(ProtocolError, match=f"state {state}"):
        TRANSACTION.read(V0[:16] + bytes([state]) + V0[17:])


def test_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(ProtocolError, match="version 2"):
        TRANSACTION.read(b"\x00\x02" + V1[2:] + b"\x00")
