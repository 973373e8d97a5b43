"""DescribeQuorum: what the leader of the metadata quorum knows of its voters and observers.

Only the leader knows how far the others have come, so a broker that does not lead asks it.
"""

from __future__ import annotations

from uuid import UUID

from strandline.cluster.broker.service.authorizer import CLUSTER, Operation, allowed
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.ports import Quorum
from strandline.controller.quorum.api import QuorumDescription, ReplicaDescription
from strandline.controller.voter_api import AddVoterRequest, RemoveVoterRequest, VoterReply
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.ports import RpcError, UnaryHandler
from strandline.proto.v1 import service_pb2 as pb

DESCRIBE_QUORUM_METHOD = "/strandline.v1.Service/DescribeQuorum"


class QuorumQueries(Base):
    """The quorum operation of the service."""

    async def describe_quorum(self, context: RequestContext) -> QuorumDescription:
        """The quorum as its leader sees it.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED; NOT_LEADER_OR_FOLLOWER (retriable, and an error that clients of
                this API know) while there is no leader or it does not answer.
        """
        if not allowed(self.authorizer, context, Operation.DESCRIBE, CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        leader_id = self.quorum.leader_and_epoch.leader_id
        if leader_id == self.node_id:
            return self.quorum.describe()
        endpoint = None if leader_id is None else self.quorum.endpoint_of(leader_id)
        if endpoint is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the metadata quorum has no leader now")
        try:
            raw = await self.rpc.call(endpoint, DESCRIBE_QUORUM_METHOD, b"", timeout_ms=self.config.request_timeout_ms)
        except RpcError as error:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the quorum's leader, node {leader_id}, does not answer: {error}"
            ) from error
        reply = pb.DescribeQuorumReply.FromString(raw)
        if reply.error:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reply.message)
        return _from_wire(reply)

    async def remove_voter(
        self, context: RequestContext, cluster_id: str | None, request: RemoveVoterRequest, timeout_ms: float
    ) -> VoterReply:
        """Take the vote of a controller that lost its log.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, INCONSISTENT_CLUSTER_ID, or what kept the leader from it.
        """
        self._check_change(context, cluster_id)
        return await self.controller.remove_voter(request, timeout_ms)

    async def add_voter(
        self, context: RequestContext, cluster_id: str | None, request: AddVoterRequest, timeout_ms: float
    ) -> VoterReply:
        """Give a vacant vote to a controller's directory that has caught up.

        Raises:
            KafkaError: as `remove_voter`.
        """
        self._check_change(context, cluster_id)
        return await self.controller.add_voter(request, timeout_ms)

    def _check_change(self, context: RequestContext, cluster_id: str | None) -> None:
        if not allowed(self.authorizer, context, Operation.ALTER, CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        ours = self.image().cluster_id
        if cluster_id not in (None, ours):
            message = f"this is cluster {ours}, not {cluster_id}"
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)

    def rpc_handlers(self) -> dict[str, UnaryHandler]:
        """Methods to mount on the node's internal listener."""
        return {DESCRIBE_QUORUM_METHOD: describe_quorum_handler(self.node_id, self.quorum)}


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
