"""Logs of many new partitions, on disks that take long to make files: made in many turns of the loop, in the order of
the metadata, whatever these say meanwhile (rule B26)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from strandline.chaos.sim.disk_names import DirNode
from strandline.chaos.sim.disk_port import DiskPort
from strandline.log.checkpoints import PARTITION_METADATA, decode_partition_metadata
from strandline.log.disk import File
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch, TopicIdPartition, TopicPartition
from strandline.replica import partition_set
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append
from strandline.replica.states import PartitionState, ReplicaConfig, Role
from tests.replica.fake_controller import Elr, partition_state
from tests.replica.helpers import batch, running, until
from tests.replica.simulated import PATH, SimCluster

ID, NEW_ID = UUID(int=9), UUID(int=10)
MANY = 400
NAME_US = 400
"""What a name took on a full part of an old ext4."""

TURN_MS = 40.0
"""No turn takes longer: logs are made for 20 ms and the end of one, or what was made last begins to be synced."""

MAKES_IN_A_TURN = 18
"""Logs, of three names each; and of each three files are synced."""


class Scene(SimCluster):
    """Brokers whose disks are slow at making names."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(1, nodes=nodes, config=ReplicaConfig(replica_lag_time_max_ms=30_000))
        self.states = [self._state(number) for number in range(MANY)]

    def _state(self, number: int) -> PartitionState:
        nodes = list(self.brokers)
        replicas = tuple(nodes[(number + i) % len(nodes)] for i in range(len(nodes)))
        return partition_state(topic_id=ID, replicas=replicas, partition=number)

    async def begin(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        await self.until(lambda: all(self.is_registered(broker.node) for broker in self.brokers.values()))
        for machine in self.world.machines.values():
            machine.disk.config.name_us = NAME_US

    def is_registered(self, node: NodeId) -> bool:
        manager, known = self.brokers[node].manager, self.controller.brokers.get(node)
        return manager is not None and known is not None and manager.broker_epoch == known.broker_epoch

    def put(self, *states: PartitionState, deleted: list[TopicIdPartition] | None = None) -> None:
        """One delta."""
        for key in deleted or []:
            self.controller.partitions.pop(key, None)
        for state in states:
            self.controller.partitions[state.topic_id_partition] = state
            self.controller.elr.setdefault(state.topic_id_partition, Elr())
        self.controller.publish(list(states), deleted)

    def count(self, node: int = 1) -> int:
        return len(self.manager(node).hosted())

    def on_disk(self, node: int = 1) -> dict[str, UUID | None]:
        """The directories of partitions, and whose they are."""
        names = self.world.machines[f"n{node}"].disk.names
        root = names.find(PATH)
        assert isinstance(root, DirNode)
        found: dict[str, UUID | None] = {}
        for name, entry in root.entries.items():
            if isinstance(entry, DirNode):
                file = entry.entries.get(PARTITION_METADATA)
                assert file is None or not isinstance(file, DirNode)
                found[name] = None if file is None else decode_partition_metadata(name, file.read(1 << 10, 0))
        return found

    def longest_turn_ms(self) -> float:
        return max(process.longest_turn_us for process in self.world.processes) / 1000

    async def some_are_made(self) -> None:
        await self.until(lambda: 0 < self.count() < MANY / 2, "some are made")


def place(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def test_many_logs_are_made_in_many_turns() -> None:
    """Each is led and followed in the end; no turn of the loop is longer than what one may take."""

    async def scenario(scene: Scene) -> None:
        scene.put(*scene.states)
        await scene.until(lambda: all(scene.count(node) == MANY for node in (1, 2, 3)), "all are hosted")
        await scene.until(lambda: all(scene.manager(node).under_replicated() == 0 for node in (1, 2, 3)))
        for state in scene.states:
            role = {node: scene.manager(node).partition(state.topic_partition) for node in (1, 2, 3)}
            assert {node for node, one in role.items() if one and one.role is Role.LEADER} == {state.leader}
            assert sum(one is not None and one.role is Role.FOLLOWER for one in role.values()) == 2
        assert 0 < scene.longest_turn_ms() <= TURN_MS

    Scene(3).play(scenario)


def test_what_was_made_is_synced_before_more_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks of others wait for the same syncs, and every file that waits for one keeps its descriptor: on a disk that
    syncs slowly the groups stay as small as on a fast one."""
    groups: list[int] = []
    sync = DiskPort.sync

    async def noted(self: DiskPort, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0) -> None:
        groups.append(len(files))
        await sync(self, files, directories, wait_ms)

    async def scenario(scene: Scene) -> None:
        config = scene.world.machines["n1"].disk.config
        config.sync_min_us = config.sync_max_us = 200_000
        monkeypatch.setattr(DiskPort, "sync", noted)
        scene.put(*scene.states)
        await scene.until(lambda: scene.count() == MANY, "all are hosted")
        assert 0 < max(groups) <= 3 * MAKES_IN_A_TURN

    Scene().play(scenario)


def test_deltas_of_one_turn_share_its_time() -> None:
    """Metadata of three hundred topics that come at once are no more than those of one."""

    async def scenario(scene: Scene) -> None:
        def apply(manager: ReplicaManager) -> None:
            for state in scene.states:
                manager.apply([state], [], manager.brokers)

        scene.broker(1).run(apply)
        await scene.until(lambda: scene.count() == MANY, "all are hosted")
        assert 0 < scene.longest_turn_ms() <= TURN_MS

    Scene().play(scenario)


def test_a_log_that_is_not_made_yet_is_refused_for_a_while() -> None:
    """Clients hear what they hear of a broker whose metadata are behind: they try again."""

    async def scenario(scene: Scene) -> None:
        last = scene.states[-1].topic_partition
        outcomes: list[Append] = []

        def append(manager: ReplicaManager) -> None:
            manager.append(last, batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0), 1, outcomes.append)
            manager.append(last, batch(b"w", producer_id=1, producer_epoch=0, base_sequence=1), 1, outcomes.append)

        scene.put(*scene.states)
        await scene.some_are_made()
        assert scene.manager(1).list_offset(last, -1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER  # type: ignore[union-attr]
        scene.broker(1).run(append)
        await scene.until(lambda: len(outcomes) == 2)
        await scene.until(lambda: scene.count() == MANY, "all are hosted")
        scene.broker(1).run(append)
        await scene.until(lambda: len(outcomes) == 4)
        assert [one.error for one in outcomes] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 + [ErrorCode.NONE] * 2

    Scene().play(scenario)


def test_what_changes_before_the_log_is_made_counts_for_it() -> None:
    """Deleted, made again under another id, led in a later epoch, moved away: the log that is made in the end is the
    one that the newest metadata want, and what is not to be here is not."""

    async def scenario(scene: Scene) -> None:
        made, gone, anew, elected, moved = scene.states[0], *scene.states[-4:]
        scene.put(*scene.states)
        await scene.some_are_made()
        assert scene.manager(1).partition(made.topic_partition) is not None
        assert not {str(state.topic_partition) for state in (gone, anew, elected, moved)} & scene.on_disk().keys()
        again = [replace(state, topic_id=NEW_ID) for state in (made, anew)]
        later = replace(elected, leader_epoch=LeaderEpoch(5), partition_epoch=PartitionEpoch(5))
        away = replace(moved, replicas=(NodeId(2),), partition_epoch=PartitionEpoch(1))
        scene.put(deleted=[state.topic_id_partition for state in (made, gone, anew)])
        scene.put(*again, later)
        scene.put(away)
        await scene.until(lambda: scene.count() == MANY - 2, "all are hosted")
        on_disk = scene.on_disk()
        for state in again:
            partition = scene.manager(1).partition(state.topic_partition)
            assert partition is not None
            assert partition.role is Role.LEADER
            assert (partition.state.topic_id, on_disk[str(state.topic_partition)]) == (NEW_ID, NEW_ID)
        partition = scene.manager(1).partition(later.topic_partition)
        assert partition is not None
        assert partition.log is not None
        assert (partition.role, partition.log.latest_epoch) == (Role.LEADER, 5)
        for state in (gone, moved):
            assert scene.manager(1).partition(state.topic_partition) is None
            assert str(state.topic_partition) not in on_disk
        await scene.world.sleep_ms(1_000)
        assert len(scene.on_disk()) == MANY - 2
        assert scene.longest_turn_ms() <= TURN_MS

    Scene().play(scenario)


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_a_start_makes_what_an_unclean_stop_left_unmade(how: str) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put(*scene.states)
        await scene.some_are_made()
        getattr(scene.world, how)("n1")
        scene.broker(1).start()
        await scene.until(lambda: scene.broker(1).manager is not None and scene.count() == MANY, "all are hosted")
        assert set(scene.on_disk().values()) == {ID}
        partitions = [scene.manager(1).partition(place(number)) for number in range(MANY)]
        assert all(one is not None and one.role is Role.LEADER for one in partitions)

    Scene().play(scenario)


def test_nothing_is_made_once_the_replicas_are_closed() -> None:
    """The clean-shutdown marker is written last: nothing may come after it. The next start makes the rest."""

    async def scenario(scene: Scene) -> None:
        closed: list[asyncio.Task[None]] = []

        def close(manager: ReplicaManager) -> None:
            closed.append(asyncio.get_running_loop().create_task(manager.close(True)))

        scene.put(*scene.states)
        await scene.some_are_made()
        scene.broker(1).run(close)
        await scene.until(lambda: closed and closed[0].done())
        made = len(scene.on_disk())
        assert made < MANY
        scene.put(replace(scene.states[-1], partition_epoch=PartitionEpoch(1)))
        await scene.world.sleep_ms(1_000)
        assert len(scene.on_disk()) == made

    Scene().play(scenario)


def test_many_logs_are_deleted_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their names nor the syncs of these keep the loop: one sync, off the loop, serves all that were taken out
    since the one before."""
    blocking: list[str] = []
    sync_dir = DiskPort.sync_dir

    def noted(self: DiskPort, path: str) -> None:
        blocking.append(path)
        sync_dir(self, path)

    async def scenario(scene: Scene) -> None:
        scene.put(*scene.states)
        await scene.until(lambda: scene.count() == MANY, "all are hosted")
        await scene.world.sleep_ms(100)
        process = scene.world.processes[-1]
        process.longest_turn_us = 0
        monkeypatch.setattr(DiskPort, "sync_dir", noted)
        scene.put(deleted=[state.topic_id_partition for state in scene.states])
        await scene.until(lambda: scene.count() == 0)
        await scene.until(lambda: not scene.on_disk(), "all are deleted", within_ms=60_000)
        assert 0 < process.longest_turn_us / 1000 <= TURN_MS
        assert len(blocking) < MANY / 10

    Scene().play(scenario)


def test_what_is_not_made_after_all_lies_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where new replicas will lie is noted before their logs are made; of those that are never made it is forgotten."""

    async def story() -> None:
        async with running(tmp_path, nodes=1, directories=2) as cluster:
            broker = cluster[1]
            states = [partition_state(topic_id=ID, replicas=(1,), partition=number) for number in range(20)]
            cluster.controller.publish(states)
            await until(lambda: len(broker.replicas.hosted()) >= 3, "some are made")
            noted = broker.log_dirs._places.replicas
            made = {state.topic_partition for state in states if broker.replicas.partition(state.topic_partition)}
            assert noted.keys() - made
            cluster.controller.publish([], [state.topic_id_partition for state in states])
            await until(lambda: not broker.replicas._set._deletions, "all are deleted")
            assert not broker.replicas.hosted()
            assert not noted

    monkeypatch.setattr(partition_set, "MAKING_MS", 0.0)  # each turn makes one
    asyncio.run(story())
