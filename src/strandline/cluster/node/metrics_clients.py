"""Metrics of clients: their requests and quotas, under Kafka's names, and the metrics that they push."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Protocol

from strandline.cluster.broker.stats import TIME_BOUNDS_MS, ListenerStats, Times
from strandline.cluster.node.broker_role import BrokerRole
from strandline.proto.kafka.apis import Api
from strandline.proto.quotas import QuotaKey

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SERIES_MAX = 2_000
"""Maximum pairs of client id and metric that are shown. Instance ids are no labels, as each start of a client has a new
one."""


def of_clients(broker: BrokerRole) -> Iterator[Metric]:
    """Metrics that clients push (KIP-714), as one family: the name of a client's metric is a label.

    There are none until a client has pushed.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    telemetry = broker.kafka.telemetry
    if not telemetry.pushes and not telemetry.refused:
        return
    greatest: dict[tuple[str, str, str], float] = {}
    count = 0
    for instance in telemetry.instances():
        count += 1
        client = instance.client
        for name, value in instance.metrics.items():
            key = client["client_id"], client["client_software_name"], name
            greatest[key] = max(value, greatest.get(key, value))
    labels = ("client_id", "software", "metric")
    shown = GaugeMetricFamily(
        "strandline_client_metric",
        "What clients say of themselves; of several of a client id the greatest.",
        None,
        labels,
    )
    for key in islice(sorted(greatest), SERIES_MAX):  # rule A43/client-metrics-without-bound
        shown.add_metric(key, greatest[key])
    yield shown
    left_out = max(0, len(greatest) - SERIES_MAX)
    for name, doc, value in (
        ("instances", "Clients that push metrics to this broker.", count),
        ("series_left_out", "Pairs of client id and metric that are not shown, for want of room.", left_out),
    ):
        yield GaugeMetricFamily(f"strandline_client_telemetry_{name}", doc, value=value)
    for name, doc, value in (
        ("pushes", "Pushes that were taken.", telemetry.pushes),
        ("refused", "Pushes that were refused.", telemetry.refused),
        ("evicted", "Clients that were put out for want of room.", telemetry.evicted),
    ):
        yield CounterMetricFamily(f"strandline_client_telemetry_{name}", doc, value=value)


# Requests: how many, and where the time of each went

_PREFIX = "kafka_network_requestmetrics_"
_REQUESTS = {Api.FETCH.title: "FetchConsumer"}
"""Name of an API -> Kafka's name of its requests, where they differ."""


_PARTS = {
    "requestqueue": "From the whole frame until the request is taken, milliseconds.",
    "local": "On the node's loop until the answer, milliseconds.",
    "remote": "Waiting for replicas, the controller, the disk or more records until the answer, milliseconds.",
    "throttle": "What the client was told to wait by its quotas, milliseconds.",
    "responsequeue": "From the answer until it is its turn to be sent, milliseconds.",
    "responsesend": "Until the socket has taken the answer, milliseconds.",
    "total": "From the whole frame until the answer is sent, milliseconds.",
}
"""Parts of a request's time, in the order of `Parts`: Kafka's name without `timems` -> documentation."""


class Listener(Protocol):
    """Listener for clients, as used here."""

    @property
    def name(self) -> str: ...
    @property
    def stats(self) -> ListenerStats: ...


def of_requests(listeners: Iterable[Listener]) -> Iterator[Metric]:
    """Numbers of requests by API and version; times by API for all versions together, as in Kafka.

    Followers fetch over INTERNAL, not over Kafka's protocol: each Fetch here is a consumer's.
    """
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
            key = (listener.name, _REQUESTS.get(api, api))
            longest.add_metric(key, seen.ms_max)
            for family, part in zip(times, seen.parts, strict=True):
                family.add_metric(key, _buckets(part, seen.answers), part.ms_total)
    yield from (count, slow, *times, longest)


def _buckets(part: Times, answers: int) -> list[tuple[str, float]]:
    """Return (upper bound, number of times not above it) for each bucket, as Prometheus counts them."""
    bounds = [*(str(float(bound)) for bound in TIME_BOUNDS_MS), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(part.counts(answers)), strict=True)]


# Quotas, under the names of Kafka's JMX exporter where they mean the same

SHARES_MAX = 1000
"""Maximum shares of each quota key that have metrics: the most recently used ones."""

_QUOTAS = {
    QuotaKey.PRODUCER_BYTE_RATE: ("produce", "byte_rate", "Bytes a second of produce requests"),
    QuotaKey.CONSUMER_BYTE_RATE: ("fetch", "byte_rate", "Bytes a second of fetched records"),
    QuotaKey.REQUEST_PERCENTAGE: ("request", "request_time", "Percent of the event loop's time"),
    QuotaKey.CONTROLLER_MUTATION_RATE: ("controllermutation", "mutation_rate", "Partitions made or deleted a second"),
    QuotaKey.CONNECTION_CREATION_RATE: ("connection", "accept_rate", "New connections a second"),
}
_OF_IP = QuotaKey.CONNECTION_CREATION_RATE
_OF = "of those that share a quota, lately"


def of_replication_quotas(broker: BrokerRole) -> Iterator[Metric]:
    """Byte rates of throttled replicas on this broker (KIP-73); 0 while none is throttled."""
    from prometheus_client.core import GaugeMetricFamily

    replicas = broker.replicas
    for side, throttle, verb in (
        ("leader", replicas.leader_throttle, "sent to"),
        ("follower", replicas.follower_throttle, "fetched for"),
    ):
        name = f"kafka_server_{side}replication_byte_rate"
        yield GaugeMetricFamily(name, f"Bytes a second {verb} throttled replicas, lately.", value=throttle.byte_rate)


def of_quotas(broker: BrokerRole) -> Iterator[Metric]:
    """Metrics of the use of client quotas, by quota key and share; none while no quota is set."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    quotas = broker.kafka.quotas
    if quotas is None:
        return
    now_ms = quotas.clock.monotonic_ms()
    throttles = CounterMetricFamily("strandline_throttles", "Times a client was told to wait.", labels=("quota",))
    waits = CounterMetricFamily("strandline_throttled_ms", "How long altogether, in ms.", labels=("quota",))
    for key, rate in quotas.measures().items():
        kind, measure, words = _QUOTAS[key]
        labels = ("ip",) if key is _OF_IP else ("user", "client_id")
        rates = GaugeMetricFamily(f"kafka_server_{kind}_{measure}", f"{words} {_OF}.", labels=labels)
        times = GaugeMetricFamily(f"kafka_server_{kind}_throttle_time", f"Mean throttle time {_OF}, ms.", labels=labels)
        for one in islice(rate.measured(now_ms), SHARES_MAX):
            of = (one.of.ip or "",) if key is _OF_IP else (one.of.user or "", one.of.client_id or "")
            rates.add_metric(of, one.rate)
            times.add_metric(of, one.throttle_ms)
        yield rates
        yield times
        throttles.add_metric((kind,), rate.throttles)
        waits.add_metric((kind,), rate.throttled_ms)
    yield throttles
    yield waits
    yield GaugeMetricFamily(
        "strandline_connections_waiting",
        "New connections that wait before they are let in: their address opens more than it may.",
        value=len(quotas.arrivals),
    )
