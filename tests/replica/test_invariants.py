"""What a broker does when an invariant of a replica does not hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from strandline.proto.error_codes import ErrorCode
from tests.replica.helpers import TP, batch, running, until


def test_a_broken_invariant_stops_the_node(tmp_path: Path) -> None:
    """`CommittedOnTheLeader`: what is said to be synced of the leader's log is more than the log has."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            leader = cluster[1]
            assert (await leader.append(TP, batch(b"a"))).error is ErrorCode.NONE
            partition = leader.replicas.partition(TP)
            assert partition is not None
            assert partition.leader is not None
            partition.leader.durable_offset = 99
            waiting = leader.append(TP, batch(b"b"))
            await until(lambda: bool(leader.fatal))
            assert "CommittedOnTheLeader" in str(leader.fatal[0])
            assert not waiting.done()
            assert partition.high_watermark == 1

    asyncio.run(scenario())
