"""What /metrics tells of consumer groups: Kafka's names for what Kafka has, and the lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.cluster.groups.classic.group import GroupState
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroupState
from strandline.cluster.groups.runtime import Phase
from strandline.cluster.node.broker_role import BrokerRole
from strandline.proto.ids import TopicPartition

if TYPE_CHECKING:
    from prometheus_client.core import Metric


LAG_SERIES_MAX = 10_000
"""Groups are made by whoever commits an offset, each a line in every scrape: 10,000 are a megabyte, and a tenth of a
second of the node's time."""


def of_groups(broker: BrokerRole) -> Iterator[Metric]:
    """The groups that this broker coordinates."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    runtime, counters = broker.groups.runtime, broker.groups.counters
    states: Counter[GroupState] = Counter()
    phases: Counter[Phase] = Counter()
    consumer_states: Counter[ConsumerGroupState] = Counter()
    offsets = left_out = elsewhere = 0
    lag = GaugeMetricFamily(
        "strandline_consumergroup_lag",
        "Committed records that the group has not read, of partitions with a replica here.",
        labels=("group", "topic", "partition"),
    )
    expired = GaugeMetricFamily(
        "strandline_records_expired_unread",
        "Offsets between what the group has committed and the log start, of partitions with a replica here.",
        labels=("group", "topic", "partition"),
    )
    for hosted in runtime.hosted():
        phases[hosted.phase] += 1
        if hosted.phase is not Phase.SERVING:
            continue
        states.update(group.state for group in hosted.shard.groups.values())
        consumer_states.update(group.state for group in hosted.shard.consumer_groups.values())
        for group_id, topic, number, offset in hosted.shard.offsets():
            offsets += 1
            replica = broker.replicas.partition(TopicPartition(topic, number))
            if replica is None:
                elsewhere += 1
                continue
            if len(lag.samples) < LAG_SERIES_MAX:
                lag.add_metric((group_id, topic, str(number)), max(replica.high_watermark - offset, 0))
                if replica.log is not None and offset < replica.log.log_start_offset:
                    unread = replica.log.log_start_offset - offset
                    expired.add_metric((group_id, topic, str(number)), unread)
            else:
                left_out += 1
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    yield GaugeMetricFamily(
        prefix + "numgroups", "Groups coordinated here.", value=sum(states.values()) + sum(consumer_states.values())
    )
    yield GaugeMetricFamily(prefix + "numoffsets", "Committed offsets kept here.", value=offsets)
    for state in GroupState:
        name = prefix + "numgroups" + state.value.lower()
        yield GaugeMetricFamily(name, f"Groups in the state {state.value}.", value=states[state])
    by_state = GaugeMetricFamily(
        "strandline_consumer_protocol_groups", "Groups of the consumer protocol coordinated here.", labels=("state",)
    )
    for consumer_state in ConsumerGroupState:
        by_state.add_metric((consumer_state.value.lower(),), consumer_states[consumer_state])
    yield by_state
    yield lag
    yield expired
    yield GaugeMetricFamily(
        "strandline_consumergroup_offsets_elsewhere",
        "Committed offsets of partitions without a replica here: their lag, and what expired unread, are not told.",
        value=elsewhere,
    )
    yield GaugeMetricFamily(
        "strandline_consumergroup_lag_left_out",
        f"Lags that are left out, beyond the first {LAG_SERIES_MAX}.",
        value=left_out,
    )
    prefix = "kafka_server_group_coordinator_metrics_"
    partitions = GaugeMetricFamily(
        prefix + "num_partitions", "Partitions of __consumer_offsets led here, by what they do.", labels=("state",)
    )
    for phase in (Phase.LOADING, Phase.SERVING, Phase.FAILED):
        partitions.add_metric(("active" if phase is Phase.SERVING else phase.value,), phases[phase])
    yield partitions
    yield GaugeMetricFamily(
        prefix + "partition_load_time_max",
        "The longest that loading such a partition took, milliseconds.",
        value=runtime.partition_load_ms_max,
    )
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
