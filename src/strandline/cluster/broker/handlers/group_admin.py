"""Groups for operators: DescribeGroups (15), ListGroups (16), DeleteGroups (42).

A broker answers only for the groups that it coordinates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Any, Generic, NamedTuple, TypeVar

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import (
    OPERATIONS_NOT_ASKED,
    Authorizer,
    RequestContext,
    allowed,
    group,
    operations_bits,
    require,
)
from strandline.cluster.groups.commands import (
    DeleteGroup,
    DescribedMember,
    DescribeGroup,
    GroupDescription,
    ListedGroup,
    ListGroups,
)
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.groups.runtime import Phase
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api
from strandline.proto.steps import Mapped, each

OPERATIONS_SINCE = 3
NOT_FOUND_SINCE = 6
STATES_SINCE = 4
TYPES_SINCE = 5

DEAD = "Dead"
"""Kafka's state of a group that does not exist."""


Description = TypeVar("Description")


class DescribedGroup(NamedTuple, Generic[Description]):
    """The description of a group, or an error."""

    group_id: str
    description: Description | None
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


async def describe_each(
    call: Call, group_ids: Iterable[str], describe: Callable[[RequestContext, str], Awaitable[Description]]
) -> list[DescribedGroup[Description]]:
    """Describe each group by `describe`; a KafkaError that it raises becomes the error of that group."""

    async def described(group_id: str) -> DescribedGroup[Description]:
        try:
            return DescribedGroup(group_id, await describe(call.context, group_id))
        except KafkaError as error:
            return DescribedGroup(group_id, None, error.code, error.message)

    return await call.connection.each(described, group_ids)


class GroupAdminHandler:
    """Describes, lists and deletes groups."""

    def __init__(self, *, groups: GroupCoordinator, authorizer: Authorizer) -> None:
        self._groups = groups
        self._authorizer = authorizer

    # DescribeGroups

    async def describe(self, call: Call) -> Any:
        """Answer DescribeGroups: one answer per group; a group named repeatedly has one answer."""
        groups = await describe_each(call, dict.fromkeys(call.request.groups), self._describe)
        return part(groups=Mapped(partial(self._group, call), groups))

    async def _describe(self, context: RequestContext, group_id: str) -> GroupDescription:
        """Return the description of a group. Raises KafkaError: GROUP_AUTHORIZATION_FAILED, GROUP_ID_NOT_FOUND,
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        require(self._authorizer, context, Operation.DESCRIBE, group(group_id))
        found: GroupDescription = await self._groups.ask(
            group_id, DescribeGroup(group_id), asked_ms=context.received_ms
        )
        return found

    def _group(self, call: Call, one: DescribedGroup[GroupDescription]) -> Any:
        version, error, found = call.context.version, one.error, one.description
        missing = error is ErrorCode.GROUP_ID_NOT_FOUND
        if missing and version < NOT_FOUND_SINCE:
            error = ErrorCode.NONE
        state = DEAD if missing else ""
        asked = version >= OPERATIONS_SINCE and call.request.include_authorized_operations and found is not None
        operations = OPERATIONS_NOT_ASKED
        if asked:
            operations = operations_bits(self._authorizer, call.context, group(one.group_id))
        return part(
            error_code=error,
            error_message=(one.message or None) if error is not ErrorCode.NONE else None,
            group_id=one.group_id,
            group_state=state if found is None else found.state,
            protocol_type="" if found is None else found.protocol_type,
            protocol_data="" if found is None else found.protocol_name,
            members=() if found is None else Mapped(_member, found.members),
            authorized_operations=operations,
        )

    # ListGroups

    async def list_groups(self, call: Call) -> Any:
        """Answer ListGroups: the groups that this broker coordinates and the principal may see."""
        version = call.context.version
        states = call.request.states_filter if version >= STATES_SINCE else ()
        types = call.request.types_filter if version >= TYPES_SINCE else ()
        groups = await self._list(call, states, types)
        return part(error_code=ErrorCode.NONE, groups=Mapped(_listed, groups))

    async def _list(self, call: Call, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        """Return the groups that this broker coordinates and the principal may see, by partition and age.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS while this broker still loads the groups of a partition.
        """
        command = ListGroups(tuple(states), tuple(types))
        listed: list[ListedGroup] = []
        for hosted in list(self._groups.runtime.hosted()):
            if hosted.phase in (Phase.FAILED, Phase.DROPPED):
                continue
            try:
                listed += await self._groups.runtime.ask(hosted.partition, command)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:
                    raise
        if allowed(self._authorizer, call.context, Operation.DESCRIBE, CLUSTER, noted=False):
            return listed

        def is_seen(one: ListedGroup) -> bool:
            # rule A20/groups-are-listed-to-all
            return allowed(self._authorizer, call.context, Operation.DESCRIBE, group(one.group_id), noted=False)

        seen = await call.connection.stepped(each(is_seen, listed))
        return list(compress(listed, seen))

    # DeleteGroups

    async def delete(self, call: Call) -> Any:
        """Answer DeleteGroups: one error per group."""
        # A group named twice is deleted and answered once.
        names = tuple(dict.fromkeys(call.request.groups_names))
        errors = await call.connection.each(partial(self._delete, call.context), names)
        return part(results=Mapped(_deleted, names, errors))

    async def _delete(self, context: RequestContext, group_id: str) -> ErrorCode:
        """Delete a group; returns NONE, GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID, GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP, NOT_COORDINATOR, or another error of the coordinator."""
        try:
            require(self._authorizer, context, Operation.DELETE, group(group_id))
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            await self._groups.ask(group_id, DeleteGroup(group_id), asked_ms=context.received_ms)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


def _member(member: DescribedMember) -> Any:
    return part(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.subscription,
        member_assignment=member.assignment,
    )


def _listed(one: ListedGroup) -> Any:
    return part(
        group_id=one.group_id,
        protocol_type=one.protocol_type,
        group_state=one.state,
        group_type=one.type,
    )


def _deleted(group_id: str, error: ErrorCode) -> Any:
    return part(group_id=group_id, error_code=error)


def _groups_deleted(request: Any, answer: Any) -> Iterator[Change]:
    for one in answer.results:
        yield f"group {one.group_id}", one.error_code


ROWS = (
    by_schema(Api.DESCRIBE_GROUPS, (0, 6), GroupAdminHandler, GroupAdminHandler.describe),
    by_schema(Api.LIST_GROUPS, (0, 5), GroupAdminHandler, GroupAdminHandler.list_groups),
    by_schema(Api.DELETE_GROUPS, (0, 2), GroupAdminHandler, GroupAdminHandler.delete, changes=_groups_deleted),
)
