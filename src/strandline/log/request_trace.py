"""When each produce request reached each stage of its way, for a while: what `strandline trace` shows.

The leader of a partition and its followers each note their own stages, by their own clocks. A follower's entry begins
when it has appended, and ends with its sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.ports import Clock

REQUESTS_MAX = 100_000
"""The most that one trace may be asked to keep: about 60 MB."""

STAGES = ("append", "wait for sync", "sync", "replicas", "commit", "answer", "total")
"""In their order. append: from the bytes of the request to its batch in the log. wait for sync: until the node's next
group sync begins. sync: that group. replicas: from the append until the last of the followers that acknowledged it had
synced it. commit: from the append until the high watermark has passed it. answer: from there until the answer is
handed to the connection. A follower has the second, the third and the total."""


class SyncedLog(Protocol):
    """What a trace uses of a log."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def durable_offset(self) -> int: ...


class Traced:
    """One request at one node; a stage that it has not reached is None (milliseconds of the node's clock)."""

    __slots__ = ("acked_ms", "answered_ms", "appended_ms", "began_ms", "committed_ms", "end", "synced_ms", "syncing_ms")

    def __init__(self, end: int, began_ms: float, appended_ms: float) -> None:
        self.end = end
        """The offset behind its last record."""
        self.began_ms = began_ms
        self.appended_ms = appended_ms
        self.syncing_ms: float | None = None
        self.synced_ms: float | None = None
        self.acked_ms: dict[NodeId, float] = {}
        self.committed_ms: float | None = None
        self.answered_ms: float | None = None


class RequestTrace:
    """Notes stages until `capacity` requests or `until_ms`; then `on_end` is called, once, and it may be read.

    Invariant: at most `capacity` requests are held, those under way included.
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
        """Requests to this node as leader that have been answered."""
        self.followed: list[Traced] = []
        """Appends of this node as follower that it has synced."""

    @property
    def ended(self) -> bool:
        """True once nothing more is noted."""
        return self._on_end is None

    def end(self) -> None:
        """Note no more. Idempotent."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def began(self, began_ms: float) -> None:
        """A produce request was taken then; what it appends follows in the same turn."""
        self._began_ms = began_ms

    def appended(self, tp: TopicPartition, end: int) -> None:
        """A batch of that request is in the log of its leader."""
        now_ms = self._clock.monotonic_ms()
        self._enter(self._open, tp, Traced(end, self._began_ms or now_ms, now_ms))

    def followed_up(self, tp: TopicPartition, end: int) -> None:
        """A follower has appended what its leader sent."""
        now_ms = self._clock.monotonic_ms()
        self._enter(self._following, tp, Traced(end, now_ms, now_ms))

    def _enter(self, where: dict[TopicPartition, deque[Traced]], tp: TopicPartition, traced: Traced) -> None:
        if self._count >= self._capacity or traced.appended_ms > self._until_ms:
            self.end()
            return
        self._count += 1
        where.setdefault(tp, deque()).append(traced)

    def sync_began(self, logs: Iterable[SyncedLog]) -> None:
        """A group sync of these begins."""
        now_ms = self._clock.monotonic_ms()
        for log in logs:
            for where in (self._open, self._following):
                for traced in reversed(where.get(log.topic_partition, ())):
                    if traced.syncing_ms is not None:
                        break
                    traced.syncing_ms = now_ms

    def sync_ended(self, logs: Iterable[SyncedLog]) -> None:
        """Note that the sync has ended, and made these logs durable."""
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
        """A follower has synced up to there."""
        now_ms = self._clock.monotonic_ms()
        for traced in self._open.get(tp, ()):
            if traced.end > durable_offset:
                break
            traced.acked_ms.setdefault(node, now_ms)

    def committed(self, tp: TopicPartition, high_watermark: int) -> None:
        """The high watermark rose."""
        now_ms = self._clock.monotonic_ms()
        for traced in self._open.get(tp, ()):
            if traced.end > high_watermark:
                break
            if traced.committed_ms is None:
                traced.committed_ms = now_ms

    def answered(self, tp: TopicPartition) -> None:
        """Note that the committed part of the request for `tp` has been answered."""
        now_ms = self._clock.monotonic_ms()
        waiting = self._open.get(tp)
        while waiting and waiting[0].committed_ms is not None:
            waiting[0].answered_ms = now_ms
            self.led.append(waiting.popleft())


def stages_of(traced: Traced) -> dict[str, float]:
    """Milliseconds of each stage that the request went through; names as in `STAGES`."""
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
"""Share (0 to 1) of the requests that counts as slow in the statistics of what slow requests waited for."""


def summary(requests: list[Traced]) -> dict[str, dict[str, float]]:
    """Stage -> p50, p90, p99, max and `slowest`: its mean in the slowest hundredth of all requests, in milliseconds."""
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
