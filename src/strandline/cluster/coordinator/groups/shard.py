"""The shard of one partition of `__consumer_offsets`: commands and records go to the part that knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.cluster.coordinator.groups.classic import ClassicProtocol
from strandline.cluster.coordinator.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribedMember,
    DescribeGroup,
    FetchOffsets,
    ForgetTopics,
    GroupDescription,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListedGroup,
    ListGroups,
    SyncGroup,
)
from strandline.cluster.coordinator.groups.config import GroupConfig
from strandline.cluster.coordinator.groups.context import ShardContext
from strandline.cluster.coordinator.groups.counters import GroupCounters
from strandline.cluster.coordinator.groups.group import Group, GroupState
from strandline.cluster.coordinator.groups.offsets import OffsetStore
from strandline.cluster.coordinator.groups.rebalance import Rebalancing, session_key
from strandline.cluster.coordinator.groups.records import (
    GroupKey,
    OffsetKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from strandline.cluster.coordinator.machine import Effects, Now, Record, Write, WriteOutcome
from strandline.proto.errors import KafkaError
from strandline.proto.ports import Rng

CLASSIC = "classic"
"""Kafka's word for the type of group whose members assign among themselves."""

_EXPIRE = "expire"


class GroupShard:
    """A `Shard` of groups.

    Attributes:
        unknown_records: records of kinds that this version does not know; they are kept in the log and not acted upon.
    """

    def __init__(self, config: GroupConfig, rng: Rng, counters: GroupCounters) -> None:
        self._context = ShardContext(config, rng, counters)
        self._rebalancing = Rebalancing(self._context)
        self._classic = ClassicProtocol(self._context, self._rebalancing)
        self._offsets = OffsetStore(self._context, self._rebalancing)
        self.unknown_records = 0

    # Shard

    def replay(self, record: Record) -> None:
        """Raises ProtocolError for a record that does not parse."""
        key = read_key(record.key)
        if isinstance(key, OffsetKey):
            self._offsets.put(key, None if record.value is None else read_offset_value(record.value))
        elif isinstance(key, GroupKey):
            if record.value is None:
                self._drop(key.group)
            else:
                self._context.groups[key.group] = Group.from_value(key.group, read_group_value(record.value))
        else:
            self.unknown_records += 1

    def _drop(self, group_id: str) -> None:
        """Deleted or expired: nobody is in it, but some may have been given an id to join with."""
        group = self._context.groups.pop(group_id, None)
        if group is not None:
            for member_id in group.pending:
                self._context.timers.cancel(session_key(group_id, member_id))

    def loaded(self, now: Now) -> Effects:
        """Every member that the log knows gets a full session: it could not reach a coordinator meanwhile."""
        for group in self._context.groups.values():
            for member in group.members.values():
                self._rebalancing.renew_session(group, member, now)
        self._expire_later(now)
        return self._context.out.take()

    def handle(self, command: Any, to: Any, now: Now) -> Effects:
        """One of `commands`."""
        context = self._context
        try:
            match command:
                case Heartbeat():
                    self._classic.heartbeat(command, to, now)
                case CommitOffsets():
                    self._offsets.commit(command, to, now)
                case FetchOffsets():
                    self._offsets.fetch(command, to)
                case JoinGroup():
                    self._classic.join(command, to, now)
                case SyncGroup():
                    self._classic.sync(command, to, now)
                case LeaveGroup():
                    self._classic.leave(command, to, now)
                case DeleteOffsets():
                    self._offsets.delete(command, to)
                case DescribeGroup():
                    context.out.reply(to, self._describe(context.group(command.group_id)), after_writes=True)
                case ListGroups():
                    context.out.reply(to, self._list(command), after_writes=True)
                case DeleteGroup():
                    self._offsets.delete_group(command.group_id, to)
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
        """For metrics and tests."""
        return self._context.groups

    def offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, partition, offset) of everything that is committed."""
        for group_id, topics in self._context.offsets.items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    yield group_id, topic, partition, value.offset

    def _describe(self, group: Group) -> GroupDescription:
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
        if types and CLASSIC not in types:
            return ()
        return tuple(
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
            for group in self._context.groups.values()
            if not states or group.state.value.lower() in states
        )
