"""Commits: under the next free number, whole or not at all, each behind the one before; in a directory and in S3."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.lake import commits
from strandline.lake.commits import Commit, Lake, LakeDamaged, LakeTaken, State
from strandline.lake.stores import LakeStore
from strandline.proto.errors import ConfigError
from tests.lake.conftest import BUCKET, s3_environment


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "directory":
        return str(tmp_path / "lake")
    for name, value in s3_environment(request.getfixturevalue("s3_server")).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


def span(start: int, end: int, topic: str = "t", **others: object) -> Commit:
    return Commit(-1, {topic: {0: (start, end)}}, {f"date=2026-11-23/{topic}-{start}.parquet": end - start}, **others)  # type: ignore[arg-type]


def test_a_lake_knows_how_far_it_is(place: str) -> None:
    lake = Lake(place)
    state = lake.state()
    lake.commit(span(0, 10, topic_ids={"t": "one"}), state)
    lake.commit(Commit(-1, {"t": {0: (10, 25)}}, {"b.parquet": 12}, lost={"t": {0: ((10, 12),)}}), state)
    again = Lake(place).state()
    assert again == state
    assert again.ends == {("t", 0): 25}
    assert (again.rows, again.covered, again.lost, again.empty) == (22, 25, 2, 1)
    assert again.topic_ids == {"t": "one"}


def test_a_lake_knows_the_leader_epochs_of_its_ends(tmp_path: Path) -> None:
    """Rule B39. An older release's commit says nothing of them, and no epoch of an earlier end is taken for that of a
    later one; nor one of a topic for that of another under its name."""
    lake = Lake(tmp_path)
    state = lake.state()
    lake.commit(span(0, 10, epochs={"t": {0: 3}}), state)
    lake.commit(span(0, 10, "u", epochs={"u": {0: 4}}), state)
    assert Lake(tmp_path).state().epochs == {("t", 0): 3, ("u", 0): 4}
    assert State.from_json(state.to_json()) == state
    lake.commit(span(10, 20), state)
    assert Lake(tmp_path).state().epochs == {("u", 0): 4}
    lake.commit(Commit(-1, {}, {}, new_topics=("u",)), state)
    assert Lake(tmp_path).state().epochs == {}
    for old in (Commit.from_json, State.from_json):
        document = json.loads(span(0, 10).to_json() if old == Commit.from_json else state.to_json())
        del document["epochs"]
        assert not old(json.dumps(document).encode()).epochs


def test_a_name_is_taken_once(place: str) -> None:
    store = LakeStore(place)
    assert store.create("commits/x", b"one")
    assert not store.create("commits/x", b"two")
    assert store.read("commits/x") == b"one"
    assert store.read("commits/y") is None
    assert list(store.listed("commits")) == ["x"]


def test_two_writers_with_one_process_id_make_one_whole_file(tmp_path: Path) -> None:
    """Containers number their processes alike: what is written beside the name must not be named by the process id."""
    stores = [LakeStore(str(tmp_path / "lake")) for _ in range(2)]
    contents = [b"a" * 100_000, b"b" * 300_000]
    with ThreadPoolExecutor(2) as pool:
        for number in range(100):
            name = f"commits/{number:08d}.json"
            tries = [pool.submit(store.create, name, data) for store, data in zip(stores, contents, strict=True)]
            made = [one.result() for one in tries]
            assert sorted(made) == [False, True]
            assert stores[0].read(name) == contents[made.index(True)]
    assert not list((tmp_path / "lake/commits").glob(".*"))


def test_a_broken_last_commit_is_told_and_put_aside(place: str) -> None:
    lake = Lake(place)
    state = lake.state()
    lake.commit(span(0, 10), state)
    assert lake.repair() == []
    lake.store.create(f"{commits.COMMITS}/00000001.json", b'{"number": 1, "ran')
    for call in (lake.state, lambda: lake.commit(span(10, 20), state)):
        with pytest.raises(LakeDamaged, match=r"00000001\.json cannot be read: 18 bytes.*strandline lake repair"):
            call()
    assert lake.repair(dry_run=True) == ["00000001.json"]
    assert lake.repair() == ["00000001.json"]
    assert [lake.store.read(f"{commits.BROKEN}/{name}") for name in lake.store.listed(commits.BROKEN)] == [
        b'{"number": 1, "ran'
    ]
    lake.commit(span(10, 20), lake.state())
    assert Lake(place).state().ends == {("t", 0): 20}


def test_a_broken_commit_below_others_is_not_put_aside(place: str) -> None:
    """It was whole when the next one was made upon it: putting it aside would lose what it covered."""
    lake = Lake(place)
    state = lake.state()
    for start in (0, 10):
        lake.commit(span(start, start + 10), state)
    lake.store.delete(f"{commits.COMMITS}/00000000.json")
    lake.store.create(f"{commits.COMMITS}/00000000.json", b"")
    with pytest.raises(LakeDamaged, match=r"00000001\.json is behind it, so it was whole once"):
        lake.repair()


def test_of_two_writers_of_a_topic_one_commits(place: str) -> None:
    lake, other = Lake(place), Lake(place)
    state, stale = lake.state(), other.state()
    lake.commit(span(0, 10), state)
    with pytest.raises(LakeTaken, match=r"another writer is at work in .* and was faster: commit 1: t-0 from 0 to 8"):
        other.commit(span(0, 8), stale)
    assert Lake(place).state().ends == {("t", 0): 10}


def test_writers_of_other_topics_and_compaction_take_turns(place: str) -> None:
    """The number is taken, and what was to be committed still follows on: it gets the next one."""
    lake, other = Lake(place), Lake(place)
    state, stale = lake.state(), other.state()
    lake.commit(span(0, 10), state)
    assert other.commit(span(0, 8, "u"), stale).number == 1
    lake.commit(Commit(-1, {}, {"joined.parquet": 10}, ("date=2026-11-23/t-0.parquet",)), state)
    assert other.commit(span(8, 9, "u"), stale).number == 3
    assert state.next_number == 3
    assert Lake(place).state().rows == 19


def test_a_commit_whose_answer_was_lost_is_made_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The put is tried again by the store's client, and finds its own first try."""
    lake = Lake(place)
    create = lake.store.create

    def twice(name: str, data: bytes) -> bool:
        create(name, data)
        return create(name, data)

    monkeypatch.setattr(lake.store, "create", twice)
    state = lake.state()
    assert lake.commit(span(0, 10), state).number == 0
    assert lake.commit(span(10, 20), state).number == 1
    assert Lake(place).state().rows == 20


def test_two_compactions_do_not_both_count(place: str) -> None:
    lake = Lake(place)
    state = lake.state()
    lake.commit(span(0, 10), state)
    stale = lake.state()
    lake.commit(Commit(-1, {}, {"a.parquet": 10}, ("date=2026-11-23/t-0.parquet",)), state)
    with pytest.raises(LakeTaken, match=r"removes date=2026-11-23/t-0.parquet, which is not in the lake"):
        lake.commit(Commit(-1, {}, {"b.parquet": 10}, ("date=2026-11-23/t-0.parquet",)), stale)


def test_old_commits_are_read_from_a_state_file(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "STATE_EVERY", 3)
    lake = Lake(place)
    state = lake.state()
    for start in range(8):
        lake.commit(span(start, start + 1), state)
    assert [name for name in lake.store.listed("commits") if name.endswith("state")] == [
        "00000003.state",
        "00000006.state",
    ]
    lake.store.delete("commits/00000001.json")
    assert Lake(place).state() == state
    with pytest.raises(LakeDamaged, match="commit 2 where 1 should be"):
        Lake(place).state(every_commit=True)


def test_a_broken_state_file_costs_time_alone(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "STATE_EVERY", 2)
    lake = Lake(place)
    state = lake.state()
    for start in range(0, 50, 10):
        lake.commit(span(start, start + 10), state)
    lake.store.delete(f"{commits.COMMITS}/00000004.state")
    lake.store.create(f"{commits.COMMITS}/00000004.state", b"{}]")
    assert lake.state() == state
    assert lake.broken_states() == lake.repair() == ["00000004.state"]
    assert lake.state() == state
    assert lake.broken_states() == []


def test_what_does_not_follow_on_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    state = lake.state()
    lake.commit(span(0, 10, topic_ids={"t": "one"}), state)
    for wrong, says in (
        (span(11, 12), "t-0 from 11 to 12, and the lake ends at 10"),
        (span(9, 12), "t-0 from 9 to 12, and the lake ends at 10"),
        (span(10, 9), "t-0 from 10 to 9"),
        (span(10, 12, topic_ids={"t": "two"}), "topic t was deleted and made anew"),
        (Commit(-1, {}, {}, ("x",)), "removes x"),
    ):
        with pytest.raises(LakeDamaged, match=says):
            lake.commit(wrong, state)
    assert lake.state() == state


def test_another_topic_of_the_name_begins_anew(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    state = lake.state()
    lake.commit(span(0, 10, topic_ids={"t": "one"}), state)
    renewed = Commit(-1, {"t": {0: (0, 3)}}, {"new": 3}, topic_ids={"t": "two"}, new_topics=("t",))
    lake.commit(renewed, state)
    assert lake.state() == state
    assert state.ends == {("t", 0): 3}
    assert state.rows == 13


def test_commits_of_the_first_format_are_read(tmp_path: Path) -> None:
    """As Spark's pipeline wrote them before there was an export."""
    (tmp_path / "commits").mkdir()
    old = {"number": 0, "ranges": {"t": {"0": [5, 9]}}, "add": {"date=2013-01-01/a.parquet": 4}, "remove": []}
    (tmp_path / "commits" / "00000000.json").write_text(json.dumps(old))
    assert Lake(tmp_path).state().ends == {("t", 0): 9}


def test_a_place_of_another_kind_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match=r"place of a lake = 'ftp://there/lake'.*a directory, s3://BUCKET/PREFIX"):
        LakeStore("ftp://there/lake")
    assert LakeStore(place).location("data/x") == f"{place}/data/x"
