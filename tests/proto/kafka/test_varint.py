"""KIP-482: unsigned varints of 31 bits, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.proto.errors import ProtocolError
from strandline.proto.kafka.fields import VALUE_MAX, read_uvarint, uvarint, write_uvarint


@given(st.integers(0, VALUE_MAX), st.binary(max_size=3), st.binary(max_size=3))
def test_what_was_written_is_read(value: int, before: bytes, after: bytes) -> None:
    out = bytearray(before)
    write_uvarint(out, value)
    assert bytes(out) == before + uvarint(value)
    buffer = bytes(out) + after
    for kind in (bytes, memoryview):
        assert read_uvarint(kind(buffer), len(before)) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (VALUE_MAX, "ffffffff07")]
)
def test_the_lowest_seven_bits_come_first(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded


@pytest.mark.parametrize("encoded", ["", "80", "ffffffff", "8080808080", "ffffffffffffff", "ffffffff0f", "8080808008"])
def test_cut_short_endless_or_beyond_31_bits(encoded: str) -> None:
    with pytest.raises(ProtocolError):
        read_uvarint(bytes.fromhex(encoded), 0)
