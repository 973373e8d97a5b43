"""Whether the event loop waits in place for the end of a sync that it begins.

A sync in a thread costs the loop a second round: it selects, is woken, and takes up again what it left. On a fast disk
that is a good part of what a lone record takes. Where the disk is fast the loop waits for the thread instead, a moment
at most: the call that syncs is never its own, so that a disk that hangs keeps it for that moment and no longer.
"""

from __future__ import annotations

from strandline.proto.marks import mark

LIMIT_MS = 0.5
"""The loop waits so long for one sync. Votes, heartbeats and other connections wait with it: an election timeout is
1,000 ms or more, a full collection of garbage takes 4 ms, the parsing of 1 MB one. A disk that takes longer (one of a
cloud: 2 to 10 ms) gains nothing from it: the round costs 0.02 to 0.1 ms."""

FAST_IN_A_ROW = 16
"""After so many syncs within the limit the next one is expected to keep it. One that does not begins the count anew: a
disk that turned slow, or hangs, has cost one limit by then, and one in two minds costs one limit in sixteen syncs."""

SHARE = 0.25
"""The loop spends no more of its time on it: 1,000 syncs of 0.25 ms a second. Above that there is other work to do
meanwhile, and records come together in larger groups."""

SAVED_MAX_MS = 4 * LIMIT_MS
"""What an idle loop has saved up for a burst."""


class SyncWait:
    """Says how long to wait for the next sync, from how long the last ones took.

    Invariant: of any stretch of T ms at most SHARE x T + SAVED_MAX_MS are waited away.
    """

    def __init__(self) -> None:
        self._fast = 0
        self._saved_ms = 0.0
        self._saved_at_ms = 0.0

    def limit_ms(self, now_ms: float) -> float:
        """How long to wait in place for a sync that begins now; 0: not at all."""
        if self._fast < FAST_IN_A_ROW:
            return 0.0
        earned_ms = (now_ms - self._saved_at_ms) * SHARE
        self._saved_ms = min(SAVED_MAX_MS, self._saved_ms + earned_ms)
        self._saved_at_ms = now_ms
        return LIMIT_MS if self._saved_ms >= LIMIT_MS else 0.0

    def took(self, duration_ms: float, limit_ms: float) -> None:
        """A sync has ended after `duration_ms`; up to `limit_ms` of them were waited in place."""
        self._saved_ms -= min(duration_ms, limit_ms)
        if duration_ms <= LIMIT_MS:
            self._fast += 1
        else:
            if limit_ms:
                mark("sync-not-waited-for")
            self._fast = 0
