"""Metrics of a node at /metrics: Kafka's metrics, under the names that its JMX exporter gives them, and some that only
Strandline has.

All values are read at the scrape from plain numbers that the node's parts keep anyway, so counting adds no cost.
`prometheus_client` is imported at the first scrape, as it takes 4 MB that a node without monitoring does not need.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from strandline.cluster.broker.memory import Account
from strandline.cluster.broker.standard_authorizer import StandardAuthorizer
from strandline.cluster.node.broker_role import BrokerRole
from strandline.cluster.node.metrics_clients import of_clients, of_quotas, of_replication_quotas, of_requests
from strandline.cluster.node.metrics_groups import of_groups
from strandline.cluster.node.metrics_security import of_audit, of_authentications, of_certificates
from strandline.cluster.node.metrics_tier import of_tier
from strandline.cluster.node.metrics_transactions import of_transactions
from strandline.cluster.node.observed import ObservedNode
from strandline.log.disk import DiskError
from strandline.log.findings import LogCondition
from strandline.log.watched_disk import BOUNDS_S
from strandline.replica.manager import ReplicaManager

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Renders one node's metrics."""

    def __init__(self, node: ObservedNode) -> None:
        self._node = node
        self._registry: CollectorRegistry | None = None

    def render(self) -> bytes:
        """Return the page in Prometheus' text format."""
        from prometheus_client import generate_latest

        if self._registry is None:
            self._registry = self._make_registry()
        return generate_latest(self._registry)

    def _make_registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.registry import Collector

        node = self._node

        class OfNode(Collector):
            """Collector that reads the node's parts at every scrape."""

            def collect(self) -> Iterator[Metric]:
                yield from _of_process(node)
                yield from _of_quorum(node)
                yield from of_certificates(node.tls)
                if node.controller is not None:
                    yield from _of_controller(node)
                if node.broker is not None:
                    yield from _of_replicas(node.broker)
                    yield from _of_compaction(node.broker)
                    yield from _of_logs(node.broker)
                    yield from _of_recovery(node)
                    yield from _of_connections(node.broker)
                    yield from of_requests(node.broker.listeners)
                    yield from _of_authorizer(node.broker)
                    yield from of_groups(node.broker)
                    yield from of_transactions(node.broker, node.clock.wall_ms())
                    yield from of_authentications(node.broker)
                    yield from of_audit(node.broker)
                    yield from of_quotas(node.broker)
                    yield from of_replication_quotas(node.broker)
                    yield from of_tier(node.broker)
                    yield from of_clients(node.broker)

        registry = CollectorRegistry()
        registry.register(OfNode())
        ProcessCollector(registry=registry)
        return registry


def _gauge(name: str, doc: str, value: float) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, doc, value=value)


def _counter(name: str, doc: str, value: float) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, doc, value=value)


def _of_process(node: ObservedNode) -> Iterator[Metric]:
    yield _gauge("event_loop_lag_ms", "How late the event loop was just now, in milliseconds.", node.loop_lag.last_ms)
    yield _gauge(
        "event_loop_lag_max_ms",
        "The latest that the event loop was since the last scrape, in milliseconds.",
        node.loop_lag.take_max(),
    )
    yield _gauge("strandline_ready", "1 when this node does its work, else 0.", int(node.ready))
    yield _gauge(
        "strandline_clock_ahead_ms",
        "How far the wall clock was set ahead and is not believed, in milliseconds; 0 where it is.",
        node.believed.ahead_ms,
    )
    yield from _of_disk(node)


def _of_disk(node: ObservedNode) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

    yield _gauge(
        "strandline_sync_in_flight_seconds",
        "How long the oldest sync of the disk under way has taken by now; 0 when there is none.",
        node.disk.age_ms / 1000,
    )
    threads = GaugeMetricFamily(
        "strandline_sync_thread",
        "1 for the thread that carries out small group syncs: compiled, or python where there was no compiler.",
        labels=["kind"],
    )
    threads.add_metric([node.disk.sync_thread], 1)
    yield threads
    yield _counter(
        "strandline_syncs_waited_for",
        "Group syncs that ended while the event loop waited for them in place, as it does where the disk is fast.",
        node.disk.waited,
    )
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    counts = accumulate(node.disk.times.counts)
    yield HistogramMetricFamily(
        "strandline_sync_seconds",
        "How long group syncs of the disk took.",
        buckets=[(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)],
        sum_value=node.disk.times.seconds_total,
    )


def _of_quorum(node: ObservedNode) -> Iterator[Metric]:
    leader = node.quorum.leader_and_epoch
    prefix = "kafka_server_raft_metrics_"
    leader_id = -1 if leader.leader_id is None else leader.leader_id
    yield _gauge(prefix + "current_leader", "Node id of the metadata quorum's leader, -1 when unknown.", leader_id)
    yield _gauge(prefix + "current_epoch", "Epoch of the metadata quorum.", leader.epoch)
    yield _gauge(prefix + "high_watermark", "Committed end of the metadata log.", node.quorum.high_watermark)
    yield _gauge(prefix + "log_end_offset", "End of this node's metadata log.", node.quorum.log_end_offset)
    yield _gauge(
        "kafka_server_metadataloader_currentmetadataversion",
        "metadata.version of the cluster.",
        node.publisher.image.metadata_version,
    )


def _of_controller(node: ObservedNode) -> Iterator[Metric]:
    assert node.controller is not None
    image = node.publisher.image
    partitions = [info for topic in image.topics.values() for info in topic.partitions.values()]
    brokers = list(image.brokers.values())
    fenced = sum(broker.fenced for broker in brokers)
    prefix = "kafka_controller_kafkacontroller_"
    yield _gauge(prefix + "activecontrollercount", "1 on the active controller, else 0.", int(node.controller.active))
    yield _gauge(prefix + "activebrokercount", "Brokers that are registered and not fenced.", len(brokers) - fenced)
    yield _gauge(prefix + "fencedbrokercount", "Brokers that are registered and fenced.", fenced)
    yield _gauge(prefix + "globaltopiccount", "Topics of the cluster.", len(image.topics))
    yield _gauge(prefix + "globalpartitioncount", "Partitions of the cluster.", len(partitions))
    yield _gauge(
        prefix + "offlinepartitionscount",
        "Partitions without a leader.",
        sum(not info.has_leader for info in partitions),
    )
    yield _gauge(
        prefix + "preferredreplicaimbalancecount",
        "Partitions that their preferred replica does not lead.",
        sum(info.leader != info.replicas[0] for info in partitions),
    )


def _of_replicas(broker: BrokerRole) -> Iterator[Metric]:
    replicas, counters = broker.replicas, broker.replicas.counters
    hosted = replicas.hosted()
    led = sum(status.leader == replicas.node_id for status in hosted)
    yield _gauge(
        "strandline_disk_full",
        "1 while no disk of this broker has room and other brokers lead what it led, else 0.",
        int(replicas.directories.full),
    )
    yield from of_directories(replicas)
    prefix = "kafka_server_replicamanager_"
    yield _gauge(prefix + "partitioncount", "Partitions with a replica here.", len(hosted))
    yield _gauge(prefix + "leadercount", "Partitions led here.", led)
    yield _gauge(
        prefix + "underreplicatedpartitions",
        "Partitions led here whose ISR lacks a replica.",
        replicas.under_replicated(),
    )
    yield _gauge(
        prefix + "reassigningpartitions",
        "Partitions led here that are moving to other brokers.",
        replicas.reassigning(),
    )
    yield _gauge(
        prefix + "underminisrpartitioncount",
        "Partitions led here that have too few replicas in sync to commit.",
        replicas.under_min_isr(),
    )
    yield _gauge(
        prefix + "offlinereplicacount",
        "Replicas here whose log cannot be used.",
        sum(bool(status.reason) for status in hosted),
    )
    yield _counter(
        "strandline_corrupt_batches",
        "Parts of logs on this broker's disk, a batch or more each, that are not what was written: nobody gets them.",
        counters.corrupt_batches,
    )
    yield _counter(
        "strandline_mended_holes", "Such parts of logs that were healed from a leader.", counters.mended_holes
    )
    yield _gauge(
        "strandline_unsynced_bytes",
        "Bytes of logs that were written and wait for their sync; beyond 32 MB in one log directory producers wait.",
        sum(directory.syncer.unsynced_bytes for directory in replicas.directories.all),
    )
    yield _counter("strandline_scrubbed_bytes", "Bytes of logs that the scrub has read.", counters.scrubbed_bytes)
    yield _gauge(
        "strandline_rotten_replicas",
        "Replicas here a part of whose log is not what was written, and not healed yet.",
        sum(status.rotten for status in hosted),
    )
    yield _counter(prefix + "isrshrinks", "Times a replica left the ISR of a partition led here.", counters.isr_shrinks)
    yield _counter(prefix + "isrexpands", "Times a replica joined the ISR.", counters.isr_expands)
    yield _counter(prefix + "failedisrupdates", "ISR changes that the controller refused.", counters.failed_isr_updates)
    topics = "kafka_server_brokertopicmetrics_"
    yield _counter(topics + "bytesin", "Bytes of batches appended by clients.", counters.messages_in_bytes)
    yield _counter(topics + "replicationbytesin", "Bytes fetched from leaders.", counters.replicated_in_bytes)
    yield _counter(topics + "replicationbytesout", "Bytes queued for followers.", replicas.replicated_out_bytes)
    yield _counter(
        topics + "reassignmentbytesin",
        "Bytes fetched from leaders by replicas that a move adds here.",
        counters.reassigned_in_bytes,
    )
    yield _counter(
        topics + "reassignmentbytesout",
        "Bytes queued for followers that a move adds.",
        counters.reassigned_out_bytes,
    )
    yield _counter(topics + "totalproducerequests", "Batches appended by clients.", counters.appends)
    yield _counter(
        "strandline_duplicate_batches",
        "Batches of idempotent producers that were here already and were not written again.",
        counters.duplicates,
    )
    yield _counter(
        "strandline_expired_records",
        "Records that retention.ms and retention.bytes took from partitions led here.",
        counters.expired_records,
    )
    yield _counter("strandline_expired_bytes", "Bytes of the same.", counters.expired_bytes)
    yield _counter(
        "strandline_truncations_below_high_watermark",
        "Times a follower had to cut what it thought committed: only after an unclean election.",
        counters.truncations_below_high_watermark,
    )


def _of_compaction(broker: BrokerRole) -> Iterator[Metric]:
    compactor = broker.replicas.compactor
    figures, uncleanable = compactor.figures, compactor.uncleanable
    manager, cleaner = "kafka_log_logcleanermanager_", "kafka_log_logcleaner_"
    yield _gauge(
        manager + "uncleanable_partitions_count",
        "Logs here that compaction cannot read and leaves alone.",
        len(uncleanable),
    )
    size = sum(plog.size_bytes for plog in uncleanable)
    yield _gauge(manager + "uncleanable_bytes", "Bytes of these.", size)
    percent = round(100 * figures.max_dirty_ratio)
    yield _gauge(manager + "max_dirty_percent", "Of the log that needs compaction most.", percent)
    yield _gauge(cleaner + "cleaner_recopy_percent", "Of what the last pass read.", figures.recopied_percent)
    yield _gauge(cleaner + "max_clean_time_secs", "Of the last pass.", figures.last_ms / 1_000)
    delay = figures.max_delay_ms / 1_000
    yield _gauge(cleaner + "max_compaction_delay_secs", "Beyond max.compaction.lag.ms, the longest.", delay)
    yield _counter("strandline_compaction_passes", "Passes of compaction over a log.", figures.passes)
    yield _counter("strandline_compaction_read_bytes", "Bytes that they read.", figures.read_bytes)
    yield _counter("strandline_compaction_written_bytes", "Bytes that they wrote.", figures.written_bytes)
    yield _counter("strandline_compacted_records", "Records that they took.", figures.removed)


def _of_logs(broker: BrokerRole) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ("topic", "partition")
    size = GaugeMetricFamily("kafka_log_log_size", "Bytes of the partition's log on this node.", labels=labels)
    start = GaugeMetricFamily("kafka_log_log_logstartoffset", "First offset of the log.", labels=labels)
    end = GaugeMetricFamily("kafka_log_log_logendoffset", "End of the log.", labels=labels)
    committed = GaugeMetricFamily(
        "kafka_cluster_partition_highwatermark", "High watermark as this node knows it.", labels=labels
    )
    isr = GaugeMetricFamily("kafka_cluster_partition_insyncreplicascount", "Replicas in sync.", labels=labels)
    undecided = GaugeMetricFamily(
        "kafka_cluster_partition_laststableoffsetlag",
        "Offsets between the first undecided transaction and the high watermark, on the leader.",
        labels=labels,
    )
    for status in broker.replicas.hosted():
        names = (status.topic, str(status.partition))
        size.add_metric(names, status.size_bytes)
        start.add_metric(names, status.log_start_offset)
        end.add_metric(names, status.log_end_offset)
        committed.add_metric(names, status.high_watermark)
        if status.leader == broker.replicas.node_id:
            isr.add_metric(names, len(status.isr))
            undecided.add_metric(names, status.high_watermark - status.last_stable_offset)
    yield from (size, start, end, committed, isr, undecided)


def _of_recovery(node: ObservedNode) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    found = GaugeMetricFamily(
        "strandline_recovered_logs", "Logs by what this start found: intact, cut, lacking, away.", labels=("found",)
    )
    for condition in LogCondition:
        found.add_metric((condition.name.lower(),), node.log_dirs.found[condition])
    yield found


def _of_connections(broker: BrokerRole) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    connections = GaugeMetricFamily(
        "kafka_server_socket_server_metrics_connection_count", "Open connections of clients.", labels=("listener",)
    )
    bytes_out = CounterMetricFamily(
        "kafka_server_brokertopicmetrics_bytesout", "Bytes sent to clients.", labels=("listener",)
    )
    refused = CounterMetricFamily(
        "strandline_refused_connections", "Connections closed for what they sent.", labels=("listener",)
    )
    memory = GaugeMetricFamily(
        "strandline_client_memory_bytes", "Memory held for clients, by what it is held for.", labels=("held_for",)
    )
    for listener in broker.listeners:
        stats = listener.stats
        connections.add_metric((listener.name,), stats.connections)
        bytes_out.add_metric((listener.name,), stats.bytes_out)
        refused.add_metric((listener.name,), stats.refused)
    for account in Account:
        memory.add_metric((account.value,), broker.kafka.memory.used_for(account))
    yield from (connections, bytes_out, refused, memory)


def _of_authorizer(broker: BrokerRole) -> Iterator[Metric]:
    authorizer = broker.authorizer
    if isinstance(authorizer, StandardAuthorizer):
        prefix = "kafka_server_authorizer_metrics_"
        yield _gauge(prefix + "acls_total_count", "Access control entries of the cluster.", authorizer.acl_count)
        yield _counter(
            prefix + "authorization_denied",
            "Times a client was denied what it asked for, one for each operation and resource.",
            authorizer.denied,
        )


def of_directories(replicas: ReplicaManager) -> Iterator[Metric]:
    """Metrics of a broker's log directories."""
    from prometheus_client.core import GaugeMetricFamily

    offline = replicas.log_dirs.offline
    yield GaugeMetricFamily(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories of this broker that are offline, with the replicas in them.",
        value=len(offline),
    )
    yield GaugeMetricFamily(
        "strandline_replica_moves", "Replicas on their way to another log directory.", value=len(replicas.mover.moves)
    )
    labels = ("log_directory",)
    is_offline = GaugeMetricFamily(
        "kafka_log_logmanager_logdirectoryoffline", "1 for a log directory that is offline, else 0.", labels=labels
    )
    full = GaugeMetricFamily(
        "strandline_log_dir_full", "1 while a log directory has no room and takes no writes, else 0.", labels=labels
    )
    held = GaugeMetricFamily("strandline_log_dir_replicas", "Replicas in a log directory.", labels=labels)
    free = GaugeMetricFamily("strandline_log_dir_free_bytes", "Room left on a log directory's disk.", labels=labels)
    for path in offline:
        is_offline.add_metric((path,), 1)
    for directory in replicas.directories.usable:
        names = (directory.path,)
        is_offline.add_metric(names, 0)
        full.add_metric(names, int(directory.room.full))
        held.add_metric(names, len(directory.log_dir.logs))
        try:
            free.add_metric(names, directory.log_dir.disk.free_bytes(directory.path))
        except DiskError:
            continue  # reads and writes in the directory get the error too, and handle it
    yield from (is_offline, full, held, free)
