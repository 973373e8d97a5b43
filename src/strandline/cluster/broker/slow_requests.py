"""The log of slow requests: one line each, with the parts of its time, and what it waited for.

A fetch that waits for records as long as its client lets it is not slow, nor is a member that waits for the others of
its group.
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

LINES_MAX = 20
WINDOW_MS = 10_000.0
"""At most `LINES_MAX` lines are logged in `WINDOW_MS` milliseconds; the next line says how many were left out."""

NAMED_MAX = 5
"""Partitions that are named; of the others the number is."""

NAME_CHARS_MAX = 100
"""Maximum characters of a client's own name in a line."""

LARGE_BYTES = 256 * 1024
"""An answer of this size may be slow to be sent: what it is about is noted while that is known."""

_WAIT_FOR_OTHERS = frozenset({Api.JOIN_GROUP.title, Api.SYNC_GROUP.title})
"""Their members wait for each other, as long as the group lets them."""

Write = Callable[..., Any]


class SlowRequests:
    """Finds those that take longer than the threshold, counts them, and has a line for some of them.

    Attributes:
        threshold_ms: infinite where it is off.
        counted: slow ones, by API.
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
        """True if a request that has its answer, of so many bytes, is to say what it waited for: it is slow already, or
        may become so while the answer is sent."""
        return so_far_ms >= self.threshold_ms or (size >= LARGE_BYTES and self.threshold_ms < inf)

    def lost(self, exchange: Exchange) -> None:
        """Its client has gone, perhaps because it got no answer for so long."""
        now_ms = self._clock.monotonic_ms()
        if exchange.ready or now_ms - exchange.arrived_ms < self.threshold_ms:  # rule A40/who-gave-up-is-forgotten
            return
        exchange.answered_ms = now_ms
        exchange.end_step(now_ms)
        exchange.take_detail()
        self.note(exchange, exchange.times(now_ms, now_ms), answered=False)

    def note(self, exchange: Exchange, parts: Parts, *, answered: bool = True) -> None:
        """A request took longer than the threshold: write a line, unless it was to wait, or others had all lines."""
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
    """The first few of so many, and how many more there are."""
    more = count - NAMED_MAX
    return ", ".join(map(str, islice(names, NAMED_MAX))) + (f" and {more} more" if more > 0 else "")
