"""Times at which each produce request reached each stage, recorded for a while: the data of `strandline trace`.

The leader of a partition and its followers each record their own stages, by their own clocks. A follower's entry begins
with its append, and ends with its sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.ports import Clock

REQUESTS_MAX = 100_000
"""Maximum requests that one trace may keep: about 60 MB."""

STAGES = ("append", "wait for sync", "sync", "replicas", "commit", "answer", "total")
"""Stages in their order. append: from the bytes of the request to its batch in the log. wait for sync: until the node's
next group sync begins. sync: that group. replicas: from the append until the last acknowledging follower had synced
it. commit: from the append until the high watermark has passed it. answer: from there until the answer is handed to
the connection. A follower has the second, the third and the total."""


class SyncedLog(Protocol):
    """A log, as a trace needs it."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def durable_offset(self) -> int: ...


class Traced:
    """Times of one request at one node, in milliseconds of the node's clock; None for a stage not reached yet."""

    __slots__ = ("acked_ms", "answered_ms", "appended_ms", "began_ms", "committed_ms", "end", "synced_ms", "syncing_ms")

    def __init__(self, end: int, began_ms: float, appended_ms: float) -> None:
        self.end = end
        """Offset after the request's last record."""
        self.began_ms = began_ms
        self.appended_ms = appended_ms
        self.syncing_ms: float | None = None
        self.synced_ms: float | None = None
        self.acked_ms: dict[NodeId, float] = {}
        self.committed_ms: float | None = None
        self.answered_ms: float | None = None


class RequestTrace:
    """Records stages until `capacity` requests or `until_ms`; then `on_end` is called, once, and the trace may be read.

    Invariant: at most `capacity` requests are held, including those under way.
    """

    def __init__(self, clock: Clock, capacity: int, duration_ms: float, on_end: Callable[[], None]) -> None:
        self._clock = clock
        self._capacity = capacity
        self._until_ms = clock.monotonic_ms() + duration_ms
        self._on_end: Callable[[], None] | None = on_end
        self._began_ms = 0.0
        self._open: dict[TopicPartition, deque[Traced]] = {}
        self._following: dict[TopicPartition, deque[Traced]] = {}
        self._count = 0
        self.led: list[Traced] = []
        """Requests to this node as leader, once answered."""
        self.followed: list[Traced] = []
        """Appends of this node as follower, once synced."""

    @property
    def ended(self) -> bool:
        """True once nothing more is recorded."""
        return self._on_end is None

    def end(self) -> None:
        """Stop recording. Idempotent."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def began(self, began_ms: float) -> None:
        """Take the time at which a produce request began; its appends follow in the same turn of the loop."""
        self._began_ms = began_ms

    def appended(self, tp: TopicPartition, end: int) -> None:
        """Record that the request's batch is in the leader's log."""
        now_ms = self._clock.monotonic_ms()
        self._enter(self._open, tp, Traced(end, self._began_ms or now_ms, now_ms))

    def followed_up(self, tp: TopicPartition, end: int) -> None:
        """Record that a follower has appended a leader's batch."""
        now_ms = self._clock.monotonic_ms()
        self._enter(self._following, tp, Traced(end, now_ms, now_ms))

    def _enter(self, where: dict[TopicPartition, deque[Traced]], tp: TopicPartition, traced: Traced) -> None:
        if self._count >= self._capacity or traced.appended_ms > self._until_ms:
            self.end()
            return
        self._count += 1
        where.setdefault(tp, deque()).append(traced)

    def sync_began(self, logs: Iterable[SyncedLog]) -> None:
        """Record that a group sync of these logs begins."""
        now_ms = self._clock.monotonic_ms()
        for log in logs:
            for where in (self._open, self._following):
                for traced in reversed(where.get(log.topic_partition, ())):
                    if traced.syncing_ms is not None:
                        break
                    traced.syncing_ms = now_ms

    def sync_ended(self, logs: Iterable[SyncedLog]) -> None:
        """Record that the sync has ended, and made these logs durable."""
        now_ms = self._clock.monotonic_ms()
        for log in logs:
            tp, durable = log.topic_partition, log.durable_offset
            for traced in self._open.get(tp, ()):
                if traced.end > durable:
                    break
                if traced.synced_ms is None:
                    traced.synced_ms = now_ms
            following = self._following.get(tp)
            while following and following[0].end <= durable:
                following[0].synced_ms = now_ms
                self.followed.append(following.popleft())

    def acked(self, tp: TopicPartition, node: NodeId, durable_offset: int) -> None:
        """Record that a follower has synced up to `durable_offset`."""
        now_ms = self._clock.monotonic_ms()
        for traced in self._open.get(tp, ()):
            if traced.end > durable_offset:
                break
            traced.acked_ms.setdefault(node, now_ms)

    def committed(self, tp: TopicPartition, high_watermark: int) -> None:
        """Record that the high watermark rose."""
        now_ms = self._clock.monotonic_ms()
        for traced in self._open.get(tp, ()):
            if traced.end > high_watermark:
                break
            if traced.committed_ms is None:
                traced.committed_ms = now_ms

    def answered(self, tp: TopicPartition) -> None:
        """Record that the committed requests for `tp` were answered."""
        now_ms = self._clock.monotonic_ms()
        waiting = self._open.get(tp)
        while waiting and waiting[0].committed_ms is not None:
            waiting[0].answered_ms = now_ms
            self.led.append(waiting.popleft())


def stages_of(traced: Traced) -> dict[str, float]:
    """Return the milliseconds of each stage that the request went through, by the names in `STAGES`."""
    began, appended = traced.began_ms, traced.appended_ms
    stages: dict[str, float] = {}
    if traced.syncing_ms is not None:
        stages["wait for sync"] = traced.syncing_ms - appended
        if traced.synced_ms is not None:
            stages["sync"] = traced.synced_ms - traced.syncing_ms
    if traced.answered_ms is None:
        if traced.synced_ms is not None:
            stages["total"] = traced.synced_ms - began
        return stages
    stages["append"] = appended - began
    if traced.acked_ms:
        stages["replicas"] = max(traced.acked_ms.values()) - appended
    if traced.committed_ms is not None:
        stages["commit"] = traced.committed_ms - appended
        stages["answer"] = traced.answered_ms - traced.committed_ms
    stages["total"] = traced.answered_ms - began
    return stages


SLOWEST_SHARE = 0.01
"""Share (0 to 1) of the requests that counts as slow in the statistics of slow requests."""


def summary(requests: list[Traced]) -> dict[str, dict[str, float]]:
    """Return for each stage p50, p90, p99, max, and `slowest` (its mean in the slowest hundredth), in milliseconds."""
    rows = sorted((stages_of(traced) for traced in requests), key=lambda row: row.get("total", 0.0))
    slowest = rows[-max(1, round(len(rows) * SLOWEST_SHARE)) :]
    result = {}
    for stage in STAGES:
        values = sorted(row[stage] for row in rows if stage in row)
        if not values:
            continue
        slow = [row[stage] for row in slowest if stage in row]
        shares = {f"p{percent}": values[len(values) * percent // 100] for percent in (50, 90, 99)}
        result[stage] = {**shares, "max": values[-1], "slowest": sum(slow) / len(slow) if slow else 0.0}
    return result
