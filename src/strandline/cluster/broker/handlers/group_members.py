"""Requests of members of classic groups: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14).

All handlers raise KafkaError: GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID for an empty name, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE. Errors that follow from the group's state are not raised, but
part of the answer (rule C7).
"""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext, group, require
from strandline.cluster.groups.commands import (
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    Leaver,
    SyncAnswer,
    SyncGroup,
)
from strandline.cluster.groups.config import MEMBER_BYTES_MAX
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

REBALANCE_TIMEOUT_SINCE = 1
MEMBER_ID_REQUIRED_SINCE = 4
JOIN_INSTANCE_SINCE = 5
NULL_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9
HEARTBEAT_INSTANCE_SINCE = 3
SYNC_INSTANCE_SINCE = 3
SYNC_PROTOCOL_SINCE = 5
"""First version of SyncGroup with the protocol that the member got from JoinGroup (KIP-559); null is refused, as in
Kafka."""

LEAVE_MANY_SINCE = 3


class GroupMembersHandler:
    """Forwards requests of members to their group's coordinator."""

    def __init__(self, *, groups: GroupCoordinator, authorizer: Authorizer) -> None:
        self._groups = groups
        self._authorizer = authorizer

    # JoinGroup

    async def join(self, call: Call) -> Any:
        """Answer JoinGroup once the rebalance has its members."""
        request, version = call.request, call.context.version
        session_ms = request.session_timeout
        rebalance_ms = request.rebalance_timeout if version >= REBALANCE_TIMEOUT_SINCE else -1
        command = JoinGroup(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id if version >= JOIN_INSTANCE_SINCE else None,
            client_id=call.context.client_id,
            client_host=f"/{call.context.peer.host}",  # as Kafka writes addresses, and its tools show them
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms if rebalance_ms < 0 else rebalance_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            member_id_required=version >= MEMBER_ID_REQUIRED_SINCE,
            may_skip_assignment=version >= SKIP_ASSIGNMENT_SINCE,
        )
        return _joined(call, await self._join(call.context, command))

    async def _join(self, context: RequestContext, command: JoinGroup) -> JoinAnswer:
        """Return the coordinator's answer once the rebalance has its members.

        Raises:
            KafkaError: INVALID_SESSION_TIMEOUT outside the cluster's limits; INCONSISTENT_GROUP_PROTOCOL without
                an assignor; INVALID_REQUEST for subscriptions too large for a record.
        """
        self._check_member_may(context, command.group_id)
        config = self._groups.config
        if not config.min_session_timeout_ms <= command.session_timeout_ms <= config.max_session_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms is {command.session_timeout_ms}; from {config.min_session_timeout_ms} "
                f"to {config.max_session_timeout_ms} is allowed here",
            )
        if not command.protocol_type or not command.protocols:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member needs a protocol type and an assignor")
        size = sum(len(name) + len(subscription) for name, subscription in command.protocols)
        if size > MEMBER_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the member's subscriptions are too large", size=size, max=MEMBER_BYTES_MAX
            )
        answer: JoinAnswer = await self._groups.ask(command.group_id, command)
        return answer

    # Heartbeat

    async def heartbeat(self, call: Call) -> Any:
        """Answer Heartbeat: NONE, or an error that tells the member what to do (rejoin, for example)."""
        request = call.request
        command = Heartbeat(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id if call.context.version >= HEARTBEAT_INSTANCE_SINCE else None,
        )
        return part(error_code=await self._heartbeat(call.context, command))

    async def _heartbeat(self, context: RequestContext, command: Heartbeat) -> ErrorCode:
        """Return NONE, or an error that tells the member what to do.

        Also NONE while the coordinator loads, as in Kafka: all session timeouts restart after the load, and some
        clients do not expect COORDINATOR_LOAD_IN_PROGRESS here (sarama ends its session).
        """
        self._check_member_may(context, command.group_id)
        try:
            error: ErrorCode = await self._groups.ask(command.group_id, command)
        except KafkaError as refused:
            if refused.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return ErrorCode.NONE
        return error

    # SyncGroup

    async def sync(self, call: Call) -> Any:
        """Answer SyncGroup once the leader's assignment is committed."""
        request, version = call.request, call.context.version
        if version >= SYNC_PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name):
            return _synced(SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        command = SyncGroup(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id if version >= SYNC_INSTANCE_SINCE else None,
            protocol_type=request.protocol_type if version >= SYNC_PROTOCOL_SINCE else None,
            protocol_name=request.protocol_name if version >= SYNC_PROTOCOL_SINCE else None,
            assignments=tuple((one.member_id, one.assignment) for one in request.assignments),
        )
        return _synced(await self._sync(call.context, command))

    async def _sync(self, context: RequestContext, command: SyncGroup) -> SyncAnswer:
        """Return the coordinator's answer once the leader's assignment is committed."""
        self._check_member_may(context, command.group_id)
        answer: SyncAnswer = await self._groups.ask(command.group_id, command)
        return answer

    # LeaveGroup

    async def leave(self, call: Call) -> Any:
        """Answer LeaveGroup: one error per leaving member, in order."""
        leavers = _leavers(call)
        command = LeaveGroup(call.request.group_id, leavers)
        errors = await self._leave(call.context, command)
        if call.context.version < LEAVE_MANY_SINCE:
            return part(error_code=errors[0])
        members = tuple(
            part(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error)
            for leaver, error in zip(leavers, errors, strict=True)
        )
        return part(error_code=ErrorCode.NONE, members=members)

    async def _leave(self, context: RequestContext, command: LeaveGroup) -> list[ErrorCode]:
        """Return one error per leaving member, in order."""
        self._check_member_may(context, command.group_id)
        errors: list[ErrorCode] = await self._groups.ask(command.group_id, command)
        return errors

    def _check_member_may(self, context: RequestContext, group_id: str) -> None:
        require(self._authorizer, context, Operation.READ, group(group_id))
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group with members needs a name")


def _joined(call: Call, answer: JoinAnswer) -> Any:
    protocol_name = answer.protocol_name
    if protocol_name is None and call.context.version < NULL_PROTOCOL_SINCE:
        protocol_name = ""
    return part(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            part(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.subscription,
            )
            for member in answer.members
        ),
    )


def _synced(answer: SyncAnswer) -> Any:
    return part(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def _leavers(call: Call) -> tuple[Leaver, ...]:
    if call.context.version < LEAVE_MANY_SINCE:
        return (Leaver(call.request.member_id),)
    return tuple(Leaver(member.member_id, member.group_instance_id) for member in call.request.members)


ROWS = (
    by_schema(Api.JOIN_GROUP, (0, 9), GroupMembersHandler, GroupMembersHandler.join),
    by_schema(Api.HEARTBEAT, (0, 4), GroupMembersHandler, GroupMembersHandler.heartbeat),
    by_schema(Api.LEAVE_GROUP, (0, 5), GroupMembersHandler, GroupMembersHandler.leave),
    by_schema(Api.SYNC_GROUP, (0, 5), GroupMembersHandler, GroupMembersHandler.sync),
)
