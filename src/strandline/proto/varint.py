"""Unsigned varints (KIP-482), lowest seven bits first: lengths, counts and tags of Kafka's newer versions."""

from __future__ import annotations

from strandline.proto.errors import ProtocolError

VALUE_MAX = 2**31 - 1
"""The protocol's lengths, counts and tags have 31 bits."""


def read_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """The value at `position` and the position after it.

    Raises:
        ProtocolError: the buffer ends in it, or it is longer than 5 bytes or 31 bits.
    """
    try:
        byte = buffer[position]
        if byte < 0x80:
            return byte, position + 1
        value = byte & 0x7F
        for shift in (7, 14, 21, 28):
            position += 1
            byte = buffer[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > VALUE_MAX:
                    raise ProtocolError(f"A length of {value} is beyond the protocol's 31 bits")
                return value, position + 1
    except IndexError:
        pass
    raise ProtocolError("A varint does not end")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append `value`."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def uvarint(value: int) -> bytes:
    """`value` alone."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)
