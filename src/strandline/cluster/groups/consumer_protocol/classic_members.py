"""Members of the classic protocol in a group of the consumer protocol, while it moves from one to the other (KIP-848).

They join, sync, send heartbeats and leave as before; but the coordinator assigns, no member waits for the others, and
each reconciles by itself, with its epoch as the generation:

    heartbeat  REBALANCE_IN_PROGRESS if the member has something to revoke, or may get more
    join       reports what the member owns, which acknowledges its revocations; answered at once
    sync       its assignment; an eager member has revoked everything before it joins, and gets it again

Java's and librdkafka's consumers, eager or cooperative, do so without knowing it.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.cluster.groups.classic.group import CONSUMER_PROTOCOL
from strandline.cluster.groups.commands import (
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    SyncAnswer,
    SyncGroup,
)
from strandline.cluster.groups.consumer_protocol.changes import MemberChanges
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroup, Draft
from strandline.cluster.groups.consumer_protocol.migration import assignment_bytes, by_id, subscription_of
from strandline.cluster.groups.consumer_protocol.reconcile import pairs
from strandline.cluster.groups.context import ShardContext
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.kafka.consumer_group_records import ClassicMember, Current, MemberInfo, MemberState
from strandline.proto.kafka.consumer_protocol import Subscription


class ClassicMembers:
    """Handles commands of classic members in a group of the consumer protocol. Each method raises KafkaError with
    errors of the command's own protocol."""

    def __init__(self, context: ShardContext, changes: MemberChanges, image: Callable[[], MetadataImage]) -> None:
        self._context = context
        self._changes = changes
        self._image = image

    # Join

    def join(self, group: ConsumerGroup, command: JoinGroup, to: object, now: Now) -> None:
        """Join a classic member. The answer is sent when the join is committed.

        Raises:
            KafkaError: INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        subscription = _subscription(group, command)
        if not command.member_id and command.instance_id is None and command.member_id_required:
            self._changes.check_room(group)
            member_id = self._context.new_member_id(command.client_id)
            self._context.out.reply(to, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
        draft = Draft(group)
        member_id = self._enter(draft, command)
        info = _info(draft.member(member_id), command, subscription)
        owned = by_id(subscription.owned, self._image())
        _, after = self._changes.advance(draft, member_id, info, owned, now)
        self._changes.expect_collect(group.group_id, member_id, info.rebalance_timeout_ms, now)
        answer = JoinAnswer(
            ErrorCode.NONE,
            member_id=member_id,
            generation=after.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=command.protocols[0][0],
        )
        self._changes.write(tuple(draft.records()), to, answer, group)

    def _enter(self, draft: Draft, command: JoinGroup) -> str:
        """Return the member's id, after the check that it may be a member. A member may send an id from a classic
        group."""
        group, member_id, instance_id = draft.group, command.member_id, command.instance_id
        if instance_id is None:
            if member_id not in group.members:
                self._changes.check_room(group)
            return member_id or self._context.new_member_id(command.client_id)
        if member_id:
            group.check_member(member_id, instance_id)
            return member_id
        member_id = self._context.new_member_id(instance_id)
        holder = group.instances.get(instance_id)
        if holder is None:
            self._changes.check_room(group)
        else:  # KIP-345: the member that holds the instance id is fenced, whichever protocol it has
            self._changes.replace_static(draft, holder, member_id)
        return member_id

    # Sync, heartbeat, leave

    def sync(self, group: ConsumerGroup, command: SyncGroup, to: object, now: Now) -> None:
        """Answer with the member's assignment, at the epoch of the answer to its join."""
        info, current = self._member(group, command.member_id, command.instance_id, command.generation)
        assert info.classic is not None
        name = info.classic.protocols[0][0]
        if command.protocol_type not in (None, CONSUMER_PROTOCOL) or command.protocol_name not in (None, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if current.epoch < group.epoch and current.state is not MemberState.UNREVOKED:
            self._changes.expect_rejoin(group.group_id, command.member_id, info.rebalance_timeout_ms, now)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group has a newer epoch")
        self._changes.collected(group.group_id, command.member_id)
        self._changes.renew(group.group_id, command.member_id, info, now)
        assignment = assignment_bytes(current.assigned, self._image())
        answer = SyncAnswer(ErrorCode.NONE, CONSUMER_PROTOCOL, name, assignment)
        self._context.out.reply(to, answer, after_writes=True)

    def heartbeat(self, group: ConsumerGroup, command: Heartbeat, to: object, now: Now) -> None:
        """Renew the session. A member that has to revoke partitions, or may get more, is told to join again."""
        info, current = self._member(group, command.member_id, command.instance_id, command.generation)
        self._changes.renew(group.group_id, command.member_id, info, now)
        draft = Draft(group)
        self._changes.refresh(draft)
        records = tuple(draft.records())
        if records:
            self._changes.write(records, None, None, group)
        # A member that has something to revoke is behind, until it reports the revocation.
        shall_join = current.epoch < draft.epoch or (
            current.state is MemberState.UNRELEASED and _all_free(draft, command.member_id, current)
        )
        if shall_join:
            self._changes.expect_rejoin(group.group_id, command.member_id, info.rebalance_timeout_ms, now)
        self._context.out.reply(to, ErrorCode.REBALANCE_IN_PROGRESS if shall_join else ErrorCode.NONE)

    def leave(self, group: ConsumerGroup, command: LeaveGroup, to: object) -> None:
        """Remove classic members that leave. Members of the consumer protocol leave by a heartbeat; an administrator
        removes both kinds by this command."""
        gone: dict[str, None] = {}
        errors = []
        for leaver in command.members:
            member_id = leaver.member_id or group.instances.get(leaver.instance_id or "", "")
            try:
                group.check_member(member_id, leaver.instance_id)
                gone[member_id] = None
                errors.append(ErrorCode.NONE)
            except KafkaError as error:
                errors.append(error.code)
        if gone:
            self._changes.remove(group, gone, to, errors)
        else:
            self._context.out.reply(to, errors, after_writes=True)

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[MemberInfo, Current]:
        """Find a classic member, and check its id and generation. Raises KafkaError UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID or ILLEGAL_GENERATION."""
        info = group.check_member(member_id, instance_id)
        if info.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id!r} has the consumer protocol")
        current = group.now(member_id)
        if generation != current.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the member is at {current.epoch}, not {generation}")
        return info, current


def _all_free(draft: Draft, member_id: str, current: Current) -> bool:
    """True if all partitions that the member waits for are free."""
    having = pairs(current.assigned)
    return not any(one not in having and draft.is_taken(one, member_id) for one in pairs(draft.target(member_id)))


def _subscription(group: ConsumerGroup, command: JoinGroup) -> Subscription:
    """Raises KafkaError INCONSISTENT_GROUP_PROTOCOL."""
    if not group.supports(command.protocol_type, command.protocols):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no consumer, or without an assignor that all classic members have"
        )
    try:
        return subscription_of(command.protocols)
    except ProtocolError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"its subscription does not parse: {error}") from error


def _info(known: MemberInfo | None, command: JoinGroup, subscription: Subscription) -> MemberInfo:
    """Values of the member: those of this request, else the known ones."""
    instance_id, rack, assignor = (
        (None, None, None) if known is None else (known.instance_id, known.rack, known.assignor)
    )
    return MemberInfo(
        instance_id=instance_id if command.instance_id is None else command.instance_id,
        rack=rack if subscription.rack is None else subscription.rack,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        regex=None,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        assignor=assignor,
        classic=ClassicMember(command.session_timeout_ms, command.protocols),
    )
