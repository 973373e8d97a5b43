"""Metrics of authentications, under the names of Kafka's JMX exporter; of certificates; and of the audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from strandline.cluster.node.broker_role import BrokerRole
from strandline.cluster.node.tls import NodeTls
from strandline.cluster.security.sasl import SaslCounts

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_DOCS = {
    "successful_authentication": "Connections of clients that authenticated by SASL.",
    "failed_authentication": "Connections of clients whose authentication by SASL failed.",
    "successful_reauthentication": "Clients that authenticated anew on the same connection.",
    "failed_reauthentication": "Clients that failed to, and were disconnected.",
    "expired_connections_killed": "Connections that went on after connections.max.reauth.ms, and were closed.",
}


def of_authentications(broker: BrokerRole) -> Iterator[Metric]:
    """Numbers of authentications at each listener with SASL."""
    from prometheus_client.core import CounterMetricFamily

    doors = [listener.sasl for listener in broker.listeners if listener.sasl is not None]
    for item in fields(SaslCounts):
        counted = CounterMetricFamily(
            f"kafka_server_socket_server_metrics_{item.name}", _DOCS[item.name], labels=("listener",)
        )
        for door in doors:
            counted.add_metric((door.listener,), getattr(door.counts, item.name))
        yield counted


def of_certificates(tls: NodeTls) -> Iterator[Metric]:
    """Expiry times of the certificates of each listener with TLS."""
    from prometheus_client.core import GaugeMetricFamily

    ends = GaugeMetricFamily(
        "strandline_certificate_not_after_timestamp_seconds",
        "When a certificate of a listener, or a CA that it trusts, ends.",
        labels=("listener", "subject"),
    )
    soonest: dict[tuple[str, str], float] = {}
    for certificates in tls.certificates:
        for expiry in certificates.expiries:
            key = (certificates.owner, expiry.subject)
            soonest[key] = min(expiry.at_s, soonest.get(key, expiry.at_s))
    for labels, at_s in soonest.items():
        ends.add_metric(labels, at_s)
    if soonest:
        yield ends


def of_audit(broker: BrokerRole) -> Iterator[Metric]:
    """Numbers of dropped and waiting lines of the audit; none without an audit trail."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    trail = broker.audit_trail
    if trail is None:
        return
    dropped = CounterMetricFamily(
        "strandline_audit_dropped", "Lines of the audit that the file or the topic did not get.", labels=("to",)
    )
    if trail.files:
        dropped.add_metric(("file",), sum(file.dropped for file in trail.files))
    if trail.topic is not None:
        dropped.add_metric(("topic",), trail.topic.dropped)
        yield GaugeMetricFamily(
            "strandline_audit_waiting", "Lines of the audit that wait for the topic.", value=trail.topic.waiting
        )
    yield dropped
