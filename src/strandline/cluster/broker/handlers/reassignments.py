"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): reassignments ("moves") of partitions to other
brokers (KIP-455, KIP-860)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, require
from strandline.controller import operations
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.moves_api import AlterReassignmentsRequest, PartitionMove
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.kafka.apis import Api


class ReassignmentsHandler:
    """Forwards moves to the active controller, and lists those in progress."""

    def __init__(
        self, *, image: Callable[[], MetadataImage], authorizer: Authorizer, controller: ControllerChannel
    ) -> None:
        self._image = image
        self._authorizer = authorizer
        self._controller = controller

    async def alter(self, call: Call) -> Any:
        """Answer AlterPartitionReassignments: begin, replace or cancel moves; one outcome per partition.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION (the cluster's level is too old for moves), or
                an error of the request to the controller.
        """
        request = call.request
        require(self._authorizer, call.context, Operation.ALTER, CLUSTER)
        moves = tuple(
            PartitionMove(topic.name, one.partition_index, _replicas(one.replicas))
            for topic in request.topics
            for one in topic.partitions
        )
        may_change = getattr(request, "allow_replication_factor_change", True)  # version 0 has no such field
        asked = AlterReassignmentsRequest(moves, keeps_factor=not may_change)
        reply = await self._controller.ask(operations.ALTER_REASSIGNMENTS, asked, request.timeout)
        topics: dict[str, list[Any]] = {}
        for one in reply.outcomes:
            told = part(partition_index=one.partition, error_code=one.error, error_message=one.message or None)
            topics.setdefault(one.topic, []).append(told)
        responses = tuple(part(name=name, partitions=tuple(found)) for name, found in topics.items())
        return part(
            error_code=ErrorCode.NONE,
            error_message=None,
            allow_replication_factor_change=may_change,
            responses=responses,
        )

    def list(self, call: Call) -> Any:
        """Answer ListPartitionReassignments: the moves in progress of the named partitions, or all.

        Raises KafkaError CLUSTER_AUTHORIZATION_FAILED.
        """
        require(self._authorizer, call.context, Operation.DESCRIBE, CLUSTER)
        wanted = call.request.topics
        named = None if wanted is None else {topic.name: {*topic.partition_indexes} for topic in wanted}
        topics: dict[str, list[Any]] = {}
        for topic, info in self._image().partitions():
            if info.is_moving and (named is None or info.partition in named.get(topic.name, ())):
                topics.setdefault(topic.name, []).append(_move(info))
        return part(
            error_code=ErrorCode.NONE,
            error_message=None,
            topics=tuple(part(name=name, partitions=tuple(found)) for name, found in topics.items()),
        )


def _replicas(replicas: Any) -> tuple[NodeId, ...] | None:
    return None if replicas is None else tuple(NodeId(node) for node in replicas)


def _move(info: PartitionRecord) -> dict[str, Any]:
    return part(
        partition_index=info.partition,
        replicas=info.replicas,
        adding_replicas=info.adding_replicas,
        removing_replicas=info.removing_replicas,
    )


def _moved(request: Any, answer: Any) -> Iterator[Change]:
    targets = {
        (topic.name, one.partition_index): "none" if one.replicas is None else list(one.replicas)
        for topic in request.topics
        for one in topic.partitions
    }
    told = {(topic.name, one.partition_index): one.error_code for topic in answer.responses for one in topic.partitions}
    for (name, number), target in targets.items():
        yield f"move of {name}-{number} to {target}", told.get((name, number), answer.error_code)


ROWS = (
    by_schema(
        Api.ALTER_PARTITION_REASSIGNMENTS, (0, 1), ReassignmentsHandler, ReassignmentsHandler.alter, changes=_moved
    ),
    by_schema(Api.LIST_PARTITION_REASSIGNMENTS, (0, 0), ReassignmentsHandler, ReassignmentsHandler.list),
)
