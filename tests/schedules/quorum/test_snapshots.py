"""Snapshots that must be whole, durable and true: schedules 29 and 31, and rule A10."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from quorum_trial import Node, Trial

from strandline.chaos.sim.ports import Ports
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.metadata.table import decode_record, encode_record
from strandline.controller.quorum.api import CommittedBatch, QuorumConfig
from strandline.controller.quorum.snapshots import SnapshotStore, encode_snapshot
from strandline.controller.raft.messages import OffsetAndEpoch
from strandline.proto.errors import FatalError
from tests.controller.conftest import MachineCluster
from tests.schedules.helpers import schedule
from tests.stage import OneMachine

SMALL = QuorumConfig(snapshot_max_new_record_bytes=600, log_segment_bytes=600, snapshot_chunk_bytes=100)

TAKEN = OffsetAndEpoch(100, 3)
STATE = [b"record %d" % number + b"x" * 50 for number in range(40)]


def snapshots(trial: Trial, number: int) -> list[str]:
    """The snapshot files of a node, oldest first."""
    files = trial.world.machines[f"n{number}"].disk.files()
    return sorted(name for name in files if name.endswith(".checkpoint"))


async def commit_many(trial: Trial, count: int, *, first: int = 0) -> list[bytes]:
    values = [b"value %04d" % number for number in range(first, first + count)]
    for value in values:
        await trial.commit(value)
    return values


@schedule(
    29,
    rule="A13: what is applied and up to where are one",
    mutant=("snapshot-named-behind-its-state", "snapshot-named-ahead-of-its-state"),
)
def test_29_the_applied_offset_and_the_state_are_one() -> None:
    """etcd 3.5 (PR 13967): the applied index and the state were saved one after the other; a crash in between applies
    an entry twice, or never. Here a snapshot is taken after any batch, and a node starts from it."""
    batches = history()
    whole = ImagePublisher("test-cluster")
    for taken_after, batch in enumerate(batches, 1):
        whole.handle_commit(batch)
        taken = whole.take_snapshot()
        if taken is None:
            continue
        end_offset, epoch, records = taken
        restarted = ImagePublisher("test-cluster")
        restarted.handle_load_snapshot(end_offset, epoch, records)
        for later in batches:
            if later.base_offset >= end_offset:
                restarted.handle_commit(later)
        reference = ImagePublisher("test-cluster")
        for one in batches:
            reference.handle_commit(one)
        assert content(restarted.image) == content(reference.image), f"a restart from batch {taken_after} diverged"


def history() -> list[CommittedBatch]:
    """What a controller decided in a small cluster's life, as batches of the metadata log."""
    cluster = MachineCluster(3)
    ends = [len(cluster.log)]
    cluster.on_append = lambda _: ends.append(len(cluster.log))
    cluster.create("a")
    cluster.alter_isr([1, 2], "a")
    cluster.fence(2)
    cluster.create("b", [[1, 3], [3, 1]])
    cluster.start(2)
    cluster.set_config("retention.ms", "1000", "b")
    return [
        CommittedBatch(begin, end - 1, 1, 0, [encode_record(record) for record in cluster.log[begin:end]])
        for begin, end in pairwise([0, *ends])
    ]


def content(image: MetadataImage) -> tuple[object, ...]:
    return image.offset, dict(image.brokers), dict(image.topics), dict(image.configs), image.next_producer_id


@schedule(31, rule="A10: a damaged snapshot is refused", mutant="snapshot-with-a-flipped-bit-is-loaded")
def test_31_a_bit_flips_in_a_minoritys_snapshot() -> None:
    """nats-server#7556: the node with the damage becomes leader, and deletes what its snapshots do not have. It must
    refuse to serve; the others go on."""
    trial = Trial(config=SMALL)

    async def test(trial: Trial) -> None:
        trial.start()
        values = await commit_many(trial, 60)
        leader = await trial.elect()
        victim = next(node.number for node in trial.nodes.values() if node is not leader)
        await trial.until(lambda: snapshots(trial, victim) and trial.nodes[victim].values == values)
        trial.kill(victim)
        disk = trial.world.machines[f"n{victim}"].disk
        for path in snapshots(trial, victim):
            disk.flip_bit(path, disk.files()[path].rindex(b"value 00") + 7, 1)
        trial.start(victim)
        node: Node = trial.nodes[victim]
        await trial.until(lambda: node.refused is not None or node.values)
        for value in node.values:
            assert value in values, f"it serves {value!r}, which nobody wrote"
        assert node.refused is not None
        assert "damaged" in str(node.refused)
        await trial.commit(b"without it")

    trial.play(test)


def test_31_a_bit_flips_in_the_latest_snapshot_alone() -> None:
    """The one before it is kept, and the log reaches back to that: the damaged one is dropped, nothing is missing."""
    trial = Trial(config=SMALL)

    async def test(trial: Trial) -> None:
        trial.start()
        values = await commit_many(trial, 60)
        leader = await trial.elect()
        victim = next(node.number for node in trial.nodes.values() if node is not leader)
        await trial.until(lambda: len(snapshots(trial, victim)) == 2 and trial.nodes[victim].values == values)
        trial.kill(victim)
        disk = trial.world.machines[f"n{victim}"].disk
        latest = snapshots(trial, victim)[-1]
        disk.flip_bit(latest, disk.files()[latest].rindex(b"value 00") + 7, 1)
        trial.start(victim)
        await trial.until(lambda: trial.nodes[victim].values == values)
        assert latest not in snapshots(trial, victim)
        await trial.commit(b"with it")
        await trial.until(lambda: trial.nodes[victim].values == [*values, b"with it"])

    trial.play(test)


def test_31_rot_in_what_was_replayed_reaches_no_other_node() -> None:
    """A bit of the leader's log turns over behind what it has replayed. A follower that lacks that part is sent nothing
    rotten: the leader notices before it sends, stops, and another leads."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"first")
        behind = next(node.number for node in trial.nodes.values() if node is not leader)
        await trial.until(lambda: all(node.values == [b"first"] for node in trial.nodes.values()))
        trial.kill(behind)
        await trial.commit(b"second")
        disk = trial.world.machines[f"n{leader.number}"].disk
        (path,) = (name for name in disk.files() if name.endswith(".log"))
        disk.flip_bit(path, disk.files()[path].rindex(b"second") + 2, 1)
        trial.start(behind)
        await trial.until(lambda: leader.fatal)
        assert "CRC" in str(leader.fatal[0])
        assert "move its __cluster_metadata-0 directory away" in str(leader.fatal[0])
        trial.kill(leader.number)
        await trial.until(lambda: trial.nodes[behind].values == [b"first", b"second"])

    trial.play(test)


async def started_with_a_flipped_bit(trial: Trial, victim: int) -> Node:
    """A bit flips in the middle of the metadata log of a node that is down; the node, once its start has ended."""
    disk = trial.world.machines[f"n{victim}"].disk
    (path,) = (name for name in disk.files() if name.endswith(".log"))
    disk.flip_bit(path, disk.files()[path].rindex(b"value 0015") + 7, 1)
    trial.start(victim)
    node = trial.nodes[victim]
    await trial.until(lambda: node.refused is not None or node.values)
    return node


@schedule(31, rule="E5: damage in a voter's log is no torn tail", mutant="killed-is-like-a-power-cut")
def test_31_a_bit_flips_in_a_minoritys_log() -> None:
    """The same in its metadata log, in what it has synced and acknowledged: cut there it would vote for a leader that
    lacks what is committed. It refuses to serve, and the others go on."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        values = await commit_many(trial, 30)
        leader = await trial.elect()
        victim = next(node.number for node in trial.nodes.values() if node is not leader)
        await trial.until(lambda: trial.nodes[victim].values == values)
        trial.kill(victim)
        node = await started_with_a_flipped_bit(trial, victim)
        assert node.refused is not None, "it serves, and votes, with a log that ends before what it acknowledged"
        assert node.values == []
        await trial.commit(b"without it")

    trial.play(test)


def test_e_what_a_voter_synced_half_a_minute_ago_is_not_cut_silently() -> None:
    """E: after a power cut a bad batch may be one that was never synced. What was, is vouched for by then, also where
    nothing is written any more: damage there is refused."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        values = await commit_many(trial, 30)
        victim = next(number for number, node in trial.nodes.items() if node.values == values)
        await trial.world.sleep_ms(31_000)
        trial.power_cut(victim)
        node = await started_with_a_flipped_bit(trial, victim)
        assert node.refused is not None, "it votes with a log that ends before what it acknowledged"

    trial.play(test)


@schedule(31, rule="A10: nothing is deleted on damaged metadata", mutant="metadata-that-cannot-be-is-loaded")
def test_31_nothing_is_deleted_on_damaged_metadata() -> None:
    """The other half: a snapshot in which partitions are missing reads as if they had been deleted; nobody who holds
    their data may hear that."""
    cluster = MachineCluster(3)
    cluster.create("kept", [[1, 2, 3], [2, 3, 1]])
    publisher = ImagePublisher("test-cluster")
    publisher.handle_commit(
        CommittedBatch(0, len(cluster.log) - 1, 1, 0, [encode_record(record) for record in cluster.log])
    )
    taken = publisher.take_snapshot()
    assert taken is not None
    end_offset, epoch, made = taken
    records = list(made)
    damaged = [record for record in records if not isinstance(decode_record(record), PartitionRecord)]
    assert len(damaged) == len(records) - 2
    lost: list[MetadataImage] = []
    publisher.subscribe(lambda delta, image: lost.append(image) if not image.topics["kept"].partitions else None)
    with pytest.raises(FatalError):
        publisher.handle_load_snapshot(end_offset + 1, epoch, damaged)
    assert lost == []
    assert len(publisher.image.topics["kept"].partitions) == 2


Step = Callable[[SnapshotStore], Awaitable[None]]


def kept_over_a_power_cut(seed: int, step: Step) -> list[bytes] | None:
    """Do `step` to a store of snapshots, cut the power when it is done; what a restart loads, None for nothing."""
    found: list[list[bytes] | None] = []

    async def before(ports: Ports) -> None:
        ports.disk.mkdir("/data")
        ports.disk.sync_dir("/")
        await step(SnapshotStore(ports.disk, "/data"))

    async def after(ports: Ports) -> None:
        store = SnapshotStore(ports.disk, "/data")
        found.append(store.load(TAKEN).records if store.ids == [TAKEN] else None)

    async def scenario(machine: OneMachine) -> None:
        assert await machine.live(before)
        machine.power_cut("n1")
        await machine.live(after)

    OneMachine(seed).play(scenario)
    return found[0] if found else None


def test_a10_an_own_snapshot_survives_the_loss_of_power() -> None:
    """Rule A10: synced, renamed, its name synced: from then on the log below it is deleted."""

    async def write(store: SnapshotStore) -> None:
        await store.write(TAKEN, STATE, timestamp_ms=0)

    for seed in range(10):
        assert kept_over_a_power_cut(seed, write) == STATE, seed


def test_a10_a_fetched_snapshot_survives_the_loss_of_power() -> None:
    """Rule A10, KAFKA-15312: frozen, and then it replaces the whole log."""
    data = encode_snapshot(STATE, epoch=TAKEN.epoch, timestamp_ms=0)

    async def install(store: SnapshotStore) -> None:
        store.store_chunk(TAKEN, 0, data[:700])
        store.store_chunk(TAKEN, 700, data[700:])
        assert store.fetched(TAKEN).records == STATE
        store.install(TAKEN)

    for seed in range(10):
        assert kept_over_a_power_cut(seed, install) == STATE, seed


async def far_behind(trial: Trial) -> tuple[int, list[bytes]]:
    """A node that is down, and for whom only a snapshot can help; and what is committed."""
    trial.start()
    await trial.commit(b"first")
    leader = await trial.elect()
    behind = next(node.number for node in trial.nodes.values() if node is not leader)
    await trial.until(lambda: trial.nodes[behind].values)
    trial.kill(behind)
    values = await commit_many(trial, 80)
    return behind, [b"first", *values]


def test_a10_a_node_far_behind_loads_the_snapshot_and_goes_on() -> None:
    """Rule A10: freeze, truncate fully, reload; then records again, from the snapshot's end."""
    trial = Trial(config=SMALL)

    async def test(trial: Trial) -> None:
        behind, values = await far_behind(trial)
        trial.start(behind)
        node = trial.nodes[behind]
        await trial.until(lambda: node.values == values, within_ms=5000)
        values += await commit_many(trial, 5, first=500)
        await trial.until(lambda: node.values == values, within_ms=5000)
        assert node.fatal == []

    trial.play(test)


def test_a10_the_log_reaches_back_to_a_snapshot() -> None:
    """Rule A10 (KAFKA-14238): while a leader with a slow disk writes a snapshot the others commit on; what it deletes
    of its log then is in a snapshot that it keeps."""
    trial = Trial(config=SMALL)

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"first")
        disk = trial.world.machines[f"n{leader.number}"].disk
        disk.config.slow_factor = 100.0
        values = [b"first", *(b"value %04d" % number for number in range(100))]
        for value in values[1:]:
            trial.append(leader, value)
            await trial.world.sleep_ms(4)
            if not any(name.endswith("0000.log") for name in disk.files()):
                break  # the first segment is gone
        else:
            pytest.fail("nothing was deleted")
        values = values[: values.index(value) + 1]
        await trial.until(lambda: values == leader.values)
        for _ in range(50):  # segment by segment, each durably: whatever it has begun to delete goes
            await trial.world.sleep_ms(100)
            newest = snapshots(trial, leader.number)[-1].rpartition("/")[2]
            first = min(name.rpartition("/")[2] for name in disk.files() if name.endswith(".log"))
            assert int(first.partition(".")[0]) <= int(newest.partition("-")[0]), "records that nothing holds"
        trial.kill(*trial.nodes)
        disk.config.slow_factor = 1.0
        trial.start()
        await trial.until(lambda: all(node.values == values or node.refused for node in trial.nodes.values()))
        assert [node.refused for node in trial.nodes.values()] == [None] * 3

    trial.play(test)
