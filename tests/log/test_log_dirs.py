"""Several log directories (KIP-112, KIP-858): where a replica goes, and what a start makes of one that is not there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from strandline.log.checkpoints import copy_of, encode_checkpoint
from strandline.log.config import LogConfig
from strandline.log.disk import DiskFull
from strandline.log.findings import LogCondition
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.log_dirs import FILE_NAME, LogDirs
from strandline.log.real_disk import RealDisk
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError, NoSpaceLeft
from strandline.proto.ids import NodeId, TopicId, TopicPartition
from tests.log.helpers import ManualClock, client_batch

NOTES = (FILE_NAME, copy_of(FILE_NAME))
OLD, NEW = UUID(int=1), UUID(int=2)
A, B, C, D = (TopicPartition(name, 0) for name in "abcd")
AWAY, LACKING, INTACT = LogCondition.AWAY, LogCondition.LACKING, LogCondition.INTACT
NO_STEPS = LogConfig(preallocate_bytes=0, segment_bytes=1000)


class SizedDisk(RealDisk):
    """A disk whose free room a test sets."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free

    def free_bytes(self, path: str) -> int:
        """What the test says."""
        return self.free


class Node:
    """A node of several directories over its starts."""

    def __init__(self, path: Path, *free: int) -> None:
        self.paths = [str(path / name) for name in ("first", "second", "third")[: len(free)]]
        self.disks = {path: SizedDisk(room) for path, room in zip(self.paths, free, strict=True)}
        self.starts = 0
        for number in range(len(free)):
            self.format(number, number + 1)

    def format(self, number: int, directory_id: int, node: int = 1) -> None:
        """One directory, under an id."""
        path = self.paths[number]
        format_log_dir(self.disks[path], path, "c", NodeId(node), UUID(int=directory_id))

    def start(self, *, registered: bool = True) -> LogDirs:
        """A process opens them, and registers."""
        self.starts += 1
        dirs = LogDirs.open(self.disks, ManualClock(), NO_STEPS, node_id=NodeId(1))
        dirs.begin_life(UUID(int=100 + self.starts))
        self.conditions = {tp: finding.condition for tp, finding in dirs.findings.items()}
        if registered:
            dirs.registered(UUID(int=100 + self.starts))
        return dirs

    def where(self, tp: TopicPartition) -> list[str]:
        """The names of the directories that hold it."""
        return [Path(path).name for path in self.paths if (Path(path) / str(tp)).exists()]


def fill(dirs: LogDirs, *tps: TopicPartition, topic_id: TopicId = OLD) -> None:
    """A log with five records for each, durable and checkpointed."""
    for tp in tps:
        log = dirs.create(tp, topic_id, NO_STEPS)
        log.append_as_leader(client_batch(5), 0, 0)
        log.sync_now()
    for log_dir in dirs.dirs:
        log_dir.write_checkpoints(dict.fromkeys(log_dir.logs, 5))


# --- where a new replica goes -----------------------------------------------------------------------------------------


def test_a_new_replica_goes_where_most_room_is(tmp_path: Path) -> None:
    """By free bytes."""
    node = Node(tmp_path, 10_000, 50_000, 20_000)
    dirs = node.start()
    fill(dirs, A)
    assert node.where(A) == ["second"]


def test_a_burst_of_new_replicas_is_spread(tmp_path: Path) -> None:
    """Each counts with a segment before it has any: else all would go to the disk that has a byte more."""
    node = Node(tmp_path, 50_000, 50_001)
    dirs = node.start()
    dirs.choose([(tp, OLD) for tp in (A, B, C, D)])
    fill(dirs, A, B, C, D)
    assert [node.where(tp) for tp in (A, B, C, D)] == [["second"], ["first"], ["second"], ["first"]]


def test_equal_room_goes_by_the_fewest(tmp_path: Path) -> None:
    """Nobody knows the room of either: then replicas are counted."""
    node = Node(tmp_path, 0, 0)
    dirs = node.start()
    fill(dirs, A)
    for log_dir in dirs.dirs:
        for log in log_dir.logs.values():
            log.config = LogConfig(preallocate_bytes=0, segment_bytes=14)
    fill(dirs, B)
    assert [node.where(A), node.where(B)] == [["first"], ["second"]]


def test_full_and_failed_directories_get_none(tmp_path: Path) -> None:
    """Unless none has room: then as a single directory takes it."""
    node = Node(tmp_path, 10, 50_000, 40_000)
    dirs = node.start()
    dirs.dirs[1].full = True
    fill(dirs, A)
    dirs.fail(dirs.dirs[2], "broken")
    dirs.dirs[1].full = False
    fill(dirs, B)
    dirs.dirs[1].full = dirs.dirs[0].full = True
    fill(dirs, C)
    assert [node.where(tp) for tp in (A, B, C)] == [["third"], ["second"], ["second"]]


def test_no_log_is_made_where_its_place_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first directory has no room for the note: there is none, and it is tried again."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()

    def full(path: str, *, create: bool = False) -> None:
        raise DiskFull(28, "No space left on device", path)

    with monkeypatch.context() as patched:
        patched.setattr(node.disks[node.paths[0]], "open", full)
        with pytest.raises(NoSpaceLeft):
            dirs.create(A, OLD)
    assert node.where(A) == []
    fill(dirs, A)
    assert node.where(A) == ["second"]


# --- a directory that is not there at a start -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "unmounted", "damaged"])
def test_what_lies_in_an_absent_directory_is_not_made_anew(tmp_path: Path, how: str) -> None:
    """It is offline and told so; the others go on; once the directory is back the replica is what it was."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    second, away = Path(node.paths[1]), tmp_path / "elsewhere"
    second.rename(away)
    if how != "missing":
        second.mkdir()
    if how == "damaged":
        (second / "meta.properties").write_text("version=9\n")
    dirs = node.start()
    assert node.conditions == {A: AWAY}
    assert dirs.clean_shutdown_broker_epoch == 7
    assert list(dirs.offline) == [node.paths[1]]
    with pytest.raises(KafkaError) as refused:
        dirs.create(A, OLD)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    fill(dirs, B)
    assert (node.where(A), node.where(B)) == ([], ["first"])
    dirs.close(8)
    if how != "missing":
        shutil.rmtree(second)
    away.rename(second)
    dirs = node.start()
    assert node.conditions == {A: INTACT, B: INTACT}
    assert dirs.clean_shutdown_broker_epoch is None, "it was left by an earlier life"
    log = dirs.log_of(A)
    assert log is not None
    assert log.log_end_offset == 5


@pytest.mark.parametrize("how", ["replaced", "taken out of log.dirs"])
def test_what_lay_in_a_lost_directory_is_lacking(tmp_path: Path, how: str) -> None:
    """A new disk on the path is another directory: what was in it counts for nothing, and is fetched again. It is told
    until the controller has it."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    shutil.rmtree(node.paths[1])
    if how == "replaced":
        node.format(1, 99)
    else:
        del node.disks[node.paths[1]]
    for _ in range(2):
        dirs = node.start(registered=False)
        assert node.conditions == {A: LACKING}
    dirs = node.start()
    assert dirs.damage_of(A) is None
    fill(dirs, A)
    assert node.where(A) == ["second" if how == "replaced" else "first"]
    dirs.close(8)
    node.start()
    assert node.conditions == {A: INTACT}


def test_an_older_copy_of_one_directory_is_lacking(tmp_path: Path) -> None:
    """It agrees with its own checkpoints, but the first directory knows a later process that used it."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    shutil.copytree(node.paths[1], tmp_path / "copy")
    for _ in range(2):
        node.start().close(8)
    shutil.rmtree(node.paths[1])
    (tmp_path / "copy").rename(node.paths[1])
    node.start()
    assert node.conditions == {A: LACKING}


def test_a_process_that_never_registered_makes_no_older_copy(tmp_path: Path) -> None:
    """Its life is in the directory's list beside that of the last one that did."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    for _ in range(3):
        node.start(registered=False).close(None)
    dirs = node.start()
    assert node.conditions == {A: INTACT}
    assert len(dirs.dirs[1].incarnations.ids) == 1


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    """And so is the copy of one of them."""
    node = Node(tmp_path, 0, 0, 0)
    shutil.rmtree(node.paths[2])
    node.format(2, 3, node=5)
    with pytest.raises(ConfigError, match="belongs to node 5"):
        node.start()
    shutil.rmtree(node.paths[2])
    shutil.copytree(node.paths[1], node.paths[2])
    with pytest.raises(ConfigError, match="a copy of another"):
        node.start()


def test_a_damaged_note_of_places_is_refused(tmp_path: Path) -> None:
    """Nothing is guessed where its copy is damaged as well."""
    node = Node(tmp_path, 0, 50_000)
    fill(node.start(), A)
    for name in NOTES:
        path = Path(node.paths[0], name)
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptLogError, match="replica-directories"):
        node.start()


@pytest.mark.parametrize("damage", ["flip", "zeros", "cut", "older", "missing"])
@pytest.mark.parametrize("name", NOTES)
def test_damage_to_one_note_of_places_changes_nothing(tmp_path: Path, name: str, damage: str) -> None:
    """Rule B31: the other one says where replicas lie, and after the start both do."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    older = {one: Path(node.paths[0], one).read_bytes() for one in NOTES}
    fill(dirs, B)
    dirs.close(7)
    path = Path(node.paths[0], name)
    content = path.read_bytes()
    match damage:
        case "flip":
            at = content.index(b" second") if b" second" in content else content.index(b"replica b 0 ") + 14
            content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        case "zeros":
            content = bytes(len(content))
        case "cut":
            content = content[: len(content) // 2]
        case "older":
            content = older[name]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content)
    dirs = node.start()
    assert node.conditions == {A: INTACT, B: INTACT}
    assert [node.where(tp) for tp in (A, B)] == [["second"], ["second"]]
    one, other = (Path(node.paths[0], note).read_bytes() for note in NOTES)
    assert one == other
    dirs.close(7)
    node.start()
    assert node.conditions == {A: INTACT, B: INTACT}


def test_an_older_builds_note_of_places_counts(tmp_path: Path) -> None:
    """It has no checksum and no number, and what this build had left beside it is older."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    older = Path(node.paths[0], NOTES[1]).read_bytes()
    fill(dirs, B)
    dirs.close(7)
    path, copy = (Path(node.paths[0], name) for name in NOTES)
    entries = path.read_text().splitlines()[2:]
    path.write_bytes(encode_checkpoint(line for line in entries if line.startswith(("directory", "replica"))))
    copy.write_bytes(older)
    node.start()
    assert node.conditions == {A: INTACT, B: INTACT}
    assert path.read_bytes() == copy.read_bytes()


# --- one replica in two directories -----------------------------------------------------------------------------------


def test_of_two_logs_the_noted_one_counts(tmp_path: Path) -> None:
    """The other one is renamed aside, and nothing is told of it."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    shutil.copytree(Path(node.paths[1], str(A)), Path(node.paths[0], str(A)))
    dirs = node.start()
    assert node.conditions == {A: INTACT}
    assert node.where(A) == ["second"]
    assert [name for name in node.disks[node.paths[0]].listdir(node.paths[0]) if name.endswith("-stray")]
    assert dirs.dir_of(A) is dirs.dirs[1]


def test_a_log_in_place_of_one_that_is_away_does_not_count(tmp_path: Path) -> None:
    """A leftover of long ago must not come back for the replica whose directory is offline."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    Path(node.paths[1], str(A)).rename(Path(node.paths[0], str(A)))
    shutil.rmtree(node.paths[1])
    dirs = node.start()
    assert node.conditions == {A: AWAY}
    assert dirs.log_of(A) is None
    assert node.where(A) == []


def test_a_log_that_was_moved_by_hand_is_lacking(tmp_path: Path) -> None:
    """It may be older than what was there; it is served once it has caught up."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    Path(node.paths[1], str(A)).rename(Path(node.paths[0], str(A)))
    dirs = node.start()
    assert node.conditions == {A: LACKING}
    assert dirs.log_of(A) is dirs.first.logs[A]
    dirs.close(8)
    node.start()
    assert node.conditions == {A: INTACT}


# --- deleting -------------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_while_its_directory_is_away_may_be_made_anew(tmp_path: Path) -> None:
    """In another directory; what the old one has of it does not come back with it."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    Path(node.paths[1]).rename(tmp_path / "elsewhere")
    dirs = node.start()
    asyncio.run(dirs.delete(A))
    fill(dirs, A, topic_id=NEW)
    dirs.close(8)
    (tmp_path / "elsewhere").rename(node.paths[1])
    dirs = node.start()
    log = dirs.log_of(A)
    assert log is not None
    assert (log.topic_id, node.where(A)) == (NEW, ["first"])


def test_what_is_away_and_assigned_no_more_is_forgotten(tmp_path: Path) -> None:
    """By topic id."""
    node = Node(tmp_path, 0, 50_000)
    dirs = node.start()
    fill(dirs, A, B)
    dirs.close(7)
    Path(node.paths[1]).rename(tmp_path / "elsewhere")
    dirs = node.start()
    dirs.forget_unassigned({A: NEW, B: OLD})
    assert dirs.damage_of(A) is None
    assert dirs.damage_of(B) is not None


def test_one_directory_writes_nothing_of_all_this(tmp_path: Path) -> None:
    """No file more than before."""
    node = Node(tmp_path, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    assert "replica-directories" not in node.disks[node.paths[0]].listdir(node.paths[0])
    assert isinstance(dirs.first, LogDir)


def test_disks_that_changed_their_mount_points_are_not_lost(tmp_path: Path) -> None:
    """Schedule 95: the second disk is where the third was, and the third nowhere. Its path is taken, so no path says
    that it is offline; but one path does not answer, and nothing else explains that one."""
    node = Node(tmp_path, 0, 0, 50_000)
    dirs = node.start()
    fill(dirs, A)
    dirs.close(7)
    second, third, away = Path(node.paths[1]), Path(node.paths[2]), tmp_path / "away"
    third.rename(away)
    second.rename(third)
    dirs = node.start()
    assert node.conditions == {A: AWAY}
    dirs.close(8)
    away.rename(second)
    dirs = node.start()
    assert node.conditions == {A: INTACT}
    assert node.where(A) == ["second"]
