"""Metrics of consumer groups: Kafka's, under Kafka's names, and the lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strandline.cluster.groups.classic.group import GroupState
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroupState
from strandline.cluster.groups.runtime import CoordinatorRuntime, Phase
from strandline.cluster.node.broker_role import BrokerRole
from strandline.proto.ids import TopicPartition

if TYPE_CHECKING:
    from prometheus_client.core import Metric


LAG_SERIES_MAX = 10_000
"""Maximum series of lags. Any client creates groups by committing offsets; 10,000 series take a megabyte per scrape,
and a tenth of a second of the node's time."""


class _Census:
    """Counts of the groups that a broker coordinates, with their lags."""

    def __init__(self) -> None:
        from prometheus_client.core import GaugeMetricFamily

        self.states: Counter[GroupState] = Counter()
        self.consumer_states: Counter[ConsumerGroupState] = Counter()
        self.offsets = self.left_out = self.elsewhere = 0
        labels = ("group", "topic", "partition")
        self.lag = GaugeMetricFamily(
            "strandline_consumergroup_lag",
            "Committed records that the group has not read, of partitions with a replica here.",
            labels=labels,
        )
        self.expired = GaugeMetricFamily(
            "strandline_records_expired_unread",
            "Offsets between what the group has committed and the log start, of partitions with a replica here.",
            labels=labels,
        )

    def count(self, broker: BrokerRole) -> None:
        """Count the groups in all partitions of __consumer_offsets that the broker leads."""
        for hosted in broker.coordinators.groups.runtime.hosted():
            if hosted.phase is not Phase.SERVING:
                continue
            self.states.update(group.state for group in hosted.shard.groups.values())
            self.consumer_states.update(group.state for group in hosted.shard.consumer_groups.values())
            for group_id, topic, number, offset in hosted.shard.offsets():
                self._count_offset(broker, group_id, TopicPartition(topic, number), offset)

    def _count_offset(self, broker: BrokerRole, group_id: str, tp: TopicPartition, offset: int) -> None:
        self.offsets += 1
        replica = broker.replicas.partition(tp)
        if replica is None:
            self.elsewhere += 1
        elif len(self.lag.samples) >= LAG_SERIES_MAX:
            self.left_out += 1
        else:
            labels = (group_id, tp.topic, str(tp.partition))
            self.lag.add_metric(labels, max(replica.high_watermark - offset, 0))
            if offset < replica.log_start_offset:  # rule B15/what-expired-unread-is-not-told
                self.expired.add_metric(labels, replica.log_start_offset - offset)


def of_groups(broker: BrokerRole) -> Iterator[Metric]:
    """Metrics of the groups that a broker coordinates."""
    from prometheus_client.core import GaugeMetricFamily

    census = _Census()
    census.count(broker)
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    groups = sum(census.states.values()) + sum(census.consumer_states.values())
    yield GaugeMetricFamily(prefix + "numgroups", "Groups coordinated here.", value=groups)
    yield GaugeMetricFamily(prefix + "numoffsets", "Committed offsets kept here.", value=census.offsets)
    for state in GroupState:
        name = prefix + "numgroups" + state.value.lower()
        yield GaugeMetricFamily(name, f"Groups in the state {state.value}.", value=census.states[state])
    by_state = GaugeMetricFamily(
        "strandline_consumer_protocol_groups", "Groups of the consumer protocol coordinated here.", labels=("state",)
    )
    for consumer_state in ConsumerGroupState:
        by_state.add_metric((consumer_state.value.lower(),), census.consumer_states[consumer_state])
    yield by_state
    yield census.lag
    yield census.expired
    yield GaugeMetricFamily(
        "strandline_consumergroup_offsets_elsewhere",
        "Committed offsets of partitions without a replica here: their lag, and what expired unread, are not told.",
        value=census.elsewhere,
    )
    yield GaugeMetricFamily(
        "strandline_consumergroup_lag_left_out",
        f"Lags that are left out, beyond the first {LAG_SERIES_MAX}.",
        value=census.left_out,
    )
    yield from _of_the_coordinator(broker)


def coordinated_partitions(prefix: str, topic: str, runtime: CoordinatorRuntime[Any]) -> Iterator[Metric]:
    """Metrics of the partitions of a coordinator's topic that this broker leads, by state. For both coordinators."""
    from prometheus_client.core import GaugeMetricFamily

    phases = Counter(hosted.phase for hosted in runtime.hosted())
    partitions = GaugeMetricFamily(
        prefix + "num_partitions", f"Partitions of {topic} led here, by what they do.", labels=("state",)
    )
    for phase in (Phase.LOADING, Phase.SERVING, Phase.FAILED):
        partitions.add_metric(("active" if phase is Phase.SERVING else phase.value,), phases[phase])
    yield partitions
    yield GaugeMetricFamily(
        prefix + "partition_load_time_max",
        "The longest that loading such a partition took, milliseconds.",
        value=runtime.partition_load_ms_max,
    )


def _of_the_coordinator(broker: BrokerRole) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    counters = broker.coordinators.groups.counters
    prefix = "kafka_server_group_coordinator_metrics_"
    yield from coordinated_partitions(prefix, "__consumer_offsets", broker.coordinators.groups.runtime)
    for name, doc, value in (
        ("offset_commit", "Offsets committed.", counters.offset_commits),
        ("offset_expiration", "Offsets forgotten for their age.", counters.offset_expirations),
        ("offset_deletion", "Offsets deleted.", counters.offset_deletions),
        ("group_completed_rebalance", "Rebalances completed.", counters.rebalances),
    ):
        yield CounterMetricFamily(prefix + name, doc, value=value)
    yield CounterMetricFamily(
        "strandline_group_members_expired", "Members given up for their silence.", value=counters.members_expired
    )
