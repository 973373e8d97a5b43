"""Replicas whose files change under open and aborted transactions, on real disks: moved to another directory, healed,
restarted (rule C13)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from strandline.proto.error_codes import ErrorCode
from strandline.replica.partition import Append
from strandline.replica.states import ReadOutcome
from tests.replica.helpers import TP, Broker, Cluster, batch, running, until
from tests.replica.test_healing import flip, rotten
from tests.replica.test_moving import moved, other
from tests.replica.transactional import Transactional, shown

ABORTED, OPEN = 7, 8


async def plain(leader: Broker, value: bytes) -> None:
    assert (await leader.append(TP, batch(value))).error is ErrorCode.NONE


async def begin(leader: Broker, producer: Transactional, *values: bytes) -> None:
    answered: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
    producer.write(leader.replicas, answered.set_result, *values)
    assert (await answered).error is ErrorCode.NONE


async def finish(leader: Broker, producer: Transactional, *, commit: bool) -> None:
    answered: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
    leader.replicas.append_marker(TP, producer.marker(commit=commit), 1, answered.set_result)
    assert (await answered).error is ErrorCode.NONE


def read(broker: Broker) -> ReadOutcome:
    outcome = broker.replicas.read(TP, 0, 1 << 20, read_committed=True, any_replica=True)
    assert outcome is not None
    return outcome


async def committed_to(broker: Broker, offset: int) -> None:
    def reached() -> bool:
        hosted = broker.replicas.hosted()
        return bool(hosted) and hosted[0].high_watermark == offset

    await until(reached, f"the high watermark is {offset}")


async def filled(cluster: Cluster) -> tuple[Transactional, Transactional]:
    """Offsets: 0 aborted, 1 its marker, 2 "a", 3 of an open transaction, 4 "b"; followers know it."""
    leader, aborted, still_open = cluster[1], Transactional(ABORTED), Transactional(OPEN)
    await begin(leader, aborted, b"aborted")
    await finish(leader, aborted, commit=False)
    await plain(leader, b"a")
    await begin(leader, still_open, b"open")
    await plain(leader, b"b")
    for broker in cluster.brokers.values():
        await committed_to(broker, 5)
        assert (shown(read(broker)), read(broker).last_stable_offset) == ([b"a"], 3)
    return aborted, still_open


def test_a_replica_moves_to_another_directory_in_mid_transaction(tmp_path: Path) -> None:
    """KIP-113: what is open stays open, what was aborted is known, on the leader and on a follower that moved. So it is
    after a restart."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2, directories=2) as cluster:
            cluster.create()
            _, still_open = await filled(cluster)
            for broker in cluster.brokers.values():
                there = other(broker)
                broker.replicas.mover.ask(TP, there)
                await moved(broker, there)
                assert (shown(read(broker)), read(broker).last_stable_offset) == ([b"a"], 3)
            await finish(cluster[1], still_open, commit=False)
            for broker in cluster.brokers.values():
                await committed_to(broker, 6)
                assert (shown(read(broker)), read(broker).last_stable_offset) == ([b"a", b"b"], 6)
            await cluster[2].stop()
            await cluster[2].start()
            await committed_to(cluster[2], 6)
            await until(lambda: read(cluster[2]).error is ErrorCode.NONE, "it follows")
            assert (shown(read(cluster[2])), read(cluster[2]).last_stable_offset) == ([b"a", b"b"], 6)

    asyncio.run(scenario())


def test_rot_in_a_transaction_is_healed(tmp_path: Path) -> None:
    """Records of the aborted one, its marker and records of the open one have rotted on a follower: nothing is shown
    that was not, before it is healed and after."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            _, still_open = await filled(cluster)
            follower = cluster[3]
            for number in (0, 1, 3):
                flip(follower, number, back=3)
            outcome = read(follower)
            assert outcome.error is ErrorCode.CORRUPT_MESSAGE
            await until(lambda: follower.replicas.counters.mended_holes >= 1)
            await until(lambda: follower.log_bytes() == cluster[1].log_bytes(), "it is healed")
            await until(lambda: not rotten(follower), "and durable")
            assert (shown(read(follower)), read(follower).last_stable_offset) == ([b"a"], 3)
            await finish(cluster[1], still_open, commit=True)
            await committed_to(follower, 6)
            assert (shown(read(follower)), read(follower).last_stable_offset) == ([b"a", b"open", b"b"], 6)

    asyncio.run(scenario())


def test_a_restart_in_mid_transaction_forgets_nothing(tmp_path: Path) -> None:
    """All stop, cleanly or not, with one transaction open and one aborted; the marker comes to who leads then."""

    async def scenario(clean: bool) -> None:
        async with running(tmp_path / str(clean), nodes=2) as cluster:
            cluster.create(min_insync_replicas=1)
            _, still_open = await filled(cluster)
            for broker in cluster.brokers.values():
                await broker.stop(clean=clean)
            for broker in cluster.brokers.values():
                await broker.start(clean=True)
            await until(lambda: cluster.leader().replicas.hosted()[0].high_watermark == 5)
            leader = cluster.leader()
            await until(lambda: read(leader).error is ErrorCode.NONE)
            assert (shown(read(leader)), read(leader).last_stable_offset) == ([b"a"], 3)
            await finish(leader, still_open, commit=False)
            assert (shown(read(leader)), read(leader).last_stable_offset) == ([b"a", b"b"], 6)

    for clean in (True, False):
        asyncio.run(scenario(clean))
