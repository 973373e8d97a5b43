"""Bound on the unsynced data sent to a follower's broker for replicas that no append waits for (rule B50)."""

from __future__ import annotations

from collections import deque

CHUNK_BYTES = 256 << 10
"""Bytes sent to such a replica in one turn."""

BYTES_MIN = 512 << 10
"""Smallest bound. On a disk that other work keeps busy, so that a sync takes 20 ms, it allows 25 MB a second from each
leader: more than is written meanwhile, so that the replica catches up."""

BYTES_MAX = 4 << 20
"""Largest bound: no disk that syncs this much at once gets more done with larger syncs."""

DELAY_MIN_MS = 3.0
"""Delay that never halves the bound: on a busy machine the scheduler alone adds as much."""

SLOWER_MAX = 2.0
"""Factor over the smallest recent delay above which the bound is halved. Clients wait longer by the same factor."""

BASE_MS = 10_000.0
"""Period for which the smallest delay is kept; two periods at most, as a disk may become slower for good."""


class Backlog:
    """Bytes sent and not yet synced, with a bound on them: congestion control by delay, as in LEDBAT (RFC 6817).

    The delay from a chunk to its durable acknowledgement grows with all the work queued on that disk and in that
    process, from whichever leader it came. When the delay grows, others wait longer, too, so the bound is halved.
    Otherwise the bound grows by a quarter of the bytes that were synced.

    Invariants:
    - `bytes` is the sum of all chunks that were sent and neither synced nor forgotten;
    - `bound` is between `BYTES_MIN` and `BYTES_MAX`.
    """

    def __init__(self) -> None:
        self._sent: dict[int, deque[tuple[int, int, float]]] = {}
        """For each subscription, its unsynced chunks: (end offset, bytes, time of sending in ms)."""
        self.bytes = 0
        self.bound = 4 * CHUNK_BYTES
        self._halved_ms = float("-inf")
        self._base_ms = self._next_base_ms = float("inf")
        self._base_until_ms = float("-inf")

    @property
    def has_room(self) -> bool:
        """True if more may be sent."""
        return self.bytes < self.bound

    def sent(self, subscription: int, end_offset: int, size: int, now_ms: float) -> None:
        """Count `size` bytes up to `end_offset`, sent to a replica that no append waits for."""
        self._sent.setdefault(subscription, deque()).append((end_offset, size, now_ms))
        self.bytes += size

    def synced(self, subscription: int, durable_offset: int, now_ms: float) -> bool:
        """Remove what a replica has synced up to `durable_offset`. Return True if the subscription was in the
        backlog."""
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
        """Drop a subscription that gets no more data. Return True if it had unsynced bytes in the backlog."""
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
            if sent_ms >= self._halved_ms:  # chunks sent before the last halving carry no new information
                self.bound = max(BYTES_MIN, self.bound // 2)
                self._halved_ms = now_ms
        else:
            self.bound = min(BYTES_MAX, self.bound + size // 4)
