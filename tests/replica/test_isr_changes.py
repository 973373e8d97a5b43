"""Proposals on their way to the controller (rule B2, AlterPartition): lost requests, lost answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.proto.ids import NodeId
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.ports import RpcUnavailable
from tests.replica.helpers import TP, running, until


@pytest.mark.parametrize("carried_out", [False, True], ids=["request", "answer"])
def test_what_is_lost_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carried_out: bool) -> None:
    """A request without an answer was perhaps carried out: it is sent again until an answer or metadata settle it."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            real, calls = cluster.controller.alter_partition, 0

            def alter(node: NodeId, items: list[AlterPartitionItem]) -> list[AlterPartitionOutcome]:
                nonlocal calls
                calls += 1
                if calls <= 2:
                    if carried_out:
                        real(node, items)
                    raise RpcUnavailable("the controller cannot be reached")
                return real(node, items)

            monkeypatch.setattr(cluster.controller, "alter_partition", alter)
            cluster.create(isr=(1, 2))
            await until(lambda: len(cluster.controller.state(TP).isr) == 3, timeout_s=4)
            leader = cluster[1].replicas.partition(TP)
            assert leader is not None
            assert leader.leader is not None
            core = leader.leader
            await until(lambda: core.isr == core.maximal_isr == (1, 2, 3) and core.pending is None, timeout_s=4)
            assert cluster[1].fatal == []

    asyncio.run(scenario())
