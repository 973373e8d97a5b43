"""Deadlines of a shard in one heap, for any number of members. No I/O: the time is an argument."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable

from strandline.proto.believed import Now

Action = Callable[[Now], None]


class Timers:
    """At most one deadline per key. Setting a key again replaces its deadline.

    Every heartbeat postpones a member's session, so postponing is cheap: the heap keeps at most one entry per key and
    takes in a later deadline when the earlier one is due. Equal deadlines are run in the order in which they were set.
    """

    __slots__ = ("_deadlines", "_heap", "_number")

    def __init__(self) -> None:
        self._deadlines: dict[Hashable, tuple[float, Action]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._deadlines

    @property
    def next_ms(self) -> float | None:
        """Earliest monotonic time in milliseconds at which an action may be due, None without deadlines. It may be too
        early."""
        return self._heap[0][0] if self._heap else None

    def set(self, key: Hashable, deadline_ms: float, action: Action) -> None:
        """Call `action` once the monotonic time is `deadline_ms`, unless the key is set again or cancelled before."""
        known = self._deadlines.get(key)
        self._deadlines[key] = (deadline_ms, action)
        if known is None or deadline_ms < known[0]:
            self._push(deadline_ms, key)

    def cancel(self, key: Hashable) -> None:
        """Remove a key's deadline; unknown keys are ignored."""
        self._deadlines.pop(key, None)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._deadlines):
            self._heap = []
            for known, (deadline_ms, _) in self._deadlines.items():
                self._push(deadline_ms, known)

    def run(self, now: Now) -> None:
        """Run the actions that are due; actions may set and cancel keys."""
        while self._heap and self._heap[0][0] <= now.monotonic_ms:
            _, _, key = heapq.heappop(self._heap)
            known = self._deadlines.get(key)
            if known is None:
                continue
            deadline_ms, action = known
            if deadline_ms > now.monotonic_ms:
                self._push(deadline_ms, key)
            else:
                del self._deadlines[key]
                action(now)

    def _push(self, deadline_ms: float, key: Hashable) -> None:
        self._number += 1
        heapq.heappush(self._heap, (deadline_ms, self._number, key))
