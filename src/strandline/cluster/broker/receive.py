"""The receive buffer of one connection: frames lie in it whole and are read in place."""

from __future__ import annotations

from strandline.cluster.broker.memory import MemoryBudget
from strandline.cluster.broker.request import Peer
from strandline.proto.kafka.fields import Foreign, foreign_protocol

START_BYTES = 16 * 1024
"""First size: enough for every small request. Between small requests a connection has no buffer at all."""

STREAM_BYTES = 256 * 1024
"""A peer that fills the buffer at every read gets one of up to this size, so that a read takes many frames."""

AHEAD_BYTES = 2 * 1024 * 1024
"""Room kept, at most, beyond a large frame for the one that follows: less of it has to be moved."""


class ReceiveBuffer:
    """Bytes received and not yet used: `view[start:end]`.

    It grows only as bytes arrive, by doubling, whatever length a frame announces: a peer that announces 100 MB and
    sends nothing costs nothing. What it has beyond `START_BYTES` is asked of the node's memory budget, and charged.

    Invariants: 0 <= start <= end <= capacity; the charge is max(0, capacity - START_BYTES).
    """

    __slots__ = ("_budget", "_charged", "_filled", "_payer", "_peer", "end", "start", "view")

    def __init__(self, budget: MemoryBudget, peer: Peer) -> None:
        self._budget = budget
        self._peer = peer
        self._payer = ""
        """Who holds what is charged."""
        self._charged = 0
        self._filled = False
        self.view = memoryview(b"")
        self.start = 0
        self.end = 0

    @property
    def capacity(self) -> int:
        return len(self.view)

    @property
    def charged_bytes(self) -> int:
        """Bytes of the memory budget that the buffer holds."""
        return self._charged

    def room(self) -> memoryview:
        """Part of the buffer in which to receive more, after `make_room` has said yes; never empty."""
        if self.end == len(self.view):
            self._resize(max(START_BYTES, 2 * len(self.view)))
        return self.view[self.end :]

    def received(self, size: int) -> None:
        """`size` bytes were put into what `room` gave."""
        self.end += size
        self._filled = self.end == len(self.view)

    def make_room(self, frame_bytes: int) -> bool:
        """Prepare for more; false while the budget has no room for it (ask again when it wakes).

        Args:
            frame_bytes: size of the frame that begins at `start`, 0 if that is not known yet.
        """
        if self.start == self.end:
            self._begin_again()
        elif self.start > 0 and self._budget.turn is self:
            self._end_turn()
        capacity = len(self.view)
        streaming = self._filled and capacity < STREAM_BYTES and not self._budget.receive_scarce
        if streaming and self._grow(capacity * 2):
            return True
        if self.start + max(frame_bytes, 1) <= capacity and self.end < capacity:
            return True
        if self.start > 0:
            self._move_down()
        if self.end < capacity or capacity == 0:
            return True
        target = min(capacity * 2, frame_bytes + min(frame_bytes, AHEAD_BYTES))
        return self._grow(max(target, capacity + START_BYTES))

    def release(self) -> None:
        """Give the memory back; what was in it is lost."""
        self.view = memoryview(b"")
        self.start = self.end = 0
        self._filled = False
        self._charge(0)
        self._budget.return_turn(self)

    def _begin_again(self) -> None:
        """Everything was read. A small buffer goes at once (a new one costs less than a microsecond), a larger one is
        kept for the next large frame, unless memory is short."""
        self.start = self.end = 0
        if not self._charged or self._budget.receive_scarce:
            self.release()

    def _end_turn(self) -> None:
        """A request was finished beyond the budget's limit: keep no more than has arrived of the next, and queue up."""
        self._resize(max(START_BYTES, self.end - self.start))
        self._budget.return_turn(self)

    def _grow(self, capacity: int) -> bool:
        if not self._budget.may_grow(self, self._peer.payer, self._charged, capacity - len(self.view)):
            return False
        self._resize(capacity)
        return True

    def _move_down(self) -> None:
        size = self.end - self.start
        self.view[:size] = self.view[self.start : self.end]
        self.start, self.end = 0, size
        self._filled = False

    def _resize(self, capacity: int) -> None:
        size = self.end - self.start
        view = memoryview(bytearray(capacity))
        view[:size] = self.view[self.start : self.end]
        self.view = view
        self.start, self.end = 0, size
        self._filled = False
        self._charge(max(0, capacity - START_BYTES))

    def _charge(self, size: int) -> None:
        payer, held = self._peer.payer, self._charged
        if size == held:
            return
        self._charged = size
        if held and payer != self._payer:  # the client has logged in meanwhile
            self._budget.release_request(self, self._payer, held)
            held = 0
        self._payer = payer
        if size > held:
            self._budget.charge_request(self, payer, size - held)
        elif size < held:
            self._budget.release_request(self, payer, held - size)


TLS_ON_PLAINTEXT = (
    "a TLS handshake on a plaintext Kafka port; the client should use security.protocol=PLAINTEXT, or SASL_PLAINTEXT "
    "where it speaks SASL"
)
"""Reason a connection is refused that a TLS client opens again and again."""


def describe_foreign(start: memoryview) -> str:
    """Name of the protocol spoken there, by the first bytes of what should be a frame; "" if they tell nothing."""
    spoken = foreign_protocol(bytes(start[:4]))
    if spoken is Foreign.HTTP_REQUEST:
        line = bytes(start).split(b"\r\n", 1)[0].decode("ascii", "replace")
        return f"an HTTP request ({line!r}) on the Kafka port; HTTP is served on a port of its own (metrics, health)"
    if spoken is Foreign.TLS:
        return TLS_ON_PLAINTEXT
    return f"{spoken.value} on the Kafka port" if spoken is not None else ""
