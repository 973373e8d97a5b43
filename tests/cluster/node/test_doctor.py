"""`doctor` names each setting that can lose data (row S97), a factor of 1 above all (row S13)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from strandline.client.config import ConsumerConfig, ProducerConfig
from strandline.client.types import NodeInfo, PartitionDescription, TopicDescription, TransactionDescription
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.doctor import (
    SLOW_SYNC_S,
    Finding,
    judge_config,
    judge_consumer,
    judge_crowds,
    judge_directories,
    judge_effects,
    judge_producer,
    judge_quorum,
    judge_settings,
    judge_stores,
    judge_syncs,
    judge_tier,
    judge_topic,
    judge_transactions,
)
from strandline.log.watched_disk import BOUNDS_S
from strandline.proto.ids import TopicPartition

SAFE = {
    "node.id": "1",
    "log.dirs": "/var/lib/strandline",
    "controller.quorum.voters": "1@a:1,2@b:1,3@c:1",
}
SAFE_TOPIC = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "flush.policy": "ack",
}


def settings(findings: Iterable[Finding]) -> list[str]:
    found = list(findings)
    assert all(finding.loses and finding.remedy and finding.where for finding in found)
    return [finding.setting for finding in found]


def topic(
    *, replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] = (1, 2, 3), leader: int | None = 1
) -> TopicDescription:
    partition = PartitionDescription(partition=0, leader=leader, leader_epoch=1, replicas=replicas, isr=isr)
    return TopicDescription("t", None, False, (partition,))


def test_the_defaults_lose_nothing() -> None:
    """Safe by default: a file that says only who and where is in order."""
    assert settings(judge_config(NodeConfig(SAFE))) == []


def test_each_dangerous_setting_of_s97_is_named() -> None:
    """Row S97: factor 1, min.insync 1, unclean on."""
    dangerous = {
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "true",
        "flush.policy": "replicate",
        "auto.create.topics.enable": "true",
    }
    found = settings(judge_config(NodeConfig(SAFE | dangerous)))
    assert found == [
        "default.replication.factor = 1",
        "min.insync.replicas = 1",
        "unclean.leader.election.enable = true",
        "flush.policy = replicate",
        "auto.create.topics.enable = true",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"controller.quorum.voters": "1@a:1"}, "1 controller in"),
        ({"controller.quorum.voters": "1@a:1,2@b:1"}, "2 controllers in"),
        ({"log.dirs": "/tmp/data"}, "log.dirs = /tmp/data"),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:1,INTERNAL://a:2", "advertised.listeners": "PLAINTEXT://a:1"},
            "PLAINTEXT on every address",
        ),
    ],
)
def test_places_and_numbers_that_lose_data(change: dict[str, str], says: str) -> None:
    """A quorum that cannot lose a disk, a directory that a reboot empties, a door without a lock."""
    [found] = settings(judge_config(NodeConfig(SAFE | change)))
    assert says in found


def test_a_topic_of_one_copy_is_named() -> None:
    """Row S13: any factor of 1; min.insync.replicas then adds nothing to it."""
    one = topic(replicas=(1,), isr=(1,))
    assert settings(judge_topic(one, SAFE_TOPIC | {"min.insync.replicas": "1"})) == ["replication factor 1"]
    assert settings(judge_topic(topic(), SAFE_TOPIC)) == []
    assert settings(judge_topic(topic(), SAFE_TOPIC | {"min.insync.replicas": "1"})) == ["min.insync.replicas = 1"]


def test_the_state_of_a_topic_is_judged_too() -> None:
    """Who lacks a leader or a replica is told apart."""
    assert settings(judge_topic(topic(isr=(1, 2)), SAFE_TOPIC)) == ["partitions 0 lack replicas in sync"]
    assert settings(judge_topic(topic(isr=(), leader=None), SAFE_TOPIC)) == ["partitions 0 have no leader"]


def test_a_cluster_of_one_and_a_crowded_broker() -> None:
    """One broker has one copy of everything; row S19: too many partitions cost recovery time."""
    alone = {"default.replication.factor": "1"}  # what it comes to there, and not what somebody set
    assert settings(judge_settings("broker 1", alone, brokers=1)) == ["1 broker"]
    assert settings(judge_crowds(3, {1: 10})) == settings(judge_quorum(3)) == []
    assert settings(judge_crowds(3, {1: 10, 2: 5000})) == ["5000 replicas"]
    assert settings(judge_quorum(1)) == ["1 controller"]


def test_a_setting_without_effect_is_named() -> None:
    """What is set and does nothing is a finding of its own kind; what has its effect is none, compaction among it."""
    [found] = judge_effects("topic t", {"flush.ms": "10", "cleanup.policy": "compact"}, topic=True)
    assert (found.kind, found.setting) == ("no effect", "flush.ms = 10")
    assert "flush.policy says when records are synced" in found.loses
    assert not list(judge_config(NodeConfig(SAFE | {"log.cleanup.policy": "compact", "compression.type": "zstd"})))


def test_a_producers_settings_are_judged() -> None:
    """Row S30: with several requests in flight and no idempotence order may break; row S22: acks=0 loses."""

    def found(**settings: object) -> list[str]:
        return [finding.setting for finding in judge_producer(ProducerConfig(settings))]

    assert found() == []
    reordering = found(enable_idempotence=False, max_in_flight_requests_per_connection=5)
    assert reordering[-1] == "max.in.flight.requests.per.connection = 5 without idempotence"
    assert len(found(enable_idempotence=False, max_in_flight_requests_per_connection=1)) == 1
    assert found(enable_idempotence=False, retries=0) == []
    assert found(acks="0") == ["acks = 0"]
    assert found(acks="1", retries=0) == ["acks = 1"]


def test_a_consumers_settings_are_judged() -> None:
    """Row S64: the default commits by itself, and doctor names it; what is committed by hand from the beginning loses
    nothing."""

    def found(**settings: object) -> list[str]:
        return [finding.setting for finding in judge_consumer(ConsumerConfig(settings))]

    assert found() == ["enable.auto.commit = true (the default)", "auto.offset.reset = latest (the default)"]
    assert found(enable_auto_commit=False, auto_offset_reset="earliest") == []
    assert found(enable_auto_commit=True, auto_offset_reset="none") == ["enable.auto.commit = true (the default)"]


def test_directories_that_are_offline_or_full() -> None:
    """By a broker's metrics."""
    found = list(judge_directories("broker 1", offline=["/b"], full={"/c": 17}))
    assert [one.setting for one in found] == [
        "log directory /b is offline",
        "log directory /c is full: 17 bytes are left",
    ]
    assert not list(judge_directories("broker 1", offline=[], full={}))


def test_a_disk_that_is_slow() -> None:
    """By a broker's metrics; a few slow syncs are nothing, and its first ones neither."""
    assert SLOW_SYNC_S in BOUNDS_S, "it is read of the histogram"
    assert settings(judge_syncs("b", syncs=100, slow=6, in_flight_s=0)) == ["6 of 100 syncs took more than 0.1 s"]
    assert settings(judge_syncs("b", syncs=100, slow=5, in_flight_s=1)) == []
    assert settings(judge_syncs("b", syncs=99, slow=99, in_flight_s=0)) == []
    assert settings(judge_syncs("b", syncs=0, slow=0, in_flight_s=1.26)) == ["a sync has taken 1.3 s by now"]


def test_a_broker_whose_segments_wait_for_the_store() -> None:
    """What waits for a moment is nothing; nor is what failed and is copied by now."""
    assert settings(judge_tier("b", failing_s=61, waiting=2, without_store=0)) == [
        "2 segments not copied; copies have failed for 61 s"
    ]
    assert settings(judge_tier("b", failing_s=0, waiting=0, without_store=1)) == [
        "1 partition of tiered topics, and no remote.log.storage.url"
    ]
    assert settings(judge_tier("b", failing_s=59, waiting=2, without_store=0)) == []
    assert settings(judge_tier("b", failing_s=0, waiting=2, without_store=0)) == []
    assert settings(judge_tier("b", failing_s=61, waiting=0, without_store=0)) == []


def test_files_of_nodes_that_differ_in_the_store_are_named() -> None:
    url = "remote.log.storage.url"
    without, here, there = (NodeConfig(SAFE | {url: value}) for value in ("", "file:///a", "file:///b"))
    assert settings(judge_stores([here, here])) == []
    assert settings(judge_stores([without, without])) == []
    assert settings(judge_stores([here, there])) == [f"{url} = file:///a", f"{url} = file:///b"]
    assert settings(judge_stores([here, without])) == [f"{url} = file:///a", f"no {url}"]


def test_transactions_that_do_not_end_are_named() -> None:
    """Whose it is, where, since when, and what to type; nothing of those that have their time left."""
    nobody = NodeInfo(1, "host", 9092)
    place = TopicPartition("orders", 0)

    def told(state: str, started_ms: int) -> list[Finding]:
        one = TransactionDescription("pay", nobody, state, 7, 3, 60_000, started_ms, (place,))
        return list(judge_transactions([one], [], 200_000))

    assert told("Ongoing", 200_000 - 89_000) == told("PrepareCommit", 200_000 - 29_000) == []
    [open_one] = told("Ongoing", 200_000 - 91_000)
    assert open_one.where == "transactional id pay"
    assert "of producer 7, epoch 3, in orders-0, is open since 91 s, coordinator 1" in open_one.setting
    assert open_one.remedy == "strandline transaction abort pay"
    [decided] = told("PrepareAbort", 0)
    assert "is decided (PrepareAbort), and not ended everywhere, since 200 s" in decided.setting
    [hanging] = judge_transactions([], [(place, 7, 12, 50_000)], 200_000)
    assert hanging.where == "orders-0"
    assert "of producer 7 is open from offset 12 on, silent for 150 s" in hanging.setting
    assert hanging.remedy.endswith("--topic orders --partition 0 --start-offset 12")
