"""What counts in a lake, and up to which offset of each partition: its commits.

    lake/commits/00000000.json    what each commit covers and which files it adds and removes: the truth
    lake/commits/00000100.state   what the commits before number 100 say together: read instead of them if there
    lake/data/date=2026-11-23/    the files; one that no commit names is left over from an attempt and is not read
    lake/bad/                     records whose values fit no schema, each with the reason
    lake/broken/                  commits that could not be read, as `Lake.repair` put them aside

A commit is a file that appears whole or not at all, under the next free number. It says for each partition which range
of offsets it covers, and begins where the last one ended. So the lake knows how far it is by itself: who was killed
writes again only what lies past that point.

Invariants, checked when commits are read and before one is made:
- the numbers of the commits have no gap;
- the ranges of a partition follow on one another: no offset is covered twice, none left out;
- the ranges of a topic are of one topic id, until a commit says that another topic has its name;
- a file that a commit removes is there.

Writers are optimistic: whoever finds the next number taken reads that commit, and makes its own under the one after
it, if it still follows on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar
from uuid import uuid4

from strandline.lake.stores import LakeStore
from strandline.proto.errors import StrandlineError
from strandline.proto.json_text import read_json

COMMITS, DATA, BAD, BROKEN = "commits", "data", "bad", "broken"

STATE_EVERY = 100
"""Commits from one state file to the next: a lake of a commit a minute is opened with a hundred reads at most."""

T = TypeVar("T")

Spans = Mapping[str, Mapping[int, tuple[int, int]]]
"""Topic -> partition -> (first offset, end offset)."""

Lost = Mapping[str, Mapping[int, tuple[tuple[int, int], ...]]]
"""Topic -> partition -> ranges that were deleted before anybody had read them."""


class LakeDamaged(StrandlineError):
    """The commits contradict one another; the message says which."""


class CommitBroken(LakeDamaged):
    """A file of commits/ holds no commit; `name` is its name there."""

    def __init__(self, place: str, name: str, why: str) -> None:
        self.place, self.name, self.why = place, name, why
        super().__init__(
            f"{place}/{COMMITS}/{name} cannot be read: {why}. strandline lake repair {place} --dry-run says what can "
            "be done about it"
        )

    def __reduce__(self) -> tuple[type[CommitBroken], tuple[str, str, str]]:
        return (type(self), (self.place, self.name, self.why))


class LakeTaken(StrandlineError):
    """Another writer made a commit on which the one that was to be made does not follow."""


@dataclass(frozen=True)
class Commit:
    """One step of the lake."""

    number: int
    ranges: Spans
    """Empty where files were only compacted."""
    add: Mapping[str, int]
    """File, relative to the lake's data -> its rows."""
    remove: tuple[str, ...] = ()
    bad: Mapping[str, int] = field(default_factory=dict)
    """File, relative to the lake's bad -> its rows."""
    lost: Lost = field(default_factory=dict)
    """Parts of the ranges that no file has."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic -> the id that it has; none where the writer did not know it."""
    epochs: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Topic -> partition -> leader epoch in which the log reached the end of the range (rule B39); none where it is not
    known."""
    new_topics: tuple[str, ...] = ()
    """Topics that are others than before under the same name: their ranges begin anew."""
    writer: str = field(default_factory=lambda: uuid4().hex)
    """Tells a commit that was put twice, because the first answer was lost, from another writer's."""

    def to_json(self) -> bytes:
        """Encode the commit as it is stored in the lake."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Decode a stored commit, also one from an older version."""
        document = read_json(data)
        document["ranges"] = {
            topic: {int(number): (span[0], span[1]) for number, span in parts.items()}
            for topic, parts in document["ranges"].items()
        }
        document["lost"] = {
            topic: {int(number): tuple((span[0], span[1]) for span in spans) for number, spans in parts.items()}
            for topic, parts in document.get("lost", {}).items()
        }
        document["epochs"] = {
            topic: {int(number): epoch for number, epoch in parts.items()}
            for topic, parts in document.get("epochs", {}).items()
        }
        for name in ("remove", "new_topics"):
            document[name] = tuple(document.get(name, ()))
        return cls(**{"writer": "", **document})


@dataclass
class State:
    """State of the lake after all commits."""

    next_number: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """(topic, partition) -> the first offset that the lake does not have."""
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    """(topic, partition) -> leader epoch in which its log reached that offset, where it is known."""
    files: dict[str, int] = field(default_factory=dict)
    """File -> rows, of the files that count."""
    bad: dict[str, int] = field(default_factory=dict)
    """File -> rows, of records that fit no schema."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """Topic -> the id whose records the ranges are."""
    covered: int = 0
    """Offsets of all ranges."""
    lost: int = 0
    """Offsets, of those covered, whose records were deleted before anybody had read them."""

    @property
    def rows(self) -> int:
        """Rows in the lake."""
        return sum(self.files.values())

    @property
    def bad_rows(self) -> int:
        """Records that fit no schema."""
        return sum(self.bad.values())

    @property
    def empty(self) -> int:
        """Offsets without a record: compacted away, ends of transactions, and what these aborted."""
        return self.covered - self.lost - self.rows - self.bad_rows

    def files_by_date(self) -> dict[str, list[str]]:
        """The files of each date=... directory."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.files):
            found.setdefault(name.split("/")[0], []).append(name)
        return found

    def check(self, commit: Commit) -> None:
        """Raises LakeDamaged unless a commit follows on this."""
        what = f"commit {commit.number}"
        if commit.number != self.next_number:
            raise LakeDamaged(f"there is {what} where {self.next_number} should be")
        self.check_topics({name: known for name, known in commit.topic_ids.items() if name not in commit.new_topics})
        for topic, partitions in commit.ranges.items():
            for partition, (start, end) in partitions.items():
                known = start if topic in commit.new_topics else self.ends.get((topic, partition), start)
                if start != known or end < start:
                    raise LakeDamaged(
                        f"{what}: {topic}-{partition} from {start} to {end}, and the lake ends at {known}"
                    )
        gone = [name for name in commit.remove if name not in self.files]
        if gone:
            raise LakeDamaged(f"{what} removes {gone[0]}, which is not in the lake")

    def check_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Raises LakeDamaged unless these are the topics of the lake, and not others of their names."""
        for topic, topic_id in topic_ids.items():
            known = self.topic_ids.get(topic, topic_id)
            if known != topic_id:
                raise LakeDamaged(
                    f"topic {topic} was deleted and made anew: the lake has records of the id {known}, and {topic_id} "
                    f"has the name now. Its offsets begin anew: strandline lake export {topic} --new-topic goes on "
                    "with it in the same lake, another lake keeps them apart"
                )

    def apply(self, commit: Commit) -> None:
        """Take a step. Raises LakeDamaged."""
        self.check(commit)
        self.next_number += 1
        for key in [key for key in self.ends if key[0] in commit.new_topics]:
            del self.ends[key]
            self.epochs.pop(key, None)
        self.topic_ids.update(commit.topic_ids)
        for topic, partitions in commit.ranges.items():
            for partition, (start, end) in partitions.items():
                self.ends[topic, partition] = end
                epoch = commit.epochs.get(topic, {}).get(partition, -1)
                if epoch >= 0:
                    self.epochs[topic, partition] = epoch
                else:
                    self.epochs.pop((topic, partition), None)  # an older one says nothing of the new end
                self.covered += end - start
        self.lost += sum(
            end - start for parts in commit.lost.values() for spans in parts.values() for start, end in spans
        )
        for name in commit.remove:
            del self.files[name]
        self.files.update(commit.add)
        self.bad.update(commit.bad)

    def to_json(self) -> bytes:
        """Encode the state as it is stored in a state file."""
        ends = [[topic, number, end] for (topic, number), end in self.ends.items()]
        epochs = [[topic, number, epoch] for (topic, number), epoch in self.epochs.items()]
        return json.dumps({**vars(self), "ends": ends, "epochs": epochs}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Decode a stored state."""
        document = read_json(data)
        ends = {(topic, number): end for topic, number, end in document["ends"]}
        epochs = {(topic, number): epoch for topic, number, epoch in document.get("epochs", ())}
        return cls(**{**document, "ends": ends, "epochs": epochs})


class Lake:
    """The commits of a lake. Its files are written and read by others, through `store`."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.store = LakeStore(place)

    def state(self, *, every_commit: bool = False) -> State:
        """What all commits say.

        Args:
            every_commit: read each of them, though a state file would do.

        Raises:
            LakeDamaged: a commit is missing, or does not follow on the one before.
            StoreError.
        """
        names = self.store.listed(COMMITS)
        state = State() if every_commit else self._latest_state(names)
        for name in names:
            if name.endswith(".json") and int(name.removesuffix(".json")) >= state.next_number:
                state.apply(self._read(name))
        return state

    def broken_states(self) -> list[str]:
        """State files that cannot be read. `state` reads the commits instead of them."""
        names = [name for name in self.store.listed(COMMITS) if name.endswith(".state")]
        return [name for name in names if isinstance(_parsed(self._there(name), State.from_json), str)]

    def repair(self, *, dry_run: bool = False) -> list[str]:
        """Put files of commits/ that cannot be read into broken/, and return their names.

        Each writer reads all commits before it makes one, so a broken commit is the last one. What it covered is not in
        the lake then, and is exported again; `upkeep.vacuum` deletes its files.

        Raises:
            LakeDamaged: commits follow on the broken one, which therefore was whole once: another copy of it is needed.
            StoreError.
        """
        broken = self.broken_states()
        commits = [name for name in self.store.listed(COMMITS) if name.endswith(".json")]
        for name in commits:
            try:
                self._read(name)
            except CommitBroken as error:
                if name != commits[-1]:
                    raise LakeDamaged(
                        f"{error.place}/{COMMITS}/{name} cannot be read: {error.why}; {commits[-1]} is behind it, so "
                        "it was whole once. Put a copy of it from a backup in its place, or export into another lake"
                    ) from error
                broken.append(name)
        for name in () if dry_run else broken:
            self.store.create(f"{BROKEN}/{name}-{uuid4().hex[:8]}", self._there(name))
            self.store.delete(f"{COMMITS}/{name}")
        return broken

    def catch_up(self, state: State) -> None:
        """Take the steps that were made since. Raises as `state`."""
        while (data := self.store.read(f"{COMMITS}/{_name(state.next_number)}")) is not None:
            state.apply(self._commit_of(_name(state.next_number), data))

    def commit(self, change: Commit, state: State) -> Commit:
        """Make the next commit; `state` is brought up to it.

        Args:
            change: its number does not count.
            state: what the change was made upon.

        Raises:
            LakeDamaged: it does not follow on `state`.
            LakeTaken: it did, and does not follow on what others have committed since.
            StoreError.
        """
        commit = replace(change, number=state.next_number)
        state.check(commit)
        while not self._made(commit):
            try:
                self.catch_up(state)
                commit = replace(commit, number=state.next_number)
                state.check(commit)
            except CommitBroken:
                raise
            except LakeDamaged as error:
                taken = f"another writer is at work in {self.store.place} and was faster: {error}"
                raise LakeTaken(taken) from error
        state.apply(commit)
        if state.next_number % STATE_EVERY == 0:
            self.store.create(f"{COMMITS}/{state.next_number:08d}.state", state.to_json())
        return commit

    def removed_since(self, time_ms: int) -> set[str]:
        """Files that commits made after a time (ms since 1970) have removed: somebody may still read them."""
        recent = [name for name, stored in self.store.listed(COMMITS).items() if stored.modified_ms > time_ms]
        return {gone for name in recent if name.endswith(".json") for gone in self._read(name).remove}

    def _made(self, commit: Commit) -> bool:
        name, data = f"{COMMITS}/{_name(commit.number)}", commit.to_json()
        return self.store.create(name, data) or self.store.read(name) == data

    def _latest_state(self, names: Iterable[str]) -> State:
        """The newest state file that can be read; an empty state without one."""
        for name in sorted((name for name in names if name.endswith(".state")), reverse=True):
            found = _parsed(self._there(name), State.from_json)
            if isinstance(found, State):
                return found
        return State()

    def _read(self, name: str) -> Commit:
        return self._commit_of(name, self._there(name))

    def _commit_of(self, name: str, data: bytes) -> Commit:
        """A commit of its bytes. Raises CommitBroken."""
        commit = _parsed(data, Commit.from_json)
        if isinstance(commit, str):
            raise CommitBroken(self.store.place, name, commit)
        if name != _name(commit.number):
            raise CommitBroken(self.store.place, name, f"it says that it is commit {commit.number}")
        return commit

    def _there(self, name: str) -> bytes:
        data = self.store.read(f"{COMMITS}/{name}")
        if data is None:
            raise LakeDamaged(f"{self.store.place}/{COMMITS}/{name} vanished while it was to be read")
        return data


def topic_spans(spans: Mapping[tuple[str, int], Any]) -> dict[str, dict[int, Any]]:
    """Spans grouped by topic, then by partition."""
    found: dict[str, dict[int, Any]] = {}
    for (topic, partition), span in sorted(spans.items()):
        found.setdefault(topic, {})[partition] = span
    return found


def _parsed(data: bytes, parse: Callable[[bytes], T]) -> T | str:
    """Object that the bytes describe, or the reason why they describe none."""
    try:
        return parse(data)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        return f"{len(data)} bytes, {type(error).__name__}: {error}"


def _name(number: int) -> str:
    return f"{number:08d}.json"
