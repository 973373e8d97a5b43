"""Metrics of tiered storage (KIP-405), under the names of Kafka's JMX exporter where they mean the same.

A node without an object store has only one: the number of its partitions that need a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.cluster.node.broker_role import BrokerRole
from strandline.log.tier.reading import TierReader
from strandline.replica.tiering import Tiering

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_TOPICS = "kafka_server_brokertopicmetrics_remote"


def of_tier(broker: BrokerRole) -> Iterator[Metric]:
    """Metrics of copies to the object store, reads from it, deletions in it, and replicas that wait for it."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    tier, tiering = broker.tier, broker.replicas.tiering
    if tier is None or tiering is None:
        tiered = sum(status.tiered for status in broker.replicas.hosted())
        if tiered:
            says = "Partitions here of tiered topics: this broker has no remote.log.storage.url."
            yield GaugeMetricFamily("strandline_tier_partitions_without_store", says, value=tiered)
        return
    yield from _of_copies(tiering)
    yield from _of_size(broker)
    yield from _of_reads(tier.reader)
    beginnings = broker.replicas.beginnings
    says = "Replicas whose log begins behind what is in the object store, and that cannot learn yet who wrote it."
    yield GaugeMetricFamily("strandline_tier_replicas_without_producers", says, value=beginnings.waiting)
    says = "For how long one of them has waited, out of sync and leading nothing, the longest; 0: none waits."
    yield GaugeMetricFamily("strandline_tier_producers_wait_seconds", says, value=beginnings.waiting_ms() / 1000)
    reaper = tier.reaper
    yield CounterMetricFamily(
        "strandline_tier_reaped_objects",
        "Objects deleted that no metadata named: of deleted topics, or left over of what was cut short.",
        value=reaper.deleted,
    )
    yield CounterMetricFamily("strandline_tier_reaped_bytes", "Bytes of those left over.", value=reaper.deleted_bytes)
    yield GaugeMetricFamily(
        "strandline_tier_orphans_kept",
        "Objects that no metadata name and that the last round left: nothing shows that they are needed no more.",
        value=reaper.kept,
    )


def _of_copies(tiering: Tiering) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    counters = tiering.counters
    segments, size_bytes = tiering.copy_lag()
    copied = "Bytes of segments copied to the object store."
    yield CounterMetricFamily(_TOPICS + "copybytes", copied, value=counters.copied_bytes)
    failed = "Copies that failed; each is tried again."
    yield CounterMetricFamily(_TOPICS + "copyerrors", failed, value=counters.copy_errors)
    waiting = "Closed segments of partitions led here that are committed and not copied yet."
    yield GaugeMetricFamily(_TOPICS + "copylagsegments", waiting, value=segments)
    yield GaugeMetricFamily(_TOPICS + "copylagbytes", "Bytes of these.", value=size_bytes)
    undeleted = "Objects of forgotten segments that the store did not delete: left to the reaper."
    yield CounterMetricFamily(_TOPICS + "deleteerrors", undeleted, value=counters.delete_errors)
    yield CounterMetricFamily("strandline_tier_copied_segments", "Segments copied.", value=counters.copied_segments)
    removed = "Segments whose objects this leader has deleted."
    yield CounterMetricFamily("strandline_tier_deleted_segments", removed, value=counters.deleted_segments)
    failing = "For how long the copies of a partition led here have failed, the longest; 0: none fails."
    yield GaugeMetricFamily("strandline_tier_copies_failing_seconds", failing, value=tiering.failing_ms() / 1000)


def _of_size(broker: BrokerRole) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    says = "Bytes in the object store, of tiered partitions led here."
    size = GaugeMetricFamily(_TOPICS + "logsizebytes", says, labels=("topic", "partition"))
    for status in broker.replicas.hosted():
        if status.leader == broker.replicas.node_id and (status.tiered or status.tiered_bytes):
            size.add_metric((status.topic, str(status.partition)), status.tiered_bytes)
    yield size


def _of_reads(reader: TierReader) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield CounterMetricFamily(_TOPICS + "fetchbytes", "Bytes read from the object store.", value=reader.fetched_bytes)
    yield CounterMetricFamily(_TOPICS + "fetchrequests", "Requests that read them.", value=reader.requests)
    yield CounterMetricFamily(_TOPICS + "fetcherrors", "Those that failed.", value=reader.errors)
    took = "How long they took altogether, in ms."
    yield CounterMetricFamily("strandline_tier_fetch_ms", took, value=reader.fetch_ms)
    corrupt = "Times that an object was not what was written: nobody gets it."
    yield CounterMetricFamily("strandline_tier_corrupt_objects", corrupt, value=reader.corrupt)
    hits = "Parts of objects that were in memory, or under way, when they were asked for."
    yield CounterMetricFamily("strandline_tier_cache_hits", hits, value=reader.cache_hits)
    yield GaugeMetricFamily("strandline_tier_cached_bytes", "Bytes of objects in memory.", value=reader.cached_bytes)
