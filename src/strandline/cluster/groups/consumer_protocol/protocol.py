"""Rules of the consumer protocol (KIP-848): answers to heartbeats, and the conditions under which members are fenced or
leave."""

from __future__ import annotations

from strandline.cluster.groups.consumer_protocol.changes import MemberChanges
from strandline.cluster.groups.consumer_protocol.commands import (
    ConsumerAnswer,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribedConsumer,
)
from strandline.cluster.groups.consumer_protocol.group import AWAY, ConsumerGroup, Draft
from strandline.cluster.groups.consumer_protocol.migration import Migration
from strandline.cluster.groups.consumer_protocol.subscriptions import Subscriptions
from strandline.cluster.groups.context import ShardContext
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.consumer_group_records import Assignment, Current, MemberInfo
from strandline.proto.kafka.group_records import group_record
from strandline.proto.kafka.keyed_record import Record

JOIN = 0
LEAVE = -1


class ConsumerProtocol:
    """Handles members that join, reconcile and leave."""

    def __init__(
        self, context: ShardContext, subscriptions: Subscriptions, changes: MemberChanges, migration: Migration
    ) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._changes = changes
        self._migration = migration

    # Heartbeat

    def heartbeat(self, command: ConsumerHeartbeat, to: object, now: Now) -> None:
        """Handle a heartbeat. The answer is sent when the state that it shows is committed.

        Raises:
            KafkaError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_ID_NOT_FOUND (the group
                has members of the classic protocol and may not change), GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID,
                FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID.
        """
        self._check(command)
        if command.epoch in (LEAVE, AWAY):
            self._leave(command, to)
            return
        head, group = self._find(command)
        draft = Draft(group)
        member_id = self._enter(draft, command)
        known, before = draft.member(member_id), draft.now(member_id)
        if known is not None and known.classic is not None:
            self._changes.switched(group.group_id, member_id)
        # A joining member reports that it owns nothing. Once it got an answer, this is no acknowledgement: the request
        # may be a late copy.
        owned = None if command.epoch == JOIN and before.epoch > 0 else command.owned
        before, after = self._changes.advance(draft, member_id, _merged(known, command), owned, now)
        whole = command.epoch == JOIN or (
            command.rebalance_timeout_ms >= 0 and command.topics is not None and command.owned is not None
        )
        answer = ConsumerAnswer(
            member_id,
            after.epoch,
            self._context.config.consumer_heartbeat_interval_ms,
            after.assigned if whole or after.assigned != before.assigned else None,
        )

        def stored(then: Now) -> None:
            for classic_id in group.classic:
                self._changes.renew(group.group_id, classic_id, group.members[classic_id], then)

        self._changes.write((*head, *draft.records()), to, answer, group, stored=stored if head else None)

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
                problem = "a member that joins sends its rebalance timeout"
            elif command.owned is None or command.owned:
                problem = "a member that joins sends an empty list of owned partitions"
            elif not command.topics and not regex:
                problem = "a member that joins sends a subscription"
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

    def _find(self, command: ConsumerHeartbeat) -> tuple[tuple[Record, ...], ConsumerGroup]:
        """Return the group, creating it for its first member, and records that must be written first: a classic group
        becomes one of the consumer protocol and keeps its offsets and members."""
        group_id = command.group_id
        group = self._context.consumer_groups.get(group_id)
        if group is not None:
            return (), group
        classic = self._context.groups.get(group_id)
        if classic is not None and not classic.is_empty:
            self._migration.check_up(classic)
        if command.epoch != JOIN:
            # Not GROUP_ID_NOT_FOUND, on which clients give up: a member that the group has forgotten joins anew.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no such member in group {group_id!r}")
        if classic is not None and not classic.is_empty:
            return self._migration.up(classic)
        head = () if classic is None else (group_record(group_id, None),)
        return head, ConsumerGroup(group_id)

    def _enter(self, draft: Draft, command: ConsumerHeartbeat) -> str:
        """Return the member's id, after the check that it may be a member."""
        group, member_id = draft.group, command.member_id
        joins = command.epoch == JOIN
        holder = None if command.instance_id is None else group.instances.get(command.instance_id)
        if joins and holder is None and member_id not in group.members:
            self._changes.check_room(group)
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
            return member_id  # the answer with the new epoch was lost
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"the member is at epoch {current.epoch}, not {command.epoch}: it has to give up everything and join anew",
        )

    def _replace_static(self, draft: Draft, holder: str, member_id: str) -> None:
        """Replace a static member that returned under another id. A member of the classic protocol does not report that
        it leaves."""
        old = draft.group.now(holder)
        # rule C9/static-classic-member-waited-for
        if old.epoch != AWAY and draft.group.members[holder].classic is None:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"member {holder!r} has that instance id and has not left"
            )
        self._changes.replace_static(draft, holder, member_id)

    # Leaving

    def _leave(self, command: ConsumerHeartbeat, to: object) -> None:
        group = self._context.consumer_groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {command.group_id!r}")
        group.check_member(command.member_id, command.instance_id)
        answer = ConsumerAnswer(command.member_id, command.epoch, 0)
        if command.epoch == AWAY:
            self._changes.go_away(group, command.member_id, to, answer)
        else:
            self._changes.remove(group, (command.member_id,), to, answer)

    # Looking

    def subscribed(self, group: ConsumerGroup) -> frozenset[str]:
        """Return the topics that at least one member subscribes to."""
        found: set[str] = set()
        for member in group.members.values():
            found |= self._subscriptions.of(member, group.topics)
            found.update(member.topics)
        return frozenset(found)

    def describe(self, group: ConsumerGroup) -> ConsumerGroupDescription:
        return ConsumerGroupDescription(
            group_id=group.group_id,
            state=group.state.value,
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            assignor=self._changes.assignor(group.members.values()),
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
                    classic=info.classic is not None,
                )
                for member_id, info in group.members.items()
            ),
        )


def _within(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(set(numbers) <= set(assigned.get(topic_id, ())) for topic_id, numbers in owned.items())


def _merged(known: MemberInfo | None, command: ConsumerHeartbeat) -> MemberInfo:
    """Return the member's values: those of this request, else the known ones."""
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
