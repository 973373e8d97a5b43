"""Counters and histograms of a listener, for the metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from strandline.cluster.broker.request import Exchange, Parts, RequestContext
from strandline.cluster.broker.slow_requests import SlowRequests
from strandline.cluster.broker.table import BY_TITLE

TIME_BOUNDS_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)
"""Upper bounds of the buckets of the time histograms, in ms; a last bucket holds longer times."""

SOFTWARE_KINDS_MAX = 1000
"""Maximum pairs of client software name and version that are counted: clients choose both."""

OTHER_VERSION = -1
"""Version under which all versions that are not served are counted: ApiVersions is answered in all 65,536 of them."""


class Times:
    """Histogram of one part of the times of an API's requests."""

    __slots__ = ("above", "ms_total")

    def __init__(self) -> None:
        self.above = [0] * (len(TIME_BOUNDS_MS) + 1)
        """Number of times in each bucket. That of the first bucket, with most times, stays 0: see `counts`."""
        self.ms_total = 0.0

    def counts(self, answers: int) -> list[int]:
        """Return the number of times in each bucket, of `answers` in total."""
        return [answers - sum(self.above), *self.above[1:]]


class ApiTimes:
    """Number of an API's responses, and histograms of the parts of their times."""

    __slots__ = ("answers", "ms_max", "parts")

    def __init__(self) -> None:
        self.answers = 0
        self.parts = tuple(Times() for _ in Parts._fields)
        self.ms_max = 0.0

    def add(self, taken_ms: Parts) -> None:
        """Count one response with the parts of its time."""
        self.answers += 1
        first = TIME_BOUNDS_MS[0]
        for times, took_ms in zip(self.parts, taken_ms, strict=True):
            times.ms_total += took_ms
            if took_ms > first:
                times.above[bisect_left(TIME_BOUNDS_MS, took_ms)] += 1
        self.ms_max = max(self.ms_max, taken_ms.total)

    def merge(self, other: ApiTimes) -> None:
        """Add the responses of another version."""
        self.answers += other.answers
        self.ms_max = max(self.ms_max, other.ms_max)
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.ms_total += theirs.ms_total
            mine.above = [a + b for a, b in zip(mine.above, theirs.above, strict=True)]


class ListenerStats:
    """Counters of a listener. They only rise, except `connections`, the number of open ones."""

    def __init__(self, slow: SlowRequests) -> None:
        self.connections = 0
        self.bytes_out = 0
        self.refused = 0
        self.idle_closed = 0
        self.apis: dict[tuple[str, int], ApiTimes] = {}
        """Times by (API, version)."""
        self.slow = slow
        self.software: Counter[tuple[str, str]] = Counter()

    def count_software(self, name: str, version: str) -> None:
        """Count a client's software; beyond `SOFTWARE_KINDS_MAX` pairs no new pair is counted."""
        if (name, version) in self.software or len(self.software) < SOFTWARE_KINDS_MAX:
            self.software[name, version] += 1

    def sent(self, exchanges: Iterable[Exchange], flushed_ms: float, sent_ms: float) -> None:
        """Count requests whose responses were handed over at `flushed_ms` and sent by `sent_ms` (monotonic)."""
        for exchange in exchanges:
            context, parts = exchange.context, exchange.times(flushed_ms, sent_ms)
            times = self.apis.get((context.api, context.version)) or self._times(context)
            times.add(parts)
            if parts.total >= self.slow.threshold_ms:
                self.slow.note(exchange, parts)

    def _times(self, context: RequestContext) -> ApiTimes:
        row = BY_TITLE[context.api]
        version = context.version if row.first <= context.version <= row.last else OTHER_VERSION
        return self.apis.setdefault((context.api, version), ApiTimes())

    def by_api(self) -> Iterator[tuple[str, ApiTimes]]:
        """Yield each API that was answered, with the times of all its versions."""
        found: dict[str, ApiTimes] = {}
        for (api, _), times in list(self.apis.items()):
            found.setdefault(api, ApiTimes()).merge(times)
        yield from found.items()
