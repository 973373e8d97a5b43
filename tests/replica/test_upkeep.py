"""What the manager does now and then must hold nobody up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, encode_offsets
from strandline.log.disk import DiskFull
from strandline.log.log_dir import TEMPORARY
from strandline.log.real_disk import RealFile
from tests.replica.helpers import TP, Broker, batch, running, until


def checkpoints_are_written(broker: Broker) -> bool:
    """They say that the one record is committed and durable."""
    paths = [Path(broker.path) / name for name in (HIGH_WATERMARKS, RECOVERY_POINTS)]
    return all(path.exists() and path.read_bytes() == encode_offsets({TP: 1}) for path in paths)


def test_checkpoints_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every few seconds they are written off the loop: high watermark and recovery point, and nothing blocks."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1, high_watermark_checkpoint_interval_ms=1) as cluster:
            cluster.create(replicas=(1,), min_insync_replicas=1)
            broker = cluster[1]
            blocking: list[object] = []
            with monkeypatch.context() as patched:
                patched.setattr(broker.disk, "sync_now", lambda *what: blocking.append(what))
                patched.setattr(broker.disk, "sync_dir", lambda *what: blocking.append(what))
                await broker.append(TP, batch(b"a"))
                await until(lambda: checkpoints_are_written(broker))
            assert blocking == []

    asyncio.run(scenario())


def test_checkpoints_without_room_say_that_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule 57: a broker that takes no records may meet it there first."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1, high_watermark_checkpoint_interval_ms=1) as cluster:
            cluster.create(replicas=(1,), min_insync_replicas=1)
            broker = cluster[1]
            await broker.append(TP, batch(b"a"))
            real = broker.disk.open

            def full(path: str, *, create: bool = False) -> RealFile:
                if path.endswith(TEMPORARY):
                    raise DiskFull(28, "No space left on device", path)
                return real(path, create=create)

            with monkeypatch.context() as patched:
                patched.setattr(broker.disk, "open", full)
                await until(lambda: broker.replicas.directories.full)
            await until(lambda: checkpoints_are_written(broker))

    asyncio.run(scenario())
