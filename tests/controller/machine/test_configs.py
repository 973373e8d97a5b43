"""IncrementalAlterConfigs, and what min.insync.replicas and unclean elections mean for partitions (rows S41 to S44,
S74)."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.controller import api
from strandline.controller.machine import configs
from strandline.controller.metadata.image import CLUSTER_DEFAULT, ResourceType, topic_resource
from strandline.proto.error_codes import ErrorCode

SET, DELETE, APPEND, SUBTRACT = api.ConfigOperation
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


def alter(cluster: Any, kind: ResourceType, name: str, *changes: tuple[str, api.ConfigOperation, str | None]) -> Any:
    resource = api.ResourceAlteration(kind, name, tuple(api.ConfigAlteration(*change) for change in changes))
    result = configs.incremental_alter_configs(cluster.state, api.AlterConfigsRequest((resource,)))
    return cluster.run(result).resources[0]


REFUSED: list[tuple[str, ResourceType, str, list[tuple[str, api.ConfigOperation, str | None]], ErrorCode]] = [
    ("an unknown topic", TOPIC, "nope", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("an unknown broker", BROKER, "9", [("log.retention.ms", SET, "1")], ErrorCode.BROKER_ID_NOT_REGISTERED),
    ("a broker that is no number", BROKER, "x", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
    ("an unknown key", TOPIC, "t", [("retention", SET, "1")], ErrorCode.INVALID_CONFIG),
    ("a topic's name for a broker's key", BROKER, "", [("retention.ms", SET, "1")], ErrorCode.INVALID_CONFIG),
    ("a bad value", TOPIC, "t", [("min.insync.replicas", SET, "0")], ErrorCode.INVALID_CONFIG),
    ("a bad boolean", TOPIC, "t", [("unclean.leader.election.enable", SET, "yes")], ErrorCode.INVALID_CONFIG),
    ("no codec of Kafka's", TOPIC, "t", [("compression.type", SET, "brotli")], ErrorCode.INVALID_CONFIG),
    ("a list without a part", TOPIC, "t", [("cleanup.policy", SET, "")], ErrorCode.INVALID_CONFIG),
    ("a null value", TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
    ("append to a number", TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
    (
        "one key twice",
        TOPIC,
        "t",
        [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
        ErrorCode.INVALID_REQUEST,
    ),
    ("what brokers must agree on, for one", BROKER, "1", [("min.insync.replicas", SET, "1")], ErrorCode.INVALID_CONFIG),
]


@pytest.mark.parametrize(("what", "kind", "name", "changes", "error"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(machine_cluster: Any, what: str, kind: Any, name: str, changes: Any, error: ErrorCode) -> None:
    """Kafka's error, a sentence, and the good half of the same resource is not taken either."""
    cluster = machine_cluster(3)
    cluster.create()
    good = ("segment.bytes" if kind is TOPIC else "log.segment.bytes", SET, "4096")
    before = len(cluster.log)
    outcome = alter(cluster, kind, name, good, *changes)
    assert outcome.error is error
    assert outcome.message
    assert len(cluster.log) == before


def test_set_delete_append_subtract(machine_cluster: Any) -> None:
    """Each operation; unchanged values write nothing; lists begin at their default."""
    cluster = machine_cluster(3)
    cluster.create()

    def own() -> dict[str, str]:
        return dict(cluster.image.config(topic_resource("t")))

    assert alter(cluster, TOPIC, "t", ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")).error == 0
    assert own() == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    before = len(cluster.log)
    alter(cluster, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", DELETE, None))
    assert len(cluster.log) == before
    alter(cluster, TOPIC, "t", ("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete"))
    assert own() == {"cleanup.policy": "compact"}
    alter(cluster, TOPIC, "t", ("cleanup.policy", DELETE, None))
    assert topic_resource("t") not in cluster.image.configs


def test_broker_and_cluster_default(machine_cluster: Any) -> None:
    """One broker's own, and the default of all."""
    cluster = machine_cluster(3)
    assert alter(cluster, BROKER, "2", ("log.retention.ms", SET, "7")).error is ErrorCode.NONE
    assert alter(cluster, BROKER, "", ("log.retention.ms", SET, "8")).error is ErrorCode.NONE
    assert cluster.image.config((BROKER, "2")) == {"log.retention.ms": "7"}
    assert cluster.image.config(CLUSTER_DEFAULT) == {"log.retention.ms": "8"}


def test_dry_run_changes_nothing(machine_cluster: Any) -> None:
    """validate_only."""
    cluster = machine_cluster(3)
    cluster.create()
    before = len(cluster.log)
    assert cluster.set_config("retention.ms", "5", dry_run=True).error is ErrorCode.NONE
    assert cluster.set_config("retention.ms", "x", dry_run=True).error is ErrorCode.INVALID_CONFIG
    assert len(cluster.log) == before


@pytest.mark.parametrize("whole_cluster", [False, True])
def test_lowering_min_isr_clears_the_eligible_in_the_same_batch(machine_cluster: Any, whole_cluster: bool) -> None:
    """KIP-966: with min ISR 1 the watermark moves on with the ISR alone, so 2 no longer holds all that is committed."""
    cluster = machine_cluster(2)
    cluster.create("t", [[1, 2]])
    cluster.alter_isr([1])
    assert cluster.partition().eligible_leader_replicas == (2,)
    cluster.set_config("min.insync.replicas", "1", topic=None if whole_cluster else "t")
    assert cluster.partition().eligible_leader_replicas == ()
    cluster.fence(1)
    assert not cluster.partition().has_leader


def test_lowering_min_isr_to_what_is_still_above_the_isr_keeps_the_eligible(machine_cluster: Any) -> None:
    """The watermark still stands, so they still hold everything."""
    cluster = machine_cluster(3)
    cluster.create(min_insync_replicas="3")
    cluster.alter_isr([1])
    cluster.set_config("min.insync.replicas", "2")
    assert cluster.partition().eligible_leader_replicas == (2, 3)


def test_raising_min_isr_makes_proposals_of_leaders_that_have_not_heard_of_it_out_of_date(machine_cluster: Any) -> None:
    """Such a leader would move the watermark by the old value while the controller counts the leaver as eligible."""
    cluster = machine_cluster(2)
    cluster.create("t", [[1, 2]], min_insync_replicas="1")
    before = cluster.partition()
    cluster.set_config("min.insync.replicas", "2")
    after = cluster.partition()
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch, before.partition_epoch + 1)
    stale = cluster.alter_isr([1], partition_epoch=before.partition_epoch)
    assert stale.error is ErrorCode.INVALID_UPDATE_VERSION
    cluster.set_config("min.insync.replicas", "3")
    assert cluster.partition() == after
    assert cluster.alter_isr([1]).min_insync_replicas == 2
    assert cluster.partition().eligible_leader_replicas == (2,)


def test_min_isr_is_capped_by_the_replication_factor(machine_cluster: Any) -> None:
    """Rule B4, HW: min(min.insync, RF): a topic of one copy works under the default of 2."""
    cluster = machine_cluster(1)
    cluster.create("t", [[1]])
    assert cluster.alter_isr([1]).min_insync_replicas == 1


def test_enabling_unclean_elections_elects_at_once(machine_cluster: Any) -> None:
    """Row S43: off, a replica out of sync does not lead; switched on, it does, and its ISR is itself alone."""
    cluster = machine_cluster(3)
    cluster.create(min_insync_replicas="1")
    cluster.alter_isr([1])
    cluster.fence(1)
    assert not cluster.partition().has_leader
    assert cluster.set_config("unclean.leader.election.enable", "true", dry_run=True).error is ErrorCode.NONE
    assert not cluster.partition().has_leader
    cluster.report(2, hw=5, leo=5, epoch=0)
    cluster.report(3, hw=5, leo=9, epoch=0)
    cluster.set_config("unclean.leader.election.enable", "true")
    info = cluster.partition()
    assert (info.leader, info.isr, info.recovering) == (3, (3,), True)
    [loss] = cluster.losses
    assert (loss.partition, loss.leader) == ("t-0", 3)
    assert "Of broker 1, which had all that was acknowledged, nothing has been reported" in loss.message


def test_only_the_last_in_sync_leads_while_unclean_is_off(machine_cluster: Any) -> None:
    """Row S42: min.insync 1, ISR {1}, 2 and 3 back but not caught up, 1 dies: no leader; 1 is back: it leads."""
    cluster = machine_cluster(3)
    cluster.create(min_insync_replicas="1")
    cluster.alter_isr([1])
    cluster.fence(1)
    for node in (2, 3):
        cluster.beat(node)
    assert not cluster.partition().has_leader
    cluster.start(1)
    assert cluster.partition().leader == 1


def test_one_resource_twice(machine_cluster: Any) -> None:
    """Refused, for the order would be anyone's guess."""
    cluster = machine_cluster(1)
    resource = api.ResourceAlteration(BROKER, "", (api.ConfigAlteration("log.retention.ms", SET, "1"),))
    result = configs.incremental_alter_configs(cluster.state, api.AlterConfigsRequest((resource, resource)))
    assert [outcome.error for outcome in result.reply.resources] == [ErrorCode.INVALID_REQUEST] * 2
    assert not result.records
