"""ConsumerGroupDescribe (69): groups of the consumer protocol, with what each member has and shall have."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.consumer_groups import DescribedConsumerGroup
from strandline.cluster.groups.consumer_protocol.commands import DescribedConsumer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.consumer_group_records import Assignment

OPERATIONS_NOT_ASKED = -(2**31)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Kafka's numbers for the protocol of a member; a group that moves from one to the other has both."""


async def _answer(call: Call) -> Any:
    return _respond(call, await call.service.describe_consumer_groups(call.context, call.request.group_ids))


def _respond(call: Call, groups: list[DescribedConsumerGroup]) -> Any:
    return part(throttle_time=0, groups=tuple(_group(call, group) for group in groups))


def _group(call: Call, group: DescribedConsumerGroup) -> Any:
    found = group.description
    asked = call.request.include_authorized_operations and found is not None
    return part(
        error_code=group.error,
        error_message=(group.message or None) if group.error is not ErrorCode.NONE else None,
        group_id=group.group_id,
        group_state="" if found is None else found.state,
        group_epoch=0 if found is None else found.epoch,
        assignment_epoch=0 if found is None else found.target_epoch,
        assignor_name="" if found is None else found.assignor,
        members=() if found is None else tuple(_member(call, member) for member in found.members),
        authorized_operations=(
            call.service.group_operations(call.context, group.group_id) if asked else OPERATIONS_NOT_ASKED
        ),
    )


def _member(call: Call, member: DescribedConsumer) -> Any:
    return part(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.regex,
        assignment=_assignment(call, member.assigned),
        target_assignment=_assignment(call, member.target),
        member_type=CLASSIC_MEMBER if member.classic else CONSUMER_MEMBER,
    )


def _assignment(call: Call, assignment: Assignment) -> Any:
    """A topic that was deleted meanwhile has no name any more and is left out."""
    topics = call.service.image().topic_by_id
    return part(
        topic_partitions=tuple(
            part(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=partitions)
            for topic_id, partitions in assignment.items()
            if topic_id in topics
        ),
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(
        call, [DescribedConsumerGroup(group_id, None, error, message) for group_id in call.request.group_ids]
    )


API = message_api(
    Api.CONSUMER_GROUP_DESCRIBE,
    first=0,
    last=1,
    refuse=_refuse,
    answer_later=_answer,
)
