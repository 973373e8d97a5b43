"""Schedule 80, on real disks: a follower heals what has rotted in its log, as far as its leader has it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from strandline.log.batch import iter_batches
from strandline.proto.error_codes import ErrorCode
from strandline.proto.marks import counts
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import ReadOutcome
from tests.replica.helpers import TP, Broker, Cluster, batch, running, until

VALUES = [b"%d-" % number + b"x" * 300 for number in range(8)]


async def filled(cluster: Cluster, count: int = len(VALUES)) -> None:
    cluster.create()
    for value in VALUES[:count]:
        assert (await cluster[1].append(TP, batch(value))).error is ErrorCode.NONE


def flip(broker: Broker, number: int, back: int = 20) -> None:
    """A byte of one of its batches is another."""
    [segment] = broker.log_dir.logs[TP].segments
    path = Path(segment.file.path)
    content = bytearray(path.read_bytes())
    sizes = [len(view) for _, view in iter_batches(bytes(content[: segment.size]))]
    content[sum(sizes[: number + 1]) - back] ^= 0x10
    path.write_bytes(content)


def read(replicas: ReplicaManager, offset: int) -> ReadOutcome:
    found = replicas.read(TP, offset, 1, any_replica=True)
    assert found is not None
    return found


def rotten(broker: Broker) -> bool:
    [status] = broker.replicas.hosted()
    return status.rotten


def test_a_follower_is_healed_and_follows_on(tmp_path: Path) -> None:
    """Two holes, one after the other, and records that come meanwhile; nobody reads any of the rot."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await filled(cluster)
            follower = cluster[3]
            whole = cluster[1].log_bytes()
            await until(lambda: follower.log_bytes() == whole)
            flip(follower, 2)
            flip(follower, 5)
            assert read(follower.replicas, 2).error is ErrorCode.CORRUPT_MESSAGE
            assert rotten(follower)
            assert read(follower.replicas, 3).error is ErrorCode.NONE
            await cluster[1].append(TP, batch(b"meanwhile"))
            await until(lambda: follower.log_bytes() == cluster[1].log_bytes(), "healed, and at the end of the log")
            await until(lambda: not rotten(follower), "durable, and read again")
            assert follower.replicas.counters.mended_holes == 2
            assert read(follower.replicas, 2).error is ErrorCode.NONE

    asyncio.run(scenario())


def test_what_the_leader_has_lost_too_stays_lost(tmp_path: Path) -> None:
    """Both say so, nobody gets it, and everything else goes on: what follows is replicated, acknowledged and read."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await filled(cluster)
            leader, follower = cluster[1], cluster[3]
            await until(lambda: follower.log_bytes() == leader.log_bytes())
            flip(leader, 4)
            flip(follower, 4)
            before = counts().get("rot-stays", 0)
            assert read(follower.replicas, 4).error is ErrorCode.CORRUPT_MESSAGE
            await until(lambda: counts().get("rot-stays", 0) > before, "the leader cannot read it either")
            await until(lambda: rotten(leader), "so it has found its own")
            assert (await leader.append(TP, batch(b"more"))).error is ErrorCode.NONE
            await until(lambda: follower.log_dir.logs[TP].log_end_offset == len(VALUES) + 1)
            for broker in (leader, follower):
                for offset in range(len(VALUES) + 1):
                    code = ErrorCode.CORRUPT_MESSAGE if offset == 4 else ErrorCode.NONE
                    assert read(broker.replicas, offset).error is code
            assert rotten(follower)

    asyncio.run(scenario())


def test_a_large_batch_is_healed_in_pieces(tmp_path: Path) -> None:
    """Schedule 54: a batch of more than a chunk goes in pieces, into a hole too."""

    async def scenario() -> None:
        async with running(tmp_path, fetch_chunk_bytes=1_000) as cluster:
            await filled(cluster, 1)
            assert (await cluster[1].append(TP, batch(b"y" * 30_000))).error is ErrorCode.NONE
            assert (await cluster[1].append(TP, batch(b"z"))).error is ErrorCode.NONE
            follower = cluster[3]
            await until(lambda: follower.log_bytes() == cluster[1].log_bytes())
            flip(follower, 1, 9_000)
            assert read(follower.replicas, 1).error is ErrorCode.CORRUPT_MESSAGE
            await until(lambda: follower.log_bytes() == cluster[1].log_bytes(), "healed")
            await until(lambda: not rotten(follower))

    asyncio.run(scenario())
