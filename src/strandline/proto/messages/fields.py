"""The number and the integer form of a message's field: what stands in `Annotated` beside the field's type.

    node_id: Annotated[NodeId, Int32(1)]
    metadata_offset: Annotated[Offset, SInt64(3)]
    offsets: Annotated[tuple[ReplicaOffsets, ...], 6]

An integer says which of protobuf's integers it is. Every other type has one form, and its field says the bare number.

Rules of a rolling upgrade, as nodes of two versions talk to each other: a number is never given to another field, an
integer never changes its form, and a field that is added has a default that means what its absence meant before.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        number: on the wire; from 1.
        minimum: a smaller integer is refused when it is read; None: any integer of the form is taken.
    """

    number: int
    minimum: int | None = None


class Int32(Field):
    """32 bits. A negative value takes ten bytes: for numbers that are not negative as a rule."""


class Int64(Field):
    """64 bits, otherwise as `Int32`."""


class SInt32(Field):
    """32 bits, zigzag: for numbers of which -1 is a usual value."""


class SInt64(Field):
    """64 bits, zigzag."""


class UInt32(Field):
    """32 bits without a sign."""


class OrEmpty(Field):
    """A UUID or None in a field without presence: empty bytes are None. The zero id is refused when it is read."""
