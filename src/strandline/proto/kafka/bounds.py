"""How much one message may hold. A frame bounds its bytes; these numbers bound the objects that the bytes become."""

from __future__ import annotations

from strandline.proto.errors import ProtocolError

REQUEST_ELEMENTS_MAX = 20_000
"""Array elements of one request, all arrays together. An element may be two bytes long and costs the event loop some
ten microseconds to read, look up and answer: 4 MiB of them would hold the node for half a minute. Whoever has more
partitions than this to ask for asks twice."""

RESPONSE_ELEMENTS_MAX = 2_000_000
"""Array elements of one answer, all arrays together: Metadata of 200,000 partitions with three replicas each has 1.4
million. An element may be a byte long and become an object of 100 bytes: 256 MiB of them would take the client 25
GiB; so many take a quarter of one."""

RESPONSE_BYTES_MAX = 256 << 20
"""No answer may be longer. Kafka's clients have no limit and die of memory when a port speaks something else."""

TAGS_MAX = 64
"""Tagged fields of one section. Kafka's messages have at most a handful."""


class Elements:
    """What is left of one message's elements."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def take(self, count: int) -> None:
        """`count` more elements are about to be read. Raises ProtocolError beyond the limit."""
        if count > self._left:
            raise ProtocolError(f"The message holds more than {self._most} elements")
        if count > 0:
            self._left -= count


def check_size(size: int, left: int) -> None:
    """Raises ProtocolError for a field of `size` bytes where only `left` are."""
    if size > left:
        raise ProtocolError(f"A field claims {size} bytes, {left} are left")


def check_count(count: int, element_bytes_min: int, left: int) -> None:
    """Raises ProtocolError for an array of more elements than `left` bytes can hold."""
    if count * element_bytes_min > left:
        raise ProtocolError(f"An array claims {count} elements, {left} bytes are left")


def check_tags(count: int) -> None:
    """Raises ProtocolError for a section of more tagged fields than any message has."""
    if count > TAGS_MAX:
        raise ProtocolError(f"A section claims {count} tagged fields, {TAGS_MAX} are possible")
