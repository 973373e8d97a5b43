"""An Iceberg table's appends check the offsets that they follow on, whoever else writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.lake.commits import Commit, LakeTaken
from strandline.proto.errors import ConfigError
from strandline.tools.lake.files import DayFiles
from strandline.tools.lake.iceberg import IcebergFailed, IcebergSink, _append, _bad_up_to, open_catalog, state_of
from strandline.tools.lake.shape import BAD_SCHEMA, Shape

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install '.[lake]'")

NAME = "shop.orders"


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return open_catalog(f"sqlite:///{tmp_path}/catalog.db", (tmp_path / "warehouse").as_uri(), {})


def sink(catalog: Any) -> IcebergSink:
    return IcebergSink(catalog, NAME, Shape())


def change(to: IcebergSink, start: int, end: int, bad: int = 0, *, topic: str = "t") -> Commit:
    """A commit of [start, end), of which the first `bad` fit no row; its files are written."""
    sizes = {"batch_bytes": 1 << 20, "file_bytes": 1 << 20}
    good = DayFiles(Shape().schema, to.open, by_day=True, **sizes)
    apart = DayFiles(BAD_SCHEMA, to.open_bad, by_day=False, **sizes)
    rows = [{"topic": topic, "partition": 0, "offset": offset} for offset in range(start, end)]
    import pyarrow as pa

    good.write(pa.Table.from_pylist([{**row, "timestamp": 0} for row in rows[bad:]], schema=Shape().schema))
    apart.write(pa.Table.from_pylist([{**row, "reason": "none"} for row in rows[:bad]], schema=BAD_SCHEMA))
    return Commit(-1, {topic: {0: (start, end)}}, good.finish(), bad=apart.finish(), topic_ids={topic: "id"})


def offsets(catalog: Any, name: str = NAME) -> list[int]:
    found: list[int] = catalog.load_table(name).scan().to_arrow()["offset"].to_pylist()
    return sorted(found)


def test_of_two_exports_of_a_topic_one_appends(catalog: Any) -> None:
    one, other = sink(catalog), sink(catalog)
    one.commit(change(one, 0, 10))
    with pytest.raises(LakeTaken, match=r"another writer exports t into .*: t-0 is there up to 10"):
        other.commit(change(other, 0, 8))
    assert offsets(catalog) == list(range(10))
    assert sink(catalog).state.ends == {("t", 0): 10}


def test_another_topic_and_other_writers_take_turns(catalog: Any) -> None:
    """A snapshot came between: the append is made anew upon it, with the offsets of both."""
    one, other = sink(catalog), sink(catalog)
    one.commit(change(one, 0, 10))
    other.commit(change(other, 0, 5, topic="u"))
    one.commit(change(one, 10, 12))
    catalog.load_table(NAME).delete("partition = 7")  # somebody's upkeep
    catalog.load_table(NAME).append(catalog.load_table(NAME).scan(limit=1).to_arrow().slice(0, 0))
    one.commit(change(one, 12, 20))
    assert sink(catalog).state.ends == {("t", 0): 20, ("u", 0): 5}
    assert len(offsets(catalog)) == 25


def test_records_that_fit_no_row_come_once_though_a_run_ended_between_the_two_appends(catalog: Any) -> None:
    one = sink(catalog)
    first = change(one, 0, 10, bad=3)
    assert one._bad is not None
    _append(one._bad, one._bad_state, first, list(first.bad), _bad_up_to)  # and killed before the other append
    again = sink(catalog)
    assert again.state.ends == {}
    assert again.bad_end("t", "id", 0) == 10
    assert again.bad_end("t", "another id", 0) == 0
    again.commit(change(again, 0, 3))
    again.commit(change(again, 3, 15))
    assert offsets(catalog) == list(range(15))
    assert offsets(catalog, f"{NAME}_bad") == [0, 1, 2]


def test_an_append_whose_answer_was_lost_is_made_once(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sink(catalog)
    commit_table = catalog.commit_table

    def lost(*words: Any) -> Any:
        commit_table(*words)
        raise ConnectionError("no answer")

    monkeypatch.setattr(catalog, "commit_table", lost)
    one.commit(change(one, 0, 10))
    monkeypatch.undo()
    one.commit(change(one, 10, 20))
    assert offsets(catalog) == list(range(20))


def test_a_table_that_does_not_say_where_it_is_is_refused(catalog: Any) -> None:
    one = sink(catalog)
    rows = Shape().schema.empty_table()
    catalog.load_table(NAME).append(rows)
    with pytest.raises(IcebergFailed, match=r"none of its snapshots has the property strandline.state"):
        state_of(catalog.load_table(NAME))
    assert one.state.ends == {}


def test_a_new_column_is_added(catalog: Any) -> None:
    import pyarrow as pa

    from strandline.tools.lake.shape import Typed

    one = sink(catalog)
    one.commit(change(one, 0, 2))
    wider = IcebergSink(catalog, NAME, Shape(Typed(pa.struct([("price", pa.float64())]), dict)))
    assert "price" in catalog.load_table(NAME).schema().column_names
    assert wider.state.ends == {("t", 0): 2}


@pytest.mark.parametrize("url", ["mysql://x", "catalog.db"])
def test_a_catalog_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///FILE"):
        open_catalog(url, "file:///x", {})
