"""A disk that refuses every sync is the node's affair; a log that fails is its partition's (schedule 56)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.log import real_disk
from strandline.log.disk import DiskPoisoned
from strandline.log.real_sync import CompiledSync
from strandline.proto.error_codes import ErrorCode
from tests.replica.helpers import TP, batch, running


def test_a_disk_that_syncs_nothing_any_more_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule 56: one log that fails is that partition's affair; a disk that refuses every sync is the node's.

    The thread in Python syncs here: the compiled one calls the kernel, which would succeed.
    """
    monkeypatch.setattr(CompiledSync, "load", lambda: None)

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            cluster.create(replicas=(1,), min_insync_replicas=1)
            broker = cluster[1]
            await broker.append(TP, batch(b"a"))

            def fail(*_: object) -> None:
                raise DiskPoisoned(5, "Input/output error", "")

            monkeypatch.setattr(real_disk, "sync_group", fail)
            outcome = await broker.append(TP, batch(b"b"))
            assert outcome.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert "the disk refuses to sync" in str(broker.fatal.pop())
            monkeypatch.undo()
            broker.disk.poison = None

    asyncio.run(scenario())
