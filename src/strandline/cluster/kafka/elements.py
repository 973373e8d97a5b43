"""How much one request may hold: the listener bounds its bytes, these numbers the objects that they become."""

from __future__ import annotations

from strandline.proto.errors import ProtocolError

ELEMENTS_MAX = 20_000
"""Array elements of one request, all arrays together. An element may be two bytes long and costs the event loop some
ten microseconds to read, look up and answer: 4 MiB of them would hold the node for half a minute. Whoever has more
partitions than this to ask for asks twice."""

TAGS_MAX = 64
"""Tagged fields of one section. Kafka's messages have at most a handful."""


class Elements:
    """What is left of one request's elements."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ELEMENTS_MAX

    def take(self, count: int) -> None:
        """`count` more elements are about to be read. Raises ProtocolError beyond the limit."""
        if count > self.left:
            raise ProtocolError(f"The request holds more than {ELEMENTS_MAX} elements")
        if count > 0:
            self.left -= count


def check_tags(count: int) -> None:
    """Raises ProtocolError for a section of more tagged fields than any message has."""
    if count > TAGS_MAX:
        raise ProtocolError(f"A section claims {count} tagged fields, {TAGS_MAX} are possible")
