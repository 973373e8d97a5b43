"""Migration of a group from the classic to the consumer protocol and back, while members go on reading (KIP-848,
"Online migration").

    up    the first member of the consumer protocol joins a group of classic ones: these are members of the new group,
          at its epoch, which is the generation that they know, with what they were assigned
    down  the last member of the consumer protocol is gone and classic ones remain: they have the generation that they
          know, and have to join anew, for what the other one had is nobody's

Each is one write, so a failover finds the group before it or behind it. A record of a classic group that has members
and no leader says that it has come down, and was not rebalanced since: the coordinator that loads it goes on with that.

Classic members keep their subscriptions and assignments in their own bytes. Kafka's ConsumerProtocol names topics where
this protocol has ids: a topic that does not exist (any more) is left out.
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
    """Subscription and owned partitions of a member, by its favourite assignor; the others say the same. Raises
    ProtocolError."""
    return decode_subscription(protocols[0][1])


def assignment_of(raw: bytes, image: MetadataImage) -> Assignment:
    """Assignment by a leader, parsed. Raises ProtocolError."""
    return by_id(decode_assignment(raw), image)


def by_id(partitions: Iterable[TopicPartition], image: MetadataImage) -> Assignment:
    """Assignment of those partitions that exist, by topic id."""
    found: list[tuple[TopicId, int]] = []
    for name, number in partitions:
        topic = image.topics.get(name)
        if topic is not None and number in topic.partitions:
            found.append((topic.topic_id, number))
    return sorted_assignment(found)


def assignment_bytes(assignment: Mapping[TopicId, tuple[int, ...]], image: MetadataImage) -> bytes:
    """The assignment that answers a SyncGroup of a member of the classic protocol."""
    return encode_assignment(
        [
            TopicPartition(image.topic_by_id[topic_id].name, number)
            for topic_id, numbers in assignment.items()
            if topic_id in image.topic_by_id
            for number in numbers
        ]
    )


class Migration:
    """Makes one kind of group from the other."""

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
        """Raises KafkaError GROUP_ID_NOT_FOUND for a group that may not move."""
        config = self._context.config
        if not config.consumer_migration_policy.up:
            _refuse(classic, "may not move to the consumer protocol (group.consumer.migration.policy)")
        if classic.protocol_type != CONSUMER_PROTOCOL:
            _refuse(classic, f"has members of the protocol type {classic.protocol_type!r}, who are no consumers")
        if len(classic.members) > config.consumer_max_size:
            _refuse(classic, f"has {len(classic.members)} members, too many for the consumer protocol")

    def up(self, classic: Group) -> tuple[tuple[Record, ...], ConsumerGroup]:
        """Records of the change, and the group that it makes. Nothing is changed yet. Raises KafkaError
        GROUP_ID_NOT_FOUND when a member's bytes do not parse."""
        try:
            return self._up(classic)
        except ProtocolError as error:
            _refuse(classic, f"has a member whose subscription or assignment does not parse: {error}")

    def _up(self, classic: Group) -> tuple[tuple[Record, ...], ConsumerGroup]:
        draft = Draft(ConsumerGroup(classic.group_id))
        draft.epoch = draft.target_epoch = classic.generation
        # A member that has got no generation yet joins again.
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
        """Partitions that each member may be reading: what it was assigned, and what it said it owned when it
        joined, for it may not have heard yet that it shall give that back (KIP-429). Nothing is two members'. Raises
        ProtocolError."""
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
        """Give the group back to the classic protocol, if nobody but classic members is left in it."""
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
        """Classic group at the epoch of the target: no member is beyond it, and a member at it learns by its
        heartbeat to join anew. Each has what it has not given back, so that nobody is given that before."""
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
        """A classic group as the log has it: everybody has a whole session. One that came down is rebalanced, and one
        that is larger than `group.max.size` by now, so that members that do not fit are refused."""
        for member in classic.members.values():
            self._rebalancing.renew_session(classic, member, now)
        too_many = len(classic.members) > self._context.config.max_size
        # rule C9/group-that-came-down-not-rebalanced, rule C9/group-too-large-by-now-stays
        if (classic.came_down or too_many) and classic.state is GroupState.STABLE:
            self._rebalancing.prepare(classic, GroupEvent.RESTORED, now)


def _refuse(classic: Group, reason: str) -> NoReturn:
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {classic.group_id!r} {reason}")


def _info_of(member: Member) -> MemberInfo:
    """Raises ProtocolError."""
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
