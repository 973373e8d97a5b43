"""Building blocks for one step of a group of the consumer protocol, for members of both protocols.

A step drafts the group's new state and writes what differs. Memory changes when the records are in the log, and the
member gets its answer when they are committed. So the epochs that members know survive every failover.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from strandline.cluster.groups.classic.rebalance import session_key
from strandline.cluster.groups.consumer_protocol.assignors import ASSIGNORS, Subscriber
from strandline.cluster.groups.consumer_protocol.group import AWAY, ConsumerGroup, Draft
from strandline.cluster.groups.consumer_protocol.migration import Migration
from strandline.cluster.groups.consumer_protocol.reconcile import Partition, reconcile
from strandline.cluster.groups.consumer_protocol.subscriptions import Subscriptions
from strandline.cluster.groups.context import ShardContext, client_error
from strandline.cluster.groups.machine import WriteOutcome
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.consumer_group_records import Assignment, Current, MemberInfo, MemberState
from strandline.proto.kafka.keyed_record import Record


def revoke_key(group_id: str, member_id: str) -> Hashable:
    """Key of the deadline for a member to revoke partitions."""
    return "revoke", group_id, member_id


def rejoin_key(group_id: str, member_id: str) -> Hashable:
    """Key of the deadline for a classic member to join again, once it has to."""
    return "rejoin", group_id, member_id


def collect_key(group_id: str, member_id: str) -> Hashable:
    """Key of the deadline for a classic member that has joined to ask for its assignment."""
    return "collect", group_id, member_id


class MemberChanges:
    """Changes of members: join, new target, reconciliation, removal; with their deadlines."""

    def __init__(self, context: ShardContext, subscriptions: Subscriptions, migration: Migration) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._migration = migration
        self._gone: dict[str, dict[str, None]] = {}
        """Group -> members whose time ran out in this tick: they are removed with one change per group."""

    # Members

    def check_room(self, group: ConsumerGroup) -> None:
        """Raises KafkaError GROUP_MAX_SIZE_REACHED if the group is full."""
        if len(group.members) >= self._context.config.consumer_max_size:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(group.members)} members, and no more fit"
            )

    def replace_static(self, draft: Draft, holder: str, member_id: str) -> None:
        """Replace a static member that returned with another member id. It keeps its partitions, and no other member
        changes."""
        group = draft.group
        draft.put_member(member_id, group.members[holder])
        draft.put_target(member_id, group.targets.get(holder, {}))
        draft.put_current(member_id, Current(assigned=group.now(holder).assigned))
        draft.remove(holder)
        self._forget_deadlines(group.group_id, holder)

    def advance(
        self, draft: Draft, member_id: str, info: MemberInfo, owned: Assignment | None, now: Now
    ) -> tuple[Current, Current]:
        """Update a member that sent a heartbeat or a join: it is `info` now, and owns `owned` (None: it reports
        nothing). A changed subscription, or changed topics, begin an epoch with a new target. Returns the member's
        assignment before and after this step."""
        known = draft.member(member_id)
        draft.put_member(member_id, info)
        if known is None or (info.topics, info.regex) != (known.topics, known.regex):
            self._next_epoch(draft)
        else:
            self.refresh(draft)
        if draft.epoch > draft.target_epoch:
            self._assign(draft)

        def is_taken(partition: Partition) -> bool:
            return draft.is_taken(partition, member_id)

        before = draft.now(member_id)
        after = reconcile(before, draft.target_epoch, draft.target(member_id), owned, is_taken)
        draft.put_current(member_id, after)
        self.renew(draft.group.group_id, member_id, info, now)
        self._await_revocation(draft, member_id, before, after, now)
        return before, after

    def refresh(self, draft: Draft) -> None:
        """Begin a new epoch if topics were created, were deleted or got more partitions."""
        if draft.group.stale:
            draft.group.stale = False
            if self._subscriptions.topics(draft.members().values()) != draft.topics:
                self._next_epoch(draft)

    def _next_epoch(self, draft: Draft) -> None:
        draft.topics = self._subscriptions.topics(draft.members().values())
        draft.epoch += 1
        self._context.counters.rebalances += 1

    def _assign(self, draft: Draft) -> None:
        """Compute the target assignment for the newest epoch. It is computed only when it is needed, so that many
        members that leave at once cost one computation."""
        members = draft.members()
        subscribers = [
            Subscriber(
                member_id,
                member_id if info.instance_id is None else info.instance_id,
                self._subscriptions.of(info, draft.topics),
                draft.target(member_id),
            )
            for member_id, info in members.items()
        ]
        targets = ASSIGNORS[self.assignor(members.values())](subscribers, draft.topics)
        for member_id, target in targets.items():
            draft.put_target(member_id, target)
        draft.target_epoch = draft.epoch

    def assignor(self, members: Iterable[MemberInfo]) -> str:
        """Return the assignor that most members prefer; the first configured one if no member has a preference."""
        votes: dict[str, int] = {}
        for member in members:
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        served = self._context.config.consumer_assignors
        return max(served, key=lambda name: (votes.get(name, 0), -served.index(name)))

    def go_away(self, group: ConsumerGroup, member_id: str, to: object, answer: object) -> None:
        """Let a static member leave for a short time. Its partitions are kept for it."""
        draft = Draft(group)
        current = group.now(member_id)
        draft.put_current(member_id, current._replace(epoch=AWAY, state=MemberState.STABLE, revoking={}))
        self._context.timers.cancel(revoke_key(group.group_id, member_id))
        self.write(tuple(draft.records()), to, answer, group)

    def remove(self, group: ConsumerGroup, member_ids: Iterable[str], to: object, answer: object) -> None:
        """Remove members, with one new epoch for all of them; their partitions become free."""
        draft = Draft(group)
        for member_id in member_ids:
            draft.remove(member_id)
            self._forget_deadlines(group.group_id, member_id)
        self._next_epoch(draft)
        self.write(tuple(draft.records()), to, answer, group)

    # Deadlines

    def renew(self, group_id: str, member_id: str, info: MemberInfo, now: Now) -> None:
        """Renew the session of a member that sent a request. Classic members have a session timeout of their own."""
        config, classic = self._context.config, info.classic
        timeout_ms = config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self._expect(session_key(group_id, member_id), group_id, member_id, timeout_ms, now)

    def expect_rejoin(self, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        """Give the member `timeout_ms` to join again, counted from the first answer that asks for it."""
        key = rejoin_key(group_id, member_id)
        if key not in self._context.timers:
            self._expect(key, group_id, member_id, timeout_ms, now)

    def expect_collect(self, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        """Give a member that has joined `timeout_ms` to ask for its assignment."""
        self._context.timers.cancel(rejoin_key(group_id, member_id))
        self._expect(collect_key(group_id, member_id), group_id, member_id, timeout_ms, now)

    def collected(self, group_id: str, member_id: str) -> None:
        """Note that the member has asked for its assignment."""
        self._context.timers.cancel(collect_key(group_id, member_id))

    def switched(self, group_id: str, member_id: str) -> None:
        """Note that the member no longer uses the classic protocol."""
        for key in (rejoin_key, collect_key):
            self._context.timers.cancel(key(group_id, member_id))

    def _expect(self, key: Hashable, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        self._context.timers.set(key, now.monotonic_ms + timeout_ms, lambda _then: self._give_up(group_id, member_id))

    def _await_revocation(self, draft: Draft, member_id: str, before: Current, after: Current, now: Now) -> None:
        if after.state is not MemberState.UNREVOKED:
            self._context.timers.cancel(revoke_key(draft.group.group_id, member_id))
        elif after != before:
            info = draft.member(member_id)
            assert info is not None
            self._expect_revocation(draft.group.group_id, member_id, info.rebalance_timeout_ms, now)

    def _expect_revocation(self, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        def late(_then: Now) -> None:
            group = self._context.consumer_groups.get(group_id)
            if group is not None and group.now(member_id).state is MemberState.UNREVOKED:
                self._give_up(group_id, member_id)

        self._context.timers.set(revoke_key(group_id, member_id), now.monotonic_ms + timeout_ms, late)

    def _give_up(self, group_id: str, member_id: str) -> None:
        group = self._context.consumer_groups.get(group_id)
        if group is not None and member_id in group.members:
            self._gone.setdefault(group_id, {})[member_id] = None

    def remove_gone(self) -> None:
        """Remove, at the end of a tick, members whose time ran out in it."""
        gone, self._gone = self._gone, {}
        for group_id, member_ids in gone.items():
            self._context.counters.members_expired += len(member_ids)
            self.remove(self._context.consumer_groups[group_id], member_ids, None, None)

    def loaded(self, now: Now) -> None:
        """After a load, restart the session of each member, and its deadline to revoke partitions."""
        for group in list(self._context.consumer_groups.values()):
            for member_id in group.members:
                self._begin_deadlines(group, member_id, now)
            self._migration.down(group.group_id, now)  # rule C9/group-of-classic-members-stays-up

    def _begin_deadlines(self, group: ConsumerGroup, member_id: str, now: Now) -> None:
        info = group.members[member_id]
        self.renew(group.group_id, member_id, info, now)
        if group.now(member_id).state is MemberState.UNREVOKED:
            self._expect_revocation(group.group_id, member_id, info.rebalance_timeout_ms, now)

    def _stay(self, group: ConsumerGroup, now: Now) -> None:
        """Set the deadlines of members whose removal was refused again: they have to be removed later."""
        for member_id in group.members:
            if session_key(group.group_id, member_id) not in self._context.timers:
                self._begin_deadlines(group, member_id, now)

    def forget(self, group: ConsumerGroup) -> None:
        """Forget a group that has ended."""
        for member_id in group.members:
            self._forget_deadlines(group.group_id, member_id)

    def _forget_deadlines(self, group_id: str, member_id: str) -> None:
        for key in (session_key, revoke_key, rejoin_key, collect_key):
            self._context.timers.cancel(key(group_id, member_id))

    # Writing

    def write(
        self,
        records: tuple[Record, ...],
        to: object,
        answer: object,
        group: ConsumerGroup,
        *,
        stored: Callable[[Now], None] | None = None,
    ) -> None:
        """Answer when the records are committed. If they are refused, nothing was changed. Otherwise they are in the
        log (`stored` is called), and they may leave the group with classic members only."""
        if not records:
            self._context.out.reply(to, answer, after_writes=True)
            return

        def written(outcome: WriteOutcome, now: Now) -> None:
            if not outcome.written:
                group.stale = True
                self._stay(group, now)
            elif stored is not None:
                stored(now)
            failed = outcome.error is not ErrorCode.NONE
            self._context.out.reply(to, KafkaError(client_error(outcome.error)) if failed else answer)
            if outcome.written:
                self._migration.down(group.group_id, now)

        self._context.out.write(records, written)  # rule C8/epoch-told-before-it-is-committed
