"""The receive buffer of one connection: frames lie in it whole and are read in place."""

from __future__ import annotations

from strandline.cluster.service.memory import Account, MemoryBudget

START_BYTES = 16 * 1024
"""First size: enough for every small request. A connection that has never sent anything has no buffer at all."""

STREAM_BYTES = 256 * 1024
"""A peer that fills the buffer at every read gets one of up to this size, so that a read takes many frames."""

AHEAD_BYTES = 2 * 1024 * 1024
"""Room kept, at most, beyond a large frame for the one that follows: less of it has to be moved."""


class ReceiveBuffer:
    """Bytes received and not yet used: `view[start:end]`.

    It grows only as bytes arrive, by doubling, whatever length a frame announces: a peer that announces 100 MB and
    sends nothing costs nothing. What it has beyond `START_BYTES` is charged to the node's memory budget.

    Invariants: 0 <= start <= end <= capacity; the charge is max(0, capacity - START_BYTES).
    """

    __slots__ = ("_budget", "_charged", "_filled", "end", "start", "view")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
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
        """What of the memory budget it holds."""
        return self._charged

    def room(self, frame_bytes: int) -> memoryview:
        """Where to receive more; never empty. `frame_bytes`: size of the frame that begins at `start`, 0 if unknown."""
        capacity = len(self.view)
        if capacity == 0:
            self._resize(START_BYTES)
        elif self._filled and capacity < STREAM_BYTES:
            self._resize(capacity * 2)
        elif self.start + frame_bytes > capacity or self.end == capacity:
            if frame_bytes > capacity and self.end - self.start == capacity:
                self._resize(min(capacity * 2, _target(frame_bytes)))
            elif self.start > 0:
                self._move_down()
            elif self.end == capacity:
                self._resize(capacity * 2)
        self._filled = False
        return self.view[self.end :]

    def received(self, size: int) -> None:
        """`size` bytes were put into what `room` gave."""
        self.end += size
        self._filled = self.end == len(self.view)

    def used(self) -> None:
        """Forget what lies before `start`: after all whole frames have been read."""
        if self.start == self.end:
            self.start = self.end = 0

    def release(self) -> None:
        """Give the memory back; what was in it is lost."""
        self.view = memoryview(b"")
        self.start = self.end = 0
        self._filled = False
        self._charge(0)

    def _move_down(self) -> None:
        size = self.end - self.start
        self.view[:size] = self.view[self.start : self.end]
        self.start, self.end = 0, size

    def _resize(self, capacity: int) -> None:
        size = self.end - self.start
        view = memoryview(bytearray(capacity))
        view[:size] = self.view[self.start : self.end]
        self.view = view
        self.start, self.end = 0, size
        self._charge(max(0, capacity - START_BYTES))

    def _charge(self, size: int) -> None:
        if size > self._charged:
            self._budget.charge(Account.RECEIVE, size - self._charged)
        elif size < self._charged:
            self._budget.release(Account.RECEIVE, self._charged - size)
        self._charged = size


def _target(frame_bytes: int) -> int:
    """The size at which a buffer for frames of this size stops growing."""
    return frame_bytes + min(frame_bytes, AHEAD_BYTES)
