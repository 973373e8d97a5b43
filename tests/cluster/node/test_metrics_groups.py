"""The metrics of groups, whose number is up to clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.cluster.groups.counters import GroupCounters
from strandline.cluster.groups.runtime import Phase
from strandline.cluster.node import metrics_groups


def test_lags_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape does not grow with the groups that somebody makes up; how many lags it lacks is told."""
    monkeypatch.setattr(metrics_groups, "LAG_SERIES_MAX", 3)
    shard = SimpleNamespace(groups={}, consumer_groups={}, offsets=lambda: [(f"g{n}", "t", 0, n) for n in range(5)])
    runtime = SimpleNamespace(
        hosted=lambda: [SimpleNamespace(phase=Phase.SERVING, shard=shard)], partition_load_ms_max=0.0
    )
    broker = SimpleNamespace(
        groups=SimpleNamespace(runtime=runtime, counters=GroupCounters()),
        replicas=SimpleNamespace(partition=lambda _where: SimpleNamespace(high_watermark=10)),
    )
    told = {family.name: family for family in metrics_groups.of_groups(cast(Any, broker))}
    assert [sample.value for sample in told["strandline_consumergroup_lag"].samples] == [10, 9, 8]
    assert told["strandline_consumergroup_lag_left_out"].samples[0].value == 2
    assert told["kafka_coordinator_group_groupmetadatamanager_numoffsets"].samples[0].value == 5
