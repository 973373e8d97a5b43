"""CommittedIsDurable and what it looks with: what survives every power cut is known from the images alone."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.chaos.checkers.durable import CommittedIsDurable, DurableEnds
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_image import PAGE_BYTES, FileNode
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.log.batch import Record, build_batch
from strandline.log.disk import DiskError
from strandline.proto.ids import NodeId, TopicIdPartition
from strandline.replica.partition import Partition

DATA, NAME = "/data", "t-0"
PATH = f"{DATA}/{NAME}"
SEGMENT = f"{PATH}/{0:020d}.log"


def _life(rng: random.Random) -> FileNode:
    """A file after some writes, cuts, and syncs that ended, failed, or are under way."""
    node = FileNode()
    for _ in range(rng.randint(1, 12)):
        step = rng.choice(("write", "write", "write", "cut", "sync", "sync", "fail", "begin"))
        if step == "write":
            size = rng.choice((3, 700, 5_000))
            node.write(memoryview(rng.randbytes(size)), rng.choice((node.size, rng.randint(0, node.size))))
        elif step == "cut":
            node.resize(rng.randint(0, node.size))
        else:
            token = node.begin_sync()
            if step == "sync":
                node.complete_sync(token)
            elif step == "fail":
                node.fail_sync(token)
    return node


def test_what_survives_is_what_every_power_cut_leaves() -> None:
    """Held against the cuts themselves, which know nothing of it; and it is not less than it must be: after a sync that
    ended everything survives."""
    for seed in range(300):
        rng = random.Random(seed)
        node = _life(rng)
        start = rng.randint(0, node.size)
        end = node.survives_until(start, node.size)
        assert start <= end <= node.size
        now = node.read(end - start, start)
        for cut in range(8):
            left = copy.deepcopy(node)
            left.crash(random.Random(cut), 512)
            assert left.read(end - start, start) == now, (seed, cut)
        fresh = FileNode()
        fresh.write(memoryview(bytes(node.read(node.size, 0)) or b"x"), 0)
        fresh.complete_sync(fresh.begin_sync())
        assert fresh.survives_until(0, fresh.size) == fresh.size


def test_a_write_beside_what_is_durable_in_the_same_page_takes_nothing_away() -> None:
    """Sectors are whole, but what stood in them stands in each of their versions."""
    node = FileNode()
    node.write(memoryview(b"a" * 100), 0)
    node.complete_sync(node.begin_sync())
    node.write(memoryview(b"b" * 100), 100)
    assert node.survives_until(0, 200) == 100
    node.fail_sync(node.begin_sync())
    assert node.survives_until(0, 200) == 100
    node.complete_sync(node.begin_sync())  # as Linux does: it "succeeds", and writes nothing
    assert node.survives_until(0, 200) == 100
    node.write(memoryview(b"b" * PAGE_BYTES), 100)
    node.complete_sync(node.begin_sync())
    assert node.survives_until(0, 100 + PAGE_BYTES) == 100 + PAGE_BYTES


@dataclass
class Story:
    """One machine, one process on it, and how far its log is durable after each step."""

    world: World = field(default_factory=lambda: World(3))
    ends: DurableEnds = field(default_factory=DurableEnds)

    def __post_init__(self) -> None:
        self.world.add_machine("n1")

    @property
    def disk(self) -> SimDisk:
        return self.world.machines["n1"].disk

    @property
    def end(self) -> int:
        """Looked at as checkers do, from where the last look ended; and as if nobody had looked before."""
        end = self.ends.end(1, self.disk, PATH)
        node = self.disk.names.find(SEGMENT)
        changed_from = node.changed_from if isinstance(node, FileNode) else 0
        assert DurableEnds().end(1, self.disk, PATH) == end
        if isinstance(node, FileNode):
            node.changed_from = changed_from
        return end

    def run(self, main: Any) -> None:
        async def story() -> None:
            process = self.world.spawn("n1", main)
            await self.world.sleep_ms(2_000)
            assert process.main is not None
            process.main.result()

        self.world.loop.run_until_complete(story())


def _append(ports: Ports, position: int, offset: int, count: int = 1, epoch: int = 0) -> int:
    """Where the batch ends."""
    records = [Record(number, 1, None, b"x" * 50, ()) for number in range(count)]
    data = bytes(build_batch(records, base_offset=offset, leader_epoch=epoch))
    ports.disk.open(SEGMENT, create=True).pwrite(data, position)
    return position + len(data)


def test_a_log_is_durable_up_to_its_last_synced_batch() -> None:
    """Its bytes, its file's name, and its directory's."""
    story = Story()

    async def main(ports: Ports) -> None:
        assert story.end == 0
        ports.disk.mkdir(PATH)
        first = _append(ports, 0, 0, count=3)
        file = ports.disk.open(SEGMENT)
        await ports.disk.sync([file])
        assert story.end == 0
        ports.disk.sync_dir(PATH)
        assert story.end == 0
        ports.disk.sync_dir(DATA)
        ports.disk.sync_dir("/")
        assert story.end == 3
        second = _append(ports, first, 3)
        assert story.end == 3
        await ports.disk.sync([file])
        assert story.end == 4
        file.truncate(first)
        assert story.end == 3
        _append(ports, first, 3, epoch=1)
        assert story.end == 3
        await ports.disk.sync([file])
        assert story.end == 4
        _append(ports, second, 9)  # a gap: what is behind it is not held
        await ports.disk.sync([file])
        assert story.end == 4
        ports.disk.rename(PATH, PATH + ".anew")  # as a start in the same boot does
        assert story.end == 4
        ports.disk.rename(PATH + ".anew", PATH)
        assert story.end == 4

    story.run(main)


def test_what_a_failed_sync_covered_is_not_durable() -> None:
    """Of bytes and of names, whatever later syncs say, until it is written again."""
    story = Story()

    async def main(ports: Ports) -> None:
        ports.disk.mkdir(PATH)
        first = _append(ports, 0, 0)
        ports.disk.sync_dir("/")
        ports.disk.sync_dir(DATA)
        file = ports.disk.open(SEGMENT)
        await ports.disk.sync([file], [PATH])
        assert story.end == 1
        _append(ports, first, 1)
        story.disk.faults.syncs = 1
        with pytest.raises(DiskError):
            await ports.disk.sync([file])
        again = ports.disk.open(SEGMENT)
        await ports.disk.sync([again])
        assert story.end == 1
        content = again.pread(again.size(), 0)
        again.pwrite(content, 0)
        await ports.disk.sync([again])
        assert story.end == 2

    story.run(main)


@dataclass
class Core:
    """What is looked at of a leadership."""

    high_watermark: int
    maximal_isr: tuple[NodeId, ...] = (NodeId(1), NodeId(2))
    leader_epoch: int = 4


class Pair:
    """Two machines with two records each; of the second one's the last is not synced."""

    def __init__(self) -> None:
        self.world = World(1)
        self.core = Core(2)
        self.disks: dict[int, SimDisk] = {}
        for number in (1, 2):
            self.world.add_machine(f"n{number}")
            self.disks[number] = self.world.machines[f"n{number}"].disk
        self.check = CommittedIsDurable(lambda node, name: (self.disks[node], f"{DATA}/{name}"))

        async def main(ports: Ports, number: int) -> None:
            ports.disk.mkdir(PATH)
            end = _append(ports, 0, 0)
            if number == 1:
                _append(ports, end, 1)
            await ports.disk.sync([ports.disk.open(SEGMENT)], [PATH, DATA, "/"])
            if number == 2:
                _append(ports, end, 1)

        async def story() -> None:
            for number in (1, 2):
                self.world.spawn(f"n{number}", lambda ports, number=number: main(ports, number))
            await self.world.sleep_ms(500)

        self.world.loop.run_until_complete(story())

    def look(self) -> None:
        key = TopicIdPartition(cast(Any, "id"), 0)
        partition = SimpleNamespace(
            leader=self.core, topic_partition=NAME, state=SimpleNamespace(topic_id_partition=key)
        )
        self.check.check(1, cast(Partition, partition))


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_high_watermark_above_what_a_member_has_synced(pair: Pair) -> None:
    """Flagged; and neither at what is synced, nor where that machine is not in the ISR."""
    pair.core.high_watermark = 1
    pair.look()
    pair.core.high_watermark = 2
    with pytest.raises(InvariantViolated, match=r"CommittedIsDurable.*member=2") as caught:
        pair.look()
    assert caught.value.facts["durable_end"] == 1
    pair.core = Core(2, maximal_isr=(NodeId(1),))
    pair.look()


def test_a_destroyed_disk_is_judged_again_once_it_was_whole(pair: Pair) -> None:
    """What it had acknowledged before counts, and is gone; what it says afterwards is its word again."""
    pair.disks[2].remove_directory(PATH)
    pair.look()
    pair.disks[2].names, pair.disks[1].names = pair.disks[1].names, pair.disks[2].names
    pair.core = Core(2, maximal_isr=(NodeId(2),))
    pair.look()
    pair.disks[2].names = pair.disks[1].names
    pair.core = Core(2, maximal_isr=(NodeId(2),))
    with pytest.raises(InvariantViolated, match="CommittedIsDurable"):
        pair.look()
