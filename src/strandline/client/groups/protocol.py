"""What members of a group tell one another through the coordinator: Kafka's ConsumerProtocol, versions 0 to 3.

Every client of Kafka reads and writes these bytes, so groups may mix ours with Java's and librdkafka's. A newer version
only appends fields: what follows the known ones is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicPartition

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants and has.

    Attributes:
        topics: that it subscribes to, sorted.
        owned: partitions that it holds while it joins (KIP-429); empty under the eager protocol.
        generation: in which it got them (KIP-792); -1 unknown.
        user_data: the assignor's own; see `assignors`.
        rack: of the member (KIP-881); None unknown.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None
    rack: str | None = None


class _Reader:
    """Reads big-endian fields; a field that is cut off is a ProtocolError."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.pos

    def number(self, layout: str) -> int:
        try:
            (value,) = struct.unpack_from(layout, self.data, self.pos)
        except struct.error as error:
            raise ProtocolError(f"a member's message is cut off at byte {self.pos}") from error
        self.pos += struct.calcsize(layout)
        return int(value)

    def blob(self, size: int) -> bytes:
        if size > self.left:
            raise ProtocolError(f"a member's message announces {size} bytes where {self.left} are left")
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def text(self) -> str | None:
        size = self.number(">h")
        try:
            return None if size < 0 else self.blob(size).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a name in a member's message is not UTF-8: {error}") from error

    def count(self) -> int:
        count = self.number(">i")
        if count > self.left:
            raise ProtocolError(f"a member's message announces {count} entries where {self.left} bytes are left")
        return max(count, 0)

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count()):
            topic = self.text() or ""
            found += [TopicPartition(topic, self.number(">i")) for _ in range(self.count())]
        return tuple(found)

    def user_data(self) -> bytes | None:
        size = self.number(">i")
        return None if size < 0 else self.blob(size)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Partitions gathered under their topics, as every message of this protocol has them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    out = struct.pack(">i", len(topics))
    for topic, numbers in topics.items():
        out += _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return out


def decode_partitions(data: bytes) -> tuple[tuple[TopicPartition, ...], bytes]:
    """Partitions, and the bytes that follow them. Raises ProtocolError."""
    reader = _Reader(data)
    return reader.partitions(), data[reader.pos :]


def _user_data(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def encode_subscription(item: Subscription) -> bytes:
    """Version 3, which older clients read as far as they know it."""
    out = struct.pack(">hi", SUBSCRIPTION_VERSION, len(item.topics)) + b"".join(map(_text, item.topics))
    out += _user_data(item.user_data) + encode_partitions(item.owned) + struct.pack(">i", item.generation)
    return out + (struct.pack(">h", -1) if item.rack is None else _text(item.rack))


def decode_subscription(data: bytes) -> Subscription:
    """Any version.

    Raises:
        ProtocolError: it is cut off or says nonsense.
    """
    reader = _Reader(data)
    version = reader.number(">h")
    if version < 0:
        raise ProtocolError(f"a member's subscription has version {version}")
    topics = tuple(reader.text() or "" for _ in range(reader.count()))
    user_data = reader.user_data()
    owned = reader.partitions() if version >= 1 else ()
    generation = reader.number(">i") if version >= 2 else -1
    rack = reader.text() if version >= 3 else None
    return Subscription(topics, owned, generation, user_data, rack)


def encode_assignment(partitions: Sequence[TopicPartition], user_data: bytes | None = None) -> bytes:
    """What the leader gives to one member."""
    return struct.pack(">h", ASSIGNMENT_VERSION) + encode_partitions(partitions) + _user_data(user_data)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; no bytes at all: none.

    Raises:
        ProtocolError: it is cut off or says nonsense.
    """
    if not data:
        return ()
    reader = _Reader(data)
    version = reader.number(">h")
    if version < 0:
        raise ProtocolError(f"an assignment has version {version}")
    partitions = reader.partitions()
    reader.user_data()
    return partitions
