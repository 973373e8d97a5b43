"""Row S108, without brokers: what the triggers of docs/uses/capture.md write, and what a follower makes of it."""

from __future__ import annotations

import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.shop import CAPTURE, Shop, ask, content, load

PAGE = CAPTURE.parents[1] / "uses" / "capture.md"


def test_the_page_shows_what_is_run() -> None:
    """What docs/uses/capture.md shows of the programs stands in them, line by line."""
    blocks = re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} == {path.name for path in CAPTURE.iterdir() if path.suffix == ".py"}
    for name, block in blocks:
        assert block in (CAPTURE / name).read_text(), f"{name} has not: {block}"


class Record(NamedTuple):
    """What a topic holds: the arguments of `Follower.take`, in their order, but for the offset."""

    number: int
    until: int
    key: bytes
    value: bytes | None


class Log:
    """A topic as a capture leaves it that is killed, and whose batches fail."""

    def __init__(self, source: Any, rng: random.Random) -> None:
        self.records: list[Record] = []
        self._source = source
        self._rng = rng

    def send(self, *, whole: bool = False) -> None:
        """The next page; unless `whole` it may end anywhere, lack a record, or not be known to be sent."""
        until = self._source.last()
        page = [Record(number, until, key, value) for number, key, value in self._source.unsent(until, 7)]
        if not page:
            return
        mishap = None if whole else self._rng.choice([None, "killed before", "killed after", "one fails"])
        if mishap == "killed before":
            page = page[: self._rng.randrange(len(page))]
        elif mishap == "one fails":
            page.pop(self._rng.randrange(len(page)))
        self.records += page
        if mishap is None:
            self._source.mark_sent(page[-1].number)


class Copy:
    """A follower that is killed between any two records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.follower = load("follower").Follower(str(path))
        self._position = self.first = self.follower.next

    def read(self, records: list[Record]) -> None:
        for record in records[self._position :]:
            self.follower.take(*record, self._position)
            self._position += 1

    def kill(self) -> None:
        self.follower.close()
        self.follower = load("follower").Follower(str(self.path))
        self._position = self.follower.next


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from("tttssrrkc"), max_size=40))
def test_a_follower_stands_where_the_source_stood(tmp_path_factory: Any, seed: int, steps: list[str]) -> None:
    """Transactions, pages sent twice or in part, failed batches, followers killed, a copy taken, in any order: a
    follower is never seen but at the end of a transaction of the source, and ends equal; so does one from the copy."""
    directory = tmp_path_factory.mktemp("shop")
    rng = random.Random(seed)
    path = directory / "shop.db"
    shop = Shop(path, seed)
    shop.create()
    source = load("capture").Source(str(path))
    source.install()
    log = Log(source, rng)
    copies: list[Copy] = []

    def take_copy() -> None:
        target = directory / f"copy-{len(copies)}.db"
        assert load("snapshot").copy(str(path), str(target), len(log.records)) == source.last()
        copies.append(Copy(target))

    take_copy()
    stood = {0: content(path)}
    for step in steps:
        if step == "t":
            shop.transact()
            stood[source.last()] = content(path)
        elif step == "s":
            log.send()
        elif step == "r":
            rng.choice(copies).read(log.records[: rng.randint(0, len(log.records))])
        elif step == "k":
            rng.choice(copies).kill()
        elif len(copies) < 3:
            take_copy()
        for copy in copies:
            assert content(copy.path) == stood[ask(copy.path, "select change from follower_place")]
    while source.unsent(source.last()):
        log.send(whole=True)
    for copy in copies:
        copy.read(log.records)
        assert content(copy.path) == content(path)
        copy.read(log.records)
        copy.kill()
        for offset, record in enumerate(log.records):
            assert not copy.follower.take(*record, offset), "what is applied is not applied again"
        assert content(copy.path) == content(path)
        copy.follower.close()
    source.close()
    shop.close()


def captured(path: Path, statements: str) -> list[tuple[str, str | None]]:
    """Key and value of what these statements change."""
    source = load("capture").Source(str(path))
    with closing(sqlite3.connect(path)) as application:
        application.executescript(statements)
    changes = [(key.decode(), value and value.decode()) for _, key, value in source.unsent(source.last())]
    source.mark_sent(source.last())
    source.close()
    return changes


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """A database with one table, captured."""
    path = tmp_path / "names.db"
    with closing(sqlite3.connect(path)) as application:
        application.executescript("create table name (id integer primary key, name text unique)")
    source = load("capture").Source(str(path))
    source.install()
    source.close()
    return path


def test_a_new_key_is_a_delete_and_an_insert(names: Path) -> None:
    """The row under its old key is gone, in the same transaction."""
    captured(names, "insert into name values (1, 'a')")
    assert captured(names, "update name set id = 2") == [
        ('["name",{"id":1}]', None),
        ('["name",{"id":2}]', '{"id":2,"name":"a"}'),
    ]


def test_numbers_go_on_after_everything_was_sent(names: Path) -> None:
    """A number that came again would be taken for a change that the follower has."""
    captured(names, "insert into name values (1, 'a')")
    captured(names, "delete from name")
    assert ask(names, "select count(*) from capture_change") == 1
    captured(names, "insert or fail into name values (2, 'a'), (3, 'b')")
    assert ask(names, "select max(number) from capture_change") == 4


@pytest.mark.parametrize("before", [True, False])
def test_another_trigger_may_change_the_row(tmp_path: Path, before: bool) -> None:
    """SQLite runs the triggers of a table in an order that it does not promise: the last image is the row as it is."""
    path = tmp_path / "names.db"
    table = "create table name (id integer primary key, name text);"
    shout = """create trigger shout after insert on name begin
        update name set name = upper(name) where id = new.id; delete from name where id > 8; end;"""
    with closing(sqlite3.connect(path)) as application:
        application.executescript(table + shout * before)
    source = load("capture").Source(str(path))
    source.install()
    source.close()
    last = dict(captured(path, shout * (not before) + "insert into name values (1, 'a'), (9, 'b')"))
    assert last == {'["name",{"id":1}]': '{"id":1,"name":"A"}', '["name",{"id":9}]': None}


def test_what_replace_removes_is_told_with_recursive_triggers(names: Path) -> None:
    """SQLite calls no trigger for the row that REPLACE removes, unless it is told to: docs/uses/capture.md says so."""
    captured(names, "insert into name values (1, 'a')")
    replace = "replace into name values (2, 'a')"
    assert [key for key, _ in captured(names, replace)] == ['["name",{"id":2}]']
    captured(names, "insert into name values (1, 'b')")
    assert captured(names, f"pragma recursive_triggers = on; {replace.replace('2', '3')}") == [
        ('["name",{"id":2}]', None),
        ('["name",{"id":3}]', '{"id":3,"name":"a"}'),
    ]


def test_a_column_that_comes_is_captured_after_install(names: Path) -> None:
    """Changes that were written down before it came are sent as they were."""
    with closing(sqlite3.connect(names)) as application:
        application.executescript("insert into name values (1, 'a'); alter table name add column age default 7")
    source = load("capture").Source(str(names))
    source.install()
    source.close()
    assert captured(names, "update name set age = 8") == [
        ('["name",{"id":1}]', '{"id":1,"name":"a"}'),
        ('["name",{"id":1}]', '{"id":1,"name":"a","age":8}'),
    ]


def test_a_table_without_a_key_is_refused(tmp_path: Path) -> None:
    """With its name; and no trigger is left behind."""
    path = tmp_path / "keyless.db"
    with closing(sqlite3.connect(path)) as application:
        application.executescript("create table a (id integer primary key); create table b (id integer)")
    source = load("capture").Source(str(path))
    with pytest.raises(ValueError, match="table b has no primary key"):
        source.install()
    source.close()
    assert ask(path, "select count(*) from sqlite_schema where type = 'trigger'") == 0
