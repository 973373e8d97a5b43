"""Groups of the consumer protocol (KIP-848): heartbeats of members, and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.cluster.broker.service.authorizer import Operation, allowed, group, topic
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.groups.config import MEMBER_BYTES_MAX
from strandline.cluster.groups.consumer_protocol.commands import (
    ConsumerAnswer,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


class DescribedConsumerGroup(NamedTuple):
    """A group, or why there is nothing to tell of it."""

    group_id: str
    description: ConsumerGroupDescription | None
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


class ConsumerGroups(Base):
    """The operations on groups whose coordinator assigns."""

    async def consumer_heartbeat(self, context: RequestContext, command: ConsumerHeartbeat) -> ConsumerAnswer:
        """What the member shall be from now on.

        Raises:
            KafkaError: GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED, INVALID_REQUEST, NOT_COORDINATOR,
                COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, and those of `ConsumerProtocol.heartbeat`.
        """
        if not allowed(self.authorizer, context, Operation.READ, group(command.group_id)):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not command.group_id.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a group with members needs a name")
        names = command.topics or ()
        size = sum(map(len, (*names, command.regex or "", command.instance_id or "", command.rack or "")))
        if size > MEMBER_BYTES_MAX // 4:  # a character may take four bytes
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the member's subscriptions are too large", size=size)
        may = self.authorizer.authorize(context, [(Operation.DESCRIBE, topic(name)) for name in names])
        if not all(may):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        answer: ConsumerAnswer = await self.groups.ask(command.group_id, command)
        return answer

    async def describe_consumer_groups(
        self, context: RequestContext, group_ids: Sequence[str]
    ) -> list[DescribedConsumerGroup]:
        """One answer a group, in order: GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED, INVALID_GROUP_ID,
        GROUP_ID_NOT_FOUND (classic groups too), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        described = []
        for group_id in group_ids:
            try:
                if not allowed(self.authorizer, context, Operation.DESCRIBE, group(group_id)):
                    raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
                if not group_id:
                    raise KafkaError(ErrorCode.INVALID_GROUP_ID)
                found: ConsumerGroupDescription = await self.groups.ask(group_id, DescribeConsumerGroup(group_id))
                self._check_topics(context, found)
                described.append(DescribedConsumerGroup(group_id, found))
            except KafkaError as error:
                described.append(DescribedConsumerGroup(group_id, None, error.code, error.message))
        return described

    def _check_topics(self, context: RequestContext, found: ConsumerGroupDescription) -> None:
        known = self.image().topic_by_id
        names = {
            known[topic_id].name: None
            for member in found.members
            for topic_id in (*member.assigned, *member.target)
            if topic_id in known
        }
        if not all(self.authorizer.authorize(context, [(Operation.DESCRIBE, topic(name)) for name in names])):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
