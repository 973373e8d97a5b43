"""Compaction is cut short anywhere: killed, or without power, between any two disk operations (schedule 75)."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from uuid import UUID

import pytest

from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.log.batch import Record
from strandline.log.compaction import Compaction
from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.recovery import open_log
from strandline.log.swap import LogChanged
from strandline.proto.believed import Now
from strandline.proto.ids import NodeId, TopicPartition
from tests.log.compacting import NOW_MS, Pauses, assert_no_hole, put, table
from tests.log.helpers import TOPIC_ID
from tests.log.striking import OneStrike
from tests.log.test_power_cut import TPS, Expectation, Lives

TP = TopicPartition("table", 0)
CONFIG = LogConfig(segment_bytes=600, compacted=True, preallocate_bytes=0, index_interval_bytes=100)


async def compact(log: PartitionLog, ports: Ports, *, limit: int) -> None:
    """One pass; the files that made way are unlinked slowly."""
    waiting: list[str] = []
    found = await log.find_cleanable(Now(NOW_MS, NOW_MS, NOW_MS), limit)
    one = Compaction(
        log, found, buffer_bytes=1 << 20, now_ms=NOW_MS, latest_ms=NOW_MS, pace=Pauses(), unlink=waiting.extend
    )
    await one.run()
    for path in waiting:
        await ports.disk.unlink_slowly(path)


class OneSwap(OneStrike):
    """A log is filled and synced, then compacted; after `operations` of its disk something strikes."""

    def __init__(self, seed: int, operations: int, *, power: bool) -> None:
        super().__init__(seed, operations, power=power)
        self.expected: dict[str, str | None] = {}
        self.found: dict[str, str | None] = {}
        self.left_over: list[str] = []

    async def first_life(self, ports: Ports) -> None:
        format_log_dir(ports.disk, "/d", "c", NodeId(1), UUID(int=1))
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, CONFIG)
        log = log_dir.create(TP, TOPIC_ID, CONFIG)
        for i in range(16):
            put(log, (f"k{i % 2}", f"v{i}"), ("x" if i % 6 else f"once{i}", str(i)))
            if i % 3 == 2:
                log.roll()  # small ones: compaction makes one of several
        log.sync_now()
        log_dir.write_checkpoints({TP: int(log.log_end_offset)})
        self.expected = table(log)
        self.aim()
        await compact(log, ports, limit=int(log.log_end_offset))
        log.sync_now()
        self.ended = True

    async def second_life(self, ports: Ports) -> None:
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, CONFIG)
        assert log_dir.offline == {}
        log = log_dir.logs[TP]
        assert log.log_end_offset == 32
        assert_no_hole(log)
        self.found = table(log)
        names = ports.disk.listdir(log.directory)
        self.left_over = [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
        put(log, ("k0", "after"))
        await compact(log, ports, limit=int(log.log_end_offset))
        assert table(log) == self.expected | {"k0": "after"}
        assert_no_hole(log)

    def run(self) -> bool:
        """See `OneStrike`."""
        ended = super().run()
        assert self.found == self.expected
        assert self.left_over == []
        return ended


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_75_every_step_of_a_swap(power: bool) -> None:
    """Schedule 75: after each operation of the disk; with the power, any of the names that were not synced are gone."""
    for seed in range(4 if power else 1):
        operations = 1
        while not OneSwap(seed, operations, power=power).run():
            operations += 1
        assert operations > 40


class Compacted(Expectation):
    """Of a log with keys."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[int, bytes] = {}
        self.committed = 0
        """Compaction goes no further, and truncation not below."""


class CompactedLives(Lives):
    """As `Lives`, with keys, and passes of compaction beside everything else."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.expected = {tp: Compacted() for tp in TPS}
        self.tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self.ports: Ports | None = None
        self.passes = 0

    async def live(self, ports: Ports) -> None:
        self.ports, self.tasks = ports, {}
        await super().live(ports)

    async def stop(self, log_dir: LogDir) -> None:
        await asyncio.gather(*self.tasks.values())
        await super().stop(log_dir)

    def records(self, expected: Expectation, first: int, values: list[bytes]) -> list[Record]:
        assert isinstance(expected, Compacted)
        for i, value in enumerate(values):
            expected.keys[first + i] = b"k%d" % (int(value.split(b"-")[0]) % 5)
        return [Record(i, 1000 + i, expected.keys[first + i], value) for i, value in enumerate(values)]

    def step(self, expected: Expectation, log: PartitionLog, log_dir: LogDir) -> None:
        assert isinstance(expected, Compacted)
        if self.rng.random() < 0.1 and log.topic_partition not in self.tasks:
            expected.committed = max(expected.committed, expected.guaranteed - 4)
            self.tasks[log.topic_partition] = asyncio.ensure_future(self.compact(log, expected.committed))
            return
        super().step(expected, log, log_dir)

    async def compact(self, log: PartitionLog, limit: int) -> None:
        assert self.ports is not None
        try:
            await compact(log, self.ports, limit=limit)
            self.passes += 1
        except (LogChanged, FileNotFoundError):
            pass  # cut or expired meanwhile
        finally:
            self.tasks.pop(log.topic_partition, None)

    def cut_at(self, expected: Expectation) -> int:
        assert isinstance(expected, Compacted)
        low = max(expected.start, expected.end - 12, expected.committed)
        return self.rng.randint(min(low, expected.end), expected.end)

    def check_found(self, expected: Expectation, log: PartitionLog, found: dict[int, bytes], least: int) -> None:
        """The last durable record of each key is there."""
        assert isinstance(expected, Compacted)
        assert_no_hole(log)
        last = {expected.keys[at]: at for at in sorted(expected.values) if log.log_start_offset <= at < least}
        for key, at in last.items():
            later = [other for other in found if other > at and expected.keys.get(other) == key]
            assert at in found or later, f"the last record of {key!r}, at {at}, is gone"


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_lives_of_compacted_logs(first_seed: int) -> None:
    """Ten seeds of six lives each: appends, truncations, deletions, a log that begins anew, and compaction."""
    passes = 0
    for seed in range(first_seed, first_seed + 10):
        lives = CompactedLives(seed)
        try:
            lives.world.run(lives.scenario())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        passes += lives.passes
    assert passes > 10


@pytest.mark.parametrize("replaced", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("offset", [0, 9, 1_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_cut_in_the_middle_of_a_swap(seed: int, offset: int, replaced: bool) -> None:
    """A log is cut, or begins anew, while segments are swapped, before or after the old ones made way; then the power
    fails: nothing of what was cut comes back, and nothing else is lost."""
    world = World(seed, WorldConfig(disk=DiskConfig(sync_max_us=3_000, cold_probability=0.0)))
    machine = world.add_machine("n1")

    async def first(ports: Ports) -> None:
        ports.disk.mkdir("/d")
        log = open_log(ports.disk, "/d/t-0", TP, clock=ports.clock, config=CONFIG)
        for i in range(24):
            put(log, (f"k{i % 4}", f"v{i}"))
        log.sync_now()
        ports.disk.sync_dir("/d")
        ports.disk.sync_dir("/")
        going = asyncio.ensure_future(compact(log, ports, limit=24))
        while log.swap is None or log.swap._replaced is not replaced:
            assert not going.done()
            await asyncio.sleep(0.0001)
        if offset > 24:
            log.truncate_fully_and_start_at(offset)
        else:
            log.truncate_to(offset)
        assert log.swap is None
        with pytest.raises(LogChanged) if not replaced else nullcontext():
            await going
        put(log, ("k0", "after"))
        log.sync_now()
        assert log.log_end_offset == min(log.log_end_offset, offset + 1)

    async def second(ports: Ports) -> None:
        log = open_log(ports.disk, "/d/t-0", TP, clock=ports.clock, config=CONFIG)
        assert_no_hole(log)
        assert log.log_end_offset <= offset + 1
        found = table(log)
        assert found["k0"] == "after"
        if offset != 9:
            assert found == {"k0": "after"}

    async def scenario() -> None:
        process = world.spawn("n1", first)
        assert process.main is not None
        await process.main
        world.power_cut("n1")
        assert machine.disk.files()
        process = world.spawn("n1", second)
        assert process.main is not None
        await process.main

    world.run(scenario())


@pytest.mark.parametrize("replaced", [False, True], ids=["before", "after"])
def test_retention_takes_segments_while_they_are_swapped(replaced: bool) -> None:
    """compact,delete: what has left the log is not brought back, and its files go; the rest is as it was."""
    world = World(1, WorldConfig(disk=DiskConfig(sync_max_us=3_000, cold_probability=0.0)))
    world.add_machine("n1")

    async def life(ports: Ports) -> None:
        log = open_log(ports.disk, "/d/t-0", TP, clock=ports.clock, config=CONFIG)
        for i in range(24):
            put(log, (f"k{i % 4}", f"v{i}"))
        log.sync_now()
        before = table(log)
        going = asyncio.ensure_future(compact(log, ports, limit=24))
        while log.swap is None or log.swap._replaced is not replaced:
            await asyncio.sleep(0.0001)
        log.delete_records_before(log.bases[1])
        start = log.log_start_offset
        with pytest.raises(LogChanged) if not replaced else nullcontext():
            await going
        log.sync_now()
        assert table(log) == before
        assert_no_hole(log)
        while log.removed:
            await log.delete_oldest_removed()
        log.close_files()
        again = open_log(
            ports.disk, "/d/t-0", TP, clock=ports.clock, config=CONFIG, last_life=LastLife(log_start_offset=start)
        )
        assert again.log_start_offset == again.bases[0] == start
        assert table(again) == before
        assert len([name for name in ports.disk.listdir("/d/t-0") if ".log" in name]) == len(again.segments)

    async def scenario() -> None:
        process = world.spawn("n1", life)
        assert process.main is not None
        await process.main

    world.run(scenario())
