"""Subscriptions to what clients measure (KIP-714): their configs, their level, and how many there may be (rule A42)."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.controller.machine import configs
from strandline.controller.metadata.features import LEVEL_OF_MOVES, METADATA_FEATURE
from strandline.controller.metadata.image import ResourceType
from strandline.controller.metadata.records import ConfigRecord
from strandline.controller.metadata.snapshot import what_needs_more_than
from strandline.proto.error_codes import ErrorCode
from tests.controller.machine.test_configs import APPEND, DELETE, SET, alter
from tests.controller.machine.test_features import UP, update

METRICS = ResourceType.CLIENT_METRICS


@pytest.fixture
def cluster(machine_cluster: Any) -> Any:
    made = machine_cluster(1)
    update(made, (METADATA_FEATURE, LEVEL_OF_MOVES, UP))
    return made


def test_below_its_level_nothing_is_subscribed_to(machine_cluster: Any) -> None:
    """Rule A42: builds from before would not know the record. While there is a subscription the level is not left."""
    cluster = machine_cluster(1)
    before = len(cluster.log)
    refused = alter(cluster, METRICS, "all", ("metrics", SET, "*"))
    assert refused.error is ErrorCode.UNSUPPORTED_VERSION
    assert "strandline upgrade finalize" in refused.message
    assert len(cluster.log) == before
    update(cluster, (METADATA_FEATURE, LEVEL_OF_MOVES, UP))
    assert alter(cluster, METRICS, "all", ("metrics", SET, "*")).error is ErrorCode.NONE
    assert what_needs_more_than(LEVEL_OF_MOVES - 1, cluster.image) == "there is a subscription 'all' to client metrics"
    assert alter(cluster, METRICS, "all", ("metrics", DELETE, None)).error is ErrorCode.NONE
    assert what_needs_more_than(LEVEL_OF_MOVES - 1, cluster.image) == ""


def test_it_is_set_and_taken_away(cluster: Any) -> None:
    assert alter(cluster, METRICS, "all", ("metrics", SET, "a,b"), ("interval.ms", SET, "100")).error is ErrorCode.NONE
    assert alter(cluster, METRICS, "all", ("metrics", APPEND, "c")).error is ErrorCode.NONE
    assert cluster.image.configs == {(METRICS, "all"): {"metrics": "a,b,c", "interval.ms": "100"}}
    assert alter(cluster, METRICS, "all", ("metrics", DELETE, None), ("interval.ms", DELETE, None)).error == 0
    assert cluster.image.configs == {}


@pytest.mark.parametrize(
    ("name", "key", "value", "error"),
    [
        ("all", "interval.ms", "99", ErrorCode.INVALID_CONFIG),
        ("all", "interval.ms", "3600001", ErrorCode.INVALID_CONFIG),
        ("all", "match", "client_id", ErrorCode.INVALID_CONFIG),
        ("all", "match", "client_source_port=1", ErrorCode.INVALID_CONFIG),
        ("all", "match", "client_id=a,client_id=b", ErrorCode.INVALID_CONFIG),
        ("all", "match", "client_id=(", ErrorCode.INVALID_CONFIG),
        ("all", "match", f"client_id={'x' * 2000}", ErrorCode.INVALID_CONFIG),
        ("all", "retention.ms", "1", ErrorCode.INVALID_CONFIG),
        ("", "metrics", "*", ErrorCode.INVALID_REQUEST),
        ("x" * 250, "metrics", "*", ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused(cluster: Any, name: str, key: str, value: str, error: ErrorCode) -> None:
    before = len(cluster.log)
    outcome = alter(cluster, METRICS, name, (key, SET, value))
    assert outcome.error is error, outcome.message
    assert len(cluster.log) == before


def test_there_are_not_too_many(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is matched against each client."""
    monkeypatch.setattr(configs, "SUBSCRIPTIONS_MAX", 2)
    for name in ("a", "b"):
        assert alter(cluster, METRICS, name, ("metrics", SET, "*")).error is ErrorCode.NONE
    assert alter(cluster, METRICS, "c", ("metrics", SET, "*")).error is ErrorCode.POLICY_VIOLATION
    assert alter(cluster, METRICS, "a", ("metrics", SET, "x")).error is ErrorCode.NONE


def test_a_change_of_it_changes_no_partition(cluster: Any) -> None:
    cluster.create("t", [[1]])
    before = len(cluster.log)
    alter(cluster, METRICS, "all", ("metrics", SET, "*"))
    assert [type(record) for record in cluster.log[before:]] == [ConfigRecord]
