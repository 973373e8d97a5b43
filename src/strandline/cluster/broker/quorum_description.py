"""DescribeQuorum between nodes: only the quorum's leader knows how far the others have come, so others ask it."""

from __future__ import annotations

from strandline.controller import methods
from strandline.controller.quorum.api import DescribeQuorumReply, DescribeQuorumRequest, QuorumDescription, QuorumView
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import NodeId
from strandline.proto.messages.method import call, handler
from strandline.proto.ports import Rpc, RpcError, UnaryHandler


async def described_by_leader(quorum: QuorumView, *, node_id: NodeId, rpc: Rpc, timeout_ms: float) -> QuorumDescription:
    """The quorum as its leader sees it; `node_id` is who asks, and answers itself if it leads.

    Raises:
        KafkaError: NOT_LEADER_OR_FOLLOWER (retriable, and an error that clients of DescribeQuorum know) while there is
            no leader or it does not answer.
    """
    leader_id = quorum.leader_and_epoch.leader_id
    if leader_id == node_id:
        return quorum.describe()
    endpoint = None if leader_id is None else quorum.endpoint_of(leader_id)
    if endpoint is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the metadata quorum has no leader now")
    try:
        reply = await call(rpc, endpoint, methods.DESCRIBE_QUORUM, DescribeQuorumRequest(), timeout_ms=timeout_ms)
    except (RpcError, ProtocolError) as error:
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the quorum's leader, node {leader_id}, does not answer: {error}"
        ) from error
    if reply.error is not ErrorCode.NONE:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reply.message)
    return QuorumDescription(
        reply.leader_id, reply.epoch, reply.high_watermark, list(reply.voters), list(reply.observers)
    )


def describe_quorum_handler(node_id: NodeId, quorum: QuorumView) -> UnaryHandler:
    """Serves `methods.DESCRIBE_QUORUM`: what this node knows, if it leads. Every controller mounts it."""

    async def describe(_: DescribeQuorumRequest) -> DescribeQuorumReply:
        known = quorum.describe()
        if known.leader_id != node_id:
            return DescribeQuorumReply(ErrorCode.NOT_CONTROLLER, f"node {node_id} does not lead the metadata quorum")
        return DescribeQuorumReply(
            leader_id=node_id,
            epoch=known.epoch,
            high_watermark=known.high_watermark,
            voters=tuple(known.voters),
            observers=tuple(known.observers),
        )

    return handler(methods.DESCRIBE_QUORUM, describe)
