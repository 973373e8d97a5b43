"""Levels of features: what each may write, what a build does not know, and what a snapshot keeps (rule A32)."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.controller.metadata import features
from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.features import (
    BEFORE_LEVELS,
    FEATURES,
    LEVEL_OF_FEATURES,
    METADATA_FEATURE,
    NEWEST_LEVEL,
    FeatureLevelRecord,
    Range,
    first_levels,
    supported_by,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.levels import FIELD_LEVELS, level_of
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord, TopicRecord
from strandline.controller.metadata.snapshot import image_records, load_image
from strandline.controller.metadata.table import TABLE, decode_records, encode_records
from strandline.proto.errors import FatalError


def image_of(*records: MetadataRecord, supported: features.Supported = features.OWN_LEVELS) -> MetadataImage:
    delta = MetadataDelta(MetadataImage("c"), supported)
    delta.apply_all(records)
    return delta.image(len(records) - 1, 1, 0)


def test_levels_of_the_table_are_a_row_each_in_order() -> None:
    """Every level between the first and the last has its row, and what it adds in words."""
    for feature in FEATURES.values():
        numbers = [level.number for level in feature.levels]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert feature.implied in feature.supported
        assert all(level.adds and level.leaving for level in feature.levels)
        assert not feature.levels[0].can_be_left
    assert FEATURES["transaction.version"].supported == Range(0, 2)


def test_levels_of_records_and_fields_are_in_the_table_and_in_the_records() -> None:
    """A name that is mistyped would gate nothing."""
    kinds = {row.kind for row in TABLE.values()}
    for kind, fields in FIELD_LEVELS.items():
        assert kind in kinds
        assert set(fields) <= set(kind.__dataclass_fields__)
    numbers = {level.number for level in FEATURES[METADATA_FEATURE].levels}
    assert {
        *(row.level for row in TABLE.values()),
        *(n for fields in FIELD_LEVELS.values() for n in fields.values()),
    } <= numbers


def test_metadata_of_today_count_as_their_level() -> None:
    """A log without a record of a feature has the level that the feature has by itself."""
    image = image_of(MetadataVersionRecord(1))
    assert image.finalized == {**{name: one.implied for name, one in FEATURES.items()}, METADATA_FEATURE: 1}
    assert MetadataImage("c").finalized == {}


def test_a_record_of_a_level_that_is_not_finalized_is_refused() -> None:
    """Rule A32: nothing newer stands in a log that an older build may have to read again."""
    record = FeatureLevelRecord("group.version", 1)
    assert level_of(record) == LEVEL_OF_FEATURES
    with pytest.raises(FatalError, match=r"needs metadata.version 2, and the cluster is at 1.*upgrade finalize"):
        image_of(MetadataVersionRecord(1), record)
    assert image_of(MetadataVersionRecord(2), record).levels == {METADATA_FEATURE: 2, "group.version": 1}


def test_a_field_of_a_level_that_is_not_finalized_is_refused() -> None:
    """Older builds pass over a field that they do not know, and would lose it."""
    assert level_of(MetadataVersionRecord(1)) == 1
    assert level_of(MetadataVersionRecord(1, "0.1.0")) == LEVEL_OF_FEATURES
    with pytest.raises(FatalError, match=r"needs metadata\.version 2"):
        image_of(MetadataVersionRecord(1, "0.1.0"))


@pytest.mark.parametrize(
    "records",
    [
        [MetadataVersionRecord(99, "9.9.9")],
        [MetadataVersionRecord(2), FeatureLevelRecord("group.version", 99, "9.9.9")],
        [MetadataVersionRecord(2), FeatureLevelRecord("share.version", 1, "9.9.9")],
    ],
)
def test_a_level_of_a_newer_build_names_the_build(records: list[MetadataRecord]) -> None:
    """Rule A32: a node that cannot go on says what to install."""
    with pytest.raises(FatalError, match=r"Install Strandline 9\.9\.9 or newer on this node"):
        image_of(*records)


def test_a_level_of_the_metadata_themselves_has_its_own_record() -> None:
    """Two records that say one thing could say two."""
    with pytest.raises(FatalError, match=r"sets metadata\.version 2: the metadata is damaged"):
        image_of(MetadataVersionRecord(2), FeatureLevelRecord(METADATA_FEATURE, 2))


def test_an_older_build_halts_at_the_first_record_of_a_newer_level() -> None:
    """A roll that went on after it was finalized: the old build says so, and touches nothing."""
    with pytest.raises(FatalError, match=r"metadata\.version \d; this program knows 1\. Install Strandline 0\.1\.0"):
        image_of(*first_levels(NEWEST_LEVEL), supported=BEFORE_LEVELS)
    assert image_of(MetadataVersionRecord(1), supported=BEFORE_LEVELS).metadata_version == 1


def test_levels_survive_a_snapshot() -> None:
    """Rule A32: a follower that loads one knows the same levels; at the first level a snapshot is as it was."""
    for records in (first_levels(1), first_levels(2), [*first_levels(2), FeatureLevelRecord("transaction.version", 2)]):
        image = image_of(*records)
        data = encode_records(image_records(image))
        again = load_image("c", decode_records(data), image.offset + 1, 1, features.OWN_LEVELS)
        assert again == image
        assert diff(MetadataImage("c"), again)[MetadataImage.levels].changed.keys() == image.levels.keys()
    assert encode_records(image_records(image_of(MetadataVersionRecord(1)))) == [b"\x01\x01\x08\x01"]


def test_leaving_the_level_of_features_drops_their_records() -> None:
    """Whoever replays it has what an older build would have."""
    levels = FeatureLevelRecord("transaction.version", 2)
    image = image_of(*first_levels(2), levels, MetadataVersionRecord(1))
    assert image.levels == {METADATA_FEATURE: 1}
    assert image.finalized["transaction.version"] == 0
    image = image_of(*first_levels(2), levels, FeatureLevelRecord("transaction.version", 0))
    assert "transaction.version" not in image.levels


def test_the_level_of_transactions_is_what_the_metadata_say() -> None:
    """None without a record: a cluster that was made by a build before has none until it is finalized."""
    levels = [image_of(*first_levels(2), FeatureLevelRecord("transaction.version", level)) for level in (1, 2, 0)]
    assert [image.transaction_version for image in levels] == [1, 2, 0]
    assert [image_of(*first_levels(at)).transaction_version for at in (1, 2)] == [0, 2]
    assert MetadataImage("c").transaction_version == 0


def test_builds_that_say_nothing_are_from_before_there_were_levels() -> None:
    assert supported_by([]) is BEFORE_LEVELS
    assert supported_by([("a", 1, 2)]) == {"a": Range(1, 2)}


def test_other_records_need_no_more_than_the_first_level() -> None:
    assert level_of(TopicRecord("t", UUID(int=1))) == 1
