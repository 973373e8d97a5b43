"""Metrics of quotas, under the names that Kafka's have in its JMX exporter, where they are the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from strandline.cluster.node.broker_role import BrokerRole
from strandline.proto.quotas import QuotaKey

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SHARES_MAX = 1000
"""Shares of each key that have metrics, at most: those that were used last."""

_NAMES = {
    QuotaKey.PRODUCER_BYTE_RATE: ("produce", "byte_rate", "Bytes a second of produce requests"),
    QuotaKey.CONSUMER_BYTE_RATE: ("fetch", "byte_rate", "Bytes a second of fetched records"),
    QuotaKey.REQUEST_PERCENTAGE: ("request", "request_time", "Percent of the event loop's time"),
    QuotaKey.CONTROLLER_MUTATION_RATE: ("controllermutation", "mutation_rate", "Partitions made or deleted a second"),
    QuotaKey.CONNECTION_CREATION_RATE: ("connection", "accept_rate", "New connections a second"),
}
_OF_IP = QuotaKey.CONNECTION_CREATION_RATE
_OF = "of those that share a quota, lately"


def of_replication_quotas(broker: BrokerRole) -> Iterator[Metric]:
    """Metrics of the bytes that throttled replicas take of this broker (KIP-73); 0 while none is throttled."""
    from prometheus_client.core import GaugeMetricFamily

    replicas = broker.replicas
    for side, throttle, verb in (
        ("leader", replicas.leader_throttle, "sent to"),
        ("follower", replicas.follower_throttle, "fetched for"),
    ):
        name = f"kafka_server_{side}replication_byte_rate"
        yield GaugeMetricFamily(name, f"Bytes a second {verb} throttled replicas, lately.", value=throttle.byte_rate)


def of_quotas(broker: BrokerRole) -> Iterator[Metric]:
    """Metrics of each key and share; none while no quota is set."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    quotas = broker.kafka.quotas
    if quotas is None:
        return
    now_ms = quotas.clock.monotonic_ms()
    throttles = CounterMetricFamily("strandline_throttles", "Times a client was told to wait.", labels=("quota",))
    waits = CounterMetricFamily("strandline_throttled_ms", "How long altogether, in ms.", labels=("quota",))
    for key, rate in quotas.measures().items():
        kind, measure, words = _NAMES[key]
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
