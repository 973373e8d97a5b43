"""DescribeQuorum between nodes: only the quorum's leader knows how far the others have come, so others ask it."""

from __future__ import annotations

from uuid import UUID

from strandline.cluster.broker.ports import Quorum
from strandline.controller.quorum.api import QuorumDescription, ReplicaDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.ports import Rpc, RpcError, UnaryHandler
from strandline.proto.v1 import service_pb2 as pb

DESCRIBE_QUORUM_METHOD = "/strandline.v1.Service/DescribeQuorum"


async def described_by_leader(quorum: Quorum, *, node_id: NodeId, rpc: Rpc, timeout_ms: float) -> QuorumDescription:
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
        raw = await rpc.call(endpoint, DESCRIBE_QUORUM_METHOD, b"", timeout_ms=timeout_ms)
    except RpcError as error:
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the quorum's leader, node {leader_id}, does not answer: {error}"
        ) from error
    reply = pb.DescribeQuorumReply.FromString(raw)
    if reply.error:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reply.message)
    return _from_wire(reply)


def describe_quorum_handler(node_id: NodeId, quorum: Quorum) -> UnaryHandler:
    """Serves `DESCRIBE_QUORUM_METHOD`: what this node knows, if it leads. Every controller mounts it."""

    async def serve(_request: bytes) -> bytes:
        description = quorum.describe()
        if description.leader_id != node_id:
            reply = pb.DescribeQuorumReply(
                error=ErrorCode.NOT_CONTROLLER, message=f"node {node_id} does not lead the metadata quorum"
            )
        else:
            reply = _to_wire(description)
        return reply.SerializeToString()

    return serve


def _to_wire(description: QuorumDescription) -> pb.DescribeQuorumReply:
    return pb.DescribeQuorumReply(
        leader_id=-1 if description.leader_id is None else description.leader_id,
        epoch=description.epoch,
        high_watermark=description.high_watermark,
        voters=[_replica_to_wire(replica) for replica in description.voters],
        observers=[_replica_to_wire(replica) for replica in description.observers],
    )


def _replica_to_wire(replica: ReplicaDescription) -> pb.QuorumReplica:
    return pb.QuorumReplica(
        node_id=replica.node_id,
        directory_id=b"" if replica.directory_id is None else replica.directory_id.bytes,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp_ms=replica.last_fetch_timestamp_ms,
        last_caught_up_timestamp_ms=replica.last_caught_up_timestamp_ms,
    )


def _from_wire(reply: pb.DescribeQuorumReply) -> QuorumDescription:
    return QuorumDescription(
        leader_id=NodeId(reply.leader_id),
        epoch=reply.epoch,
        high_watermark=reply.high_watermark,
        voters=[_replica_from_wire(replica) for replica in reply.voters],
        observers=[_replica_from_wire(replica) for replica in reply.observers],
    )


def _replica_from_wire(replica: pb.QuorumReplica) -> ReplicaDescription:
    return ReplicaDescription(
        node_id=NodeId(replica.node_id),
        directory_id=UUID(bytes=replica.directory_id) if replica.directory_id else None,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp_ms=replica.last_fetch_timestamp_ms,
        last_caught_up_timestamp_ms=replica.last_caught_up_timestamp_ms,
    )
