"""DescribeQuorum on a broker that does not lead: it asks the leader, over the nodes' own calls."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from strandline.cluster.broker.handlers.cluster import (
    describe_quorum_handler,
    described_by_leader,
)
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.controller import methods
from strandline.controller.quorum.api import LeaderAndEpoch, QuorumDescription, ReplicaDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.ports import Rpc, UnaryHandler

DESCRIPTION = QuorumDescription(
    leader_id=NodeId(1),
    epoch=7,
    high_watermark=41,
    voters=[
        ReplicaDescription(NodeId(1), UUID(int=1), 42, 1000, 1000),
        ReplicaDescription(NodeId(2), None, -1, -1, -1),
    ],
    observers=[ReplicaDescription(NodeId(3), UUID(int=3), 40, 900, 800)],
)


class Seen:
    """The quorum as one node sees it."""

    def __init__(self, leader: int | None, endpoint: Endpoint | None = None) -> None:
        self.leader_and_epoch = LeaderAndEpoch(None if leader is None else NodeId(leader), 7)
        self.endpoint = endpoint

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        return self.endpoint

    def describe(self) -> QuorumDescription:
        if self.leader_and_epoch.leader_id == 1:
            return DESCRIPTION
        return QuorumDescription(self.leader_and_epoch.leader_id, 7, -1, [], [])


async def described(node: int, quorum: Seen, rpc: Rpc) -> QuorumDescription:
    return await described_by_leader(quorum, node_id=NodeId(node), rpc=rpc, timeout_ms=2000)


def served(node: int, quorum: Seen) -> dict[str, UnaryHandler]:
    return {methods.DESCRIBE_QUORUM.path: describe_quorum_handler(NodeId(node), quorum)}


def test_the_leader_is_asked() -> None:
    """Every figure arrives as the leader told it, those it does not know too."""

    async def main() -> None:
        rpc = GrpcRpc()
        server = await rpc.serve(Endpoint("127.0.0.1", 0), served(1, Seen(1)), {})
        try:
            assert await described(1, Seen(1), rpc) == DESCRIPTION
            assert await described(2, Seen(1, server.endpoint), rpc) == DESCRIPTION
        finally:
            await server.close()
            await rpc.close()

    asyncio.run(main())


@pytest.mark.parametrize("case", ["no leader", "not the leader any more", "nobody there"])
def test_without_a_leader_the_error_is_retriable(case: str) -> None:
    """NOT_LEADER_OR_FOLLOWER: clients of this API know it and ask again."""

    async def main() -> None:
        rpc = GrpcRpc()
        server = await rpc.serve(Endpoint("127.0.0.1", 0), served(3, Seen(2)), {})
        if case == "nobody there":
            await server.close()
        seen = Seen(None) if case == "no leader" else Seen(3, server.endpoint)
        try:
            with pytest.raises(KafkaError) as refused:
                await described(2, seen, rpc)
            assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert refused.value.message
        finally:
            await server.close()
            await rpc.close()

    asyncio.run(main())
