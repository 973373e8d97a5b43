"""The table of records: a record more takes its class and one row; a map keeps what did not change."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest

from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.features import NEWEST_LEVEL
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.maps import MapOf, MapOfMaps
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord
from strandline.controller.metadata.snapshot import image_records, load_image
from strandline.controller.metadata.table import (
    BY_KIND,
    TABLE,
    RecordType,
    decode_records,
    encode_records,
    kept,
    removal,
)
from strandline.proto.errors import FatalError
from strandline.proto.messages.fields import Int32


@dataclass(frozen=True, slots=True)
class ColourRecord(MetadataRecord):
    """A colour that a thing has from now on."""

    thing: Annotated[str, 1]
    shade: Annotated[int, Int32(2)]


@dataclass(frozen=True, slots=True)
class RemoveColourRecord(MetadataRecord):
    """A thing has no colour any more."""

    thing: Annotated[str, 1]


COLOURS = MapOf[str, ColourRecord]("colours")
ROWS: list[RecordType[ColourRecord] | RecordType[RemoveColourRecord]] = [
    kept(120, ColourRecord, COLOURS, lambda record: record.thing),
    removal(121, RemoveColourRecord, COLOURS, lambda record: record.thing),
]
"""All that a made-up record takes beside its class."""

SKY, SEA = ColourRecord("sky", 3), ColourRecord("sea", 4)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two rows stand in the table."""
    for row in ROWS:
        monkeypatch.setitem(TABLE, row.type_id, row)
        monkeypatch.setitem(BY_KIND, row.kind, row)


def after(*records: MetadataRecord, base: MetadataImage | None = None) -> tuple[MetadataDelta, MetadataImage]:
    """Through bytes, as a log has them."""
    before = MetadataImage("c") if base is None else base
    delta = MetadataDelta(before)
    delta.apply_all(decode_records(encode_records(records)))
    return delta, delta.image(before.offset + len(records), 1, 0)


@pytest.mark.usefixtures("made_up")
def test_a_row_is_all_that_a_record_needs() -> None:
    """It is replayed, stands in the image, in snapshots and in what they differ by, and can be removed again."""
    _, base = after(MetadataVersionRecord(1), SKY)
    delta, image = after(SEA, ColourRecord("sky", 5), base=base)
    assert base[COLOURS] == {"sky": SKY}
    assert image[COLOURS] == {"sky": ColourRecord("sky", 5), "sea": SEA}
    assert list(delta[COLOURS].changed) == ["sea", "sky"]
    records = image_records(image)
    assert records == [MetadataVersionRecord(1), SEA, ColourRecord("sky", 5)]
    loaded = load_image("c", decode_records(encode_records(records)), image.offset + 1, image.epoch)
    assert loaded == image
    assert diff(base, loaded)[COLOURS].changed.keys() == delta[COLOURS].changed.keys()
    delta, gone = after(RemoveColourRecord("sea"), base=image)
    assert gone[COLOURS] == {"sky": ColourRecord("sky", 5)}
    assert delta[COLOURS].removed == diff(image, gone)[COLOURS].removed == {"sea": SEA}
    with pytest.raises(FatalError, match="A RemoveColourRecord removes what is not there, sea"):
        after(RemoveColourRecord("sea"), base=gone)


def test_every_row_has_its_columns() -> None:
    """An id and a class each once, a level that this build may write, a map that the image has."""
    maps = {of.name for of in vars(MetadataImage).values() if isinstance(of, MapOf)}
    for type_id, row in TABLE.items():
        assert row.type_id == type_id
        assert BY_KIND[row.kind] is row
        assert row.level in range(1, NEWEST_LEVEL + 1), row
        assert row.of.name in maps, row
    assert len(BY_KIND) == len(TABLE)
    kinds = [
        kind
        for module in {inspect.getmodule(row.kind) for row in TABLE.values()}
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, MetadataRecord) and kind is not MetadataRecord
    ]
    assert set(kinds) == set(BY_KIND), "each class of a record has a row"


NUMBERS = MapOfMaps[str, str, int]("numbers")


def test_what_did_not_change_is_shared() -> None:
    """A delta copies a map once, of maps within it the one that it changes, and nothing where nothing changed."""
    base = {"a": {"x": 1}, "b": {"y": 2}}
    delta = NUMBERS.delta(base)
    assert delta.finished() is base
    delta.put_part("a", "z", 3)
    now = delta.finished()
    assert (now, base) == ({"a": {"x": 1, "z": 3}, "b": {"y": 2}}, {"a": {"x": 1}, "b": {"y": 2}})
    assert now["b"] is base["b"]
    assert delta.changed == {"a": {"z": None}}


def test_a_map_without_parts_is_not_there() -> None:
    """So that images of one content are equal; what was put again after a removal counts as both."""
    delta = NUMBERS.delta({"a": {"x": 1}})
    assert delta.remove_part("a", "x")
    assert not delta.remove_part("a", "x")
    assert (delta.finished(), delta.changed, delta.removed) == ({}, {}, {"a": {"x": 1}})
    delta.put_part("a", "x", 1)
    assert delta.finished() == {"a": {"x": 1}}
    assert (delta.changed, delta.removed) == ({"a": {"x": None}}, {"a": {"x": 1}})


@pytest.mark.parametrize(
    ("new", "changed", "removed"),
    [
        ({"a": {"x": 1}}, {}, {"b": {"y": 2, "z": 3}}),
        ({"a": {"x": 1}, "b": {"y": 5, "z": 3}}, {"b": {"y": None}}, {}),
        ({"a": {"x": 1}, "b": {"y": 2}}, {"b": {"z": None}}, {}),
        ({"a": {"x": 1}, "b": {"y": 2, "z": 3}, "c": {"w": 4}}, {"c": {"w": None}}, {}),
    ],
    ids=["removed", "another part", "a part less", "new"],
)
def test_one_diff_serves_every_map(
    new: dict[str, dict[str, int]], changed: dict[str, dict[str, None]], removed: dict[str, dict[str, int]]
) -> None:
    delta = NUMBERS.delta({"a": {"x": 1}, "b": {"y": 2, "z": 3}})
    delta.compare(new)
    assert (delta.changed, delta.removed) == (changed, removed)


def test_an_image_refuses_to_be_changed() -> None:
    with pytest.raises(AttributeError, match="an image never changes"):
        MetadataImage("c").offset = 5
    assert repr(MetadataImage("c")) == "MetadataImage('c', offset=-1, epoch=-1: )"
