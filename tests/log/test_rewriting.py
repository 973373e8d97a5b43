"""A start in the same boot writes again what it is to vouch for (schedule 47)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from strandline.chaos.sim.disk_image import FileNode
from strandline.chaos.sim.disk_names import DirNode
from strandline.chaos.sim.ports import Ports
from strandline.log.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES, PARTITION_METADATA
from strandline.log.config import LogConfig
from strandline.log.disk import LOCK_FILE, DiskError, DiskFull, File
from strandline.log.incarnations import Boots
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.recovery import open_log
from strandline.log.rewriting import AWAY, ContentAgain, Rewriting, restore_names
from strandline.proto.errors import StorageError
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, ManualClock, all_records, client_batch, fill
from tests.stage import OneMachine

PATH = "/data"
CONFIG = LogConfig(segment_bytes=2_000, preallocate_bytes=0)


def opened(disk: FailingDisk, path: Path) -> LogDir:
    """The directory, formatted if it is not."""
    if not disk.exists(f"{path}/{META_PROPERTIES}"):
        format_log_dir(disk, str(path), "c", NodeId(1), UUID(int=1))
    return LogDir.open(disk, str(path), ManualClock(), CONFIG)


def killed(log_dir: LogDir) -> None:
    """The process is gone; what it wrote is in the page cache."""
    for log in log_dir.logs.values():
        log.close_files()


def test_what_is_written_again(disk: FailingDisk, tmp_path: Path) -> None:
    """The batches above the recovery point, and no byte below it; nothing after a clean stop, or in a new boot."""
    log_dir = opened(disk, tmp_path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 10, size=100)
    log.sync_now()
    log_dir.write_checkpoints({})
    durable = log.size_bytes
    fill(log, 40, size=100)
    unsure = log.size_bytes - durable
    assert len(log.segments) > 2
    killed(log_dir)
    metadata = (tmp_path / str(TP) / PARTITION_METADATA).stat().st_size

    log_dir = opened(disk, tmp_path)
    assert log_dir.rewriting is not None
    assert log_dir.rewriting.content_bytes == unsure + metadata
    assert len(all_records(log_dir.logs[TP])) == 50
    log_dir.close(1)
    assert opened(disk, tmp_path).rewriting is None, "stopped cleanly"
    disk.boot = "boot-2"
    log_dir = opened(disk, tmp_path)
    assert log_dir.rewriting is None
    assert log_dir.fresh_boot
    killed(log_dir)
    log_dir = opened(disk, tmp_path)
    assert not log_dir.fresh_boot
    assert log_dir.rewriting is not None
    disk.boot = ""
    log_dir = opened(disk, tmp_path)
    assert log_dir.rewriting is not None, "nobody knows whether this is another boot"


def test_a_torn_tail_is_not_written_again(disk: FailingDisk, tmp_path: Path) -> None:
    """What does not hold is cut, as ever."""
    log_dir = opened(disk, tmp_path)
    fill(log_dir.create(TP, TOPIC_ID), 3, size=100)
    killed(log_dir)
    segment = tmp_path / str(TP) / f"{0:020d}.log"
    raw = segment.read_bytes()
    segment.write_bytes(raw[:-1])
    assert opened(disk, tmp_path).logs[TP].log_end_offset == 2
    assert segment.read_bytes() == raw[: len(raw) // 3 * 2]


def test_a_node_whose_disk_does_not_take_it_does_not_start(disk: FailingDisk, tmp_path: Path) -> None:
    """And says why, and what to do."""
    log_dir = opened(disk, tmp_path)
    fill(log_dir.create(TP, TOPIC_ID), 3)
    killed(log_dir)

    class Failing(FailingDisk):
        def sync_now(self, files: object, directories: object = ()) -> None:
            raise DiskError(5, "sync: Input/output error", "some file")

    with pytest.raises(DiskError, match=r"cannot be written again and synced .*Input/output.*replace it") as caught:
        LogDir.open(Failing(), str(tmp_path), ManualClock(), CONFIG)
    assert caught.value.filename == str(tmp_path)


def test_a_start_without_room_says_so(disk: FailingDisk, tmp_path: Path) -> None:
    """Nothing is wrong with the disk but that it is full."""
    log_dir = opened(disk, tmp_path)
    fill(log_dir.create(TP, TOPIC_ID), 3)
    killed(log_dir)
    disk.write_error = DiskFull(28, "No space left on device", "some file")
    with pytest.raises(DiskFull, match=r"there is no room to start in .*make some"):
        opened(disk, tmp_path)


class Machine(OneMachine):
    """A log directory in the simulator, over the lives of its machine."""

    opened: LogDir | None = None

    def run(self, *steps: Callable[[], object]) -> None:
        """One after the other; a life is killed when the next step comes."""

        async def scenario(_: Machine) -> None:
            for step in steps:
                step()
                await self.world.sleep_ms(500)
                self.kill("n1")

        self.play(scenario)

    def cut_power(self) -> None:
        """Everything that is not on the disk is gone."""
        self.power_cut("n1")

    def start(self, work: Callable[[Ports, LogDir], object] = lambda ports, log_dir: None) -> None:
        """Start on what is there, then `work`; `opened` is None where the start failed."""
        self.opened = None

        async def main(ports: Ports) -> None:
            if not ports.disk.exists(f"{PATH}/{META_PROPERTIES}"):
                format_log_dir(ports.disk, PATH, "c", NodeId(1), UUID(int=1))
            try:
                log_dir = LogDir.open(ports.disk, PATH, ports.clock, CONFIG)
                self.opened = log_dir
                work(ports, log_dir)
            except DiskError:
                pass
            await asyncio.sleep(1e6)

        self.world.spawn("n1", main)

    def log_end(self) -> int:
        """Of the one partition, as the last life found it."""
        assert self.opened is not None
        assert not self.opened.offline
        return int(self.opened.logs[TP].log_end_offset)


def make(ports: Ports, log_dir: LogDir) -> None:
    """A partition with a few durable records."""
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 5)
    log.sync_now()


@pytest.mark.parametrize("where", [PATH, f"{PATH}/{TP}"])
@pytest.mark.parametrize("seed", range(8))
def test_names_that_a_failed_sync_forgot(seed: int, where: str) -> None:
    """A partition is made, and the sync of its directories fails: the next process finds it, uses it, and vouches for
    it. A power cut must not take it."""
    machine = Machine(seed)

    def fails(ports: Ports, log_dir: LogDir) -> None:
        machine.disk.faults.dir_syncs, machine.disk.faults.where = 1, where
        with pytest.raises(StorageError, match="sync directory"):
            make(ports, log_dir)
        machine.disk.faults.dir_syncs = 0

    machine.run(machine.start, lambda: machine.start(fails), machine.start, machine.cut_power, machine.start)
    assert machine.log_end() == 5


def test_a_topic_id_that_a_failed_sync_forgot() -> None:
    """`partition.metadata` is written in place, and synced with the first records. Without it a directory counts as one
    that never held anything acknowledged, and is deleted."""
    machine = Machine()

    def fails(ports: Ports, log_dir: LogDir) -> None:
        machine.disk.faults.syncs, machine.disk.faults.where = 1, PARTITION_METADATA
        with pytest.raises(StorageError):
            make(ports, log_dir)

    def use(ports: Ports, log_dir: LogDir) -> None:
        fill(log_dir.logs[TP], 5)
        log_dir.logs[TP].sync_now()

    machine.run(lambda: machine.start(fails), lambda: machine.start(use), machine.cut_power, machine.start)
    assert machine.log_end() == 10


def test_a_cut_that_a_failed_sync_forgot() -> None:
    """A follower's tail is cut, at the end of a page, and the sync of it fails. What the next process vouches for is a
    log without that tail."""
    machine = Machine()
    page = next(size for size in range(3_000, 4_096) if len(client_batch(1, size=size)) == 4_096)

    def fails(ports: Ports, log_dir: LogDir) -> None:
        log = log_dir.create(TP, TOPIC_ID, LogConfig(preallocate_bytes=0))
        fill(log, 3, size=page)
        log.sync_now()
        log.truncate_to(1)
        machine.disk.faults.syncs, machine.disk.faults.where = 1, ".log"
        with pytest.raises(StorageError):
            log.sync_now()

    def one() -> None:
        assert machine.log_end() == 1

    machine.run(lambda: machine.start(fails), machine.start, one, machine.cut_power, machine.start)
    assert machine.log_end() == 1


@pytest.mark.parametrize("zeros", [1, 5_000])
def test_zeros_behind_a_closed_segment(disk: FailingDisk, tmp_path: Path, zeros: int) -> None:
    """A start ended between growing a file and cutting it, and the next one need not scan it: no damage."""
    log_dir = opened(disk, tmp_path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 40, size=100)
    assert len(log.segments) > 2
    log.sync_now()
    log_dir.write_checkpoints({})
    killed(log_dir)
    segment = tmp_path / str(TP) / f"{0:020d}.log"
    content = segment.read_bytes()
    segment.write_bytes(content + bytes(zeros))
    log_dir = opened(disk, tmp_path)
    assert not log_dir.offline
    assert len(all_records(log_dir.logs[TP])) == 40
    assert segment.read_bytes() == content
    killed(log_dir)
    segment.write_bytes(content + bytes(zeros) + b"x")
    assert TP in opened(disk, tmp_path).offline


@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_it_may_end_anywhere(how: str) -> None:
    """The process is killed, or the power fails, at every operation of such a start: the next one finds all of it."""
    for strike in range(1, 90):
        machine = Machine(strike)

        def struck(machine: Machine = machine, strike: int = strike) -> None:
            end = machine.world.kill if how == "kill" else machine.world.power_cut
            machine.disk.strike_after(strike, lambda: end("n1"))
            machine.start()

        def again(machine: Machine = machine) -> None:
            machine.disk.strike_after(0, None)
            machine.start()

        machine.run(lambda machine=machine: machine.start(make), struck, again)  # type: ignore[misc]
        assert machine.log_end() == 5, strike
        assert not [path for path in machine.disk.files() if path.endswith(AWAY)]
        assert machine.opened is not None
        assert machine.opened.meta.directory_id == UUID(int=1)


def test_what_was_verified_is_written_and_not_what_is_read_later() -> None:
    """Memory is short between the two: the kernel drops a page whose sync had failed, and another read would find what
    the disk has. The bytes that held their checksums go back."""
    machine = Machine()
    directory = f"{PATH}/{TP}"
    ends: list[int] = []

    class ShortOfMemory(ContentAgain):
        def end(self) -> None:
            machine.disk.evict()
            super().end()

    class Evicted(Rewriting):
        def content(self, file: File) -> ContentAgain:
            return ShortOfMemory(self, file)

    def fails(ports: Ports, log_dir: LogDir) -> None:
        make(ports, log_dir)
        fill(log_dir.logs[TP], 5)
        machine.disk.faults.syncs, machine.disk.faults.where = 1, ".log"
        with pytest.raises(StorageError):
            log_dir.logs[TP].sync_now()

    async def look(ports: Ports) -> None:
        log = open_log(ports.disk, directory, TP, clock=ports.clock, config=CONFIG, rewriting=Evicted(ports.disk))
        ends.append(int(log.log_end_offset))

    def look_in_another_life() -> None:
        machine.world.spawn("n1", look)

    machine.run(lambda: machine.start(fails), look_in_another_life, machine.cut_power, look_in_another_life)
    assert ends == [10, 10]


def test_a_clean_mark_that_comes_back_is_not_believed() -> None:
    """Its name was deleted, the sync of the directory failed, the next process could not tell: after a power cut the
    mark is there again. It vouches for nothing that was written since."""
    machine = Machine()
    mark: list[FileNode] = []

    def stop_cleanly(ports: Ports, log_dir: LogDir) -> None:
        make(ports, log_dir)
        log_dir.close(7)
        node = machine.disk.names.find(f"{PATH}/{CLEAN_SHUTDOWN}")
        assert isinstance(node, FileNode)
        mark.append(node)

    def fails_once_the_name_is_gone() -> None:
        def strike() -> None:
            if f"{PATH}/{CLEAN_SHUTDOWN}" in machine.disk.files():
                machine.disk.strike_after(1, strike)
            else:
                machine.disk.faults.dir_syncs, machine.disk.faults.where = 1, PATH

        machine.disk.strike_after(1, strike)
        machine.start()

    def bring_the_name_back() -> None:
        machine.cut_power()
        directory = machine.disk.names.find(PATH)
        assert isinstance(directory, DirNode)
        directory.entries[CLEAN_SHUTDOWN] = mark[0]

    def unclean() -> None:
        assert machine.log_end() == 5
        assert machine.opened is not None
        assert machine.opened.clean_shutdown_broker_epoch is None

    def failed() -> None:
        assert machine.opened is None
        assert machine.disk.faults.dir_syncs == 0

    machine.run(
        lambda: machine.start(stop_cleanly),
        fails_once_the_name_is_gone,
        failed,
        machine.start,
        unclean,
        bring_the_name_back,
        machine.start,
        unclean,
    )


def test_which_boot_it_is(disk: FailingDisk, tmp_path: Path) -> None:
    """Used is noted first, recovered last; what an older version wrote counts as both."""
    path = str(tmp_path)

    def facts() -> tuple[bool, bool]:
        boots = Boots(disk, path)
        return boots.fresh, boots.recovered

    assert facts() == (False, False), "nobody knows"
    (tmp_path / ".boot-id").write_text("boot-1")
    assert facts() == (False, True)
    disk.boot = "boot-2"
    assert facts() == (True, False)
    Boots(disk, path).note_used()
    assert facts() == (False, False), "a start of this boot was cut short"
    Boots(disk, path).note_recovered()
    assert facts() == (False, True)
    disk.boot = ""
    assert facts() == (False, False)
    disk.boot = "boot-3"
    disk.write_error = DiskFull(28, "No space left on device", path)
    boots = Boots(disk, path)
    boots.note_used()
    assert (boots.fresh, boots.recovered) == facts() == (False, False), "no room to note it: nothing is known"


def test_a_start_of_a_new_boot_that_failed_is_remembered() -> None:
    """The first start after a reboot cuts a torn tail, and cannot sync that: what the second one reads is not what is
    on the disk, although the logs were last recovered in another boot."""
    machine = Machine()

    def fails() -> None:
        machine.cut_power()
        machine.disk.faults.syncs, machine.disk.faults.where = 1, ".log"
        machine.start()

    def failed() -> None:
        assert machine.opened is None

    def written_again() -> None:
        assert machine.opened is not None
        assert machine.opened.rewriting is not None

    machine.run(lambda: machine.start(make), fails, failed, machine.start, written_again)


def test_the_lock_keeps_its_name(disk: FailingDisk, tmp_path: Path) -> None:
    """Were it away for a moment, another process could make it anew and hold it too."""
    lock = disk.lock(str(tmp_path))
    killed(opened(disk, tmp_path))
    renamed: list[str] = []
    rename = disk.rename
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "rename", lambda source, target: (renamed.append(source), rename(source, target)))
        opened(disk, tmp_path)
    lock.release()
    assert f"{tmp_path}/{META_PROPERTIES}" in renamed
    assert not [path for path in renamed if path.endswith(LOCK_FILE)]


def test_names_come_back(disk: FailingDisk, tmp_path: Path) -> None:
    """What was away is brought home; where both names are, they lead to one file."""
    (tmp_path / f"a{AWAY}").write_text("a")
    (tmp_path / f"b{AWAY}").write_text("b")
    (tmp_path / "b").write_text("b")
    (tmp_path / f"d{AWAY}").mkdir()
    restore_names(disk, str(tmp_path))
    assert disk.listdir(str(tmp_path)) == ["a", "b", "d"]
    (tmp_path / f"d{AWAY}").mkdir()
    with pytest.raises(DiskError):
        restore_names(disk, str(tmp_path))
