"""A topic that is made of what the object store has of it, after its cluster was lost (rule B25)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api
from strandline.controller.broker_api import AllocateProducerIdsRequest, ProducerIdBlock
from strandline.controller.machine import adoption, brokers, topics
from strandline.controller.machine.state import first_producer_id
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import RemoveTopicRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID, NodeId, ProducerId
from strandline.proto.tier import AdoptedTier, ProducerIds, Tier, TieredSegment
from tests.controller.machine.test_tiers import segment

TOPIC_ID = UUID(int=0x4321, version=4)
FIRST, SECOND = segment(3, 10), segment(10, 20, epochs=((1, 10), (4, 15)))
OTHER = segment(0, 7, epochs=((2, 0),))
OWN = first_producer_id("test-cluster")
OTHERS = 2**46
"""Below OWN, and nowhere near."""


@pytest.fixture
def cluster(machine_cluster: Any) -> Any:
    return machine_cluster(tiered_storage=True)


def stored(*segments: TieredSegment, number: int = 0, **fields: Any) -> api.CreatableTopic:
    made: dict[str, Any] = {
        "name": "t",
        "num_partitions": 3,
        "configs": {"remote.storage.enable": "true"},
        "topic_id": TOPIC_ID,
        "is_restored": True,
        "tiers": (AdoptedTier(number, segments),) if segments else (),
    }
    return api.CreatableTopic(**{**made, **fields})


def adopted(segment: TieredSegment, first: int = 0, end: int = 0) -> TieredSegment:
    """As the metadata have it: of its producers, those of these ids are believed."""
    return replace(segment, producers=ProducerIds(ProducerId(first), ProducerId(end)))


def ids_of(number: int, first: int, end: int, *segments: TieredSegment) -> AdoptedTier:
    """A partition whose producers had ids from `first` up to `end`."""
    return AdoptedTier(number, segments, ProducerId(end), ProducerId(first))


def give_out(cluster: Any) -> tuple[int, int]:
    """A block of producer ids to broker 1: its first id, and how many."""
    request = AllocateProducerIdsRequest(NodeId(1), cluster.epoch(1))
    block: ProducerIdBlock = cluster.run(brokers.allocate_producer_ids(cluster.state, request))
    return block.first_producer_id, block.count


def test_92_producer_ids_do_not_begin_again(cluster: Any) -> None:
    """Schedule 92: of a lost cluster whose ids are near to ours the next id lies above all that the records had, and
    those that it gave out later, from the batch on that takes them over. Who has an id from before may write into the
    topic too: of the lost cluster's producers those between are known."""
    seen: list[MetadataImage] = []
    assert give_out(cluster) == (OWN, 1000)
    cluster.on_append = lambda _before: seen.append(cluster.image)
    tiers = (ids_of(0, OWN, OWN + 5_501, FIRST, SECOND), ids_of(2, OWN, OWN + 7, OTHER))
    assert cluster.create_topic(stored(tiers=tiers)).error is ErrorCode.NONE
    [image] = seen
    assert image.next_producer_id == OWN + 5_501 + adoption.IDS_BEYOND
    between = (OWN + 1_000, OWN + 5_501)
    assert image.tier(TOPIC_ID, 0).segments == (adopted(FIRST, *between), adopted(SECOND, *between))
    assert image.tier(TOPIC_ID, 2).segments == (adopted(OTHER, OWN + 1_000, OWN + 1_000),)
    assert OWN + 5_500 in image.tier(TOPIC_ID, 0).segments[0].producers
    assert OWN + 999 not in image.tier(TOPIC_ID, 0).segments[0].producers
    cluster.on_append = lambda _: None
    next_id = OWN + 5_501 + adoption.IDS_BEYOND
    assert give_out(cluster) == (next_id, 1000)
    cluster.fail_over()
    assert give_out(cluster) == (next_id + 1000, 1000)


def test_111_each_cluster_has_producer_ids_of_its_own(cluster: Any) -> None:
    """Schedule 111: producers of the lost cluster go on. Nobody gets an id that one of them has, stored or not, and
    whatever they have written is known, whether ids were given out here before or not, in the second topic as in the
    first."""
    for number, given in enumerate((False, True, True)):
        if given:
            assert give_out(cluster)[0] == OWN + 1000 * (number - 1)
        before = cluster.image.next_producer_id
        for other in (OTHERS, OWN + 2**50):
            topic_id = UUID(int=TOPIC_ID.int + 2 * number + (other == OTHERS), version=4)
            tiers = (ids_of(0, other, other + 5_501, FIRST),)
            name = f"t{topic_id.int & 7}"
            assert cluster.create_topic(stored(tiers=tiers, name=name, topic_id=topic_id)).error is ErrorCode.NONE
            assert cluster.image.tier(topic_id, 0).segments == (adopted(FIRST, other, other + 5_501),)
            assert cluster.image.next_producer_id == before
    assert first_producer_id("lost") != first_producer_id("new")


def test_ids_that_a_build_without_places_may_have_given_out_are_not_believed(cluster: Any) -> None:
    """They begin at 0, in a lost cluster as in this one before it was upgraded."""
    give_out(cluster)
    assert cluster.create_topic(stored(tiers=(ids_of(0, 0, 5_501, FIRST),))).error is ErrorCode.NONE
    [segment] = cluster.image.tier(TOPIC_ID, 0).segments
    assert 5_500 not in segment.producers


def test_producer_ids_go_on_where_the_metadata_log_was_rolled_back(cluster: Any) -> None:
    """Rule B27: a majority of the controllers lost the end of the log, and with it that blocks were given out. Whoever
    leads then does so in an epoch that no leader before had, and each epoch has ids of its own."""
    cluster.quorum_epoch = 3
    cluster.fail_over()
    before, forgotten = list(cluster.log), [give_out(cluster) for _ in range(3)]
    assert forgotten == [(OWN + 3 * 2**32 + 1000 * number, 1000) for number in range(3)]
    cluster.log = before
    cluster.quorum_epoch = 4
    cluster.fail_over()
    assert give_out(cluster) == (OWN + 4 * 2**32, 1000)
    assert give_out(cluster) == (OWN + 4 * 2**32 + 1000, 1000)


def test_ids_below_those_that_were_given_out_raise_nothing(cluster: Any) -> None:
    """The next id never falls; a dry run changes nothing."""
    assert give_out(cluster) == (OWN, 1000)
    tiers = (ids_of(0, 0, 8, FIRST),)
    assert cluster.create_topic(stored(tiers=tiers), dry_run=True).error is ErrorCode.NONE
    assert cluster.create_topic(stored(tiers=tiers)).error is ErrorCode.NONE
    assert give_out(cluster) == (OWN + 1000, 1000)


def test_topic_and_tiers_are_one_batch(cluster: Any) -> None:
    """Nobody leads a partition of it without knowing what is stored; its epochs go on above those of the records."""
    seen: list[MetadataImage] = []
    cluster.on_append = lambda _before: seen.append(cluster.image)
    tiers = (AdoptedTier(0, (FIRST, SECOND)), AdoptedTier(2, (OTHER,)))
    outcome = cluster.create_topic(stored(tiers=tiers))
    assert (outcome.error, outcome.topic_id, outcome.num_partitions) == (ErrorCode.NONE, TOPIC_ID, 3)
    [image] = seen
    assert image.tier(TOPIC_ID, 0) == Tier(3, (adopted(FIRST), adopted(SECOND)))
    assert image.tier(TOPIC_ID, 1) == Tier()
    assert image.tier(TOPIC_ID, 2) == Tier(0, (adopted(OTHER),))
    assert [cluster.partition("t", number).leader_epoch for number in range(3)] == [4 + adoption.EPOCHS_AHEAD] * 3
    assert all(cluster.partition("t", number).has_leader for number in range(3))


def test_110_leader_epochs_begin_far_above_those_that_were_stored(cluster: Any) -> None:
    """Schedule 110: the lost cluster has had epochs of which nothing was stored, in partitions too of which nothing
    was. Clients believe nothing of an epoch below the one that they know."""
    assert cluster.create_topic(stored(FIRST)).error is ErrorCode.NONE
    epochs = [cluster.partition("t", number).leader_epoch for number in range(3)]
    assert epochs == [FIRST.last_epoch + adoption.EPOCHS_AHEAD] * 3
    near_the_end = 2**31 - 5
    last = segment(3, 10, epochs=((near_the_end, 3),))
    again = stored(last, name="u", topic_id=UUID(int=3, version=4))
    assert cluster.create_topic(again).error is ErrorCode.NONE
    assert cluster.partition("u", 0).leader_epoch == near_the_end + 1


def test_a_repetition_writes_nothing(cluster: Any) -> None:
    """Its answer was lost, or the command was killed: it is a success; a topic with another id is none of it."""
    assert cluster.create_topic(stored(FIRST)).error is ErrorCode.NONE
    before = len(cluster.log)
    assert cluster.create_topic(stored(FIRST)).topic_id == TOPIC_ID
    assert cluster.create_topic(stored(FIRST, SECOND)).error is ErrorCode.NONE
    other = cluster.create_topic(stored(FIRST, topic_id=UUID(int=9, version=4)))
    half = UUID(int=TOPIC_ID.int ^ 1)
    assert other.error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert cluster.create_topic(stored(FIRST, topic_id=half)).error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(cluster.log) == before


REFUSED: list[tuple[str, list[TieredSegment], dict[str, Any], ErrorCode]] = [
    ("nothing", [], {}, ErrorCode.INVALID_REQUEST),
    ("a partition without segments", [], {"tiers": (AdoptedTier(0, ()),)}, ErrorCode.INVALID_REQUEST),
    ("no id", [FIRST], {"topic_id": ZERO_UUID}, ErrorCode.INVALID_REQUEST),
    ("no tier", [FIRST], {"configs": {}}, ErrorCode.INVALID_CONFIG),
    ("a compacted topic", [FIRST], {"configs": {"cleanup.policy": "compact"}}, ErrorCode.INVALID_CONFIG),
    ("too few partitions", [FIRST], {"number": 3}, ErrorCode.INVALID_REQUEST),
    ("a partition twice", [], {"tiers": (AdoptedTier(0, (OTHER,)),) * 2}, ErrorCode.INVALID_REQUEST),
    ("a gap", [FIRST, segment(11, 20, epochs=((1, 11),))], {}, ErrorCode.INVALID_REQUEST),
    ("an overlap", [FIRST, segment(9, 20, epochs=((1, 9),))], {}, ErrorCode.INVALID_REQUEST),
    ("an id twice", [FIRST, segment(10, 20, FIRST.segment_id.int, epochs=((1, 10),))], {}, ErrorCode.INVALID_REQUEST),
    ("epochs that fall", [SECOND, segment(20, 30, epochs=((3, 20),))], {}, ErrorCode.INVALID_REQUEST),
    ("the last epoch of all", [segment(0, 5, epochs=((2**31 - 1, 0),))], {}, ErrorCode.INVALID_REQUEST),
    ("no record", [segment(5, 5)], {}, ErrorCode.INVALID_REQUEST),
]


@pytest.mark.parametrize(("what", "segments", "fields", "error"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_makes_no_tier_is_refused(
    cluster: Any, what: str, segments: list[TieredSegment], fields: dict[str, Any], error: ErrorCode
) -> None:
    before = len(cluster.log)
    outcome = cluster.create_topic(stored(*segments, **fields))
    assert outcome.error is error
    assert outcome.message
    assert len(cluster.log) == before


def test_a_topic_that_is_being_deleted_is_not_restored(cluster: Any) -> None:
    """Brokers delete its objects just now; once these are gone there is nothing to be restored."""
    assert cluster.create_topic(stored(FIRST)).error is ErrorCode.NONE
    cluster._append([RemoveTopicRecord(TOPIC_ID)])
    outcome = cluster.create_topic(stored(FIRST))
    assert outcome.error is ErrorCode.INVALID_REQUEST
    assert "was deleted in this cluster" in outcome.message


def test_a_dry_run_asks_without_segments(cluster: Any) -> None:
    """Before anything is copied: the name, the id, the settings and the replicas are judged, and nothing is written."""
    before = len(cluster.log)
    assert cluster.create_topic(stored(), dry_run=True).error is ErrorCode.NONE
    assert cluster.create_topic(stored(configs={}), dry_run=True).error is ErrorCode.INVALID_CONFIG
    assert cluster.create_topic(stored(replication_factor=9), dry_run=True).error is not ErrorCode.NONE
    assert len(cluster.log) == before


def test_too_many_segments_for_one_batch(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "SEGMENTS_MAX", 1)
    assert cluster.create_topic(stored(FIRST, SECOND)).error is ErrorCode.POLICY_VIOLATION
    assert cluster.create_topic(stored(FIRST)).error is ErrorCode.NONE


def test_the_next_controller_has_it(cluster: Any) -> None:
    """By the log alone."""
    cluster.create_topic(stored(FIRST, SECOND))
    cluster.fail_over()
    assert cluster.image.tier(TOPIC_ID, 0) == Tier(3, (adopted(FIRST), adopted(SECOND)))
    request = api.CreateTopicsRequest((stored(FIRST, SECOND),))
    assert topics.create_topics(cluster.state, request).records == []
