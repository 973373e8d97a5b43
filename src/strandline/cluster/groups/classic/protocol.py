"""Commands of members of classic groups (join, sync, heartbeat, leave) and their answers.

Sources: rule C7, KIP-345 (static members), KIP-394 (member ids are given before the join), KIP-134
(the first rebalance waits), KIP-814 (a static leader that returns need not assign).
"""

from __future__ import annotations

from strandline.cluster.groups.classic.group import Group, GroupEvent, GroupState, Member
from strandline.cluster.groups.classic.rebalance import Rebalancing, joined_answer, session_key
from strandline.cluster.groups.commands import (
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    SyncAnswer,
    SyncGroup,
)
from strandline.cluster.groups.context import ShardContext, client_error
from strandline.cluster.groups.machine import WriteOutcome
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.group_records import group_record


class ClassicProtocol:
    """Handles members that join, stay and leave."""

    def __init__(self, context: ShardContext, rebalancing: Rebalancing) -> None:
        self._context = context
        self._rebalancing = rebalancing

    # Join

    def join(self, command: JoinGroup, to: object, now: Now) -> None:
        """Join a member. The answer comes at once, or when the rebalance has all its members."""
        group = self._context.groups.get(command.group_id)
        if group is None:
            if command.member_id:
                self._refuse(to, ErrorCode.UNKNOWN_MEMBER_ID, command.member_id)
                return
            if not self._context.has_room_for_a_group():
                self._refuse(to, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            group = self._context.groups[command.group_id] = Group(command.group_id)
        try:
            self._join(group, command, to, now)
        except KafkaError as error:
            self._refuse(to, error.code, command.member_id)
        self._context.forget_if_unused(group)

    def _refuse(self, to: object, error: ErrorCode, member_id: str = "") -> None:
        self._context.out.reply(to, JoinAnswer(error, member_id))

    def _join(self, group: Group, command: JoinGroup, to: object, now: Now) -> None:
        if not self._has_room(group, command.member_id):
            member = group.members.get(command.member_id)
            if member is not None:
                self._rebalancing.remove_member(group, member)
                self._rebalancing.complete_if_not_initial(group, now)
            self._refuse(to, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not group.supports(command.protocol_type, command.protocols):
            self._refuse(to, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id)
        elif not command.member_id:
            self._join_without_id(group, command, to, now)
        elif command.member_id in group.pending:
            if command.instance_id is not None:
                self._refuse(to, ErrorCode.UNKNOWN_MEMBER_ID, command.member_id)
            else:
                self._add(group, command, command.member_id, to, now)
        else:
            self._rejoin(group, group.check_member(command.member_id, command.instance_id), command, to, now)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Return whether there is room for the member: an existing member keeps its place; during a rebalance the first
        members to join get the places."""
        limit = self._context.config.max_size
        if group.state is GroupState.EMPTY:
            return member_id in group.pending or group.size < limit
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            if member is not None and member.join_to is not None:
                return True
            return group.joined < limit and (member is not None or member_id in group.pending or group.size < limit)
        return member is not None or member_id in group.pending or group.size < limit

    def _join_without_id(self, group: Group, command: JoinGroup, to: object, now: Now) -> None:
        if command.instance_id is not None:
            member_id = self._context.new_member_id(command.instance_id)
            old_id = group.instances.get(command.instance_id)
            if old_id is None:
                self._add(group, command, member_id, to, now)
            else:
                old = group.members[old_id]
                self._replace_static(group, old, member_id, command=command, to=to, now=now)
            return
        member_id = self._context.new_member_id(command.client_id)
        if command.member_id_required:
            group.pending[member_id] = None
            self._rebalancing.await_pending_member(group, member_id, command.session_timeout_ms, now)
            self._refuse(to, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(group, command, member_id, to, now)

    def _add(self, group: Group, command: JoinGroup, member_id: str, to: object, now: Now) -> None:
        member = _member(command, member_id)
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.before is GroupState.EMPTY:
            group.members_added = True
        group.add(member, command.protocol_type)
        group.start_joining(member, to)
        self._rebalancing.await_new_member(group, member, now)
        self._rebalancing.member_joined(group, now)

    def _rejoin(self, group: Group, member: Member, command: JoinGroup, to: object, now: Now) -> None:
        """Join a member that has an id. A join without changes is answered with the current generation, because the
        client has lost that answer. A join of the leader starts a rebalance: the input of its assignment may have
        changed."""
        if group.state is GroupState.EMPTY:
            self._refuse(to, ErrorCode.UNKNOWN_MEMBER_ID, command.member_id)
            return
        unchanged = member.protocols == command.protocols
        leads = group.leader == member.member_id
        if unchanged and (
            group.state is GroupState.COMPLETING_REBALANCE or (group.state is GroupState.STABLE and not leads)
        ):
            self._context.out.reply(to, joined_answer(group, member))
            return
        self._update(group, member, command, to)
        self._rebalancing.member_joined(group, now)

    def _update(self, group: Group, member: Member, command: JoinGroup, to: object) -> None:
        group.update(member, command.protocols)
        member.session_timeout_ms = command.session_timeout_ms
        member.rebalance_timeout_ms = command.rebalance_timeout_ms
        if member.join_to is not None:  # asked twice: the first connection is gone, or hears it too
            self._refuse(member.join_to, ErrorCode.UNKNOWN_MEMBER_ID, member.member_id)
        group.start_joining(member, to)

    # Static members

    def _replace_static(
        self, group: Group, old: Member, member_id: str, *, command: JoinGroup, to: object, now: Now
    ) -> None:
        """Replace a static member that returns (KIP-345): it takes its own place under a new id, and the process with
        the old id is fenced. In a stable group whose assignor stays the same this needs no rebalance, but it is stored
        before it is answered: otherwise the old id would be valid again after a failover (schedule 43)."""
        old_leader = group.leader or ""
        new = _member(command, member_id)
        new.assignment = old.assignment
        was_stable = group.state is GroupState.STABLE
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self._refuse_if_waiting(group, old, fenced)
        group.replace(old, new)
        self._context.timers.cancel(session_key(group.group_id, old.member_id))
        self._rebalancing.renew_session(group, new, now)
        if was_stable and group.select_protocol() == group.protocol_name:
            self._store_replacement(group, old, new, old_leader=old_leader, command=command, to=to)
            return
        group.start_joining(new, to)
        self._rebalancing.member_joined(group, now)

    def _refuse_if_waiting(self, group: Group, member: Member, error: ErrorCode) -> None:
        to = group.stop_joining(member)
        self._context.out.reply(to, JoinAnswer(error, member.member_id))
        to, member.sync_to = member.sync_to, None
        self._context.out.reply(to, SyncAnswer(error))

    def _store_replacement(
        self, group: Group, old: Member, new: Member, *, old_leader: str, command: JoinGroup, to: object
    ) -> None:
        def stored(outcome: WriteOutcome, now: Now) -> None:
            current = group.members.get(new.member_id) is new
            if outcome.error is not ErrorCode.NONE:
                if not outcome.written and current:
                    group.replace(new, old)
                    self._context.timers.cancel(session_key(group.group_id, new.member_id))
                    self._rebalancing.renew_session(group, old, now)
                self._refuse(to, client_error(outcome.error))
            elif not current:
                self._refuse(to, ErrorCode.UNKNOWN_MEMBER_ID)
            elif command.may_skip_assignment:
                answer = joined_answer(group, new)
                self._context.out.reply(to, answer._replace(skip_assignment=group.leader == new.member_id))
            else:
                # An older client that is told it leads would assign: its answer names the leader by the old id.
                self._context.out.reply(to, joined_answer(group, new)._replace(leader=old_leader, members=()))

        # rule C8/static-rejoin-not-stored
        self._context.out.write((group_record(group.group_id, group.value()),), stored, replay=False)

    # Sync

    def sync(self, command: SyncGroup, to: object, now: Now) -> None:
        """Send a member its assignment; the answer comes once the leader's assignment is committed."""
        try:
            group = self._members_group(command.group_id)
            member = group.check_member(command.member_id, command.instance_id)
        except KafkaError as error:
            self._context.out.reply(to, SyncAnswer(error.code))
            return
        error_code = _sync_fault(group, command)
        if error_code is not ErrorCode.NONE:
            self._context.out.reply(to, SyncAnswer(error_code))
        elif group.state is GroupState.STABLE:
            self._rebalancing.synced(group, member.member_id)
            self._rebalancing.renew_session(group, member, now)
            answer = SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)
            self._context.out.reply(to, answer)
        else:
            if member.sync_to is not None:
                self._context.out.reply(member.sync_to, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
            member.sync_to = to
            self._rebalancing.synced(group, member.member_id)
            if group.leader == member.member_id:
                known = {one: assigned for one, assigned in command.assignments if one in group.members}
                self._rebalancing.store_assignment(group, known)

    def _members_group(self, group_id: str) -> Group:
        """Return the group of a member's request. Raises KafkaError UNKNOWN_MEMBER_ID if the group has no members."""
        group = self._context.groups.get(group_id)
        if group is None or group.is_empty:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # Heartbeat

    def heartbeat(self, command: Heartbeat, to: object, now: Now) -> None:
        """Renew the member's session. The answer is REBALANCE_IN_PROGRESS for a member that has to join again."""
        try:
            group = self._members_group(command.group_id)
            member = group.check_member(command.member_id, command.instance_id)
        except KafkaError as error:
            self._context.out.reply(to, error.code)
            return
        if command.generation != group.generation:
            self._context.out.reply(to, ErrorCode.ILLEGAL_GENERATION)
            return
        self._rebalancing.renew_session(group, member, now)
        preparing = group.state is GroupState.PREPARING_REBALANCE
        self._context.out.reply(to, ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE)

    # Leave

    def leave(self, command: LeaveGroup, to: object, now: Now) -> None:
        """Remove members that leave, with one answer for each; the other members rebalance."""
        group = self._context.groups.get(command.group_id)
        if group is None:
            self._context.out.reply(to, [ErrorCode.UNKNOWN_MEMBER_ID for _ in command.members])
            return
        answers = [self._leave(group, leaver.member_id, leaver.instance_id) for leaver in command.members]
        if ErrorCode.NONE in answers:
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._rebalancing.prepare(group, GroupEvent.MEMBER_LEFT, now)
            else:
                self._rebalancing.complete_if_not_initial(group, now)
        self._context.forget_if_unused(group)
        self._context.out.reply(to, answers, after_writes=True)

    def _leave(self, group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
        if member_id and member_id in group.pending:
            group.remove(member_id)
            self._context.timers.cancel(session_key(group.group_id, member_id))
            return ErrorCode.NONE
        if not member_id and instance_id is not None:
            member_id = group.instances.get(instance_id, "")
        try:
            self._rebalancing.remove_member(group, group.check_member(member_id, instance_id))
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


def _sync_fault(group: Group, command: SyncGroup) -> ErrorCode:
    if command.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    pairs = ((command.protocol_type, group.protocol_type), (command.protocol_name, group.protocol_name))
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _member(command: JoinGroup, member_id: str) -> Member:
    return Member(
        member_id=member_id,
        instance_id=command.instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        session_timeout_ms=command.session_timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        protocols=command.protocols,
    )
