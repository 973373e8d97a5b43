"""Settings of tiered topics: what goes together, on create and on every alter (KIP-405, KIP-950)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api
from strandline.controller.broker_api import AlterTiersRequest
from strandline.controller.machine import tiers
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.proto.error_codes import ErrorCode
from strandline.proto.tier import EpochStart, TierChange, TieredSegment

TIERED = "remote.storage.enable"


@pytest.fixture
def cluster(machine_cluster: Any) -> Any:
    cluster = machine_cluster(tiered_storage=True)
    cluster.create()
    return cluster


def create(cluster: Any, **configs: str) -> api.CreatedTopic:
    values = {key.replace("_", "."): value for key, value in configs.items()}
    return cluster.create_topic(api.CreatableTopic("new", 1, 1, configs=values), dry_run=True)


def refused(outcome: Any, *words: str) -> None:
    assert outcome.error is ErrorCode.INVALID_CONFIG
    for word in words:
        assert word in outcome.message


def set_all(cluster: Any, **configs: str) -> None:
    for key, value in configs.items():
        assert cluster.set_config(key.replace("_", "."), value).error is ErrorCode.NONE


CONFLICTS = [
    (
        {"retention_ms": "1000", "local_retention_ms": "1001"},
        ["local.retention.ms=1001", "retention.ms, which is 1000"],
    ),
    ({"retention_ms": "1000", "local_retention_ms": "-1"}, ["local.retention.ms=-1", "retention.ms, which is 1000"]),
    ({"local_retention_ms": "604800001"}, ["retention.ms, which is 604800000"]),
    (
        {"retention_bytes": "5", "local_retention_bytes": "6"},
        ["local.retention.bytes=6", "retention.bytes, which is 5"],
    ),
    ({"retention_bytes": "5", "local_retention_bytes": "-1"}, ["local.retention.bytes=-1"]),
    ({"cleanup_policy": "compact"}, ["cleanup.policy=compact", "delete alone"]),
    ({"cleanup_policy": "compact,delete"}, ["cleanup.policy=compact,delete"]),
]
AGREE = [
    {},
    {"retention_ms": "1000", "local_retention_ms": "1000"},
    {"retention_ms": "1000", "local_retention_ms": "-2"},
    {"retention_ms": "-1", "local_retention_ms": "-1"},
    {"retention_ms": "-1", "local_retention_ms": "99999999999"},
    {"retention_bytes": "5", "local_retention_bytes": "0"},
    {"local_retention_bytes": "7"},
]


@pytest.mark.parametrize(("configs", "words"), CONFLICTS, ids=str)
def test_what_cannot_be_together_is_refused(cluster: Any, configs: dict[str, str], words: list[str]) -> None:
    """Whichever of them comes last, beside what is set already and the defaults of brokers."""
    words = [word.split("=")[0] for word in words] + words
    refused(create(cluster, remote_storage_enable="true", **configs), *(word for word in words if "=" not in word))
    set_all(cluster, **configs)
    refused(cluster.set_config(TIERED, "true"))
    names = list(configs)
    for name in names:
        cluster.set_config(name.replace("_", "."), None)
    assert cluster.set_config(TIERED, "true").error is ErrorCode.NONE
    set_all(cluster, **{name: configs[name] for name in names[:-1]})
    refused(cluster.set_config(names[-1].replace("_", "."), configs[names[-1]]))


@pytest.mark.parametrize("configs", AGREE, ids=str)
def test_what_goes_together_is_taken(cluster: Any, configs: dict[str, str]) -> None:
    """On create, and one after the other."""
    assert create(cluster, remote_storage_enable="true", **configs).error is ErrorCode.NONE
    set_all(cluster, remote_storage_enable="true", **configs)


def test_lowering_the_whole_below_the_part_is_refused(cluster: Any) -> None:
    """The sentence names the part, which is to be lowered first."""
    set_all(cluster, remote_storage_enable="true", local_retention_ms="5000")
    refused(cluster.set_config("retention.ms", "4999"), "local.retention.ms", "retention.ms, which is 4999")
    assert cluster.set_config("retention.ms", "5000").error is ErrorCode.NONE
    refused(cluster.set_config("cleanup.policy", "compact"), "cleanup.policy")


def test_defaults_of_brokers_are_judged_and_can_never_pass_the_whole(cluster: Any) -> None:
    """A topic's own part that a later default of the whole falls below counts as the whole."""
    refused(cluster.set_config("log.local.retention.ms", "604800001", topic=None), "log.retention.ms")
    set_all(cluster, remote_storage_enable="true", local_retention_ms="5000")
    assert cluster.set_config("log.retention.ms", "4000", topic=None).error is ErrorCode.NONE
    assert cluster.set_config("log.local.retention.ms", "3000", topic=None).error is ErrorCode.NONE
    log_config = ConfigResolver({}).log_config(cluster.image, "t")
    assert (log_config.remote_storage, log_config.retention_ms, log_config.local_retention_ms) == (True, 4000, 4000)
    cluster.set_config("local.retention.ms", None)
    assert ConfigResolver({}).log_config(cluster.image, "t").local_retention_ms == 3000


@pytest.mark.parametrize(
    ("configs", "resolved"),
    [
        ({}, (604_800_000, -1)),
        ({"retention_ms": "70", "retention_bytes": "80"}, (70, 80)),
        ({"local_retention_ms": "7", "local_retention_bytes": "8"}, (7, 8)),
        ({"retention_ms": "-1", "local_retention_ms": "-1"}, (-1, -1)),
        ({"retention_ms": "-1", "local_retention_ms": "7"}, (7, -1)),
    ],
    ids=str,
)
def test_local_retention_is_resolved(cluster: Any, configs: dict[str, str], resolved: tuple[int, int]) -> None:
    """-2 is the whole."""
    set_all(cluster, **configs)
    log_config = ConfigResolver({}).log_config(cluster.image, "t")
    assert (log_config.local_retention_ms, log_config.local_retention_bytes) == resolved


def test_without_an_object_store_no_topic_is_tiered(machine_cluster: Any) -> None:
    """The sentence says what to set; a topic that is tiered already can be altered all the same."""
    cluster = machine_cluster()
    cluster.create()
    refused(cluster.set_config(TIERED, "true"), "remote.log.storage.url")
    refused(create(cluster, remote_storage_enable="true"), "remote.log.storage.url")
    assert cluster.set_config(TIERED, "false").error is ErrorCode.NONE
    cluster = machine_cluster(tiered_storage=True)
    cluster.create(remote_storage_enable="true")
    cluster.settings = machine_cluster().settings
    cluster.fail_over()
    assert cluster.set_config("retention.ms", "5").error is ErrorCode.NONE


@pytest.mark.parametrize("value", ["false", None])
def test_a_tier_is_not_turned_off_while_it_holds_segments(cluster: Any, value: str | None) -> None:
    """Nobody would read them, or delete them."""
    set_all(cluster, remote_storage_enable="true")
    topic_id, leader = cluster.image.topics["t"].topic_id, cluster.partition().leader
    segment = TieredSegment(UUID(int=1), 0, 10, 100, 5, (EpochStart(0, 0),), 7)
    for change in (TierChange(topic_id, 0, 0, (segment,)), TierChange(topic_id, 0, 0, start_offset=10)):
        cluster.run(tiers.alter_tiers(cluster.state, AlterTiersRequest(leader, cluster.epoch(leader), (change,))))
        outcome = cluster.set_config(TIERED, value, dry_run=bool(change.add))
        if change.add:
            refused(outcome, TIERED, "now 1", "retention.ms")
        else:
            assert outcome.error is ErrorCode.NONE
    assert cluster.image.deleted_tiers == {}
