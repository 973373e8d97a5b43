"""Replicas that move between the log directories of their broker (KIP-113), while they are written."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strandline.log.disk import DiskError
from strandline.log.partition_log import PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.replica import moving
from tests.replica.helpers import TP, Broker, Cluster, batch, running, until


def log_of(broker: Broker) -> PartitionLog:
    """Of the partition."""
    partition = broker.replicas.partition(TP)
    assert partition is not None
    assert partition.log is not None
    return partition.log


def other(broker: Broker) -> str:
    """The directory where the replica is not."""
    return next(path for path in broker.paths if path != log_of(broker).home)


def holders(broker: Broker) -> list[str]:
    """The directories that have one of its name, or of a copy."""
    return [path for path in broker.paths for name in os.listdir(path) if name.startswith(f"{TP}")]


async def moved(broker: Broker, path: str) -> None:
    """It is there, and nowhere else."""
    await until(lambda: TP not in broker.replicas.mover.moves, "the move ends")
    assert log_of(broker).home == path
    await until(lambda: holders(broker) == [path], "the old directory is deleted")


@asynccontextmanager
async def led(tmp_path: Path, nodes: int = 2, **config: object) -> AsyncIterator[tuple[Cluster, Broker]]:
    """A partition with twenty committed batches."""
    async with running(tmp_path, nodes, directories=2, **config) as cluster:
        cluster.create()
        leader = cluster.leader()
        for i in range(20):
            done = await leader.append(TP, batch(b"%d" % i, 5))
            assert done.error is ErrorCode.NONE
        yield cluster, leader


def test_replicas_move_while_the_leader_takes_records(tmp_path: Path) -> None:
    """The leader's own and a follower's, there and back: every ack counts, nobody starts a new leader epoch, and
    durable offsets never go back."""

    async def main() -> None:
        async with led(tmp_path) as (cluster, leader):
            follower = next(one for one in cluster.brokers.values() if one is not leader)
            epoch = cluster.controller.state(TP).leader_epoch
            written, ended = 100, False

            async def produce() -> None:
                nonlocal written
                while not ended:
                    done = await leader.append(TP, batch(b"more", 3))
                    assert done.error is ErrorCode.NONE
                    assert done.base_offset == written
                    written += 3
                    assert all(log_of(one).durable_offset >= written for one in (leader, follower))

            producing = asyncio.create_task(produce())
            for broker in (leader, follower, leader, follower):
                path = other(broker)
                broker.replicas.mover.ask(TP, path)
                await moved(broker, path)
            ended = True
            await producing
            assert cluster.controller.state(TP).leader_epoch == epoch
            assert set(cluster.controller.state(TP).isr) == {1, 2}
            assert not leader.fatal
            assert not follower.fatal
            await until(lambda: log_of(follower).log_end_offset == written)
            files = [
                b"".join(Path(segment.file.path).read_bytes()[: segment.size] for segment in log_of(one).segments)
                for one in (leader, follower)
            ]
            assert files[0] == files[1]
            for broker in (leader, follower):
                await broker.stop()
                await broker.start()
            await until(lambda: log_of(leader).log_end_offset == written)

    asyncio.run(main())


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Kafka's codes."""

    async def main() -> None:
        async with led(tmp_path, 1) as (_, broker):
            ask, there = broker.replicas.mover.ask, other(broker)

            def code(tp: TopicPartition, path: str) -> ErrorCode:
                with pytest.raises(KafkaError) as refused:
                    ask(tp, path)
                return refused.value.code

            assert code(TP, "/nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
            assert code(TopicPartition("x", 0), there) is ErrorCode.REPLICA_NOT_AVAILABLE
            assert code(TopicPartition("__cluster_metadata", 0), there) is ErrorCode.REPLICA_NOT_AVAILABLE
            directory = broker.replicas.directories.at(there)
            assert directory is not None
            directory.log_dir.full = True
            assert code(TP, there) is ErrorCode.KAFKA_STORAGE_ERROR
            directory.log_dir.full = False
            os.mkdir(f"{there}/{TP}")
            assert code(TP, there) is ErrorCode.KAFKA_STORAGE_ERROR
            os.rmdir(f"{there}/{TP}")
            broker.replicas.mover.moves.clear()
            disk = directory.log_dir.disk

            def broken(path: str) -> bool:
                raise DiskError(errno.EIO, "Input/output error", path)

            with monkeypatch.context() as patch:  # seed 10000345
                patch.setattr(disk, "exists", broken)
                assert code(TP, there) is ErrorCode.KAFKA_STORAGE_ERROR
            monkeypatch.setattr(disk, "free_bytes", lambda path: 700 << 10)
            monkeypatch.setattr(disk, "total_bytes", lambda path: 40 << 20)
            ask(TP, there)  # the reserve of a small disk is its share, not log.dir.reserve.bytes
            broker.replicas.mover.moves.clear()
            monkeypatch.setattr(disk, "free_bytes", lambda path: 600 << 10)
            assert code(TP, there) is ErrorCode.KAFKA_STORAGE_ERROR
            monkeypatch.undo()
            if there != broker.path:
                broker.replicas.directory_failed(there, "broken")
                assert code(TP, there) is ErrorCode.LOG_DIR_NOT_FOUND

    asyncio.run(main())


def test_asking_for_where_it_is_cancels(tmp_path: Path) -> None:
    """And leaves no copy."""

    async def main() -> None:
        async with led(tmp_path, 1, alter_log_dirs_io_max_bytes_per_second=1.0) as (_, broker):
            there, here = other(broker), log_of(broker).home
            broker.replicas.mover.ask(TP, there)
            await asyncio.sleep(0)
            broker.replicas.mover.ask(TP, here)
            assert not broker.replicas.mover.moves
            await until(lambda: holders(broker) == [here])

    asyncio.run(main())


def test_a_cut_begins_the_copy_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log that was truncated and written again there is no prefix in the copy."""

    async def main() -> None:
        monkeypatch.setattr(moving, "CHUNK_BYTES", 100)
        async with led(tmp_path, 1, alter_log_dirs_io_max_bytes_per_second=2000) as (_, broker):
            there, log = other(broker), log_of(broker)
            broker.replicas.mover.ask(TP, there)
            await until(lambda: (move := broker.replicas.mover.moves[TP]).future is not None and move.size_bytes > 0)
            copy = broker.replicas.mover.moves[TP].future
            assert copy is not None
            assert copy.stands
            end = log.log_end_offset
            log.truncate_to(end - 5)
            log.append_as_leader(batch(b"anew", 5), log.latest_epoch, 0)
            assert not copy.stands
            await moved(broker, there)
            found = log_of(broker).read(end - 5, 1000, end)
            assert found is not None
            assert b"anew" in found.data

    asyncio.run(main())


def test_a_disk_that_fails_leaves_the_replica_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is given up, and the log goes on."""

    async def main() -> None:
        async with led(tmp_path, 1) as (_, broker):
            here, there = log_of(broker).home, other(broker)

            async def fail(*_: object) -> None:
                raise DiskError("broken")

            monkeypatch.setattr(moving.FutureLog, "sync", fail)
            broker.replicas.mover.ask(TP, there)
            await until(lambda: not broker.replicas.mover.moves)
            await until(lambda: holders(broker) == [here])
            done = await broker.append(TP, batch(b"on", 1))
            assert done.error is ErrorCode.NONE

    asyncio.run(main())
