"""What members of groups ask: join, sync, heartbeat, leave."""

from __future__ import annotations

from strandline.cluster.broker.service.authorizer import Operation, allowed, group
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.groups.commands import (
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    SyncAnswer,
    SyncGroup,
)
from strandline.cluster.groups.config import MEMBER_BYTES_MAX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


class GroupMembers(Base):
    """The operations of members.

    All of them raise KafkaError: GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID for an empty name, NOT_COORDINATOR,
    COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE. What the group's state has against them stands in the
    answer (rule C7).
    """

    async def join_group(self, context: RequestContext, command: JoinGroup) -> JoinAnswer:
        """Returns when the rebalance has its members.

        Raises:
            KafkaError: INVALID_SESSION_TIMEOUT outside of what the cluster allows; INCONSISTENT_GROUP_PROTOCOL without
                an assignor; INVALID_REQUEST for subscriptions that no record could hold.
        """
        self._check_member_may(context, command.group_id)
        config = self.groups.config.groups
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
        answer: JoinAnswer = await self.groups.ask(command.group_id, command)
        return answer

    async def sync_group(self, context: RequestContext, command: SyncGroup) -> SyncAnswer:
        """Returns when the leader's assignment is committed."""
        self._check_member_may(context, command.group_id)
        answer: SyncAnswer = await self.groups.ask(command.group_id, command)
        return answer

    async def heartbeat(self, context: RequestContext, command: Heartbeat) -> ErrorCode:
        """NONE, or what the member shall do.

        Also NONE while the coordinator loads, as with Kafka: every session begins anew then, and not every client
        knows COORDINATOR_LOAD_IN_PROGRESS here (sarama ends its session).
        """
        self._check_member_may(context, command.group_id)
        try:
            error: ErrorCode = await self.groups.ask(command.group_id, command)
        except KafkaError as refused:
            if refused.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return ErrorCode.NONE
        return error

    async def leave_group(self, context: RequestContext, command: LeaveGroup) -> list[ErrorCode]:
        """One error a leaver, in order."""
        self._check_member_may(context, command.group_id)
        errors: list[ErrorCode] = await self.groups.ask(command.group_id, command)
        return errors

    def _check_member_may(self, context: RequestContext, group_id: str) -> None:
        if not allowed(self.authorizer, context, Operation.READ, group(group_id)):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group with members needs a name")
