"""DescribeCluster (60), DescribeQuorum (55), UnregisterBroker (64), and changes of the quorum's voters: AddRaftVoter
(80), RemoveRaftVoter (81), UpdateRaftVoter (82; KIP-853).

Only the quorum's leader knows how far the other replicas have fetched, so DescribeQuorum asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.brokers import Brokers
from strandline.cluster.broker.request import (
    OPERATIONS_NOT_ASKED,
    Authorizer,
    RequestContext,
    cluster_operations_bits,
    require,
)
from strandline.controller import methods, operations
from strandline.controller.api import AddVoterRequest, RemoveVoterRequest, UpdateVoterRequest
from strandline.controller.broker_api import UnregisterBrokerRequest
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.quorum.api import (
    DescribeQuorumReply,
    DescribeQuorumRequest,
    QuorumDescription,
    QuorumView,
    ReplicaDescription,
)
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import NO_NODE, ZERO_UUID, Endpoint, NodeId
from strandline.proto.kafka.apis import Api
from strandline.proto.messages.method import call, handler
from strandline.proto.ports import Rpc, RpcError, UnaryHandler

BROKERS = 1
CONTROLLERS = 2

METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = 0
LISTENER = "INTERNAL"
"""Listener name of controllers' endpoints. Nodes speak gRPC there, not Kafka's protocol."""

_NO_CONTROLLERS = (
    "This listener describes brokers (endpoint type 1), and carries out what Kafka asks of controllers too: name it as "
    "--bootstrap-server or bootstrap.servers."
)


class ClusterHandler:
    """Describes brokers and quorum, and forwards changes of voters to the active controller."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        brokers: Brokers,
        controller: ControllerChannel,
        quorum: QuorumView,
        rpc: Rpc,
        timeout_ms: float,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._authorizer = authorizer
        self._brokers = brokers
        self._controller = controller
        self._quorum = quorum
        self._rpc = rpc
        self._timeout_ms = timeout_ms

    # DescribeCluster

    def describe_cluster(self, call: Call) -> Any:
        """Answer DescribeCluster: the brokers, and the one to which clients send admin requests."""
        request, context = call.request, call.context
        kind = getattr(request, "endpoint_type", BROKERS)  # since version 1
        if kind != BROKERS:
            known = kind == CONTROLLERS
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            return self.refuse_cluster(call, code, _NO_CONTROLLERS)
        with_fenced = getattr(request, "include_fenced_brokers", False)  # since version 2
        operations = OPERATIONS_NOT_ASKED
        if request.include_cluster_authorized_operations:
            operations = cluster_operations_bits(self._authorizer, context)
        brokers = tuple(
            part(
                broker_id=broker.node_id,
                host=broker.endpoint.host,
                port=broker.endpoint.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker in self._brokers.live_brokers(context, with_fenced=with_fenced)
        )
        return part(
            error_code=ErrorCode.NONE,
            error_message=None,
            endpoint_type=BROKERS,
            cluster_id=self._image().cluster_id,
            controller_id=self._brokers.controller_id(context),
            brokers=brokers,
            cluster_authorized_operations=operations,
        )

    def refuse_cluster(self, call: Call, error: ErrorCode, message: str) -> Any:
        """Return a response with `error` and no brokers."""
        return part(
            error_code=error,
            error_message=message,
            endpoint_type=BROKERS,
            cluster_id=self._image().cluster_id,
            controller_id=NO_NODE,
            brokers=(),
        )

    async def unregister_broker(self, call: Call) -> Any:
        """Answer UnregisterBroker: remove a broker's registration, whether the broker is alive or not, as Kafka does.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, BROKER_ID_NOT_REGISTERED, or an error of the request to the
                controller.
        """
        require(self._authorizer, call.context, Operation.ALTER, CLUSTER)
        asked = UnregisterBrokerRequest(NodeId(call.request.broker_id))
        await self._controller.ask(operations.UNREGISTER_BROKER, asked, self._timeout_ms)
        return part(error_code=ErrorCode.NONE, error_message=None)

    # DescribeQuorum

    async def describe_quorum(self, call: Call) -> Any:
        """Answer DescribeQuorum: leader, voters and observers of the metadata log, as its leader sees them."""
        require(self._authorizer, call.context, Operation.DESCRIBE, CLUSTER)
        quorum = await described_by_leader(
            self._quorum, node_id=self._node_id, rpc=self._rpc, timeout_ms=self._timeout_ms
        )
        return part(
            error_code=ErrorCode.NONE,
            error_message=None,
            topics=_topics(call, quorum, ErrorCode.NONE, ""),
            nodes=self._nodes(quorum),
        )

    def refuse_quorum(self, call: Call, error: ErrorCode, message: str) -> Any:
        """Return a response with `error` for the partition of the metadata log."""
        whole = error if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else ErrorCode.NONE
        return part(
            error_code=whole,
            error_message=message or None,
            topics=_topics(call, None, error, message),
            nodes=(),
        )

    def _nodes(self, quorum: QuorumDescription) -> tuple[Any, ...]:
        nodes = []
        for voter in quorum.voters:
            endpoint = self._quorum.endpoint_of(voter.node_id)
            if endpoint is not None:
                listener = part(name=LISTENER, host=endpoint.host, port=endpoint.port)
                nodes.append((voter.node_id, (listener,)))
        return tuple(part(node_id=node_id, listeners=listeners) for node_id, listeners in nodes)

    # Voters

    async def add_voter(self, call: Call) -> Any:
        """Answer AddRaftVoter: make a controller's directory that has caught up a voter.

        Its endpoint is that of the listener named INTERNAL, or of the only listener in the request; without a listener
        it is the endpoint that the controller itself announces.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, INCONSISTENT_CLUSTER_ID, or an error of the request to the leader.
        """
        request = call.request
        self._check_change(call.context, request.cluster_id)
        endpoint = _endpoint_in(request.listeners)
        directory_id = request.voter_directory_id or ZERO_UUID
        uncommitted = not getattr(request, "ack_when_committed", True)  # since version 1
        change = AddVoterRequest(request.voter_id, directory_id, endpoint, uncommitted)
        await self._controller.ask(operations.ADD_VOTER, change, request.timeout)
        return part(error_code=ErrorCode.NONE, error_message=None)

    async def remove_voter(self, call: Call) -> Any:
        """Answer RemoveRaftVoter: remove a controller's directory from the voters. Raises as `add_voter`."""
        request = call.request
        self._check_change(call.context, request.cluster_id)
        change = RemoveVoterRequest(request.voter_id, request.voter_directory_id or ZERO_UUID)
        await self._controller.ask(operations.REMOVE_VOTER, change, self._timeout_ms)
        return part(error_code=ErrorCode.NONE, error_message=None)

    async def update_voter(self, call: Call) -> Any:
        """Answer UpdateRaftVoter: store a voter's endpoint, given as in `add_voter`, and the versions of the feature
        kraft.version that it supports. Raises as `add_voter`."""
        request = call.request
        self._check_change(call.context, request.cluster_id, Operation.CLUSTER_ACTION)
        knows = request.k_raft_version_feature
        change = UpdateVoterRequest(
            NodeId(request.voter_id),
            request.voter_directory_id or ZERO_UUID,
            _endpoint_in(request.listeners),
            knows.min_supported_version,
            knows.max_supported_version,
            request.current_leader_epoch,
        )
        await self._controller.ask(operations.UPDATE_VOTER, change, self._timeout_ms)
        return self._answer_update(ErrorCode.NONE)

    def refuse_update(self, call: Call, error: ErrorCode, message: str) -> Any:
        """Return a response with `error` and the current leader."""
        return self._answer_update(error)

    def _answer_update(self, error: ErrorCode) -> Any:
        leader_id, epoch = self._quorum.leader_and_epoch
        at = None if leader_id is None else self._quorum.endpoint_of(leader_id)
        return part(
            error_code=error,
            current_leader=part(
                leader_id=NO_NODE if leader_id is None else leader_id,
                leader_epoch=epoch,
                host="" if at is None else at.host,
                port=0 if at is None else at.port,
            ),
        )

    def _check_change(
        self, context: RequestContext, cluster_id: str | None, operation: Operation = Operation.ALTER
    ) -> None:
        require(self._authorizer, context, operation, CLUSTER)
        ours = self._image().cluster_id
        if cluster_id not in (None, ours):
            message = f"this is cluster {ours}, not {cluster_id}"
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)


def _endpoint_in(listeners: Iterable[Any]) -> Endpoint | None:
    """Return the endpoint of the listener named INTERNAL, or of the only listener; else None."""
    named = {one.name: Endpoint(one.host, one.port) for one in listeners}
    return named.get(LISTENER) or (next(iter(named.values())) if len(named) == 1 else None)


def _replica(replica: ReplicaDescription) -> Any:
    return part(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_timestamp_ms,
        last_caught_up_timestamp=replica.last_caught_up_timestamp_ms,
    )


def _partition(index: int, quorum: QuorumDescription | None, error: ErrorCode, message: str) -> Any:
    return part(
        partition_index=index,
        error_code=error,
        error_message=message or None,
        leader_id=-1 if quorum is None or quorum.leader_id is None else quorum.leader_id,
        leader_epoch=-1 if quorum is None else quorum.epoch,
        high_watermark=-1 if quorum is None else quorum.high_watermark,
        current_voters=() if quorum is None else tuple(_replica(one) for one in quorum.voters),
        observers=() if quorum is None else tuple(_replica(one) for one in quorum.observers),
    )


def _topics(call: Call, quorum: QuorumDescription | None, error: ErrorCode, message: str) -> tuple[Any, ...]:
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"only {METADATA_TOPIC}-{METADATA_PARTITION} has a quorum")
    topics = []
    for topic in call.request.topics:
        partitions = []
        for partition in topic.partitions:
            known = topic.topic_name == METADATA_TOPIC and partition.partition_index == METADATA_PARTITION
            fault = (error, message) if known else unknown
            partitions.append(_partition(partition.partition_index, quorum if known else None, *fault))
        topics.append(part(topic_name=topic.topic_name, partitions=tuple(partitions)))
    return tuple(topics)


async def described_by_leader(quorum: QuorumView, *, node_id: NodeId, rpc: Rpc, timeout_ms: float) -> QuorumDescription:
    """Return the quorum as its leader sees it. `node_id`: this node, which answers itself if it leads.

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
    """Return the handler of `methods.DESCRIBE_QUORUM`, mounted by all controllers; it answers on the leader only."""

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


def _voter_changed(request: Any, answer: Any) -> Iterator[Change]:
    yield f"voter {request.voter_id}, directory {request.voter_directory_id}", answer.error_code


def _broker_gone(request: Any, answer: Any) -> Iterator[Change]:
    yield f"broker {request.broker_id} unregistered", answer.error_code


ROWS = (
    by_schema(
        Api.DESCRIBE_CLUSTER,
        (0, 2),
        ClusterHandler,
        ClusterHandler.describe_cluster,
        refuse=ClusterHandler.refuse_cluster,
    ),
    by_schema(
        Api.DESCRIBE_QUORUM, (0, 2), ClusterHandler, ClusterHandler.describe_quorum, refuse=ClusterHandler.refuse_quorum
    ),
    by_schema(Api.UNREGISTER_BROKER, (0, 0), ClusterHandler, ClusterHandler.unregister_broker, changes=_broker_gone),
    by_schema(Api.ADD_RAFT_VOTER, (0, 1), ClusterHandler, ClusterHandler.add_voter, changes=_voter_changed),
    by_schema(Api.REMOVE_RAFT_VOTER, (0, 0), ClusterHandler, ClusterHandler.remove_voter, changes=_voter_changed),
    by_schema(
        Api.UPDATE_RAFT_VOTER,
        (0, 0),
        ClusterHandler,
        ClusterHandler.update_voter,
        refuse=ClusterHandler.refuse_update,
        changes=_voter_changed,
    ),
)
