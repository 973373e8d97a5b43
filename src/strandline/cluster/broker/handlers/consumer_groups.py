"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat (68), by which members join, stay, reconcile and
leave, and ConsumerGroupDescribe (69), with the current and target assignment of each member."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.handlers.group_admin import DescribedGroup, describe_each
from strandline.cluster.broker.request import (
    OPERATIONS_NOT_ASKED,
    Authorizer,
    RequestContext,
    group,
    operations_bits,
    refusal,
    require,
    topic,
)
from strandline.cluster.broker.requested_topics import may_see
from strandline.cluster.groups.config import MEMBER_BYTES_MAX
from strandline.cluster.groups.consumer_protocol.commands import (
    ConsumerAnswer,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    DescribedConsumer,
)
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.consumer_group_records import Assignment
from strandline.proto.steps import Mapped

OWN_ID_SINCE = 1
"""First version in which members choose their own ids, and may subscribe by pattern."""

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Kafka's numbers for the protocol of a member; a group that migrates has members of both."""


class ConsumerGroupsHandler:
    """Forwards heartbeats to the group's coordinator, and describes its groups."""

    def __init__(self, *, groups: GroupCoordinator, image: Callable[[], MetadataImage], authorizer: Authorizer) -> None:
        self._groups = groups
        self._image = image
        self._authorizer = authorizer

    # ConsumerGroupHeartbeat

    async def heartbeat(self, call: Call) -> Any:
        """Answer ConsumerGroupHeartbeat: the member's id, epoch, and new assignment if it has changed."""
        request, version = call.request, call.context.version
        if version >= OWN_ID_SINCE and not request.member_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a member makes its own id")
        command = ConsumerHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            epoch=request.member_epoch,
            client_id=call.context.client_id,
            client_host=f"/{call.context.peer.host}",
            instance_id=request.instance_id,
            rack=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout,
            topics=request.subscribed_topic_names,
            regex=request.subscribed_topic_regex if version >= OWN_ID_SINCE else None,
            assignor=request.server_assignor,
            owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
        )
        answer = await self._heartbeat(call.context, command)
        return part(
            error_code=ErrorCode.NONE,
            error_message=None,
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval=answer.heartbeat_interval_ms,
            assignment=None if answer.assigned is None else _assigned(answer.assigned),
        )

    async def _heartbeat(self, context: RequestContext, command: ConsumerHeartbeat) -> ConsumerAnswer:
        """Pass a heartbeat to the coordinator and return its answer, without topics that the member may not see.

        Raises:
            KafkaError: GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED, INVALID_REQUEST, NOT_COORDINATOR,
                COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, and those of `ConsumerProtocol.heartbeat`.
        """
        require(self._authorizer, context, Operation.READ, group(command.group_id))
        if not command.group_id.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a group with members needs a name")
        names = command.topics or ()
        size = sum(map(len, (*names, command.regex or "", command.instance_id or "", command.rack or "")))
        if size > MEMBER_BYTES_MAX // 4:  # a character may take four bytes
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the member's subscriptions are too large", size=size)
        actions = [(Operation.DESCRIBE, topic(name)) for name in names]
        for action, may in zip(actions, self._authorizer.authorize(context, actions), strict=True):
            if not may:
                raise refusal(context, *action)
        answer: ConsumerAnswer = await self._groups.ask(command.group_id, command)
        return answer if answer.assigned is None else answer._replace(assigned=self._visible(context, answer.assigned))

    def _visible(self, context: RequestContext, assigned: Assignment) -> Assignment:
        """Return an assignment without topics that the member may not DESCRIBE: a pattern is matched against all
        topics, and the right to a named topic may have been revoked."""
        known = self._image().topic_by_id
        # rule A20/patterns-show-every-topic
        return {
            topic_id: partitions
            for topic_id, partitions in assigned.items()
            if topic_id not in known or may_see(self._authorizer, context, known[topic_id].name)
        }

    # ConsumerGroupDescribe

    async def describe(self, call: Call) -> Any:
        """Answer ConsumerGroupDescribe: one answer per group, in order."""
        groups = await describe_each(call, call.request.group_ids, self._describe)
        return part(groups=Mapped(partial(self._group, call), groups))

    async def _describe(self, context: RequestContext, group_id: str) -> ConsumerGroupDescription:
        """Return a group's description. Raises KafkaError: GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED,
        INVALID_GROUP_ID, GROUP_ID_NOT_FOUND (classic groups too), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        require(self._authorizer, context, Operation.DESCRIBE, group(group_id))
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        found: ConsumerGroupDescription = await self._groups.ask(
            group_id, DescribeConsumerGroup(group_id), asked_ms=context.received_ms
        )
        self._check_topics(context, found)
        return found

    def _check_topics(self, context: RequestContext, found: ConsumerGroupDescription) -> None:
        known = self._image().topic_by_id
        names = {
            known[topic_id].name: None
            for member in found.members
            for topic_id in (*member.assigned, *member.target)
            if topic_id in known
        }
        if not all(self._authorizer.authorize(context, [(Operation.DESCRIBE, topic(name)) for name in names])):
            words = f"{context.principal} may not DESCRIBE every topic of the group's members"
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, words)

    def _group(self, call: Call, one: DescribedGroup[ConsumerGroupDescription]) -> Any:
        found = one.description
        asked = call.request.include_authorized_operations and found is not None
        return part(
            error_code=one.error,
            error_message=(one.message or None) if one.error is not ErrorCode.NONE else None,
            group_id=one.group_id,
            group_state="" if found is None else found.state,
            group_epoch=0 if found is None else found.epoch,
            assignment_epoch=0 if found is None else found.target_epoch,
            assignor_name="" if found is None else found.assignor,
            members=() if found is None else Mapped(self._member, found.members),
            authorized_operations=(
                operations_bits(self._authorizer, call.context, group(one.group_id)) if asked else OPERATIONS_NOT_ASKED
            ),
        )

    def _member(self, member: DescribedConsumer) -> Any:
        return part(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topics,
            subscribed_topic_regex=member.regex,
            assignment=self._assignment(member.assigned),
            target_assignment=self._assignment(member.target),
            member_type=CLASSIC_MEMBER if member.classic else CONSUMER_MEMBER,
        )

    def _assignment(self, assignment: Assignment) -> Any:
        """Return an assignment with topic names; topics deleted meanwhile have none, and are left out."""
        topics = self._image().topic_by_id
        return part(
            topic_partitions=tuple(
                part(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=partitions)
                for topic_id, partitions in assignment.items()
                if topic_id in topics
            ),
        )


def _owned(topics: Any) -> Assignment:
    found: dict[Any, list[int]] = {}
    for one in topics:
        if one.partitions:
            found.setdefault(one.topic_id or ZERO_UUID, []).extend(one.partitions)
    return {topic_id: tuple(partitions) for topic_id, partitions in found.items()}


def _assigned(assigned: Assignment) -> Any:
    return part(
        topic_partitions=tuple(
            part(topic_id=topic_id, partitions=partitions) for topic_id, partitions in assigned.items()
        ),
    )


ROWS = (
    by_schema(Api.CONSUMER_GROUP_HEARTBEAT, (0, 1), ConsumerGroupsHandler, ConsumerGroupsHandler.heartbeat),
    by_schema(Api.CONSUMER_GROUP_DESCRIBE, (0, 1), ConsumerGroupsHandler, ConsumerGroupsHandler.describe),
)
