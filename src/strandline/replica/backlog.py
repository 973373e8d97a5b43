"""How much a follower's broker is sent that it has not synced, for replicas that nobody waits for (rule B50)."""

from __future__ import annotations

from collections import deque

CHUNK_BYTES = 256 << 10
"""Bytes that such a replica gets in one turn."""

BYTES_MIN = 512 << 10
"""The least that may be unsynced. On a disk whose syncs take 20 ms, for others use it, these are 25 MB a second from
each leader: a replica gets more than is written meanwhile, and comes to its end."""

BYTES_MAX = 4 << 20
"""The most that may be unsynced: no disk that syncs so much in one go gets more done with larger syncs."""

DELAY_MIN_MS = 3.0
"""Delay that is never too long: a scheduler alone takes as much on a busy machine."""

SLOWER_MAX = 2.0
"""How many times as late as the quickest lately acknowledgements may come: as much longer do clients wait."""

BASE_MS = 10_000.0
"""How long the quickest one counts: two such periods at most. A disk may become slower for good."""


class Backlog:
    """What was sent and is not synced, and its bound: congestion control by delay, as in LEDBAT (RFC 6817).

    From a chunk to its durable acknowledgement it takes as long as what lies before it on that disk and in that
    process, from whichever leader that came. Where this grows, others wait, too: the bound is halved. Else it grows by
    a quarter of what was synced.

    Invariants:
    - `bytes` is the sum of what was sent and neither synced nor forgotten;
    - `bound` is between `BYTES_MIN` and `BYTES_MAX`.
    """

    def __init__(self) -> None:
        self._sent: dict[int, deque[tuple[int, int, float]]] = {}
        """By subscription: (end offset, bytes, when it was sent)."""
        self.bytes = 0
        self.bound = 4 * CHUNK_BYTES
        self._halved_ms = float("-inf")
        self._base_ms = self._next_base_ms = float("inf")
        self._base_until_ms = float("-inf")

    @property
    def has_room(self) -> bool:
        """More may be sent."""
        return self.bytes < self.bound

    def sent(self, subscription: int, end_offset: int, size: int, now_ms: float) -> None:
        """Bytes up to an offset go to a replica that nobody waits for."""
        self._sent.setdefault(subscription, deque()).append((end_offset, size, now_ms))
        self.bytes += size

    def synced(self, subscription: int, durable_offset: int, now_ms: float) -> bool:
        """A replica is durable up to there. True if that was of the backlog."""
        sent = self._sent.get(subscription)
        if sent is None:
            return False
        while sent and sent[0][0] <= durable_offset:
            _, size, sent_ms = sent.popleft()
            self.bytes -= size
            self._judge(size, sent_ms, now_ms)
        if not sent:
            del self._sent[subscription]
        return True

    def forget(self, subscription: int) -> bool:
        """A replica is sent no more. True if it had something of the backlog."""
        sent = self._sent.pop(subscription, ())
        self.bytes -= sum(size for _, size, _ in sent)
        return bool(sent)

    def _judge(self, size: int, sent_ms: float, now_ms: float) -> None:
        delay_ms = now_ms - sent_ms
        if now_ms >= self._base_until_ms:
            self._base_ms, self._next_base_ms = self._next_base_ms, float("inf")
            self._base_until_ms = now_ms + BASE_MS
        self._next_base_ms = min(self._next_base_ms, delay_ms)
        base_ms = min(self._base_ms, self._next_base_ms)
        # rule B50/a-disk-that-slows-down-gets-as-much
        if delay_ms > max(DELAY_MIN_MS, SLOWER_MAX * base_ms):
            if sent_ms >= self._halved_ms:  # what was sent before that says nothing new
                self.bound = max(BYTES_MIN, self.bound // 2)
                self._halved_ms = now_ms
        else:
            self.bound = min(BYTES_MAX, self.bound + size // 4)
