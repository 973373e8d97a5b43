"""Metrics of transactions: Kafka's, under Kafka's names; their states; and late transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.cluster.groups.runtime import Phase
from strandline.cluster.node.broker_role import BrokerRole
from strandline.cluster.node.metrics_groups import coordinated_partitions
from strandline.cluster.transactions.lost_markers import GRACE_MS
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.transaction_records import TransactionState

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def of_transactions(broker: BrokerRole, wall_ms: float) -> Iterator[Metric]:
    """Metrics of the transactions that this broker coordinates, of the markers that it sends, and of the open
    transactions in the partitions that it leads."""
    yield from _of_the_coordinator(broker, wall_ms)
    yield from _of_markers(broker)
    yield from _of_partitions(broker, wall_ms)


def _of_the_coordinator(broker: BrokerRole, wall_ms: float) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    runtime = broker.coordinators.transactions.runtime
    states: Counter[TransactionState] = Counter()
    oldest_ms = wall_ms
    for hosted in runtime.hosted():
        if hosted.phase is not Phase.SERVING:
            continue
        for value in hosted.shard.transactions.values():
            states[value.state] += 1
            if value.state is TransactionState.ONGOING:
                oldest_ms = min(oldest_ms, value.started_ms)
    prefix = "kafka_server_transaction_coordinator_metrics_"
    yield from coordinated_partitions(prefix, "__transaction_state", runtime)
    by_state = GaugeMetricFamily(
        "strandline_transactional_ids", "Transactional ids coordinated here, by state.", labels=("state",)
    )
    for state in TransactionState:
        by_state.add_metric((state.title,), states[state])
    yield by_state
    yield GaugeMetricFamily(
        "strandline_transaction_open_seconds_max",
        "For how long the oldest open transaction that is coordinated here has been open.",
        value=max(wall_ms - oldest_ms, 0.0) / 1000,
    )


def _of_markers(broker: BrokerRole) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    markers, verified = broker.coordinators.markers, broker.coordinators.verifier.figures
    without_leader, refused = markers.waiting()
    prefix = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
    yield GaugeMetricFamily(
        prefix + "unknowndestinationqueuesize",
        "Markers that wait for a leader of their partition.",
        value=without_leader,
    )
    yield GaugeMetricFamily(
        prefix + "logappendretryqueuesize", "Markers that wait to be sent to a leader again.", value=refused
    )
    yield GaugeMetricFamily(
        "strandline_transactions_ending",
        "Decided transactions whose markers are not all written.",
        value=markers.pending,
    )
    prefix = "kafka_server_addpartitionstotxnmanager_"
    yield CounterMetricFamily(
        prefix + "verificationfailures", "Partitions that a coordinator refused.", value=verified.failures
    )
    yield SummaryMetricFamily(
        prefix + "verificationtime_seconds",
        "Time until the coordinator of a transaction has answered a leader.",
        count_value=verified.questions,
        sum_value=verified.seconds,
    )


def _of_partitions(broker: BrokerRole, wall_ms: float) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    late = producers = 0
    limit_ms = broker.coordinators.transactions.config.max_timeout_ms + GRACE_MS
    for status in broker.replicas.hosted():
        if status.leader != broker.replicas.node_id:
            continue
        replica = broker.replicas.partition(TopicPartition(status.topic, status.partition))
        if replica is None or replica.log is None:
            continue
        producers += len(replica.log.producers)
        if status.last_stable_offset < status.high_watermark:
            oldest = replica.log.open_transactions()[:1]
            late += any(0 <= one.last_timestamp_ms < wall_ms - limit_ms for one in oldest)
    prefix = "kafka_server_replicamanager_"
    yield GaugeMetricFamily(
        prefix + "partitionswithlatetransactionscount",
        "Partitions led here with a transaction that is open beyond every time-out: it may hang.",
        value=late,
    )
    yield GaugeMetricFamily(prefix + "produceridcount", "Producers known to the partitions led here.", value=producers)
