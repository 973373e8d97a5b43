"""Migration of a group from the classic to the consumer protocol and back, while its members continue to read (KIP-848,
"Online migration").

    up    The first member of the consumer protocol joins a group of classic members. These become members of the new
          group with their assignments. The group's epoch is the generation that they know.
    down  The last member of the consumer protocol has left, and classic members remain. They keep the generation that
          they know, and must join again, because the partitions of the other member have no reader.

Each direction is one write, so that after a failover the group is in the state before it or after it. A record of a
classic group with members but without a leader means that the group came down and was not rebalanced since. The
coordinator that loads it then rebalances it.

Classic members encode their subscriptions and assignments themselves (Kafka's ConsumerProtocol), with topic names where
the consumer protocol has topic ids. Topics that do not exist are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from strandline.cluster.groups.classic.group import CONSUMER_PROTOCOL, Group, GroupEvent, GroupState, Member
from strandline.cluster.groups.classic.rebalance import Rebalancing
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroup, Draft
from strandline.cluster.groups.consumer_protocol.reconcile import Partition, pairs
from strandline.cluster.groups.consumer_protocol.subscriptions import Subscriptions
from strandline.cluster.groups.context import ShardContext
from strandline.cluster.groups.machine import WriteOutcome
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import TopicId, TopicPartition
from strandline.proto.kafka.consumer_group_records import (
    Assignment,
    ClassicMember,
    ConsumerGroupKey,
    Current,
    MemberInfo,
    sorted_assignment,
)
from strandline.proto.kafka.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from strandline.proto.kafka.group_records import GroupValue, group_record, read_key
from strandline.proto.kafka.keyed_record import Record


def subscription_of(protocols: tuple[tuple[str, bytes], ...]) -> Subscription:
    """Subscription and owned partitions of a classic member, from the metadata for its first assignor, which has the
    same content for all assignors. Raises ProtocolError."""
    return decode_subscription(protocols[0][1])


def assignment_of(raw: bytes, image: MetadataImage) -> Assignment:
    """Parse a classic assignment, as the group's leader encoded it. Raises ProtocolError."""
    return by_id(decode_assignment(raw), image)


def by_id(partitions: Iterable[TopicPartition], image: MetadataImage) -> Assignment:
    """Partitions by topic id, without those whose topic does not exist."""
    found: list[tuple[TopicId, int]] = []
    for name, number in partitions:
        topic = image.topics.get(name)
        if topic is not None and number in topic.partitions:
            found.append((topic.topic_id, number))
    return sorted_assignment(found)


def assignment_bytes(assignment: Mapping[TopicId, tuple[int, ...]], image: MetadataImage) -> bytes:
    """Encode an assignment for the SyncGroup response to a classic member."""
    return encode_assignment(
        [
            TopicPartition(image.topic_by_id[topic_id].name, number)
            for topic_id, numbers in assignment.items()
            if topic_id in image.topic_by_id
            for number in numbers
        ]
    )


class Migration:
    """Converts groups between the classic and the consumer protocol."""

    def __init__(
        self,
        context: ShardContext,
        rebalancing: Rebalancing,
        subscriptions: Subscriptions,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._context = context
        self._rebalancing = rebalancing
        self._subscriptions = subscriptions
        self._image = image

    # Up

    def check_up(self, classic: Group) -> None:
        """Check that a classic group may migrate. Raises KafkaError GROUP_ID_NOT_FOUND if it may not."""
        config = self._context.config
        if not config.consumer_migration_policy.up:
            _refuse(classic, "may not move to the consumer protocol (group.consumer.migration.policy)")
        if classic.protocol_type != CONSUMER_PROTOCOL:
            _refuse(classic, f"has members of the protocol type {classic.protocol_type!r}, who are no consumers")
        if len(classic.members) > config.consumer_max_size:
            _refuse(classic, f"has {len(classic.members)} members, too many for the consumer protocol")

    def up(self, classic: Group) -> tuple[tuple[Record, ...], ConsumerGroup]:
        """Make the records of the migration, and the new group, without applying them. Raises KafkaError
        GROUP_ID_NOT_FOUND if a member's subscription or assignment does not parse."""
        try:
            return self._up(classic)
        except ProtocolError as error:
            _refuse(classic, f"has a member whose subscription or assignment does not parse: {error}")

    def _up(self, classic: Group) -> tuple[tuple[Record, ...], ConsumerGroup]:
        draft = Draft(ConsumerGroup(classic.group_id))
        draft.epoch = draft.target_epoch = classic.generation
        # A member that has not got its first generation yet must join again.
        members = [member for member in classic.members.values() if not member.is_new]
        for member_id, held in self._held(members).items():
            draft.put_target(member_id, held)
            draft.put_current(member_id, Current(classic.generation, classic.generation, assigned=held))
        for member in members:
            draft.put_member(member.member_id, _info_of(member))
        draft.topics = self._subscriptions.topics(draft.members().values())
        records = tuple(draft.records())
        group = ConsumerGroup(classic.group_id)
        for record in records:
            key = read_key(record.key)
            assert isinstance(key, ConsumerGroupKey)
            group.put(key, record.value)
        return (group_record(classic.group_id, None), *records), group

    def _held(self, members: Sequence[Member]) -> dict[str, Assignment]:
        """Partitions that each member may be reading: its assignment, and those that it owned when it joined, as it may
        not know yet that it must give them up (KIP-429). No partition has two readers. Raises ProtocolError."""
        image = self._image()
        owners: dict[Partition, str] = {}
        for member in members:
            for one in pairs(assignment_of(member.assignment, image)):
                owners.setdefault(one, member.member_id)
        for member in members:
            # rule C9/group-moves-without-what-is-owned
            for one in pairs(by_id(subscription_of(member.protocols).owned, image)):
                owners.setdefault(one, member.member_id)
        held: dict[str, list[Partition]] = {member.member_id: [] for member in members}
        for one, member_id in owners.items():
            held[member_id].append(one)
        return {member_id: sorted_assignment(partitions) for member_id, partitions in held.items()}

    # Down

    def down(self, group_id: str, now: Now) -> None:
        """Return the group to the classic protocol, if only classic members are left in it."""
        group = self._context.consumer_groups.get(group_id)
        if group is None or not self._may_go_down(group):
            return

        def ended(outcome: WriteOutcome, then: Now) -> None:
            classic = self._context.groups.get(group_id)
            if outcome.written and classic is not None:
                self.take_up(classic, then)

        record = group_record(group_id, self._down(group, now))
        self._context.out.write((*group.tombstones(), record), ended)

    def _may_go_down(self, group: ConsumerGroup) -> bool:
        config = self._context.config
        return group.is_classic and len(group.members) <= config.max_size and config.consumer_migration_policy.down

    def _down(self, group: ConsumerGroup, now: Now) -> GroupValue:
        """Classic group with the epoch of the target assignment as its generation. No member has a higher epoch, and
        each learns by its heartbeat that it must join again. Members keep the partitions that they have not given up
        yet, so that these are not assigned to another one too early."""
        image = self._image()
        # rule C9/group-comes-down-ahead-of-its-members
        classic = Group(group.group_id, generation=group.target_epoch, state_ms=now.wall_ms)
        for member_id, info in group.members.items():
            assert info.classic is not None
            member = Member(
                member_id=member_id,
                instance_id=info.instance_id,
                client_id=info.client_id,
                client_host=info.client_host,
                session_timeout_ms=info.classic.session_timeout_ms,
                rebalance_timeout_ms=info.rebalance_timeout_ms,
                protocols=info.classic.protocols,
            )
            classic.add(member, CONSUMER_PROTOCOL)
            current = group.now(member_id)
            # rule C9/group-comes-down-without-what-is-owed
            held = sorted_assignment((*pairs(current.assigned), *pairs(current.revoking)))
            member.assignment = assignment_bytes(held, image)
        classic.protocol_name = classic.select_protocol()
        return classic.value()._replace(leader=None)

    def take_up(self, classic: Group, now: Now) -> None:
        """Start a classic group that was loaded from the log: each member's session begins anew. A group that came down
        is rebalanced. So is one with more members than `group.max.size` now allows, so that the surplus is refused."""
        for member in classic.members.values():
            self._rebalancing.renew_session(classic, member, now)
        too_many = len(classic.members) > self._context.config.max_size
        # rule C9/group-that-came-down-not-rebalanced, rule C9/group-too-large-by-now-stays
        if (classic.came_down or too_many) and classic.state is GroupState.STABLE:
            self._rebalancing.prepare(classic, GroupEvent.RESTORED, now)


def _refuse(classic: Group, reason: str) -> NoReturn:
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {classic.group_id!r} {reason}")


def _info_of(member: Member) -> MemberInfo:
    """Convert a classic member to the consumer protocol. Raises ProtocolError if its metadata does not parse."""
    subscription = subscription_of(member.protocols)
    return MemberInfo(
        instance_id=member.instance_id,
        rack=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        regex=None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        assignor=None,
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
    )
