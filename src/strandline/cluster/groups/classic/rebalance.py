"""Rebalance of a classic group, from one generation to the next (prepare, complete, assign), and removal of members."""

from __future__ import annotations

from collections.abc import Hashable

from strandline.cluster.groups.classic.group import Group, GroupEvent, GroupState, Member
from strandline.cluster.groups.commands import JoinAnswer, SyncAnswer
from strandline.cluster.groups.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from strandline.cluster.groups.context import ShardContext, client_error
from strandline.cluster.groups.machine import WriteOutcome
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.group_records import group_record


def session_key(group_id: str, member_id: str) -> Hashable:
    """Key of the deadline of a member's session."""
    return "session", group_id, member_id


def join_key(group_id: str) -> Hashable:
    """Key of the deadline for members to join a rebalance."""
    return "join", group_id


def sync_key(group_id: str) -> Hashable:
    """Key of the deadline for members to ask for their assignment."""
    return "sync", group_id


def joined_answer(group: Group, member: Member) -> JoinAnswer:
    """Return the answer to this member's join, with the current generation."""
    return JoinAnswer(
        ErrorCode.NONE,
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        members=group.joined_members() if group.leader == member.member_id else (),
    )


class Rebalancing:
    """Steps of a rebalance, and the deadlines of sessions, joins and syncs."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context

    # Sessions

    def renew_session(self, group: Group, member: Member, now: Now) -> None:
        """Renew the session of a member that has sent a request."""
        self._expect(group, member.member_id, member.session_timeout_ms, now)

    def await_new_member(self, group: Group, member: Member, now: Now) -> None:
        """Expect a new member to rejoin: it has no generation yet and sends no heartbeats."""
        self._expect(group, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now)

    def await_pending_member(self, group: Group, member_id: str, session_timeout_ms: int, now: Now) -> None:
        """Expect a member that was given an id to join with it (KIP-394)."""
        self._expect(group, member_id, session_timeout_ms, now)

    def _expect(self, group: Group, member_id: str, delay_ms: float, now: Now) -> None:
        group_id = group.group_id
        self._context.timers.set(
            session_key(group_id, member_id),
            now.monotonic_ms + delay_ms,
            lambda then: self._session_ended(group_id, member_id, then),
        )

    def _session_ended(self, group_id: str, member_id: str, now: Now) -> None:
        group = self._context.groups.get(group_id)
        if group is None:
            return
        if member_id in group.pending:
            group.remove(member_id)
            self._context.forget_if_unused(group)
            self.complete_if_joined(group, now)
            return
        member = group.members.get(member_id)
        # A member that waits for an answer is silent because the answer is late: its deadline begins with the answer.
        if member is not None and (member.is_new or not member.waits):
            self._context.counters.members_expired += 1
            self.remove_member(group, member)
            self._rebalance_without(group, now)

    def remove_member(self, group: Group, member: Member) -> None:
        """Remove a member that left or whose session ended. A JoinGroup of it that still waits is refused; a client
        that still runs joins anew."""
        self._context.timers.cancel(session_key(group.group_id, member.member_id))
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self._context.out.reply(group.stop_joining(member), JoinAnswer(unknown))
        self._reply_sync(member, SyncAnswer(unknown))
        group.remove(member.member_id)

    def _rebalance_without(self, group: Group, now: Now) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, GroupEvent.MEMBER_LEFT, now)
        else:
            self.complete_if_joined(group, now)

    def end(self, group: Group) -> None:
        """End a group that leaves this protocol. Waiting members are told to join again, which joins its successor."""
        for member in group.members.values():
            to = group.stop_joining(member)
            self._context.out.reply(to, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            self._reply_sync(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        for member_id in (*group.members, *group.pending):
            self._context.timers.cancel(session_key(group.group_id, member_id))
        for key in (join_key(group.group_id), sync_key(group.group_id)):
            self._context.timers.cancel(key)

    # Preparing

    def member_joined(self, group: Group, now: Now) -> None:
        """Begin a rebalance, or check whether the current one now has every member."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_not_initial(group, now)
        else:
            self.prepare(group, GroupEvent.MEMBER_JOINED, now)

    def prepare(self, group: Group, event: GroupEvent, now: Now) -> None:
        """Make every member join again. Those that wait for an assignment are told at once, others by heartbeat."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.give_up_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
        group.pending_sync.clear()
        self._context.timers.cancel(sync_key(group.group_id))
        first = group.is_empty
        group.move(event, now.wall_ms)
        if first:
            delay_ms = self._context.config.initial_rebalance_delay_ms
            self._await_more(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0), now)
        elif group.all_joined:
            self.complete_join(group, now)
        else:
            self._await_joins(group, now)

    def _await_more(self, group: Group, delay_ms: int, left_ms: int, now: Now) -> None:
        """Let an empty group's first rebalance wait for more members, and longer as long as they come (KIP-134)."""
        group_id = group.group_id

        def waited(then: Now) -> None:
            waiting = self._context.groups.get(group_id)
            if waiting is None:
                return
            if waiting.members_added and left_ms > 0:
                waiting.members_added = False
                longer_ms = min(self._context.config.initial_rebalance_delay_ms, left_ms)
                self._await_more(waiting, longer_ms, max(left_ms - delay_ms, 0), then)
            else:
                self.complete_join(waiting, then)

        if delay_ms <= 0:
            self._context.timers.cancel(join_key(group_id))
            self.complete_join(group, now)
        else:
            self._context.timers.set(join_key(group_id), now.monotonic_ms + delay_ms, waited)

    def _await_joins(self, group: Group, now: Now) -> None:
        group_id = group.group_id

        def late(then: Now) -> None:
            waiting = self._context.groups.get(group_id)
            if waiting is not None:
                self.complete_join(waiting, then)

        self._context.timers.set(join_key(group_id), now.monotonic_ms + group.rebalance_timeout_ms, late)

    def complete_if_not_initial(self, group: Group, now: Now) -> None:
        """Complete the join phase if all members have joined, except in the first rebalance of an empty group, which
        has a fixed duration."""
        if group.before is not GroupState.EMPTY:
            self.complete_if_joined(group, now)

    def complete_if_joined(self, group: Group, now: Now) -> None:
        """Complete the join phase if all expected members have joined."""
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            self.complete_join(group, now)

    # Completing

    def complete_join(self, group: Group, now: Now) -> None:
        """Complete the join phase when its time is over or all members have joined: a member that has not joined is
        removed, unless it is static; the others get a generation."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        context = self._context
        context.timers.cancel(join_key(group.group_id))
        for member in [one for one in group.members.values() if one.join_to is None and not one.is_static]:
            context.timers.cancel(session_key(group.group_id, member.member_id))
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none of them has joined: each has time until its session ends.
            self._await_joins(group, now)
            return
        group.next_generation(now.wall_ms)
        if not group.members:
            self._store_empty(group)
            return
        for member in group.members.values():
            context.out.reply(group.stop_joining(member), joined_answer(group, member))
            member.is_new = False
            self.renew_session(group, member, now)
            group.pending_sync[member.member_id] = None
        self._await_syncs(group, now)

    def _store_empty(self, group: Group) -> None:
        """Store the group without members. Nothing waits for the write: if it is lost, a new coordinator expects the
        members of the previous generation until their sessions end."""
        if not group.stored and not self._context.has_offsets(group.group_id):
            self._context.forget_if_unused(group)
            return
        group.stored = True
        record = group_record(group.group_id, group.value())
        self._context.out.write((record,), lambda _outcome, _now: None, replay=False)

    def _await_syncs(self, group: Group, now: Now) -> None:
        group_id, generation = group.group_id, group.generation

        def late(then: Now) -> None:
            completing = self._context.groups.get(group_id)
            if completing is None or completing.generation != generation or not completing.pending_sync:
                return
            if completing.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
                for member_id in list(completing.pending_sync):
                    self._context.timers.cancel(session_key(group_id, member_id))
                    completing.remove(member_id)
                self.prepare(completing, GroupEvent.SYNC_TIMEOUT, then)

        self._context.timers.set(sync_key(group_id), now.monotonic_ms + group.rebalance_timeout_ms, late)

    def synced(self, group: Group, member_id: str) -> None:
        """Note that the member has asked for its assignment."""
        group.pending_sync.pop(member_id, None)
        if not group.pending_sync:
            self._context.timers.cancel(sync_key(group.group_id))

    # Assigning

    def store_assignment(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Store the leader's assignment; once it is committed, every member gets its part."""
        group_id, generation = group.group_id, group.generation
        group.stored = True

        def stored(outcome: WriteOutcome, now: Now) -> None:
            completing = self._context.groups.get(group_id)
            # Meanwhile a member may have joined or failed, and another rebalance may have begun.
            if (
                completing is not group
                or group.state is not GroupState.COMPLETING_REBALANCE
                or group.generation != generation
            ):
                return
            if outcome.error is ErrorCode.NONE:
                self._assign(group, assignments, now)
            else:
                self.give_up_assignment(group, client_error(outcome.error), now)
                self.prepare(group, GroupEvent.ASSIGNMENT_NOT_STORED, now)

        state_ms = group.state_ms
        value = group.value(assignments)._replace(state_ms=state_ms)
        self._context.out.write((group_record(group_id, value),), stored, replay=False)

    def _assign(self, group: Group, assignments: dict[str, bytes], now: Now) -> None:
        group.move(GroupEvent.ASSIGNED, now.wall_ms)
        self._context.counters.rebalances += 1
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            answer = SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)
            if self._reply_sync(member, answer):
                self.renew_session(group, member, now)

    def give_up_assignment(self, group: Group, error: ErrorCode, now: Now) -> None:
        """Answer members that wait for an assignment with `error`: this generation gets no assignment, and they join
        again."""
        for member in group.members.values():
            member.assignment = b""
            if self._reply_sync(member, SyncAnswer(error)):
                self.renew_session(group, member, now)

    def _reply_sync(self, member: Member, answer: SyncAnswer) -> bool:
        to, member.sync_to = member.sync_to, None
        self._context.out.reply(to, answer)
        return to is not None
