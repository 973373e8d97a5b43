"""The metrics of groups, whose number is up to clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.cluster.groups.context import GroupCounters
from strandline.cluster.groups.runtime import Phase
from strandline.cluster.node import metrics_groups
from strandline.proto.ids import TopicPartition


def test_lags_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape does not grow with the groups that somebody makes up; how many lags it lacks is told."""
    monkeypatch.setattr(metrics_groups, "LAG_SERIES_MAX", 3)
    shard = SimpleNamespace(groups={}, consumer_groups={}, offsets=lambda: [(f"g{n}", "t", 0, n) for n in range(5)])
    runtime = SimpleNamespace(
        hosted=lambda: [SimpleNamespace(phase=Phase.SERVING, shard=shard)], partition_load_ms_max=0.0
    )
    broker = SimpleNamespace(
        coordinators=SimpleNamespace(groups=SimpleNamespace(runtime=runtime, counters=GroupCounters())),
        replicas=SimpleNamespace(partition=lambda _where: SimpleNamespace(high_watermark=10, log_start_offset=0)),
    )
    told = {family.name: family for family in metrics_groups.of_groups(cast(Any, broker))}
    assert [sample.value for sample in told["strandline_consumergroup_lag"].samples] == [10, 9, 8]
    assert told["strandline_consumergroup_lag_left_out"].samples[0].value == 2
    assert told["kafka_coordinator_group_groupmetadatamanager_numoffsets"].samples[0].value == 5


def test_what_expired_unread_is_told_where_it_is_known() -> None:
    """What lies between a committed offset and the log start; nothing of partitions without a replica here, whose
    number is told, and none of logs that are offline."""
    offsets = [("early", "t", 0, 3), ("late", "t", 0, 8), ("early", "t", 1, 3), ("far", "u", 0, 1)]
    shard = SimpleNamespace(groups={}, consumer_groups={}, offsets=lambda: offsets)
    runtime = SimpleNamespace(
        hosted=lambda: [SimpleNamespace(phase=Phase.SERVING, shard=shard)], partition_load_ms_max=0.0
    )
    here = {
        TopicPartition("t", 0): SimpleNamespace(high_watermark=10, log_start_offset=7),
        TopicPartition("t", 1): SimpleNamespace(high_watermark=10, log_start_offset=0),
    }
    broker = SimpleNamespace(
        coordinators=SimpleNamespace(groups=SimpleNamespace(runtime=runtime, counters=GroupCounters())),
        replicas=SimpleNamespace(partition=here.get),
    )
    told = {family.name: family for family in metrics_groups.of_groups(cast(Any, broker))}
    samples = told["strandline_records_expired_unread"].samples
    assert [(sample.labels, sample.value) for sample in samples] == [
        ({"group": "early", "topic": "t", "partition": "0"}, 4)
    ]
    assert told["strandline_consumergroup_offsets_elsewhere"].samples[0].value == 1
