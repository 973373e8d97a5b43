"""The image: records in, snapshot out, and back; what changed between two images; damage refused (schedule 31)."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api
from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.image import CLUSTER_DEFAULT, MetadataImage, topic_resource
from strandline.controller.metadata.records import (
    BrokerChangeRecord,
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.controller.metadata.snapshot import image_records, load_image
from strandline.controller.metadata.table import TABLE, decode_records, encode_records
from strandline.proto.errors import FatalError
from strandline.proto.ids import NO_NODE, Endpoint

TOPIC = UUID(int=9)


def broker(node: int, epoch: int = 1) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(node, UUID(int=node), epoch, {"PLAINTEXT": Endpoint("h", 9092)}, Endpoint("h", 1))


def partition(number: int = 0, **changes: Any) -> PartitionRecord:
    fields: dict[str, Any] = {
        "topic_id": TOPIC,
        "partition": number,
        "replicas": (1, 2, 3),
        "isr": (1, 2),
        "eligible_leader_replicas": (3,),
        "last_known_elr": (),
        "leader": 1,
        "leader_epoch": 3,
        "partition_epoch": 7,
        "recovering": False,
    }
    return PartitionRecord(**{**fields, **changes})


START: list[MetadataRecord] = [MetadataVersionRecord(1), broker(1), TopicRecord("t", TOPIC), partition(0), partition(1)]


def image_of(records: list[MetadataRecord]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage("c"))
    delta.apply_all(records)
    return delta.image(len(records) - 1, 1, 0)


def lively_cluster(machine_cluster: Any, seed: int) -> Any:
    """A cluster with a bit of everything in its metadata."""
    cluster = machine_cluster(4, racks={1: "a", 2: "b"})
    rng = random.Random(seed)
    for number in range(4):
        cluster.create_topic(api.CreatableTopic(f"topic-{number}", 3, 3, configs={"retention.ms": str(number)}))
    cluster.create("t")
    cluster.set_config("min.insync.replicas", "3", topic=None)
    for node in rng.sample([1, 2, 3, 4], 3):
        cluster.fence(node)
    cluster.start(rng.choice([node for node, info in cluster.image.brokers.items() if info.fenced]))
    return cluster


@pytest.mark.parametrize("seed", range(5))
def test_snapshot_round_trip(machine_cluster: Any, seed: int) -> None:
    """Image -> records -> bytes -> records -> image: equal, order of topics included; and the records are the same."""
    image = lively_cluster(machine_cluster, seed).image
    data = encode_records(image_records(image))
    again = load_image(image.cluster_id, decode_records(data), image.offset + 1, image.epoch)
    assert again == image
    assert list(again.topics) == list(image.topics)
    assert encode_records(image_records(again)) == data


@pytest.mark.parametrize("seed", range(5))
def test_diff_tells_what_a_replay_would_have_told(machine_cluster: Any, seed: int) -> None:
    """A broker that loads a snapshot hears of the same changes as one that replayed the log."""
    cluster = lively_cluster(machine_cluster, seed)
    before, length = cluster.image, len(cluster.log)
    cluster.create("later")
    cluster.set_config("retention.ms", "9", topic="topic-1")
    cluster.fence(next(node for node, info in cluster.image.brokers.items() if info.active))
    replayed = MetadataDelta(before)
    replayed.apply_all(cluster.log[length:])
    found = diff(before, cluster.image)
    for row in TABLE.values():
        assert found[row.of].changed == replayed[row.of].changed, row
        assert found[row.of].removed == replayed[row.of].removed, row
    assert not replayed.empty
    assert diff(before, before).empty


def test_an_image_never_changes(machine_cluster: Any) -> None:
    """It may be kept: what came later is in another one."""
    cluster = lively_cluster(machine_cluster, 1)
    kept = cluster.image
    records = encode_records(image_records(kept))
    cluster.create("later")
    cluster.set_config("retention.ms", "9", topic="topic-1")
    for node in list(cluster.image.brokers):
        if cluster.image.brokers[node].active:
            cluster.fence(node)
    assert encode_records(image_records(kept)) == records


def test_topic_deleted_and_created_in_one_batch() -> None:
    """The old id is told as deleted, the new one as created; partitions of the old are not told as changed."""
    base = image_of([*START, ConfigRecord(2, "t", "retention.ms", "5")])
    other = UUID(int=10)
    delta = MetadataDelta(base)
    delta.apply(PartitionChangeRecord(TOPIC, 0, isr=(1,), eligible_leader_replicas=(2, 3)))
    delta.apply(RemoveTopicRecord(TOPIC))
    delta.apply_all([TopicRecord("t", other), partition(0, topic_id=other)])
    image = delta.image(9, 1, 0)
    assert list(delta.deleted_topics) == [TOPIC]
    assert list(delta.created_topics) == [other]
    assert delta.partitions == {other: {0: None}}
    assert image.topics["t"].topic_id == other
    assert image.config(topic_resource("t")) == {}
    assert delta[MetadataImage.configs].removed == {topic_resource("t"): {"retention.ms": "5"}}


def test_topic_created_and_deleted_in_one_batch_leaves_nothing() -> None:
    """Nobody needs to hear of it."""
    delta = MetadataDelta(image_of(START[:2]))
    delta.apply_all([TopicRecord("t", TOPIC), partition(0), RemoveTopicRecord(TOPIC)])
    assert delta.empty
    assert delta.image(9, 1, 0).topics == {}


def test_naming_a_leader_bumps_the_leader_epoch_and_any_change_the_partition_epoch() -> None:
    """Rule B1, the four epochs."""
    base = image_of(START)
    for record, epochs in (
        (PartitionChangeRecord(TOPIC, 0, isr=(1,), eligible_leader_replicas=(2, 3)), (3, 8)),
        (PartitionChangeRecord(TOPIC, 0, leader=2), (4, 8)),
        (PartitionChangeRecord(TOPIC, 0, leader=1), (4, 8)),
        (PartitionChangeRecord(TOPIC, 0, leader=NO_NODE), (4, 8)),
    ):
        delta = MetadataDelta(base)
        delta.apply(record)
        info = delta.image(9, 1, 0).topics["t"].partitions[0]
        assert (info.leader_epoch, info.partition_epoch) == epochs


DAMAGED: list[tuple[str, list[MetadataRecord]]] = [
    ("no metadata.version first", [TopicRecord("t", TOPIC)]),
    ("no metadata.version before a broker", [broker(1)]),
    ("no metadata.version before a config", [ConfigRecord(2, "t", "a", "b")]),
    ("a metadata.version of the future", [MetadataVersionRecord(99)]),
    ("a topic twice", [*START, TopicRecord("t", UUID(int=10))]),
    ("a partition of no topic", [MetadataVersionRecord(1), partition(0)]),
    ("a gap between partitions", [*START, partition(3)]),
    ("a partition twice", [*START, partition(0)]),
    ("a change of no partition", [*START, PartitionChangeRecord(TOPIC, 2, leader=1)]),
    ("a removal of no topic", [*START, RemoveTopicRecord(UUID(int=10))]),
    ("a change of no broker", [*START, BrokerChangeRecord(2, 1, fenced=True)]),
    ("a change of a broker's other life", [*START, BrokerChangeRecord(1, 2, fenced=True)]),
    ("an ISR outside the replicas", [*START[:3], partition(0, isr=(1, 4))]),
    ("replicas that are not distinct", [*START[:3], partition(0, replicas=(1, 2, 2))]),
    ("a leader outside the ISR", [*START[:3], partition(0, leader=3)]),
    ("ISR and ELR overlap", [*START[:3], partition(0, eligible_leader_replicas=(2,))]),
    *(
        (f"a move that {what}", [MetadataVersionRecord(3), *START[1:3], partition(0, **move)])
        for what, move in {
            "adds what is no replica": {"adding_replicas": (4,)},
            "removes what is no replica": {"removing_replicas": (4,)},
            "adds and removes one": {"adding_replicas": (3,), "removing_replicas": (3,)},
            "leaves none": {"removing_replicas": (1, 2, 3)},
            "began with none": {"adding_replicas": (1, 2, 3)},
        }.items()
    ),
    ("producer ids that go back", [*START, ProducerIdsRecord(1, 1, 1000), ProducerIdsRecord(1, 1, 1000)]),
]


@pytest.mark.parametrize(("what", "records"), DAMAGED, ids=[row[0] for row in DAMAGED])
def test_records_that_do_not_fit_stop_the_node(what: str, records: list[MetadataRecord]) -> None:
    """Schedule 31: nothing is decided, least of all deleted, on the word of metadata that cannot be."""
    with pytest.raises(FatalError):
        image_of(records)


def test_a_move_survives_a_snapshot_and_ends() -> None:
    """KIP-455: what it adds and removes stands in the partition, from the level on that has moves."""
    begin = PartitionChangeRecord(TOPIC, 0, replicas=(2, 4, 1, 3), adding_replicas=(4,), removing_replicas=(1, 3))
    with pytest.raises(FatalError, match=r"needs metadata\.version 3, and the cluster is at .*upgrade finalize"):
        image_of([*START, begin])
    moving = image_of([MetadataVersionRecord(3), *START[1:], begin])
    info = moving.topics["t"].partitions[0]
    assert info.is_moving
    assert (info.target_replicas, info.original_replicas) == ((2, 4), (2, 1, 3))
    assert load_image("c", image_records(moving), moving.offset + 1, 1).maps == moving.maps
    delta = MetadataDelta(moving)
    done = {"replicas": (2, 4), "isr": (2, 4), "leader": 2, "adding_replicas": (), "removing_replicas": ()}
    delta.apply(PartitionChangeRecord(TOPIC, 0, eligible_leader_replicas=(), **done))
    over = delta.image(99, 1, 0).topics["t"].partitions[0]
    assert not over.is_moving
    assert over.target_replicas == over.original_replicas == (2, 4)


def test_damaged_snapshots_are_refused() -> None:
    """Empty, or a topic whose partitions are missing: both would read as deletions."""
    for records in ([], START[:3]):
        with pytest.raises(FatalError):
            load_image("c", records, 10, 1)
    with pytest.raises(FatalError):
        image_records(MetadataImage("c"))


def test_configs_set_and_removed() -> None:
    """An empty resource is no resource, so that images of one content are equal."""
    base = image_of([*START, ConfigRecord(4, "", "log.retention.ms", "5")])
    assert base.config(CLUSTER_DEFAULT) == {"log.retention.ms": "5"}
    delta = MetadataDelta(base)
    delta.apply(ConfigRecord(4, "", "log.retention.ms", None))
    assert delta.image(9, 1, 0).configs == {}
