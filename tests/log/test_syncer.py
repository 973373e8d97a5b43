"""Group commit: what a sync covers, what a truncation in between takes back, what a failure ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from strandline.log.disk import DiskError, DiskFull, File
from strandline.log.partition_log import PartitionLog
from strandline.log.syncer import Syncer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import FailingDisk, fill, open_test_log


class HeldDisk(FailingDisk):
    """Syncs wait until the test lets them go; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        self.groups: list[tuple[list[str], list[str]]] = []
        self.running = 0

    async def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
        """As the real one, after the gate."""
        assert self.running == 0, "one sync in flight"
        self.running += 1
        self.groups.append(([file.path.rpartition("/")[2] for file in files], list(directories)))
        self.started.set()
        try:
            await self.gate.wait()
            await super().sync(files, directories, wait_ms)
        finally:
            self.running -= 1


class Scene:
    """A syncer over two logs."""

    def __init__(self, tmp_path: Path) -> None:
        self.disk = HeldDisk()
        self.logs = [open_test_log(self.disk, tmp_path / name) for name in ("a-0", "b-0")]
        self.synced: list[list[tuple[int, int]]] = []
        self.failed: list[tuple[list[PartitionLog], OSError]] = []
        self.fatal: list[BaseException] = []
        self.syncer = Syncer(self.disk, self.on_synced, self.on_failed, self.fatal.append)

    def on_synced(self, logs: list[PartitionLog]) -> None:
        """Notes (log, durable offset)."""
        self.synced.append([(self.logs.index(log), int(log.durable_offset)) for log in logs])

    def on_failed(self, logs: list[PartitionLog], error: OSError) -> None:
        """Notes both."""
        self.failed.append((logs, error))

    async def begin(self) -> None:
        """Wait until a sync has started."""
        self.disk.started.clear()
        await self.disk.started.wait()

    async def let_go(self) -> None:
        """Let everything run to its end."""
        self.disk.gate.set()
        await self.syncer.drain()
        self.disk.gate.clear()


def run(tmp_path: Path, play: Callable[[Scene], object]) -> None:
    """Play a scene and close its disk."""

    async def main() -> None:
        scene = Scene(tmp_path)
        try:
            result = play(scene)
            assert asyncio.iscoroutine(result)
            await result
        finally:
            scene.disk.sync_error = None
            scene.disk.close()

    asyncio.run(main())


def test_one_turn_one_group(tmp_path: Path) -> None:
    """Rules P3 and P4: all appends of a loop turn are one sync, told once."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        for _ in range(3):
            fill(a, 1)
            scene.syncer.mark(a)
            fill(b, 2)
            scene.syncer.mark(b)
        await scene.let_go()
        assert scene.synced[0] == [(0, 3), (1, 6)]
        assert len(scene.disk.groups[0][0]) == 4, "two .log files, two epoch checkpoints"
        assert all(not log.needs_sync for log in scene.logs)

    run(tmp_path, play)


def test_it_has_caught_up_when_enough_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule B51: bytes count from the mark to the end of their sync, and those of the next group, too."""
    monkeypatch.setattr("strandline.log.syncer.UNSYNCED_BYTES_MAX", 100)

    async def play(scene: Scene) -> None:
        (a, b), called, syncer = scene.logs, [], scene.syncer
        syncer.when_caught_up(lambda: called.append("at once"))
        fill(a, 1)
        syncer.mark(a, 60)
        await scene.begin()
        for log in (b, a):
            fill(log, 1)
            syncer.mark(log, 60)
        assert (syncer.unsynced_bytes, syncer.is_behind) == (180, True)
        syncer.when_caught_up(lambda: called.append("later"))
        scene.disk.started.clear()
        scene.disk.gate.set()
        await scene.disk.started.wait()
        scene.disk.gate.clear()
        assert called == ["at once"], "the second group is as much"
        await scene.let_go()
        assert called == ["at once", "later"]
        assert (syncer.unsynced_bytes, syncer.is_behind) == (0, False)

    run(tmp_path, play)


def test_nobody_waits_for_a_syncer_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that wait are made, and so are later ones."""
    monkeypatch.setattr("strandline.log.syncer.UNSYNCED_BYTES_MAX", 100)

    async def play(scene: Scene) -> None:
        called: list[str] = []
        fill(scene.logs[0], 1)
        scene.syncer.mark(scene.logs[0], 200)
        await scene.begin()
        scene.syncer.when_caught_up(lambda: called.append("waited"))
        scene.syncer.abandon()
        scene.syncer.when_caught_up(lambda: called.append("came late"))
        assert called == ["waited", "came late"]

    run(tmp_path, play)


def test_only_what_was_written_before_the_start_counts(tmp_path: Path) -> None:
    """Rules A9, E9: a sync has two instants. What is written while it runs belongs to the next group."""

    async def play(scene: Scene) -> None:
        a, _ = scene.logs
        fill(a, 2)
        scene.syncer.mark(a)
        await scene.begin()
        fill(a, 3)
        scene.syncer.mark(a)
        assert a.durable_offset == 0
        await scene.let_go()
        assert [group[0][1] for group in scene.synced][:2] == [2, 5]
        assert scene.syncer.syncs == len(scene.synced)

    run(tmp_path, play)


def test_a_truncation_during_the_sync(tmp_path: Path) -> None:
    """What was cut and written anew meanwhile is not covered by the sync that began before."""

    async def play(scene: Scene) -> None:
        a, _ = scene.logs
        fill(a, 5)
        scene.syncer.mark(a)
        await scene.begin()
        a.truncate_to(2)
        fill(a, 6, epoch=1)
        scene.disk.gate.set()
        while not scene.synced:
            await asyncio.sleep(0)
        assert scene.synced[0] == [(0, 2)]
        await scene.let_go()

    run(tmp_path, play)


def test_a_failed_sync_fences_for_ever(tmp_path: Path) -> None:
    """Schedules 18, 32: no later sync may make good what one failed to do; readers may still read."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        fill(a, 2)
        scene.syncer.mark(a)
        await scene.let_go()
        fill(a, 1)
        scene.disk.sync_error = DiskError(5, "Input/output error", "x")
        scene.syncer.mark(a)
        await scene.let_go()
        assert [log for logs, _ in scene.failed for log in logs] == [a]
        assert a.durable_offset == 2
        scene.disk.sync_error = None
        scene.syncer.mark(a)
        fill(b, 1)
        scene.syncer.mark(b)
        await scene.let_go()
        assert a.durable_offset == 2
        assert b.durable_offset == 1
        with pytest.raises(KafkaError) as caught:
            fill(a, 1)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        for refused in (lambda: a.truncate_to(0), a.roll, a.close, lambda: a.truncate_fully_and_start_at(0)):
            with pytest.raises(KafkaError):
                refused()
        assert a.read(0, 1000, 2) is not None

    run(tmp_path, play)


def test_a_log_closed_or_rolled_meanwhile(tmp_path: Path) -> None:
    """A segment rolled during a sync is in the next group; a closed log is left alone."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        fill(a, 1)
        fill(b, 1)
        scene.syncer.mark(a)
        scene.syncer.mark(b)
        await scene.begin()
        a.roll()
        fill(a, 1)
        scene.syncer.mark(a)
        scene.syncer.mark(b)
        b.close_files()
        await scene.let_go()
        names = [name for names, _ in scene.disk.groups[1:] for name in names]
        assert f"{0:020d}.log" in names
        assert f"{1:020d}.log" in names
        assert a.durable_offset == 2
        assert b.durable_offset == 0
        assert a.directory in scene.disk.groups[1][1]

    run(tmp_path, play)


def test_epochs_take_two_groups(tmp_path: Path) -> None:
    """KAFKA-16541: the epoch checkpoint's content is synced before it is renamed, and its name after."""

    async def play(scene: Scene) -> None:
        a, _ = scene.logs
        await settle(scene, a)
        a.assign_epoch_start(3, 0)
        assert a.recovery_point is None
        scene.syncer.mark(a)
        await scene.begin()
        assert scene.disk.groups[-1][0] == ["leader-epoch-checkpoint.syncing.tmp"]
        assert not Path(a.directory, "leader-epoch-checkpoint").exists()
        await scene.let_go()
        assert Path(a.directory, "leader-epoch-checkpoint").read_bytes() == b"0\n1\n3 0\n"
        assert scene.disk.groups[-1] == ([], [a.directory])
        assert a.recovery_point == 0
        a.assign_epoch_start(4, 0)
        a.flush_epochs()
        assert Path(a.directory, "leader-epoch-checkpoint").read_bytes() == b"0\n1\n4 0\n"

    async def settle(scene: Scene, log: PartitionLog) -> None:
        scene.syncer.mark(log)
        await scene.let_go()
        assert not log.needs_sync

    run(tmp_path, play)


def test_epochs_on_a_full_disk_wait(tmp_path: Path) -> None:
    """No room for the checkpoint: the batches keep the epochs, the sync itself succeeds, and nothing spins."""

    async def play(scene: Scene) -> None:
        a, _ = scene.logs
        fill(a, 1)
        scene.disk.write_error = DiskFull(28, "No space left on device", "x")
        scene.syncer.mark(a)
        await scene.let_go()
        assert a.durable_offset == 1
        assert scene.failed == []
        assert a.recovery_point is None
        scene.disk.write_error = None
        fill(a, 1)
        scene.syncer.mark(a)
        await scene.let_go()
        assert a.recovery_point == 2

    run(tmp_path, play)


def test_who_catches_up_is_synced_by_itself(tmp_path: Path) -> None:
    """Rule B50: its bytes do not make the sync longer for which acknowledgements wait, and it comes behind it."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        fill(b, 1)
        scene.syncer.mark(b, waited_for=False)
        fill(a, 1)
        scene.syncer.mark(a)
        await scene.let_go()
        assert scene.synced[0] == [(0, 1)]
        assert scene.synced[1] == [(1, 1)]
        assert not b.needs_sync

    run(tmp_path, play)


def test_who_catches_up_has_its_turn(tmp_path: Path) -> None:
    """Rule B50: somebody is waited for all the time, and the other is synced after the first of them."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        note = scene.syncer._on_synced

        def synced(logs: list[PartitionLog]) -> None:
            note(logs)
            if len(scene.synced) < 10:
                fill(a, 1)
                scene.syncer.mark(a)

        scene.syncer._on_synced = synced
        fill(b, 1)
        scene.syncer.mark(b, waited_for=False)
        fill(a, 1)
        scene.syncer.mark(a)
        await scene.let_go()
        assert [(1, 1)] in scene.synced[:3]

    run(tmp_path, play)


def test_who_is_waited_for_now_goes_with_the_others(tmp_path: Path) -> None:
    """Rule B50: a replica that has just come to the end of its leader's log need not wait for its turn alone."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        fill(a, 1)
        scene.syncer.mark(a)
        await scene.begin()
        fill(b, 1)
        scene.syncer.mark(b, waited_for=False)
        fill(a, 1)
        scene.syncer.mark(a)
        scene.syncer.mark(b)
        await scene.let_go()
        assert scene.synced[1] == [(0, 2), (1, 1)]

    run(tmp_path, play)


def test_who_catches_up_is_fenced_with_the_others(tmp_path: Path) -> None:
    """Schedule 59: once nothing is synced any more, nothing stays pending."""

    async def play(scene: Scene) -> None:
        a, b = scene.logs
        fill(a, 1)
        scene.syncer.mark(a)
        await scene.begin()
        fill(b, 1)
        scene.syncer.mark(b, waited_for=False)
        scene.syncer.abandon()
        assert a.failure is not None
        assert b.failure is not None

    run(tmp_path, play)
