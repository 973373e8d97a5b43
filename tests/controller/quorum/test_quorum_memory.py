"""Rule A14: what a node remembers in two places, and what follows when they, or the log, disagree."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import pytest

from strandline.controller.quorum.memory import Memory
from strandline.controller.quorum.state_file import PROMISE, STATE, Remembered, StateFile
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey
from strandline.controller.raft.ready import ElectionState
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import NodeId

FORMATTED = UUID(int=1)
EMPTY = OffsetAndEpoch(0, 0)
HELD = OffsetAndEpoch(100, 5)
VOTED = ElectionState(7, voted_for=ReplicaKey(NodeId(2), UUID(int=2)))
NEWER = Remembered(VOTED, FORMATTED, held=HELD, sequence=9)
OLDER = replace(NEWER, election=ElectionState(6), sequence=8)
DAMAGED = "damaged"
NEW, KNOWN, LOST, REFUSED = "new", "goes on", "has lost its log", "does not start"


@dataclass
class Place:
    """A data directory."""

    path: Path
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        (self.path / "metadata").mkdir()

    def put(self, state: Remembered | str | None, promise: Remembered | str | None) -> None:
        for content, directory, name in (state, self.path / "metadata", STATE), (promise, self.path, PROMISE):
            if isinstance(content, Remembered):
                StateFile(RealDisk(), str(directory), name).write(content)
            elif content is not None:
                (directory / name).write_text("{" + content)

    def memory(self, *, promises: bool = True) -> Memory:
        directory = str(self.path / "metadata")
        return Memory(RealDisk(), str(self.path), directory, directory_id=FORMATTED, promises=promises)

    def start(self, log_end: OffsetAndEpoch, *, alone: bool = False, promises: bool = True) -> Memory:
        memory = self.memory(promises=promises)
        memory.recall()
        memory.settle(log_end, alone=alone, rng=self.rng)
        return memory

    def both(self) -> list[Remembered | None]:
        disk = RealDisk()
        return [StateFile(disk, str(self.path / "metadata")).read(), StateFile(disk, str(self.path), PROMISE).read()]


ROWS: list[tuple[Remembered | str | None, Remembered | str | None, OffsetAndEpoch, str]] = [
    (None, None, EMPTY, NEW),
    (None, None, HELD, LOST),
    (NEWER, None, HELD, KNOWN),
    (NEWER, DAMAGED, HELD, KNOWN),
    (Remembered(VOTED), None, HELD, KNOWN),  # of a version that kept one file
    (DAMAGED, NEWER, HELD, KNOWN),
    (DAMAGED, NEWER, OffsetAndEpoch(99, 5), LOST),
    (DAMAGED, None, HELD, REFUSED),
    (DAMAGED, DAMAGED, HELD, REFUSED),
    (None, DAMAGED, EMPTY, REFUSED),
    (NEWER, NEWER, HELD, KNOWN),
    (NEWER, NEWER, OffsetAndEpoch(300, 8), KNOWN),
    (NEWER, OLDER, HELD, KNOWN),  # it fell between the two writes
    (OLDER, NEWER, OffsetAndEpoch(300, 8), LOST),
    (NEWER, NEWER, OffsetAndEpoch(99, 5), LOST),
    (NEWER, NEWER, OffsetAndEpoch(99, 6), LOST),  # what was held had been committed: no later epoch replaces it
    (NEWER, NEWER, OffsetAndEpoch(300, 4), LOST),
    (NEWER, NEWER, EMPTY, LOST),
    (None, NEWER, HELD, LOST),
    (None, NEWER, EMPTY, LOST),
    (None, Remembered(ElectionState(0), has_vote=False), EMPTY, KNOWN),  # formatted without a vote
]


@pytest.mark.parametrize(("state", "promise", "log_end", "becomes"), ROWS)
def test_row_of_the_table(
    tmp_path: Path,
    state: Remembered | str | None,
    promise: Remembered | str | None,
    log_end: OffsetAndEpoch,
    becomes: str,
) -> None:
    """Rule A14. Whoever goes on has its votes; whoever has lost its log has none, and another directory id."""
    place = Place(tmp_path)
    place.put(state, promise)
    if becomes is REFUSED:
        with pytest.raises(CorruptLogError, match=r"could elect two leaders.*without-vote"):
            place.start(log_end)
        return
    memory = place.start(log_end)
    told = next((one for one in (state, promise) if isinstance(one, Remembered)), None)
    if becomes is LOST:
        assert memory.saved is None
        assert not memory.now.has_vote
        assert memory.directory_id != FORMATTED
        assert memory.now.former_id == FORMATTED
    else:
        assert memory.directory_id == FORMATTED
        assert memory.saved == (None if told is None else told.election)
    assert place.both() == [memory.now, memory.now]
    # What was decided is decided: the next start finds the same node, whose log may grow from here.
    again = place.start(log_end)
    assert (again.directory_id, again.now.has_vote) == (memory.directory_id, memory.now.has_vote)


def test_a_second_loss_keeps_the_name_of_the_voter(tmp_path: Path) -> None:
    """Rule A14: an observer that loses its log again is another replica again; the voter it was is still known."""
    place = Place(tmp_path)
    place.put(None, NEWER)
    first = place.start(EMPTY)
    (tmp_path / "metadata" / STATE).unlink()
    second = place.start(EMPTY)
    assert len({FORMATTED, first.directory_id, second.directory_id}) == 3
    assert second.now.former_id == FORMATTED


def test_a_vote_that_was_given_back_is_the_new_directorys(tmp_path: Path) -> None:
    """Rule A14: once a voter set names the new directory, losing that log loses that name."""
    place = Place(tmp_path)
    place.put(None, NEWER)
    memory = place.start(EMPTY)
    memory.gain_vote()
    named = memory.directory_id
    assert place.start(EMPTY).now.has_vote
    (tmp_path / "metadata" / STATE).unlink()
    assert place.start(EMPTY).now.former_id == named


def test_what_is_held_only_rises(tmp_path: Path) -> None:
    """Rule A14: `held` is committed; an epoch later it is that, or more."""
    memory = Place(tmp_path).start(EMPTY)
    memory.hold(HELD)
    memory.hold(OffsetAndEpoch(90, 6))
    memory.remember(VOTED, OffsetAndEpoch(50, 5))
    assert (memory.now.held, memory.now.election) == (HELD, VOTED)
    sequence = memory.now.sequence
    memory.hold(HELD)
    assert memory.now.sequence == sequence, "nothing new is not written"


def test_the_only_voter_that_lost_its_log_refuses(tmp_path: Path) -> None:
    """Rule A14: a quorum of one would form a new, empty cluster under the old name, and nobody would be told."""
    place = Place(tmp_path)
    place.put(None, NEWER)
    with pytest.raises(CorruptLogError, match=r"the metadata log was lost.*Put the directory back as it was"):
        place.start(EMPTY, alone=True)
    place.put(NEWER, NEWER)
    assert place.start(HELD, alone=True).saved == VOTED


def test_a_node_that_is_no_voter_promises_nothing(tmp_path: Path) -> None:
    """A broker alone has one file; damaged, or gone, it has lost nothing that anybody counts on."""
    place = Place(tmp_path)
    place.put(DAMAGED, None)
    memory = place.start(HELD, promises=False)
    assert memory.directory_id == FORMATTED
    assert not (tmp_path / PROMISE).exists()
