"""DescribeQuorum: what the leader of the metadata quorum knows of its voters and observers.

Only the leader knows how far the others have come, so a broker that does not lead asks it.
"""

from __future__ import annotations

from strandline.cluster.broker.service.authorizer import CLUSTER, Operation, allowed
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.ports import Quorum
from strandline.controller import methods
from strandline.controller.api import AddVoterRequest, RemoveVoterRequest, VoterReply
from strandline.controller.quorum.api import DescribeQuorumReply, DescribeQuorumRequest, QuorumDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import NodeId
from strandline.proto.messages.method import call, handler
from strandline.proto.ports import RpcError, UnaryHandler


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
            reply = await call(
                self.rpc,
                endpoint,
                methods.DESCRIBE_QUORUM,
                DescribeQuorumRequest(),
                timeout_ms=self.config.request_timeout_ms,
            )
        except (RpcError, ProtocolError) as error:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the quorum's leader, node {leader_id}, does not answer: {error}"
            ) from error
        if reply.error is not ErrorCode.NONE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reply.message)
        return QuorumDescription(
            reply.leader_id, reply.epoch, reply.high_watermark, list(reply.voters), list(reply.observers)
        )

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
        return {methods.DESCRIBE_QUORUM.path: describe_quorum_handler(self.node_id, self.quorum)}


def describe_quorum_handler(node_id: NodeId, quorum: Quorum) -> UnaryHandler:
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
