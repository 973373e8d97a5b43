"""The receive buffer of one connection, which holds each frame contiguously so that it can be read in place."""

from __future__ import annotations

from strandline.cluster.broker.memory import MemoryBudget
from strandline.cluster.broker.request import Peer
from strandline.proto.kafka.fields import Foreign, foreign_protocol

START_BYTES = 16 * 1024
"""Initial size in bytes, enough for small requests. Between small requests a connection has no buffer."""

STREAM_BYTES = 256 * 1024
"""Maximum size in bytes to which the buffer grows for a peer that fills it at every read, so that one read gets many
frames."""

AHEAD_BYTES = 2 * 1024 * 1024
"""Maximum bytes allocated beyond a large frame for the next one, so that less of that one must be moved later."""


class ReceiveBuffer:
    """Buffer of received bytes; those not processed yet are `view[start:end]`.

    It grows by doubling, and only as bytes arrive, whatever length a frame announces: a peer that announces 100 MB and
    sends nothing costs nothing. Capacity beyond `START_BYTES` is charged to the node's memory budget.

    Invariants: 0 <= start <= end <= capacity; the charge is max(0, capacity - START_BYTES).
    """

    __slots__ = ("_budget", "_charged", "_filled", "_payer", "_peer", "end", "start", "view")

    def __init__(self, budget: MemoryBudget, peer: Peer) -> None:
        self._budget = budget
        self._peer = peer
        self._payer = ""
        """Payer to whom the memory is charged (`Peer.payer` at the time of the charge)."""
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
        """Return the free part of the buffer, never empty, for the next read; call it once `make_room` returns True."""
        if self.end == len(self.view):
            self._resize(max(START_BYTES, 2 * len(self.view)))
        return self.view[self.end :]

    def received(self, size: int) -> None:
        """Note that `size` bytes were written to the view that `room` returned."""
        self.end += size
        self._filled = self.end == len(self.view)

    def make_room(self, frame_bytes: int) -> bool:
        """Prepare for the next read. Return False if the budget has no memory left: call again after its wake-up.

        Args:
            frame_bytes: size in bytes of the frame that begins at `start`, 0 if not known yet.
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
        """Release the memory; unprocessed bytes are lost."""
        self.view = memoryview(b"")
        self.start = self.end = 0
        self._filled = False
        self._charge(0)
        self._budget.return_turn(self)

    def _begin_again(self) -> None:
        """Empty the buffer, all of whose bytes were processed. A small buffer is released (a new one costs less than a
        microsecond); a larger one is kept for the next large frame, unless memory is short."""
        self.start = self.end = 0
        if not self._charged or self._budget.receive_scarce:
            self.release()

    def _end_turn(self) -> None:
        """Return the turn to grow after its request is complete: shrink to the bytes of the next request."""
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
"""Reason for refusing a TLS client on a plaintext listener; such a client reconnects again and again."""


def describe_foreign(start: memoryview) -> str:
    """Return a message that names the protocol of bytes that are no Kafka frame; "" if they match none. `start`: the
    first bytes."""
    spoken = foreign_protocol(bytes(start[:4]))
    if spoken is Foreign.HTTP_REQUEST:
        line = bytes(start).split(b"\r\n", 1)[0].decode("ascii", "replace")
        return f"an HTTP request ({line!r}) on the Kafka port; HTTP is served on a port of its own (metrics, health)"
    if spoken is Foreign.TLS:
        return TLS_ON_PLAINTEXT
    return f"{spoken.value} on the Kafka port" if spoken is not None else ""
