"""Groups as operators see them: list, describe, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from strandline.cluster.broker.service.authorizer import (
    CLUSTER,
    GROUP_OPERATIONS,
    Operation,
    allowed,
    group,
    operations_bits,
)
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.groups.commands import (
    DeleteGroup,
    DescribeGroup,
    GroupDescription,
    ListedGroup,
    ListGroups,
)
from strandline.cluster.groups.runtime import Phase
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

GROUPS_AT_A_STRETCH = 100
"""One request may name thousands of groups: others have their turn in between."""


class DescribedGroup(NamedTuple):
    """A group, or why there is nothing to tell of it."""

    group_id: str
    description: GroupDescription | None
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


class GroupAdmin(Base):
    """The operations on whole groups; each group is answered by its own coordinator alone."""

    async def describe_groups(self, context: RequestContext, group_ids: Sequence[str]) -> list[DescribedGroup]:
        """One answer a group, in order: GROUP_AUTHORIZATION_FAILED, GROUP_ID_NOT_FOUND, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS."""
        described = []
        for number, group_id in enumerate(group_ids, 1):
            if number % GROUPS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            try:
                if not allowed(self.authorizer, context, Operation.DESCRIBE, group(group_id)):
                    raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
                described.append(DescribedGroup(group_id, await self.groups.ask(group_id, DescribeGroup(group_id))))
            except KafkaError as error:
                described.append(DescribedGroup(group_id, None, error.code, error.message))
        return described

    async def list_groups(
        self, context: RequestContext, states: Sequence[str], types: Sequence[str]
    ) -> list[ListedGroup]:
        """The groups that this broker coordinates and the principal may see, by partition and age.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS while it is not known yet which there are.
        """
        command = ListGroups(tuple(states), tuple(types))
        listed: list[ListedGroup] = []
        for hosted in list(self.groups.runtime.hosted()):
            if hosted.phase in (Phase.FAILED, Phase.DROPPED):
                continue
            try:
                listed += await self.groups.runtime.ask(hosted.partition, command)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:
                    raise
        if allowed(self.authorizer, context, Operation.DESCRIBE, CLUSTER):
            return listed
        answers = self.authorizer.authorize(context, [(Operation.DESCRIBE, group(one.group_id)) for one in listed])
        return [one for one, answer in zip(listed, answers, strict=True) if answer]

    async def delete_groups(self, context: RequestContext, group_ids: Sequence[str]) -> list[ErrorCode]:
        """One error a group, in order: GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID, GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP, NOT_COORDINATOR."""
        errors = []
        for number, group_id in enumerate(group_ids, 1):
            if number % GROUPS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            try:
                if not allowed(self.authorizer, context, Operation.DELETE, group(group_id)):
                    raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
                if not group_id:
                    raise KafkaError(ErrorCode.INVALID_GROUP_ID)
                await self.groups.ask(group_id, DeleteGroup(group_id))
                errors.append(ErrorCode.NONE)
            except KafkaError as error:
                errors.append(error.code)
        return errors

    def group_operations(self, context: RequestContext, group_id: str) -> int:
        """What the principal may do with a group, as Kafka's bit field."""
        return operations_bits(self.authorizer, context, group(group_id), GROUP_OPERATIONS)
