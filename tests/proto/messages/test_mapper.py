"""Dataclasses as protobuf messages: what is refused when a message is defined, and when one is read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import pytest
from google.protobuf import descriptor_pb2

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.messages.fields import Int32, Int64, OrEmpty, SInt32, UInt32
from strandline.proto.messages.mapper import Mapper, mapper_of
from tests.proto.messages.samples import sample


class Colour(IntEnum):
    RED = 0
    GREEN = 1


class Point(NamedTuple):
    x: Annotated[int, SInt32(1)]
    y: Annotated[int, Int64(2, minimum=0)]


@dataclass(frozen=True, slots=True)
class Inner:
    name: Annotated[str, 1]
    node: Annotated[NodeId | None, SInt32(2)] = None


@dataclass(frozen=True, slots=True)
class Everything:
    """A field of each form, at numbers that are not in their order."""

    text: Annotated[str, 30]
    flag: Annotated[bool, 2]
    blob: Annotated[bytes, 3]
    number: Annotated[int, UInt32(4)]
    id: Annotated[UUID, 5]
    id_or_empty: Annotated[UUID | None, OrEmpty(6)]
    colour: Annotated[Colour, 7]
    error: Annotated[ErrorCode, 8]
    inner: Annotated[Inner, 9]
    point: Annotated[Point, 10]
    maybe_text: Annotated[str | None, 11]
    maybe_id: Annotated[UUID | None, 12]
    maybe_colour: Annotated[Colour | None, 13]
    maybe_inner: Annotated[Inner | None, 14]
    numbers: Annotated[tuple[int, ...], Int32(15)]
    texts: Annotated[tuple[str, ...], 16]
    ids: Annotated[tuple[UUID, ...], 17]
    colours: Annotated[tuple[Colour, ...], 18]
    inners: Annotated[tuple[Inner, ...], 19]
    listeners: Annotated[Mapping[str, Endpoint], 20]
    configs: Annotated[Mapping[str, str | None], 21]
    nodes: Annotated[tuple[NodeId, ...] | None, 22]


EVERYTHING = mapper_of(Everything)


def test_every_form_survives() -> None:
    """Absent and empty are told apart where the type tells them apart."""
    rng = random.Random(1)
    for _ in range(300):
        value = sample(Everything, rng)
        assert EVERYTHING.decode(EVERYTHING.encode(value)) == value


def test_the_bytes_are_protobufs() -> None:
    """By hand: a negative zigzag, a varint of two bytes, a packed list, an empty part that is present."""
    assert mapper_of(Point).encode(Point(-1, 300)) == bytes.fromhex("080110ac02")
    assert mapper_of(Point).encode(Point(0, 0)) == b"", "zero is absent"
    assert mapper_of(Inner).encode(Inner("", NodeId(0))) == bytes.fromhex("1000"), "present, and zero"

    @dataclass(frozen=True)
    class Parts:
        numbers: Annotated[tuple[int, ...], Int32(1)]
        point: Annotated[Point | None, 2]

    assert Mapper(Parts).encode(Parts((1, 300), Point(0, 0))) == bytes.fromhex("0a0301ac021200")


def test_a_field_of_a_later_version_is_skipped() -> None:
    """A rolling upgrade: the newer node says more than this one knows."""

    @dataclass(frozen=True)
    class Later:
        name: Annotated[str, 1]
        news: Annotated[str, 99]

    assert mapper_of(Inner).decode(Mapper(Later).encode(Later("a", "b"))) == Inner("a")


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        (int, "has no number"),
        (Annotated[int, 1], "no form for <class 'int'>"),
        (Annotated[float, 1], "no form for <class 'float'>"),
        (Annotated[str, Int32(1)], "no form for <class 'str'>"),
        (Annotated[dict[str, int], 1], "no form for dict"),
    ],
)
def test_what_has_no_form_is_found_when_the_message_is_defined(annotation: Any, sentence: str) -> None:
    """At import, as the tables of methods are made then."""
    kind = make_dataclass("Broken", [("field", annotation)])
    with pytest.raises(TypeError, match=rf"Broken\.field.*{sentence}"):
        Mapper(kind)


def test_a_number_given_twice_is_found_when_the_message_is_defined() -> None:
    """By protobuf itself; the error names the class."""

    class Twice(NamedTuple):
        first: Annotated[str, 1]
        second: Annotated[str, 1]

    with pytest.raises(TypeError, match="Twice"):
        Mapper(Twice)


def wire(number: int, field: bytes) -> bytes:
    """A field of bytes as it stands in a message."""
    key = number << 3 | 2
    head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return head + bytes([len(field)]) + field


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xff", "Error parsing"),
        (b"\xf2\x01\x05ab", "Error parsing"),
        (wire(30, b"\xff\xfe"), "Error parsing"),
        (wire(5, b"abc"), "Everything.id has 16 bytes, and is not '616263'"),
        (b"", "Everything.id has 16 bytes, and is not ''"),
        (wire(5, bytes(16)) + wire(6, b"abc"), "Everything.id_or_empty has 16 bytes, not all of them zero"),
        (wire(5, bytes(16)) + wire(6, bytes(16)), "Everything.id_or_empty has 16 bytes, not all of them zero"),
        (wire(5, bytes(16)) + b"\x38\x09", "9 is not a valid Colour"),
        (wire(5, bytes(16)) + b"\x68\x09", "9 is not a valid Colour"),
        (wire(5, bytes(16)) + wire(18, b"\x09"), "9 is not a valid Colour"),
        (wire(5, bytes(16)) + wire(17, b"abc"), "Everything.ids has 16 bytes"),
        (wire(5, bytes(16)) + wire(10, b"\x10" + b"\xff" * 9 + b"\x01"), "Point.y = -1 is below 0"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_is_no_such_message_is_refused(data: bytes, sentence: str) -> None:
    """One kind of error, which names the message and what is wrong with it."""
    with pytest.raises(ProtocolError, match="not a Everything of") as caught:
        EVERYTHING.decode(data)
    assert sentence in str(caught.value)


def test_an_error_code_of_a_later_version_is_an_unknown_one() -> None:
    """Not a refusal of the whole answer: what failed, failed."""
    data = wire(5, bytes(16)) + b"\x40\x8f\x4e"
    assert EVERYTHING.decode(data).error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_number_outside_its_form_is_not_written() -> None:
    """A mistake of this program's own."""
    with pytest.raises(ValueError, match="out of range"):
        mapper_of(Point).encode(Point(2**31, 0))


def test_a_lying_length_takes_no_memory() -> None:
    """Two gigabytes promised, four bytes there."""
    with pytest.raises(ProtocolError):
        EVERYTHING.decode(bytes([3 << 3 | 2]) + b"\xff\xff\xff\xff\x07" + b"abcd")


def test_the_description_is_plain_proto3() -> None:
    """An optional scalar has its synthetic oneof, as protoc writes it."""
    proto = descriptor_pb2.DescriptorProto()
    mapper_of(Inner).message.DESCRIPTOR.CopyToProto(proto)
    assert [(field.name, field.proto3_optional) for field in proto.field] == [("name", False), ("node", True)]
    assert [oneof.name for oneof in proto.oneof_decl] == ["_node"]
