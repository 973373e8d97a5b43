"""Tiers in the image: what records make of them, snapshots, differences, and what is left of deleted topics."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.controller.metadata.snapshot import image_records, load_image
from strandline.controller.metadata.table import decode_records, encode_records
from strandline.controller.metadata.tiers import (
    DeletedTierRecord,
    TieredSegmentRecord,
    TierReapedRecord,
    TierStartRecord,
)
from strandline.proto.errors import FatalError
from strandline.proto.tier import NO_TIER, EpochStart, Tier, TieredSegment

TOPIC, OTHER = UUID(int=9), UUID(int=10)


def segment(base: int, end: int, **changes: Any) -> TieredSegment:
    fields = {"size_bytes": 100, "max_timestamp_ms": 5, "epochs": ((0, base),), "copied_ms": 7, **changes}
    fields["epochs"] = tuple(EpochStart(*start) for start in fields["epochs"])
    return TieredSegment(UUID(int=base + 1), base, end, **fields)


def added(base: int, end: int, topic: UUID = TOPIC, partition: int = 0) -> TieredSegmentRecord:
    return TieredSegmentRecord(topic, partition, segment(base, end))


def topic_records(topic: UUID, name: str, partitions: int = 2) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [TopicRecord(name, topic)]
    for number in range(partitions):
        records.append(PartitionRecord(topic, number, (1,), (1,), (), (), 1, 0, 0, False))
    return records


START = [MetadataVersionRecord(1), *topic_records(TOPIC, "t"), *topic_records(OTHER, "other")]
TIERED = ConfigRecord(2, "t", "remote.storage.enable", "true")


def after(*records: MetadataRecord, base: MetadataImage | None = None) -> tuple[MetadataDelta, MetadataImage]:
    base = MetadataImage("c") if base is None else base
    delta = MetadataDelta(base)
    delta.apply_all(records)
    return delta, delta.image(base.offset + len(records), 1, 0)


def image_of(*records: MetadataRecord) -> MetadataImage:
    return after(*START, *records)[1]


def test_segments_stand_in_the_order_of_their_offsets() -> None:
    """Nobody else's tier changes, and no image that was kept."""
    before = image_of()
    delta, image = after(added(0, 10), added(10, 30), base=before)
    assert image.tier(TOPIC, 0) == Tier(0, (segment(0, 10), segment(10, 30)))
    assert image.tier(TOPIC, 1) is NO_TIER
    assert list(delta[MetadataImage.tiers].changed) == [(TOPIC, 0)]
    assert not delta.empty
    assert before.tiers == {}
    again = after(added(30, 31), base=image)[1]
    assert again.tier(TOPIC, 0).end_offset == 31
    assert image.tier(TOPIC, 0).end_offset == 30


@pytest.mark.parametrize(
    ("start", "left"),
    [(1, [0, 10, 30]), (9, [0, 10, 30]), (10, [10, 30]), (11, [10, 30]), (30, [30]), (39, [30]), (40, []), (99, [])],
)
def test_start_forgets_what_lies_wholly_below(start: int, left: list[int]) -> None:
    """A segment whose end is the start holds nothing any more; one that reaches beyond stays whole."""
    image = image_of(added(0, 10), added(10, 30), added(30, 40), TierStartRecord(TOPIC, 0, start))
    tier = image.tier(TOPIC, 0)
    assert [one.base_offset for one in tier.segments] == left
    assert tier.start_offset == start
    assert tier.end_offset == max(start, 40)


def test_first_segment_begins_anywhere_at_or_beyond_the_start() -> None:
    """A topic whose tier is turned on later has lost its oldest records already."""
    image = image_of(TierStartRecord(TOPIC, 0, 5), added(7, 9))
    assert image.tier(TOPIC, 0) == Tier(5, (segment(7, 9),))


@pytest.mark.parametrize(
    "records",
    [
        [added(0, 10), added(11, 20)],
        [added(0, 10), added(9, 20)],
        [TierStartRecord(TOPIC, 0, 5), added(4, 20)],
        [added(5, 5)],
        [TieredSegmentRecord(TOPIC, 0, segment(0, 5, epochs=((2, 0), (1, 3))))],
        [TieredSegmentRecord(TOPIC, 0, segment(0, 5, epochs=()))],
        [TieredSegmentRecord(TOPIC, 0, segment(0, 5, epochs=((2, 0), (3, 5))))],
        [TieredSegmentRecord(TOPIC, 0, segment(0, 5, max_timestamp_ms=-2))],
        [added(0, 10, partition=2)],
        [added(0, 10, topic=UUID(int=11))],
        [TierStartRecord(TOPIC, 0, 5), TierStartRecord(TOPIC, 0, 5)],
        [TierStartRecord(TOPIC, 2, 5)],
        [DeletedTierRecord(UUID(int=11), "gone"), DeletedTierRecord(UUID(int=11), "gone")],
        [TierReapedRecord(UUID(int=11))],
    ],
    ids=[
        "a gap",
        "an overlap",
        "below the start",
        "an empty segment",
        "epochs that go back",
        "no epoch",
        "an epoch that begins beyond it",
        "a time that cannot be",
        "no such partition",
        "no such topic",
        "a start that stays",
        "the start of no partition",
        "deleted twice",
        "gone, and never deleted",
    ],
)
def test_records_that_do_not_fit_stop_the_node(records: list[MetadataRecord]) -> None:
    """Schedule 31: nothing is deleted on the word of metadata that cannot be."""
    with pytest.raises(FatalError):
        image_of(*records)


def test_deleted_topic_is_remembered_until_its_objects_are_gone() -> None:
    """Its tiers are gone at once; its id and name stay, to find the objects by."""
    before = image_of(TIERED, added(0, 10), added(0, 5, partition=1))
    delta, image = after(RemoveTopicRecord(TOPIC), base=before)
    assert image.tiers == {}
    assert image.deleted_tiers == {TOPIC: DeletedTierRecord(TOPIC, "t")}
    assert delta[MetadataImage.tiers].changed == {}
    assert list(delta[MetadataImage.deleted_tiers].changed) == [TOPIC]
    later, gone = after(TierReapedRecord(TOPIC), base=image)
    assert gone.deleted_tiers == {}
    assert not later.empty
    assert list(image.deleted_tiers) == [TOPIC]


@pytest.mark.parametrize(
    ("records", "remembered"),
    [
        ([], False),
        ([TIERED], True),
        ([ConfigRecord(2, "t", "remote.storage.enable", "false")], False),
        ([TierStartRecord(TOPIC, 1, 5)], True),
        ([added(0, 10)], True),
    ],
    ids=["never", "about to be copied", "turned off", "all expired", "copied"],
)
def test_topic_that_may_have_left_objects_is_remembered(records: list[MetadataRecord], remembered: bool) -> None:
    """Also one of which no segment was recorded: a copy under way when it was deleted leaves an object."""
    assert (TOPIC in image_of(*records, RemoveTopicRecord(TOPIC)).deleted_tiers) is remembered
    assert (TOPIC in after(RemoveTopicRecord(TOPIC), base=image_of(*records))[1].deleted_tiers) is remembered


def history(seed: int) -> list[MetadataRecord]:
    """Records that tiers may have got in some life."""
    rng = random.Random(seed)
    records: list[MetadataRecord] = [*START, TIERED]
    ends = dict.fromkeys([(TOPIC, 0), (TOPIC, 1), (OTHER, 0), (OTHER, 1)], 0)
    starts = dict(ends)
    for _ in range(40):
        key = rng.choice(list(ends))
        if rng.random() < 0.7:
            base = ends[key] if ends[key] > starts[key] else starts[key]
            ends[key] = base + rng.randrange(1, 20)
            records.append(added(base, ends[key], *key))
        else:
            starts[key] += rng.randrange(1, 25)
            records.append(TierStartRecord(*key, starts[key]))
    if rng.random() < 0.5:
        records.append(RemoveTopicRecord(rng.choice([TOPIC, OTHER])))
    return records


@pytest.mark.parametrize("seed", range(20))
def test_snapshot_adds_up_to_the_same_image(seed: int) -> None:
    """Through bytes; and the snapshot of what was loaded is the same again."""
    _, image = after(*history(seed))
    data = encode_records(image_records(image))
    again = load_image("c", decode_records(data), image.offset + 1, image.epoch)
    assert again == image
    assert encode_records(image_records(again)) == data


@pytest.mark.parametrize("seed", range(20))
def test_diff_tells_what_a_replay_would_have_told(seed: int) -> None:
    """A broker that loads a snapshot hears of the same tiers as one that replayed the log, wherever it stood."""
    records = history(seed)
    cut = random.Random(seed).randrange(len(START), len(records))
    _, before = after(*records[:cut])
    delta, image = after(*records[cut:], base=before)
    found = diff(before, image)
    for of in (MetadataImage.tiers, MetadataImage.deleted_tiers):
        assert found[of].changed == delta[of].changed
        assert found[of].removed == delta[of].removed
    one_at_a_time = before
    for record in records[cut:]:
        one_at_a_time = after(record, base=one_at_a_time)[1]
    assert one_at_a_time == image


def test_topic_of_the_same_name_has_no_tier_of_the_old_one() -> None:
    """In one batch, too."""
    again = UUID(int=12)
    base = image_of(TIERED, added(0, 10))
    image = after(added(10, 20), RemoveTopicRecord(TOPIC), *topic_records(again, "t"), base=base)[1]
    assert image.tier(again, 0) is NO_TIER
    assert image.tiers == {}
    assert set(image.deleted_tiers) == {TOPIC}


def test_changed_tiers_of_a_topic_that_is_gone_are_not_told() -> None:
    """The topic itself is."""
    delta = after(added(0, 10), RemoveTopicRecord(TOPIC), base=image_of())[0]
    assert delta[MetadataImage.tiers].changed == {}
    found = diff(image_of(added(0, 10)), image_of(RemoveTopicRecord(TOPIC)))
    assert found[MetadataImage.tiers].changed == {}
