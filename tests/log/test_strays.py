"""Directories that the metadata no longer assign to this node: set aside, and removed after a while."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from strandline.log.config import LogConfig
from strandline.log.disk import DiskError
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.real_disk import RealDisk
from strandline.log.retention import believed_clock, note_time
from strandline.log.strays import KEEP, Strays
from strandline.proto.ids import NodeId, TopicId, TopicPartition
from tests.log.helpers import JumpingClock, ManualClock, client_batch

OLD, NEW = UUID(int=1), UUID(int=2)
KEPT, GONE, ANEW = TopicPartition("kept", 0), TopicPartition("gone", 3), TopicPartition("anew", 0)
ASSIGNED: dict[TopicPartition, TopicId] = {KEPT: OLD, ANEW: NEW}
DELAY_MS = 10_000


class Node:
    """A log directory over several starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = RealDisk()
        self.clock = ManualClock()
        format_log_dir(self.disk, str(path), "c", NodeId(1), UUID(int=9))
        log_dir = self.open()
        for tp in (KEPT, GONE, ANEW):
            log_dir.create(tp, OLD).append_as_leader(client_batch(5, size=1_000), 0, 0)
        log_dir.write_checkpoints({KEPT: 5, GONE: 5, ANEW: 5})
        log_dir.close(7)

    def open(self) -> LogDir:
        return LogDir.open(self.disk, str(self.path), self.clock, LogConfig(preallocate_bytes=0))

    def start(self, delay_ms: int = DELAY_MS) -> tuple[LogDir, Strays]:
        log_dir = self.open()
        return log_dir, Strays(log_dir, self.disk, believed_clock(self.clock, self.disk, str(self.path)), delay_ms)

    def names(self) -> list[str]:
        """Of the partitions' directories, without what is unique in them."""
        found = [path.name for path in self.path.iterdir() if path.is_dir()]
        return sorted(name.partition(".")[0] + name[-6:] if name.endswith("-stray") else name for name in found)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "data")


def test_what_is_not_assigned_is_set_aside(node: Node) -> None:
    """By topic id: a topic of the same name that was made since begins with nothing. What it held is told in bytes."""
    log_dir, strays = node.start()
    with capture_logs() as said:
        strays.set_aside(ASSIGNED, knows_topics=True)
    assert node.names() == ["anew-0-stray", "gone-3-stray", "kept-0"]
    assert list(log_dir.logs) == [KEPT]
    told = [line for line in said if line["event"].startswith("a stray partition is renamed aside")]
    assert len(told) == 2
    assert all(line["size_bytes"] > 50 for line in told)
    assert log_dir.create(ANEW, NEW).log_end_offset == 0
    log_dir.close(8)
    assert sorted(node.open().logs) == [ANEW, KEPT]


def test_a_stray_is_removed_after_the_delay(node: Node) -> None:
    """Counted from when it was set aside, over restarts; a stop is clean with strays beside the logs."""
    log_dir, strays = node.start()
    strays.set_aside(ASSIGNED, knows_topics=True)
    node.clock.now_ms += DELAY_MS - 1
    asyncio.run(strays.remove_due(lambda _: False))
    assert len(node.names()) == 3
    log_dir.close(8)
    log_dir, strays = node.start()
    assert log_dir.clean_shutdown_broker_epoch == 8
    strays.set_aside(ASSIGNED, knows_topics=True)
    assert strays.waiting
    node.clock.now_ms += 1
    asyncio.run(strays.remove_due(lambda _: False))
    assert node.names() == ["kept-0"]
    assert not strays.waiting


@pytest.mark.parametrize("restart", [False, True])
def test_100_a_clock_set_ahead_removes_no_stray(node: Node, restart: bool) -> None:
    """Schedule 100: its delay is over by a clock that nobody believes, before a restart or behind it."""
    node.clock = clock = JumpingClock()
    log_dir, strays = node.start()
    strays.set_aside(ASSIGNED, knows_topics=True)
    note_time(node.disk, str(node.path), clock.wall_ms())
    if restart:
        log_dir.close(8)
    clock.jump(8 * 24 * 3_600_000)
    if restart:
        log_dir, strays = node.start()
        strays.set_aside(ASSIGNED, knows_topics=True)
    asyncio.run(strays.remove_due(lambda _: False))
    assert len(node.names()) == 3
    clock.now_ms += DELAY_MS
    asyncio.run(strays.remove_due(lambda _: False))
    assert node.names() == ["kept-0"]
    log_dir.close(8)


def test_strays_are_kept_where_that_is_asked_for(node: Node) -> None:
    """As Kafka does it: for whoever looks at them."""
    _, strays = node.start(KEEP)
    strays.set_aside(ASSIGNED, knows_topics=True)
    node.clock.now_ms += 10**12
    assert not strays.waiting
    asyncio.run(strays.remove_due(lambda _: False))
    assert node.names() == ["anew-0-stray", "gone-3-stray", "kept-0"]


def test_a_stray_that_is_assigned_after_all_is_kept(node: Node) -> None:
    """Schedule 31: the metadata that called it an orphan were wrong: nothing is removed, and somebody is told."""
    _, strays = node.start()
    strays.set_aside({}, knows_topics=True)
    node.clock.now_ms += DELAY_MS
    with capture_logs() as said:
        asyncio.run(strays.remove_due(lambda stray: stray == (OLD, 3)))
    assert node.names() == ["gone-3-stray"]
    assert "assigned here after all" in str(said)


@pytest.mark.parametrize("damage", ["topic id", "batches"])
def test_damaged_strays_go_too(node: Node, damage: str) -> None:
    """A log that was refused is a stray as any other; one whose topic id cannot be read stays as long as its name is
    assigned, for nobody knows that it is another topic's."""
    for tp in (GONE, ANEW):
        if damage == "topic id":
            (node.path / str(tp) / "partition.metadata").write_text("?")
        else:
            file = node.path / str(tp) / f"{0:020}.log"
            file.write_bytes(b"?" * 100 + file.read_bytes()[100:])
            (node.path / str(tp) / f"{0:020}.index").unlink()
    log_dir, strays = node.start()
    assert sorted(log_dir.offline) == [ANEW, GONE]
    strays.set_aside(ASSIGNED, knows_topics=True)
    expected = ["gone-3-stray", "kept-0"]
    assert node.names() == (["anew-0", *expected] if damage == "topic id" else ["anew-0-stray", *expected])
    assert list(log_dir.offline) == ([ANEW] if damage == "topic id" else [])


def test_a_removal_that_was_interrupted_goes_on(node: Node) -> None:
    """What says whose directory it was is deleted last."""
    _, strays = node.start()
    strays.set_aside(ASSIGNED, knows_topics=True)
    [gone] = node.path.glob("gone-3.*")
    (gone / f"{0:020}.log").unlink()
    node.clock.now_ms += DELAY_MS
    _, strays = node.start()
    strays.set_aside(ASSIGNED, knows_topics=True)
    asyncio.run(strays.remove_due(lambda _: False))
    assert node.names() == ["kept-0"]


def test_what_others_named_so_is_left_alone(node: Node) -> None:
    """Kafka's own strays carry a random id and no time: nobody knows how old they are."""
    shutil.copytree(node.path / "gone-3", node.path / "gone-3.c0ffee00-stray")
    _, strays = node.start()
    strays.set_aside({KEPT: OLD, ANEW: OLD, GONE: OLD}, knows_topics=True)
    assert not strays.waiting
    node.clock.now_ms += 10**12
    asyncio.run(strays.remove_due(lambda _: False))
    assert (node.path / "gone-3.c0ffee00-stray").is_dir()


def test_a_failing_disk_is_told_and_costs_no_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directories stay where they are; the node starts."""

    def fails(source: str, target: str) -> None:
        raise DiskError(5, "Input/output error", source)

    log_dir, strays = node.start()
    monkeypatch.setattr(node.disk, "rename", fails)
    with capture_logs() as said:
        strays.set_aside(ASSIGNED, knows_topics=True)
    assert node.names() == ["anew-0", "gone-3", "kept-0"]
    assert "stray partitions could not be renamed aside" in str(said)
    assert sorted(log_dir.logs) == [ANEW, GONE, KEPT]


def test_what_a_cluster_without_topics_sets_aside_is_never_removed(node: Node) -> None:
    """Schedule 95: it may be another cluster than these data are of. So it stays in every later life too, whatever that
    one knows; and what was set aside before is not removed while no topic is known."""
    log_dir, strays = node.start()
    strays.set_aside({KEPT: OLD, GONE: OLD}, knows_topics=True)
    log_dir.close(8)
    log_dir, strays = node.start()
    with capture_logs() as said:
        strays.set_aside({}, knows_topics=False)
    assert [line["log_level"] for line in said] == ["error", "error"]
    node.clock.now_ms += 10**12
    assert not strays.waiting
    asyncio.run(strays.remove_due(lambda _: False))
    assert node.names() == ["anew-0-stray", "gone-3-stray", "kept-0-stray"]
    log_dir.close(9)
    log_dir, strays = node.start()
    strays.set_aside({}, knows_topics=True)
    node.clock.now_ms += 10**12
    asyncio.run(strays.remove_due(lambda _: False))
    assert node.names() == ["gone-3-stray", "kept-0-stray"]
