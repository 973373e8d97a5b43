"""What was marked is synced or fenced, whatever fails (schedule 59): no log stays marked and is forgotten."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from strandline.log.disk import DiskError, File
from strandline.log.log_state import Unsynced
from strandline.log.partition_log import PartitionLog
from strandline.log.syncer import Syncer
from tests.log.helpers import FailingDisk, fill
from tests.log.test_syncer import Scene, run

EIO = DiskError(errno.EIO, "Input/output error", "x")


def settled(scene: Scene) -> bool:
    """Every log is durable to its end, or fenced, and none is left in between."""
    return all(
        not log.sync_pending and (log.failure is not None or log.durable_offset == log.log_end_offset)
        for log in scene.logs
    )


@pytest.mark.parametrize("error", [EIO, FileNotFoundError(errno.ENOENT, "No such file or directory", "x")], ids=repr)
@pytest.mark.parametrize("instant", ["begin", "end"])
def test_what_fails_for_one_log_fences_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: str, error: OSError
) -> None:
    """Its epoch checkpoint cannot be written, or renamed, or its directory is gone; the others of the group are synced
    and told."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        works: Callable[[Unsynced], object] = getattr(Unsynced, instant)

        def fails(unsynced: Unsynced) -> object:
            if unsynced is a.unsynced:
                raise error
            return works(unsynced)

        monkeypatch.setattr(Unsynced, instant, fails)
        for log in (a, b):
            fill(log, 2)
            scene.syncer.mark(log)
        await scene.let_go()
        assert scene.failed == [([a], error)]
        assert a.failure is not None
        assert a.durable_offset == 0
        assert scene.synced[0] == [(1, 2)]
        assert settled(scene)
        fill(b, 1)
        scene.syncer.mark(b)
        await scene.let_go()
        assert b.durable_offset == 3
        assert scene.fatal == []

    run(tmp_path, play)


def test_two_logs_that_fail_by_themselves_are_told_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own error; where nothing is left to be synced no sync is begun."""

    async def play(scene: Scene) -> None:
        errors = {
            scene.logs[0].unsynced: EIO,
            scene.logs[1].unsynced: DiskError(errno.EMFILE, "Too many open files", "y"),
        }

        def fails(unsynced: Unsynced) -> object:
            raise errors[unsynced]

        monkeypatch.setattr(Unsynced, "begin", fails)
        for log in scene.logs:
            fill(log, 1)
            scene.syncer.mark(log)
        await scene.let_go()
        assert [logs for logs, _ in scene.failed] == [[log] for log in scene.logs]
        assert [error for _, error in scene.failed] == list(errors.values())
        assert scene.disk.groups == []
        assert settled(scene)

    run(tmp_path, play)


class Unforeseen(Exception):
    """A mistake of ours."""


def begins(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Unsynced, "begin", fail)


def ends(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Unsynced, "end", fail)


def syncs(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FailingDisk, "sync", fail)


def tells_of_a_sync(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scene.syncer, "_on_synced", fail)


def tells_of_a_failure(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scene.syncer, "_on_failed", fail)
    scene.disk.sync_error = EIO


def fail(*_: object) -> object:
    raise Unforeseen("nobody foresaw this")


@pytest.mark.parametrize("place", [begins, ends, syncs, tells_of_a_sync, tells_of_a_failure])
def test_what_nobody_foresaw_is_fatal(tmp_path: Path, place: Callable[[Scene, pytest.MonkeyPatch], None]) -> None:
    """Told once. What was to be synced is fenced or durable, what is marked while it happens or afterwards is fenced:
    nothing is counted on that no sync has covered, and `drain` returns."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        with pytest.MonkeyPatch.context() as patch:
            place(scene, patch)
            fill(a, 2)
            scene.syncer.mark(a)
            if place not in (begins, syncs):
                await scene.begin()
                fill(b, 1)
                scene.syncer.mark(b)
            await scene.let_go()
        assert [type(error) for error in scene.fatal] == [Unforeseen]
        assert settled(scene)
        assert a.failure is not None or a.durable_offset == 2
        fill_if_open(b)
        scene.disk.gate.set()
        scene.syncer.mark(b)
        await scene.syncer.drain()
        assert settled(scene)
        assert b.failure is not None
        assert b.durable_offset == 0
        assert len(scene.fatal) == 1

    run(tmp_path, play)


def fill_if_open(log: PartitionLog) -> None:
    """A record more, if it takes one."""
    if log.failure is None:
        fill(log, 1)


@pytest.mark.parametrize("begun", [False, True])
def test_a_syncer_that_is_given_up_waits_for_nothing(tmp_path: Path, begun: bool) -> None:
    """A sync that never ends must not keep a node from ending: nothing of it counts."""

    async def play(scene: Scene) -> None:
        a, _ = scene.logs
        fill(a, 2)
        scene.syncer.mark(a)
        if begun:
            await scene.begin()
        scene.syncer.abandon()
        async with asyncio.timeout(30):
            await scene.syncer.drain()
        assert a.durable_offset == 0
        assert a.failure is not None
        assert scene.synced == []
        assert scene.fatal == []

    run(tmp_path, play)


def test_a_syncer_that_is_cancelled_by_nobody_is_fatal(tmp_path: Path) -> None:
    """Something under the disk's sync cancels a future: the task ends, and with it every ack."""

    class Cancels(FailingDisk):
        async def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.cancel)
            await future

    async def play(scene: Scene) -> None:
        disk = Cancels()
        fatal: list[BaseException] = []
        syncer = Syncer(disk, lambda _: None, lambda *_: None, fatal.append)
        fill(scene.logs[0], 1)
        syncer.mark(scene.logs[0])
        await syncer.drain()
        await asyncio.sleep(0)
        assert len(fatal) == 1
        assert "cancelled" in str(fatal[0])
        assert scene.logs[0].durable_offset == 0
        assert scene.logs[0].failure is not None
        disk.close()

    run(tmp_path, play)
