"""What a listener counts of its clients, for the metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from strandline.cluster.broker.request import RequestContext
from strandline.cluster.broker.table import APIS
from strandline.proto.ports import Clock

TIME_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of the histogram of answer times; a last bucket takes what is above."""

SOFTWARE_KINDS_MAX = 1000
"""So many names and versions of clients are counted: they say what they like."""

OTHER_VERSION = -1
"""Stands in the metrics for all versions that are not served: ApiVersions is answered in any of 65,536."""

_SERVED = frozenset((row.api.title, version) for row in APIS.values() for version in range(row.first, row.last + 1))


class ApiTimes:
    """Answers of an API: their number, and how long each took from the whole frame to the answer.

    Attributes:
        counts: answers in each bucket of `TIME_BOUNDS_MS`, and above.
    """

    __slots__ = ("answers", "counts", "ms_max", "ms_total")

    def __init__(self) -> None:
        self.answers = 0
        self.counts = [0] * (len(TIME_BOUNDS_MS) + 1)
        self.ms_total = 0.0
        self.ms_max = 0.0


class ListenerStats:
    """Counters for the metrics; plain numbers that only rise, save `connections`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.connections = 0
        self.bytes_out = 0
        self.refused = 0
        self.idle_closed = 0
        self.apis: dict[tuple[str, int], ApiTimes] = {}
        self.software: Counter[tuple[str, str]] = Counter()

    def count_software(self, name: str, version: str) -> None:
        """A client has said what it is; beyond `SOFTWARE_KINDS_MAX` kinds nothing new is counted."""
        if (name, version) in self.software or len(self.software) < SOFTWARE_KINDS_MAX:
            self.software[name, version] += 1

    def answered(self, context: RequestContext) -> None:
        key = (context.api, context.version)
        if key not in _SERVED:
            key = (context.api, OTHER_VERSION)
        times = self.apis.get(key)
        if times is None:
            times = self.apis[key] = ApiTimes()
        took_ms = self._clock.monotonic_ms() - context.received_ms
        times.answers += 1
        times.counts[bisect_left(TIME_BOUNDS_MS, took_ms)] += 1
        times.ms_total += took_ms
        times.ms_max = max(times.ms_max, took_ms)
