"""Offset checkpoints are replaced off the loop, and never by what was taken back meanwhile (rule B15, schedule 48)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from strandline.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    decode_cleaned,
    decode_offsets,
)
from strandline.log.disk import DiskError, DiskFull, File
from strandline.log.log_dir import CheckpointWriter, LogDir, format_log_dir
from strandline.log.syncer import Syncer
from strandline.proto.ids import NodeId, Offset, TopicPartition
from tests.log.helpers import TOPIC_ID, FailingDisk, ManualClock, client_batch

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("other", 0)
NEW = TopicPartition("new", 0)

Hook = Callable[[], Awaitable[None]]


class HookedDisk(FailingDisk):
    """`in_files` runs once while checkpoints are being synced, `in_names` once while their names are."""

    in_files: Hook | None = None
    in_names: Hook | None = None

    async def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
        await super().sync(files, directories, wait_ms)
        if files and files[0].path.endswith(".next.tmp"):
            hook, self.in_files = self.in_files, None
        elif not files:
            hook, self.in_names = self.in_names, None
        else:
            hook = None
        if hook is not None:
            await hook()


class Site:
    """A log directory with two logs of twenty records each, in two batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = HookedDisk()
        format_log_dir(self.disk, str(path), "c", NodeId(1), TOPIC_ID)
        self.log_dir = LogDir.open(self.disk, str(path), ManualClock())
        self.durable: list[tuple[int, int]] = []
        self.on_disk: list[tuple[int, int]] = []
        self.full = 0
        self.failed: list[BaseException] = []
        for tp in (TP, OTHER):
            self.create(tp)
        self.log_dir.write_checkpoints({TP: 20, OTHER: 20})
        self.writer = CheckpointWriter(self.log_dir, self._durable, self._full, self.failed.append)

    def create(self, tp: TopicPartition) -> None:
        self.log_dir.create(tp, TOPIC_ID)
        self.append(tp, 2)

    def append(self, tp: TopicPartition, batches: int = 1) -> None:
        log = self.log_dir.logs[tp]
        for _ in range(batches):
            log.append_as_leader(client_batch(10), 0, 0)
        log.sync_now()

    def _durable(self) -> None:
        logs = self.log_dir.logs
        self.durable.append((int(logs[TP].durable_log_start_offset), int(logs[OTHER].durable_log_start_offset)))
        stored = self.stored()
        self.on_disk.append((stored.get(TP, 0), stored.get(OTHER, 0)))

    def _full(self) -> None:
        self.full += 1

    def raise_to(self, tp: TopicPartition, offset: int) -> None:
        self.log_dir.logs[tp].delete_records_before(offset)
        self.writer.log_start_raised()

    def stored(self, name: str = LOG_STARTS) -> dict[TopicPartition, int]:
        data = (self.path / name).read_bytes()
        if name == CLEANER_OFFSETS:
            return {tp: one.offset for tp, one in decode_cleaned("file", data).items()}
        return decode_offsets("file", data)

    async def written(self, times: int = 1) -> None:
        while len(self.durable) < times and not self.failed:
            await asyncio.sleep(0.001)

    async def end(self) -> None:
        task = self.writer.stop()
        if task is not None:
            await asyncio.wait([task])
        assert self.failed == []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "data")


def test_log_starts_go_in_groups(site: Site) -> None:
    """What is raised while one group is written goes with the next; nothing is told before its group is durable."""

    async def scenario() -> None:
        site.raise_to(TP, 5)
        site.raise_to(OTHER, 3)
        await asyncio.sleep(0)
        site.raise_to(TP, 7)
        assert site.durable == []
        await site.written(2)
        assert site.durable[-1] == (7, 3)
        assert site.stored() == {TP: 7, OTHER: 3}
        await site.end()

    asyncio.run(scenario())


def test_all_checkpoints_are_written_without_a_blocking_sync(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """High watermarks, recovery points and log starts; where nothing has changed, nothing is written."""

    async def scenario() -> None:
        site.log_dir.logs[TP].delete_records_before(4)
        site.append(TP)

        def refuse(*_: object) -> None:
            raise AssertionError("blocking")

        monkeypatch.setattr(site.disk, "sync_now", refuse)
        monkeypatch.setattr(site.disk, "sync_dir", refuse)
        site.log_dir.tell({TP: 30, OTHER: 12})
        site.writer.write_all()
        await site.written()
        assert site.stored(HIGH_WATERMARKS) == {TP: 30, OTHER: 12}
        assert site.stored(RECOVERY_POINTS) == {TP: 30, OTHER: 20}
        assert site.stored() == {TP: 4}
        assert site.durable == [(4, 0)]
        before = [(site.path / name).stat().st_ino for name in OFFSET_CHECKPOINTS]
        site.writer.write_all()
        await site.written(2)
        assert [(site.path / name).stat().st_ino for name in OFFSET_CHECKPOINTS] == before
        await site.end()

    asyncio.run(scenario())


def test_a_log_that_is_cut_meanwhile_keeps_its_lower_start(site: Site) -> None:
    """A checkpoint that was gathered before a truncation lowered the start must not put the old one back: it would hide
    what is written next."""

    async def cut() -> None:
        site.log_dir.logs[TP].truncate_to(12)
        site.log_dir.logs[TP].truncate_to(2)

    async def scenario() -> None:
        site.disk.in_files = cut
        site.raise_to(TP, 15)
        site.raise_to(OTHER, 3)
        await site.written()
        assert site.log_dir.logs[TP].log_end_offset == 0
        assert site.stored() == {OTHER: 3}
        assert site.durable == [(0, 3)]
        await site.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("moment", ["in_files", "in_names"])
def test_a_log_that_is_cut_meanwhile_promises_no_more_than_it_has(site: Site, moment: str) -> None:
    """Schedule 48: a start would miss what was cut. Before the new files have their names, and after: then the lowered
    ones must be written although they say what was on the disk before."""

    async def cut() -> None:
        site.log_dir.logs[TP].truncate_to(20)
        assert site.stored(RECOVERY_POINTS)[TP] == site.stored(HIGH_WATERMARKS)[TP] == 20, "before the cut returns"

    async def scenario() -> None:
        site.append(TP)
        setattr(site.disk, moment, cut)
        site.log_dir.tell({TP: 30, OTHER: 20})
        site.writer.write_all()
        await site.written()
        assert site.stored(RECOVERY_POINTS) == site.stored(HIGH_WATERMARKS) == {TP: 20, OTHER: 20}
        await site.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("moment", ["in_files", "in_names"])
def test_a_log_that_is_deleted_meanwhile_is_not_missed(site: Site, moment: str) -> None:
    """Schedule 48. No file named it before, so that forgetting it finds nothing to write: it counts all the same."""

    async def delete() -> None:
        await site.log_dir.delete(NEW)

    async def scenario() -> None:
        site.create(NEW)
        setattr(site.disk, moment, delete)
        site.log_dir.logs[NEW].cleaned_to = Offset(10)
        site.log_dir.tell({NEW: 20})
        site.writer.write_all()
        await site.written()
        assert [NEW in site.stored(name) for name in OFFSET_CHECKPOINTS] == [False] * 4
        await site.end()

    asyncio.run(scenario())
    for log in site.log_dir.logs.values():
        log.close_files()
    assert NEW not in LogDir.open(site.disk, str(site.path), ManualClock()).findings.all


def test_a_log_start_raised_anew_after_a_cut_is_not_durable_yet(site: Site) -> None:
    """Between the new names and their sync the log is cut, which lowers the file, filled again, and its start raised to
    less than was gathered: what was gathered proves nothing of that."""

    async def cut() -> None:
        site.log_dir.logs[TP].truncate_to(2)
        site.append(TP)
        site.log_dir.logs[TP].delete_records_before(5)

    async def scenario() -> None:
        site.disk.in_names = cut
        site.raise_to(TP, 15)
        await site.written()
        assert site.durable == site.on_disk == [(5, 0)]
        await site.end()

    asyncio.run(scenario())


def test_a_full_disk_is_tried_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told before it has gone; who waits meanwhile is answered REQUEST_TIMED_OUT by the deadline. The broker
    hears that its disk is full."""
    monkeypatch.setattr("strandline.log.log_dir.RETRY_S", 0.01)

    async def scenario() -> None:
        for error in (DiskFull(28, "No space left on device", "x"), DiskError(5, "Input/output error", "x")):
            site.disk.write_error = error
            site.raise_to(TP, int(site.log_dir.logs[TP].log_start_offset) + 4)
            await asyncio.sleep(0.1)
            told = len(site.durable)
            site.disk.write_error = None
            await site.written(told + 1)
            if isinstance(error, DiskFull):
                assert site.full > 0
                site.full = 0
        assert site.full == 0
        assert site.durable == [(4, 0), (8, 0)]
        assert site.stored() == {TP: 8}
        await site.end()

    asyncio.run(scenario())


def test_a_stop_ends_it_with_what_is_being_written(site: Site) -> None:
    """Nothing more is begun: the log directory writes its own checkpoints last."""

    async def scenario() -> None:
        site.raise_to(TP, 5)
        await asyncio.sleep(0)
        site.raise_to(OTHER, 3)
        await site.end()
        assert site.durable == [(5, 0)]
        site.writer.write_all()
        assert site.writer.stop() is None, "nothing begins after a stop"
        site.log_dir.close(1)
        assert site.stored() == {TP: 5, OTHER: 3}

    asyncio.run(scenario())


def test_a_sync_that_hangs_holds_up_nothing_else(site: Site) -> None:
    """Schedule 58: records are synced, logs are cut and deleted, and who ends the node unclean waits for nothing."""

    async def scenario() -> None:
        hung, reached = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            reached.set()
            await hung.wait()

        site.disk.in_files = hang
        site.append(TP)
        site.writer.write_all()
        await reached.wait()
        synced: list[object] = []
        syncer = Syncer(site.disk, synced.append, lambda *_: None, site.failed.append)
        site.log_dir.logs[OTHER].append_as_leader(client_batch(10), 0, 0)
        syncer.mark(site.log_dir.logs[OTHER])
        await syncer.drain()
        assert synced == [[site.log_dir.logs[OTHER]]]
        site.log_dir.logs[TP].truncate_to(10)
        assert site.stored(RECOVERY_POINTS) == {TP: 10, OTHER: 20}
        await site.log_dir.delete(OTHER)
        task = site.writer.stop()
        assert task is not None
        assert not task.done()
        site.writer.abandon()
        await asyncio.wait([task])
        assert site.failed == []
        assert site.stored(RECOVERY_POINTS) == {TP: 10}

    asyncio.run(scenario())
