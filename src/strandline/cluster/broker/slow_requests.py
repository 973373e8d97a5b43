"""The log of slow requests: one line each, with the parts of its time and what it waited for.

Time for which the client itself lets a fetch wait for records does not count, nor does the time for which a member of a
group waits for other members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import Any

from strandline.cluster.broker.request import Exchange, Parts
from strandline.proto.kafka.apis import Api
from strandline.proto.ports import Clock

WINDOW_MS = 10_000.0
LINES_MAX = 20
"""Maximum lines logged in a window of `WINDOW_MS` milliseconds; the next line has the number left out."""

NAMED_MAX = 5
"""Maximum partitions named in a line; of further ones only the number is given."""

NAME_CHARS_MAX = 100
"""Maximum characters of a client.id in a line."""

LARGE_BYTES = 256 * 1024
"""Bytes from which on a response may be slow to send, so that its details are stored before it is sent."""

_WAIT_FOR_OTHERS = frozenset({Api.JOIN_GROUP.title, Api.SYNC_GROUP.title})
"""APIs whose requests wait for other members of the group, for as long as the group allows."""

Write = Callable[..., Any]


class SlowRequests:
    """Finds requests that take longer than a threshold, counts them, and logs some of them.

    Attributes:
        threshold_ms: milliseconds from which on a request is slow; infinite if the log is off.
        counted: number of slow requests by API.
    """

    def __init__(self, clock: Clock, threshold_ms: float, write: Write) -> None:
        self._clock = clock
        self._write = write
        self._since_ms = -WINDOW_MS
        self._lines = 0
        self._left_out = 0
        self.threshold_ms = threshold_ms or inf
        self.counted: Counter[str] = Counter()

    def may_be_slow(self, so_far_ms: float, size: int) -> bool:
        """Return whether to store what a request waited for, now that its response of `size` bytes is ready: it is slow
        already, or may become slow while the response is sent."""
        return so_far_ms >= self.threshold_ms or (size >= LARGE_BYTES and self.threshold_ms < inf)

    def lost(self, exchange: Exchange) -> None:
        """Log a slow request whose client disconnected before the response, perhaps because it waited too long."""
        now_ms = self._clock.monotonic_ms()
        if exchange.ready or now_ms - exchange.arrived_ms < self.threshold_ms:  # rule A40/who-gave-up-is-forgotten
            return
        exchange.answered_ms = now_ms
        exchange.end_step(now_ms)
        exchange.take_detail()
        self.note(exchange, exchange.times(now_ms, now_ms), answered=False)

    def note(self, exchange: Exchange, parts: Parts, *, answered: bool = True) -> None:
        """Count and log a request if it is slow without the time for which it may wait; at most `LINES_MAX` lines per
        window are written."""
        context = exchange.context
        may_wait_ms = inf if context.api in _WAIT_FOR_OTHERS else exchange.may_wait_ms
        # rule A40/long-polls-are-slow
        if parts.total - min(parts.remote, may_wait_ms) < self.threshold_ms:
            return
        self.counted[context.api] += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._since_ms >= WINDOW_MS:
            self._since_ms, self._lines = now_ms, 0
        if self._lines >= LINES_MAX:  # rule A40/slow-requests-fill-the-log
            self._left_out += 1
            return
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        self._write(
            "a slow request",
            api=context.api,
            version=context.version,
            client_id=context.client_id[:NAME_CHARS_MAX],
            correlation_id=context.correlation_id,
            answered=answered,
            **{f"{name}_ms": round(took_ms, 1) for name, took_ms in parts._asdict().items()},
            **exchange.detail,
            suppressed=left_out,
            **{"principal": context.principal, **exchange.connection.identity()},
        )


def some_of(names: Iterable[object], count: int) -> str:
    """Return the first `NAMED_MAX` of `count` names, comma-separated, and the number of further ones."""
    more = count - NAMED_MAX
    return ", ".join(map(str, islice(names, NAMED_MAX))) + (f" and {more} more" if more > 0 else "")
