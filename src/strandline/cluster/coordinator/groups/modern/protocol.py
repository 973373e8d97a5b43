"""The rules of the consumer protocol (KIP-848): who is told what at a heartbeat, who is fenced, who is given up.

A step drafts what the group shall be and writes what differs; memory follows when that stands in the log, and the
member hears of it when it is committed. So the epochs that a member was told survive every failover.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from strandline.cluster.coordinator.groups.context import ShardContext, client_error
from strandline.cluster.coordinator.groups.modern.assignors import ASSIGNORS, Subscriber
from strandline.cluster.coordinator.groups.modern.commands import (
    ConsumerAnswer,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribedConsumer,
)
from strandline.cluster.coordinator.groups.modern.group import AWAY, Draft, ModernGroup
from strandline.cluster.coordinator.groups.modern.reconcile import Partition, reconcile
from strandline.cluster.coordinator.groups.modern.records import Assignment, Current, MemberInfo, MemberState
from strandline.cluster.coordinator.groups.modern.subscriptions import Subscriptions
from strandline.cluster.coordinator.groups.rebalance import session_key
from strandline.cluster.coordinator.groups.records import group_record
from strandline.cluster.coordinator.machine import Now, Record, WriteOutcome
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

JOIN = 0
LEAVE = -1


def revoke_key(group_id: str, member_id: str) -> Hashable:
    """The deadline for a member to give partitions back."""
    return "revoke", group_id, member_id


class ConsumerProtocol:
    """Members come, reconcile and go."""

    def __init__(self, context: ShardContext, image: Callable[[], MetadataImage]) -> None:
        self._context = context
        self._subscriptions = Subscriptions(image)
        self._gone: dict[str, dict[str, None]] = {}
        """Members whose time ran out in this tick: one change a group, not one a member."""

    # Heartbeat

    def heartbeat(self, command: ConsumerHeartbeat, to: object, now: Now) -> None:
        """Answered when what it tells is committed.

        Raises:
            KafkaError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_ID_NOT_FOUND (it has
                members of the classic protocol), GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
                FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID.
        """
        self._check(command)
        if command.epoch in (LEAVE, AWAY):
            self._leave(command, to, now)
            return
        head, group = self._find(command)
        draft = Draft(group)
        member_id = self._enter(draft, command)
        self._update(draft, member_id, command)
        if draft.epoch > draft.target_epoch:
            self._assign(draft)
        before = draft.now(member_id)
        after = self._reconciled(draft, member_id, command)
        draft.put_current(member_id, after)
        self._renew(group.group_id, member_id, now)
        self._await_revocation(draft, member_id, before, after, now)
        whole = command.epoch == JOIN or (
            command.rebalance_timeout_ms >= 0 and command.topics is not None and command.owned is not None
        )
        answer = ConsumerAnswer(
            member_id,
            after.epoch,
            self._context.config.consumer_heartbeat_interval_ms,
            after.assigned if whole or after.assigned != before.assigned else None,
        )
        self._write((*head, *draft.records()), to, answer, group)

    def _check(self, command: ConsumerHeartbeat) -> None:
        regex = command.regex
        problem = None
        if command.instance_id is not None and not command.instance_id.strip():
            problem = "an instance id must not be empty"
        elif command.rack is not None and not command.rack.strip():
            problem = "a rack must not be empty"
        elif command.epoch < AWAY:
            problem = f"there is no member epoch {command.epoch}"
        elif command.epoch == AWAY and command.instance_id is None:
            problem = "only a static member leaves for a moment: instance id is missing"
        elif command.epoch == JOIN:
            if command.rebalance_timeout_ms < 0:
                problem = "who joins tells its rebalance timeout"
            elif command.owned is None or command.owned:
                problem = "who joins owns no partitions, and says so"
            elif not command.topics and not regex:
                problem = "who joins tells what it subscribes to"
        elif not command.member_id.strip():
            problem = "a member has an id"
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        served = self._context.config.consumer_assignors
        if command.assignor is not None and command.assignor not in served:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR, f"assignor {command.assignor!r} is not served: {', '.join(served)}"
            )
        if regex:
            self._subscriptions.check(regex)

    def _find(self, command: ConsumerHeartbeat) -> tuple[tuple[Record, ...], ModernGroup]:
        """The group, made for the first member; an empty classic group becomes one, keeping its offsets: the records
        that end it come first."""
        group_id = command.group_id
        group = self._context.modern.get(group_id)
        if group is not None:
            return (), group
        classic = self._context.groups.get(group_id)
        if classic is not None and not classic.is_empty:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} has members of the classic protocol")
        if command.epoch != JOIN:
            # Not GROUP_ID_NOT_FOUND, on which clients give up: a member whose group was forgotten joins anew.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
        head = () if classic is None else (group_record(group_id, None),)
        return head, ModernGroup(group_id)

    def _enter(self, draft: Draft, command: ConsumerHeartbeat) -> str:
        """The member's id, once it may be one."""
        group, member_id = draft.group, command.member_id
        joins = command.epoch == JOIN
        holder = None if command.instance_id is None else group.instances.get(command.instance_id)
        if joins and holder is None and member_id not in group.members:
            if len(group.members) >= self._context.config.consumer_max_size:
                raise KafkaError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(group.members)} members, and no more fit"
                )
            return member_id or self._context.new_id()
        if joins and holder is not None and holder != member_id:
            member_id = member_id or self._context.new_id()
            self._replace_static(draft, holder, member_id)
            return member_id
        group.check_member(member_id, command.instance_id)
        current = group.now(member_id)
        if joins and current.epoch == AWAY:  # back, and it has given up what it had
            draft.put_current(member_id, Current(assigned=current.assigned))
        if joins or command.epoch == current.epoch:
            return member_id
        if (
            current.epoch != AWAY
            and command.epoch == current.previous_epoch
            and _within(command.owned, current.assigned)
        ):
            return member_id  # the answer that told the new epoch was lost
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"the member is at epoch {current.epoch}, not {command.epoch}: it has to give up everything and join anew",
        )

    def _replace_static(self, draft: Draft, holder: str, member_id: str) -> None:
        """A static member is back under another id: it has what it had, and nobody else is moved."""
        group = draft.group
        old = group.now(holder)
        if old.epoch != AWAY:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"member {holder!r} has that instance id and has not left"
            )
        draft.put_member(member_id, group.members[holder])
        draft.put_target(member_id, group.targets.get(holder, {}))
        draft.put_current(member_id, Current(assigned=old.assigned))
        draft.remove(holder)
        for key in (session_key(group.group_id, holder), revoke_key(group.group_id, holder)):
            self._context.timers.cancel(key)

    def _update(self, draft: Draft, member_id: str, command: ConsumerHeartbeat) -> None:
        """What the member tells of itself; another subscription, or other topics, are another epoch."""
        known = draft.member(member_id)
        info = _told(known, command)
        draft.put_member(member_id, info)
        if known is None or (info.topics, info.regex) != (known.topics, known.regex):
            self._next_epoch(draft)
        elif draft.group.stale:
            topics = self._subscriptions.topics(draft.members().values())
            draft.group.stale = False
            if topics != draft.topics:
                self._next_epoch(draft)

    def _next_epoch(self, draft: Draft) -> None:
        draft.topics = self._subscriptions.topics(draft.members().values())
        draft.epoch += 1
        self._context.counters.rebalances += 1

    def _assign(self, draft: Draft) -> None:
        """A target for the newest epoch. It is made when somebody asks, so that many who leave at once cost one."""
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
        targets = ASSIGNORS[self._assignor(members.values())](subscribers, draft.topics)
        for member_id, target in targets.items():
            draft.put_target(member_id, target)
        draft.target_epoch = draft.epoch

    def _assignor(self, members: Iterable[MemberInfo]) -> str:
        """The one that most members would like; the first that is configured where nobody cares."""
        votes: dict[str, int] = {}
        for member in members:
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        served = self._context.config.consumer_assignors
        return max(served, key=lambda name: (votes.get(name, 0), -served.index(name)))

    def _reconciled(self, draft: Draft, member_id: str, command: ConsumerHeartbeat) -> Current:
        def is_taken(partition: Partition) -> bool:
            return draft.is_taken(partition, member_id)

        current = draft.now(member_id)
        # Who joins owns nothing, it says. Once it has been told anything that does not count as an acknowledgement: the
        # request may be a late copy.
        owned = None if command.epoch == JOIN and current.epoch > 0 else command.owned
        return reconcile(current, draft.target_epoch, draft.target(member_id), owned, is_taken)

    # Leaving

    def _leave(self, command: ConsumerHeartbeat, to: object, now: Now) -> None:
        group = self._context.modern.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {command.group_id!r}")
        group.check_member(command.member_id, command.instance_id)
        answer = ConsumerAnswer(command.member_id, command.epoch, 0)
        if command.epoch == AWAY:
            draft = Draft(group)
            current = group.now(command.member_id)
            draft.put_current(command.member_id, current._replace(epoch=AWAY, state=MemberState.STABLE, revoking={}))
            self._context.timers.cancel(revoke_key(group.group_id, command.member_id))
            self._write(tuple(draft.records()), to, answer, group)
        else:
            self.remove(group, (command.member_id,), to, answer, now)

    def remove(self, group: ModernGroup, member_ids: Iterable[str], to: object, answer: object, now: Now) -> None:
        """Members go, with one new epoch for all of them; what they had is free."""
        draft = Draft(group)
        gone = tuple(member_ids)
        for member_id in gone:
            draft.remove(member_id)
            self._context.timers.cancel(session_key(group.group_id, member_id))
            self._context.timers.cancel(revoke_key(group.group_id, member_id))
        self._next_epoch(draft)

        def refused(then: Now) -> None:
            for member_id in gone:  # they are members still, and have to be given up later
                self._renew(group.group_id, member_id, then)

        self._write(tuple(draft.records()), to, answer, group, refused)

    # Deadlines

    def _renew(self, group_id: str, member_id: str, now: Now) -> None:
        self._context.timers.set(
            session_key(group_id, member_id),
            now.monotonic_ms + self._context.config.consumer_session_timeout_ms,
            lambda _then: self._give_up(group_id, member_id),
        )

    def _await_revocation(self, draft: Draft, member_id: str, before: Current, after: Current, now: Now) -> None:
        key = revoke_key(draft.group.group_id, member_id)
        if after.state is not MemberState.UNREVOKED:
            self._context.timers.cancel(key)
        elif after != before:
            info = draft.member(member_id)
            assert info is not None
            self._expect_revocation(draft.group.group_id, member_id, info.rebalance_timeout_ms, now)

    def _expect_revocation(self, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        def late(_then: Now) -> None:
            group = self._context.modern.get(group_id)
            if group is not None and group.now(member_id).state is MemberState.UNREVOKED:
                self._give_up(group_id, member_id)

        self._context.timers.set(revoke_key(group_id, member_id), now.monotonic_ms + timeout_ms, late)

    def _give_up(self, group_id: str, member_id: str) -> None:
        group = self._context.modern.get(group_id)
        if group is not None and member_id in group.members:
            self._gone.setdefault(group_id, {})[member_id] = None

    def remove_gone(self, now: Now) -> None:
        """At the end of a tick: those whose time ran out in it."""
        gone, self._gone = self._gone, {}
        for group_id, member_ids in gone.items():
            self._context.counters.members_expired += len(member_ids)
            self.remove(self._context.modern[group_id], member_ids, None, None, now)

    def loaded(self, now: Now) -> None:
        """Everybody has a whole session, and all the time to give partitions back."""
        for group in self._context.modern.values():
            for member_id, info in group.members.items():
                self._renew(group.group_id, member_id, now)
                if group.now(member_id).state is MemberState.UNREVOKED:
                    self._expect_revocation(group.group_id, member_id, info.rebalance_timeout_ms, now)

    def forget(self, group: ModernGroup) -> None:
        """The group has ended."""
        for member_id in group.members:
            self._context.timers.cancel(session_key(group.group_id, member_id))
            self._context.timers.cancel(revoke_key(group.group_id, member_id))

    # Writing

    def _write(
        self,
        records: tuple[Record, ...],
        to: object,
        answer: object,
        group: ModernGroup,
        refused: Callable[[Now], None] | None = None,
    ) -> None:
        if not records:
            self._context.out.reply(to, answer, after_writes=True)
            return

        def written(outcome: WriteOutcome, now: Now) -> None:
            if outcome.error is ErrorCode.NONE:
                self._context.out.reply(to, answer)
                return
            if not outcome.written:
                group.stale = True
                if refused is not None:
                    refused(now)
            self._context.out.reply(to, KafkaError(client_error(outcome.error)))

        self._context.out.write(records, written)

    # Looking

    def subscribed(self, group: ModernGroup) -> frozenset[str]:
        """Every topic that somebody in it reads."""
        found: set[str] = set()
        for member in group.members.values():
            found |= self._subscriptions.of(member, group.topics)
            found.update(member.topics)
        return frozenset(found)

    def describe(self, group: ModernGroup) -> ConsumerGroupDescription:
        return ConsumerGroupDescription(
            group_id=group.group_id,
            state=group.state.value,
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            assignor=self._assignor(group.members.values()),
            members=tuple(
                DescribedConsumer(
                    member_id=member_id,
                    instance_id=info.instance_id,
                    rack=info.rack,
                    epoch=group.now(member_id).epoch,
                    client_id=info.client_id,
                    client_host=info.client_host,
                    topics=info.topics,
                    regex=info.regex,
                    assigned=group.now(member_id).assigned,
                    target=group.targets.get(member_id, {}),
                )
                for member_id, info in group.members.items()
            ),
        )


def _within(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(set(numbers) <= set(assigned.get(topic_id, ())) for topic_id, numbers in owned.items())


def _told(known: MemberInfo | None, command: ConsumerHeartbeat) -> MemberInfo:
    """What is known of the member, with what it says anew."""
    info = known or MemberInfo(None, None, "", "", (), None, -1, None)
    return MemberInfo(
        instance_id=info.instance_id if command.instance_id is None else command.instance_id,
        rack=info.rack if command.rack is None else command.rack,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=info.topics if command.topics is None else tuple(sorted(set(command.topics))),
        regex=info.regex if command.regex is None else command.regex or None,
        rebalance_timeout_ms=(
            info.rebalance_timeout_ms if command.rebalance_timeout_ms < 0 else command.rebalance_timeout_ms
        ),
        assignor=info.assignor if command.assignor is None else command.assignor,
    )
