"""Groups as operators see them: DescribeGroups (15), ListGroups (16), DeleteGroups (42).

Each group is answered by its own coordinator alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
from strandline.cluster.groups.commands import DeleteGroup, DescribeGroup, GroupDescription, ListedGroup, ListGroups
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.groups.runtime import Phase
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

OPERATIONS_SINCE = 3
NOT_FOUND_SINCE = 6
STATES_SINCE = 4
TYPES_SINCE = 5

DEAD = "Dead"
"""Kafka's state of a group that does not exist."""

GROUPS_AT_A_STRETCH = 100
"""One request may name thousands of groups: others have their turn in between."""


Description = TypeVar("Description")


class DescribedGroup(NamedTuple, Generic[Description]):
    """A group, or the error that is the answer for it."""

    group_id: str
    description: Description | None
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


async def describe_each(
    group_ids: Sequence[str], describe: Callable[[str], Awaitable[Description]]
) -> list[DescribedGroup[Description]]:
    """One answer a group, in order; a KafkaError that `describe` raises is the answer for its group."""
    described: list[DescribedGroup[Description]] = []
    for number, group_id in enumerate(group_ids, 1):
        if number % GROUPS_AT_A_STRETCH == 0:
            await asyncio.sleep(0)
        try:
            described.append(DescribedGroup(group_id, await describe(group_id)))
        except KafkaError as error:
            described.append(DescribedGroup(group_id, None, error.code, error.message))
    return described


class GroupAdminHandler:
    """Describes, lists and deletes groups."""

    def __init__(self, *, groups: GroupCoordinator, authorizer: Authorizer) -> None:
        self._groups = groups
        self._authorizer = authorizer

    # DescribeGroups

    async def describe(self, call: Call) -> Any:
        """One answer a group, each once."""

        async def describe(group_id: str) -> GroupDescription:
            return await self._describe(call.context, group_id)

        return self._described(call, await describe_each(list(dict.fromkeys(call.request.groups)), describe))

    async def _describe(self, context: RequestContext, group_id: str) -> GroupDescription:
        """Raises KafkaError: GROUP_AUTHORIZATION_FAILED, GROUP_ID_NOT_FOUND, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS."""
        require(self._authorizer, context, Operation.DESCRIBE, group(group_id))
        found: GroupDescription = await self._groups.ask(
            group_id, DescribeGroup(group_id), asked_ms=context.received_ms
        )
        return found

    def _described(self, call: Call, groups: list[DescribedGroup[GroupDescription]]) -> Any:
        return part(groups=tuple(self._group(call, described) for described in groups))

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
            members=()
            if found is None
            else tuple(
                part(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.subscription,
                    member_assignment=member.assignment,
                )
                for member in found.members
            ),
            authorized_operations=operations,
        )

    # ListGroups

    async def list_groups(self, call: Call) -> Any:
        """The groups that this broker coordinates and the principal may see."""
        version = call.context.version
        states = call.request.states_filter if version >= STATES_SINCE else ()
        types = call.request.types_filter if version >= TYPES_SINCE else ()
        return _listed(ErrorCode.NONE, await self._list(call.context, states, types))

    async def _list(self, context: RequestContext, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        """The groups that this broker coordinates and the principal may see, by partition and age.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS while it is not known yet which there are.
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
        if allowed(self._authorizer, context, Operation.DESCRIBE, CLUSTER, noted=False):
            return listed
        actions = [(Operation.DESCRIBE, group(one.group_id)) for one in listed]
        answers = self._authorizer.authorize(context, actions, noted=False)
        return [one for one, answer in zip(listed, answers, strict=True) if answer]  # rule A20/groups-are-listed-to-all

    # DeleteGroups

    async def delete(self, call: Call) -> Any:
        """One error a group."""
        return _deleted(call, await self._delete(call.context, _names(call)))

    async def _delete(self, context: RequestContext, group_ids: Sequence[str]) -> list[ErrorCode]:
        """One error a group, in order: GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID, GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP, NOT_COORDINATOR."""
        errors = []
        for number, group_id in enumerate(group_ids, 1):
            if number % GROUPS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            try:
                require(self._authorizer, context, Operation.DELETE, group(group_id))
                if not group_id:
                    raise KafkaError(ErrorCode.INVALID_GROUP_ID)
                await self._groups.ask(group_id, DeleteGroup(group_id), asked_ms=context.received_ms)
                errors.append(ErrorCode.NONE)
            except KafkaError as error:
                errors.append(error.code)
        return errors


def _listed(error: ErrorCode, groups: list[ListedGroup]) -> Any:
    return part(
        error_code=error,
        groups=tuple(
            part(
                group_id=one.group_id,
                protocol_type=one.protocol_type,
                group_state=one.state,
                group_type=one.type,
            )
            for one in groups
        ),
    )


def _names(call: Call) -> tuple[str, ...]:
    """A group that is named twice is deleted once, and answered once."""
    return tuple(dict.fromkeys(call.request.groups_names))


def _deleted(call: Call, errors: Sequence[ErrorCode]) -> Any:
    results = tuple(
        part(group_id=group_id, error_code=error) for group_id, error in zip(_names(call), errors, strict=True)
    )
    return part(results=results)


def _groups_deleted(request: Any, answer: Any) -> Iterator[Change]:
    for one in answer.results:
        yield f"group {one.group_id}", one.error_code


ROWS = (
    by_schema(Api.DESCRIBE_GROUPS, (0, 6), GroupAdminHandler, GroupAdminHandler.describe),
    by_schema(Api.LIST_GROUPS, (0, 5), GroupAdminHandler, GroupAdminHandler.list_groups),
    by_schema(Api.DELETE_GROUPS, (0, 2), GroupAdminHandler, GroupAdminHandler.delete, changes=_groups_deleted),
)
