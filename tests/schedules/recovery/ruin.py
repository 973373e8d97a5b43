"""A cluster whose machines all crash: what is done to their disks meanwhile, and who must lead afterwards."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self, TypeVar

import pytest

from strandline.chaos.checkers.stored import stored_headers
from strandline.chaos.cluster import DATA
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_names import DirNode, Names
from strandline.client.aio import Admin
from strandline.client.errors import UnknownTopic
from strandline.client.types import NewTopic
from strandline.controller.metadata.records import PartitionRecord
from strandline.log.batch import HEADER_SIZE
from strandline.log.checkpoints import CLEAN_SHUTDOWN, copy_of
from strandline.log.incarnations import INCARNATIONS
from strandline.proto.ids import TopicPartition
from strandline.replica.partition import Partition
from strandline.replica.states import Role
from tests.chaos.site import Site
from tests.stage import READY_MS

T = TypeVar("T")

TP = TopicPartition("t", 0)
DIRECTORY = f"{DATA}/{TP}"
CHECKPOINT_MS = 6_000
"""Longer than the interval at which recovery points and high watermarks are written down."""

both_layouts = pytest.mark.parametrize("split", [False, True], ids=["combined", "split"])


class Ruin(Site):
    """Three replicas of t-0, checked as events run."""

    def __init__(
        self, seed: int, split: bool = False, *, settings: dict[str, str] | None = None, directories: int = 1
    ) -> None:
        super().__init__(seed, split, settings=settings, directories=directories)
        self.world.loop.observe = self.cluster.observe
        self.world.loop.observe_every = 16
        self._configs: dict[str, str] = {}

    def play(self, scenario: Callable[[Self], Awaitable[T]], **configs: str) -> T:
        """The topic is there, with these configs, and every replica in sync before the scenario begins."""
        self._configs = configs
        return super().play(scenario)

    async def begin(self) -> None:
        await super().begin()
        await self.create("t", **self._configs)

    # Looking

    @property
    def brokers(self) -> list[str]:
        return list(self.cluster.brokers)

    def disk(self, name: str) -> SimDisk:
        return self.world.machines[name].disk

    def partition(self) -> PartitionRecord:
        image = self.cluster.newest_image()
        assert image is not None
        return image.topics["t"].partitions[0]

    @property
    def leader_name(self) -> str | None:
        leader = self.partition().leader
        return f"n{leader}" if leader >= 0 else None

    def others(self, *names: str) -> list[str]:
        return [name for name in self.brokers if name not in names]

    def role(self, name: str) -> Role:
        partition = self._replica(name)
        return partition.role

    def _replica(self, name: str) -> Partition:
        broker = self.cluster.live[name].node.broker
        assert broker is not None
        found = broker.replicas.partition(TP)
        assert found is not None, f"{name} does not host {TP}"
        return found

    # What happens

    async def write(self, first: int, last: int) -> None:
        """Values first..last-1, each acknowledged by every replica in sync."""
        before = len(self.acked)
        await self.send(self.cluster.bootstrap, "t", first, last)
        assert len(self.acked) == before + last - first, self.refused

    async def nothing_is_lost(self) -> None:
        """Whoever reads now finds what was acknowledged, where it was; every replica has it."""
        values = await self.read("t")
        assert [values[offset] for offset in self.acked.values()] == list(self.acked)
        await self.cluster.wait_in_sync(READY_MS)
        self.cluster.inspect()

    def kill_all(self) -> None:
        """kill -9 of every node."""
        self.kill(*self.cluster.names)

    def cut_power_everywhere(self) -> None:
        """Every machine loses power at once."""
        self.power_cut(*self.cluster.names)

    def start(self, *names: str) -> None:
        for name in names:
            self.cluster.start(name)

    def start_controllers(self) -> None:
        """In the split layout they are machines of their own."""
        self.start(*(name for name in self.cluster.names if name not in self.cluster.brokers))

    def rot_newest(self, name: str) -> None:
        """A bit turns over in the newest batch of a machine's log: recovery cuts it like a torn tail."""
        self.rot(name, -1)

    def rot(self, name: str, number: int) -> None:
        """A bit turns over in one of the batches, by its place in the log."""
        batches = list(stored_headers(self.disk(name), DIRECTORY))
        header, place = batches[number]
        self.disk(name).flip_bit(self._newest_segment(name), place.position + header.size - 1)

    def tear(self, name: str) -> None:
        """Behind the last batch stands the beginning of another, as a write leaves it that was not synced: this honest
        log has to be cut, too."""
        batches = list(stored_headers(self.disk(name), DIRECTORY))
        header, place = batches[-1]
        place.file.write(memoryview(place.file.read(HEADER_SIZE, place.position)), place.position + header.size)

    def lose_newest(self, name: str, count: int, *, cut: bool = False) -> None:
        """A dishonest disk gives back zeros for the newest batches, or a file that ends before them."""
        position = list(stored_headers(self.disk(name), DIRECTORY))[-count][1].position
        self.disk(name).lose_tail(self._newest_segment(name), position, cut=cut)

    def _newest_segment(self, name: str) -> str:
        return max(path for path in self.disk(name).files() if path.startswith(DIRECTORY) and path.endswith(".log"))

    def lose_directory(self, name: str) -> None:
        """Of the partition, by hand, while nothing runs there."""
        self.disk(name).remove_directory(DIRECTORY)

    def snapshot(self, name: str) -> Names:
        """A copy of all files of a machine on which nothing runs."""
        return copy.deepcopy(self.disk(name).names)

    def put_back(self, name: str, copied: Names) -> None:
        """The copy takes the place of what was there."""
        self.disk(name).names = copy.deepcopy(copied)

    def forget_lives(self, *names: str) -> None:
        """What the build that ran there leaves when it is killed, if it notes no lives (commit 6ff0c29)."""
        for name in names:
            directory = self.disk(name).names.find(DATA)
            assert isinstance(directory, DirNode)
            for gone in (INCARNATIONS, copy_of(INCARNATIONS), CLEAN_SHUTDOWN):
                directory.entries.pop(gone, None)

    async def remake(self, topic: str) -> None:
        """Delete a topic and make another of its name; nobody waits for its replicas."""

        async def work(admin: Admin) -> None:
            with suppress(UnknownTopic):  # a call that was answered late was sent again, and had been carried out
                await admin.delete_topics([topic])
            await admin.create_topics([NewTopic(topic, 1, 3)])

        await self.admin(work)

    async def preview(self) -> str:
        """What an operator is told before an unclean election."""
        [election] = await self.admin(lambda admin: admin.elect_leaders([("t", 0)], unclean=True, dry_run=True))
        return election.message

    async def fall_in_turn(self, *names: str) -> None:
        """One after the other is killed, and fenced before the next one dies: who is eligible in the end is known."""
        for name in names:
            self.kill(name)
            await self.until(lambda name=name: int(name[1:]) not in self.partition().isr, f"{name} is fenced")  # type: ignore[misc]

    # Ends

    async def nobody_leads(self, for_ms: float = 3_000) -> None:
        """Nobody is elected for so long."""
        deadline = self.world.now_ms + for_ms
        while self.world.now_ms < deadline:
            assert self.leader_name is None, f"{self.leader_name} leads"
            await self.world.sleep_ms(20)
