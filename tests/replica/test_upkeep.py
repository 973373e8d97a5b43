"""What the manager does now and then must hold nobody up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, encode_offsets
from tests.replica.helpers import TP, batch, running, until


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

                def written() -> bool:
                    paths = [Path(broker.path) / name for name in (HIGH_WATERMARKS, RECOVERY_POINTS)]
                    return all(path.exists() and path.read_bytes() == encode_offsets({TP: 1}) for path in paths)

                await until(written)
            assert blocking == []

    asyncio.run(scenario())
