"""Metrics of clients' requests: how many, and where the time of each went, under Kafka's names.

Followers fetch over INTERNAL, not over Kafka's protocol: each Fetch here is a consumer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from strandline.cluster.broker.stats import TIME_BOUNDS_MS, ListenerStats, Times
from strandline.proto.kafka.apis import Api

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX = "kafka_network_requestmetrics_"
_NAMES = {Api.FETCH.title: "FetchConsumer"}
"""Kafka's names of requests, where they are not those of APIs."""


_PARTS = {
    "requestqueue": "From the whole frame until the request is taken, milliseconds.",
    "local": "On the node's loop until the answer, milliseconds.",
    "remote": "Waiting for replicas, the controller, the disk or more records until the answer, milliseconds.",
    "throttle": "What the client was told to wait by its quotas, milliseconds.",
    "responsequeue": "From the answer until it is its turn to be sent, milliseconds.",
    "responsesend": "Until the socket has taken the answer, milliseconds.",
    "total": "From the whole frame until the answer is sent, milliseconds.",
}
"""The parts in their order (`Parts`): Kafka's name before `timems`, sentence."""


class Listener(Protocol):
    """Listener of clients."""

    @property
    def name(self) -> str: ...
    @property
    def stats(self) -> ListenerStats: ...


def of_requests(listeners: Iterable[Listener]) -> Iterator[Metric]:
    """Number of requests by API and version; times by API, all versions together, as Kafka has them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    count = CounterMetricFamily(
        _PREFIX + "requests", "Requests that were answered.", labels=("listener", "request", "version")
    )
    slow = CounterMetricFamily(
        "strandline_slow_requests",
        "Requests that took longer than slow.request.log.threshold.ms.",
        labels=("listener", "request"),
    )
    labels = ("listener", "request")
    longest = GaugeMetricFamily(
        _PREFIX + "totaltimems_max", "The longest total time since the start, milliseconds.", labels=labels
    )
    times = [HistogramMetricFamily(f"{_PREFIX}{part}timems", doc, labels=labels) for part, doc in _PARTS.items()]
    for listener in listeners:
        stats = listener.stats
        for (api, version), seen in list(stats.apis.items()):
            count.add_metric((listener.name, api, str(version)), seen.answers)
        for api, number in list(stats.slow.counted.items()):
            slow.add_metric((listener.name, api), number)
        for api, seen in stats.by_api():
            key = (listener.name, _NAMES.get(api, api))
            longest.add_metric(key, seen.ms_max)
            for family, part in zip(times, seen.parts, strict=True):
                family.add_metric(key, _buckets(part, seen.answers), part.ms_total)
    yield from (count, slow, *times, longest)


def _buckets(part: Times, answers: int) -> list[tuple[str, float]]:
    """Upper bound and how many were not above it, as Prometheus counts them."""
    bounds = [*(str(float(bound)) for bound in TIME_BOUNDS_MS), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(part.counts(answers)), strict=True)]
