"""Metrics that clients push of themselves (KIP-714), as one family: the name of a client's metric is a label."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from strandline.cluster.node.broker_role import BrokerRole

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SERIES_MAX = 2_000
"""Pairs of a client id and a metric that are shown. Instance ids are no labels: each start of a client has another."""


def of_clients(broker: BrokerRole) -> Iterator[Metric]:
    """Metrics of clients; none until one has pushed."""
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
