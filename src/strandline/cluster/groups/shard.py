"""Shard of one partition of `__consumer_offsets`: passes each command and record to the part responsible for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from strandline.cluster.groups.classic.group import Group, GroupState
from strandline.cluster.groups.classic.protocol import ClassicProtocol
from strandline.cluster.groups.classic.rebalance import Rebalancing
from strandline.cluster.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribedMember,
    DescribeGroup,
    FetchOffsets,
    ForgetTopics,
    GroupDescription,
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    ListedGroup,
    ListGroups,
    SyncGroup,
)
from strandline.cluster.groups.config import GroupConfig
from strandline.cluster.groups.connections import ConnectionNumbers, NewestConnections, Superseded
from strandline.cluster.groups.consumer_protocol.changes import MemberChanges
from strandline.cluster.groups.consumer_protocol.classic_members import ClassicMembers
from strandline.cluster.groups.consumer_protocol.commands import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    TopicsChanged,
)
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroup
from strandline.cluster.groups.consumer_protocol.migration import Migration
from strandline.cluster.groups.consumer_protocol.protocol import ConsumerProtocol
from strandline.cluster.groups.consumer_protocol.subscriptions import Subscriptions
from strandline.cluster.groups.context import GroupCounters, ShardContext, client_error
from strandline.cluster.groups.machine import Effects, Write, WriteOutcome
from strandline.cluster.groups.offsets import OffsetStore
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.consumer_group_records import ConsumerGroupKey, Kind
from strandline.proto.kafka.group_records import OFFSET, GroupKey, OffsetKey, read_group_value, read_key
from strandline.proto.kafka.keyed_record import Record
from strandline.proto.ports import Rng

CLASSIC = "classic"
"""Kafka's word for the type of group whose members compute the assignment themselves."""

CONSUMER = "consumer"
"""Kafka's word for the type of group whose coordinator computes the assignment (KIP-848)."""

_EXPIRE = "expire"


PRODUCERS_KEPT = 10_000
"""Maximum transactional producers whose newest connection a shard remembers."""


class GroupShard:
    """A `Shard` of groups.

    Attributes:
        unknown_records: number of records of kinds that this version does not know; they are kept in the log and
            ignored.
    """

    def __init__(
        self,
        config: GroupConfig,
        rng: Rng,
        counters: GroupCounters,
        image: Callable[[], MetadataImage],
        connection_numbers: ConnectionNumbers,
    ) -> None:
        """Create an empty shard. `connection_numbers`: numbers of the connections of this broker's clients."""
        self._context = ShardContext(config, rng, counters)
        self._rebalancing = Rebalancing(self._context)
        self._classic = ClassicProtocol(self._context, self._rebalancing)
        subscriptions = Subscriptions(image)
        self._migration = Migration(self._context, self._rebalancing, subscriptions, image)
        self._changes = MemberChanges(self._context, subscriptions, self._migration)
        self._consumer_protocol = ConsumerProtocol(self._context, subscriptions, self._changes, self._migration)
        self._classic_members = ClassicMembers(self._context, self._changes, image)
        self._offsets = OffsetStore(self._context, self._rebalancing, self._consumer_protocol, image)
        self._connections = NewestConnections(connection_numbers, kept=PRODUCERS_KEPT, asks_again=True)
        self.unknown_records = 0

    # Shard

    def replay(self, record: Record) -> None:
        """Apply a record of the log. Raises ProtocolError for a record that does not parse."""
        key = read_key(record.key)
        if isinstance(key, OffsetKey):
            self._offsets.put(key, None if record.value is None else OFFSET.read(record.value))
        elif isinstance(key, GroupKey):
            if record.value is None:
                self._drop(key.group)
                self._offsets.keep(key.group)
            else:
                self._drop_consumer_group(key.group)
                self._context.groups[key.group] = Group.from_value(key.group, read_group_value(record.value))
        elif isinstance(key, ConsumerGroupKey):
            self._replay_consumer_group(key, record.value)
        else:
            self.unknown_records += 1

    def replay_pending(self, record: Record, producer_id: int) -> None:
        """Apply a record of an open transaction; only offsets are committed in transactions. Raises ProtocolError for a
        record that does not parse."""
        key = read_key(record.key)
        if isinstance(key, OffsetKey):
            value = None if record.value is None else OFFSET.read(record.value)
            self._offsets.put_pending(key, value, producer_id)
        else:
            self.unknown_records += 1

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Apply a transaction marker, see `OffsetStore.end_transaction`."""
        came = commit or producer_id in self._context.pending.open
        self._offsets.end_transaction(producer_id, commit)
        self._connections.ends(producer_id, producer_id, came=came)

    def _counts(self, command: CommitOffsets) -> bool:
        """Return whether offsets came by their producer's newest connection: others may belong to an earlier
        transaction. Raises KafkaError as `NewestConnections.takes`."""
        if command.transaction is None:
            return True
        producer_id, epoch, _verification = command.transaction
        # rule C33/offsets-by-older-connections-count
        return self._connections.takes(producer_id, producer_id, epoch, command.connection)

    def _replay_consumer_group(self, key: ConsumerGroupKey, value: bytes | None) -> None:
        """Apply a record of a group of the consumer protocol. Any of its records creates the group, in any order,
        because compaction keeps only the last record of each key. The tombstone of the group's epoch ends the group."""
        group = self._context.consumer_groups.get(key.group)
        if value is None and (group is None or key.kind is Kind.GROUP):
            self._drop_consumer_group(key.group)
            self._offsets.keep(key.group)
            return
        if group is None:
            self._drop(key.group)
            group = self._context.consumer_groups[key.group] = ConsumerGroup(key.group)
        group.put(key, value)

    def _drop_consumer_group(self, group_id: str) -> None:
        group = self._context.consumer_groups.pop(group_id, None)
        if group is not None:
            self._changes.forget(group)

    def _drop(self, group_id: str) -> None:
        """Remove a classic group that was deleted, has expired, or now uses the other protocol."""
        group = self._context.groups.pop(group_id, None)
        if group is not None:
            self._rebalancing.end(group)

    def loaded(self, now: Now) -> Effects:
        """Start to serve after the log was replayed. Every member in the log gets a full session, because it could not
        reach a coordinator during the load. Offsets of topics that were deleted in that time are deleted."""
        self._offsets.forget_gone()  # schedule 63/offsets-of-deleted-topics-loaded
        for group in self._context.groups.values():
            self._migration.take_up(group, now)
        self._changes.loaded(now)
        self._expire_later(now)
        return self._context.out.take()

    def handle(self, command: Any, to: Any, now: Now) -> Effects:
        """Handle one command of `commands` or `consumer_protocol.commands`."""
        context = self._context
        try:
            match command:
                case Heartbeat():
                    self._heartbeat(command, to, now)
                case CommitOffsets():
                    if self._counts(command):
                        self._offsets.commit(command, to, now)
                    else:
                        context.out.reply(to, Superseded())
                case FetchOffsets():
                    self._offsets.fetch(command, to)
                case JoinGroup():
                    self._join(command, to, now)
                case SyncGroup():
                    self._sync(command, to, now)
                case LeaveGroup():
                    self._leave(command, to, now)
                case DeleteOffsets():
                    self._offsets.delete(command, to)
                case DescribeGroup():
                    context.out.reply(to, self._describe(command.group_id), after_writes=True)
                case ListGroups():
                    context.out.reply(to, self._list(command), after_writes=True)
                case DeleteGroup():
                    self._offsets.delete_group(command.group_id, to)
                case ConsumerHeartbeat():
                    self._consumer_protocol.heartbeat(command, to, now)
                case DescribeConsumerGroup():
                    context.out.reply(to, self._describe_consumer_group(command.group_id), after_writes=True)
                case TopicsChanged():
                    for group in context.consumer_groups.values():
                        group.stale = True
                    context.out.reply(to, None)
                case ForgetTopics():
                    self._offsets.forget_topics(command, to)
                case _:
                    raise TypeError(f"groups have no command {type(command).__name__}")
        except KafkaError as error:
            context.out.reply(to, error)
        return context.out.take()

    def ended(self, write: Write, outcome: WriteOutcome, now: Now) -> Effects:
        write.then(outcome, now)
        return self._context.out.take()

    def tick(self, now: Now) -> Effects:
        self._context.timers.run(now)
        self._changes.remove_gone()
        return self._context.out.take()

    @property
    def next_deadline_ms(self) -> float | None:
        return self._context.timers.next_ms

    def _expire_later(self, now: Now) -> None:
        def look(then: Now) -> None:
            self._offsets.expire(then)
            self._expire_later(then)

        self._context.timers.set(_EXPIRE, now.monotonic_ms + self._context.config.offsets_retention_check_ms, look)

    # Looking

    @property
    def groups(self) -> dict[str, Group]:
        """Classic groups by group id, for metrics and tests."""
        return self._context.groups

    @property
    def consumer_groups(self) -> dict[str, ConsumerGroup]:
        """Groups of the consumer protocol by group id, for metrics and tests."""
        return self._context.consumer_groups

    def offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (group, topic, partition, offset) of every committed offset."""
        for group_id, topics in self._context.offsets.items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    yield group_id, topic, partition, value.offset

    def _describe(self, group_id: str) -> GroupDescription:
        if group_id in self._context.consumer_groups:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} is no classic group")
        group = self._context.group(group_id)
        stable = group.state is GroupState.STABLE
        protocol = group.protocol_name if stable and group.protocol_name is not None else ""
        return GroupDescription(
            group_id=group.group_id,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_name=protocol,
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscription=member.subscription(protocol) if stable else b"",
                    assignment=member.assignment if stable else b"",
                )
                for member in group.members.values()
            ),
        )

    def _list(self, command: ListGroups) -> tuple[ListedGroup, ...]:
        states = {state.lower() for state in command.states}
        types = {kind.lower() for kind in command.types}
        found = [
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
            for group in self._context.groups.values()
        ]
        found += [
            ListedGroup(group.group_id, CONSUMER, group.state.value, CONSUMER)
            for group in self._context.consumer_groups.values()
        ]
        return tuple(
            group
            for group in found
            if (not states or group.state.lower() in states) and (not types or group.type in types)
        )

    def _describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription:
        group = self._context.consumer_groups.get(group_id)
        if group is None:
            there = group_id in self._context.groups
            reason = f"group {group_id!r} is no group of the consumer protocol" if there else f"no group {group_id!r}"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)
        return self._consumer_protocol.describe(group)

    # Members of the classic protocol, in groups of either

    def _join(self, command: JoinGroup, to: Any, now: Now) -> None:
        """Join a classic member. If it finds an empty group of the consumer protocol, that group ends and its offsets
        stay."""
        context = self._context
        group = context.consumer_groups.get(command.group_id)
        if group is None:
            self._classic.join(command, to, now)
            return
        if not group.is_empty:
            self._classic_members.join(group, command, to, now)
            return
        # rule C9/late-join-ends-an-empty-group
        if command.member_id:  # of an ended generation: it joins anew, and only then the group changes its protocol
            context.out.reply(to, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, command.member_id))
            return

        def ended(outcome: WriteOutcome, then: Now) -> None:
            try:
                if outcome.error is not ErrorCode.NONE:
                    raise KafkaError(client_error(outcome.error))
                self._join(command, to, then)
            except KafkaError as error:
                context.out.reply(to, error)

        context.out.write(tuple(group.tombstones()), ended)

    def _sync(self, command: SyncGroup, to: Any, now: Now) -> None:
        group = self._context.consumer_groups.get(command.group_id)
        if group is None:
            self._classic.sync(command, to, now)
        else:
            self._classic_members.sync(group, command, to, now)

    def _heartbeat(self, command: Heartbeat, to: Any, now: Now) -> None:
        group = self._context.consumer_groups.get(command.group_id)
        if group is None:
            self._classic.heartbeat(command, to, now)
        else:
            self._classic_members.heartbeat(group, command, to, now)

    def _leave(self, command: LeaveGroup, to: Any, now: Now) -> None:
        group = self._context.consumer_groups.get(command.group_id)
        if group is None:
            self._classic.leave(command, to, now)
        else:
            self._classic_members.leave(group, command, to)
