"""State of a group of the consumer protocol, as its records define it, and drafts of changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from strandline.cluster.groups.classic.group import CONSUMER_PROTOCOL
from strandline.cluster.groups.consumer_protocol.reconcile import Partition, pairs
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.consumer_group_records import (
    CURRENT,
    GROUP_EPOCH,
    MEMBER,
    NOTHING,
    TARGET,
    TARGET_EPOCH,
    TOPICS,
    Assignment,
    ConsumerGroupKey,
    Current,
    Epoch,
    Kind,
    MemberInfo,
    MemberState,
    OfGroup,
    OfMember,
    Target,
    Topics,
    TopicShape,
)
from strandline.proto.kafka.keyed_record import Record

AWAY = -2
"""Epoch of a static member that has left for a short time."""


class ConsumerGroupState(Enum):
    """States of a group, with Kafka's names.

    EMPTY: no members. ASSIGNING: the target assignment for the newest epoch is not computed yet. RECONCILING: at least
    one member does not have its target assignment yet. STABLE: all members have it.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """State of a group. It is changed only by `put`, which replays a record of the log.

    Invariants:
    - no partition is in `assigned` or `revoking` of two members: `owners` gives its owner;
    - `target_epoch` <= `epoch`, and no member's epoch is above `target_epoch`;
    - each member with a `current` has a `members` entry once a batch is replayed whole;
    - `classic` are those of the `members` that have the classic protocol.

    Attributes:
        epoch: rises with every change of the members' subscriptions or of the topics.
        topics: subscribed topics that exist, as they were when the epoch rose.
        targets: what each member shall have, as of `target_epoch`.
        current: what each has.
        stale: topics may have changed since `topics` was made; soft.
    """

    group_id: str
    epoch: int = 0
    target_epoch: int = 0
    topics: dict[str, TopicShape] = field(default_factory=dict)
    members: dict[str, MemberInfo] = field(default_factory=dict)
    targets: dict[str, Assignment] = field(default_factory=dict)
    current: dict[str, Current] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    classic: dict[str, None] = field(default_factory=dict)
    stale: bool = True
    _supporters: Counter[str] = field(default_factory=Counter)
    """Number of classic members that have each of their assignors."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        there = (MemberState.STABLE, self.target_epoch)
        if all((one.state, one.epoch) == there for one in map(self.now, self.members)):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def now(self, member_id: str) -> Current:
        """Current assignment of the member; empty for a new one."""
        return self.current.get(member_id, Current())

    # Checks of members

    def check_member(self, member_id: str, instance_id: str | None = None) -> MemberInfo:
        """Check that the member exists. Raises KafkaError UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance id
        belongs to another member."""
        if instance_id is not None:
            holder = self.instances.get(instance_id)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id!r}")
            if holder != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"instance id {instance_id!r} is another member's")
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is no member of the group")
        return member

    def check_epoch(self, member_id: str, epoch: int) -> None:
        """Check, before offsets are committed or fetched, that the member has exactly this epoch. Raises KafkaError
        UNKNOWN_MEMBER_ID, or STALE_MEMBER_EPOCH (for a classic member ILLEGAL_GENERATION)."""
        self.check_member(member_id)
        known = self.now(member_id).epoch
        if epoch != known:
            code = ErrorCode.ILLEGAL_GENERATION if member_id in self.classic else ErrorCode.STALE_MEMBER_EPOCH
            raise KafkaError(code, f"the member is at epoch {known}, not {epoch}")

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """True if a classic member with these assignors can join: all classic members must share one, in case that only
        classic members remain one day."""
        if protocol_type != CONSUMER_PROTOCOL:
            return False
        return any(self._supporters[name] == len(self.classic) for name, _ in protocols)

    @property
    def is_classic(self) -> bool:
        """True if there are members, and all of them use the classic protocol and share an assignor."""
        count = len(self.classic)
        return 0 < count == len(self.members) and count in self._supporters.values()

    # Replay

    def put(self, key: ConsumerGroupKey, raw: bytes | None) -> None:
        """Replay a record of the log, except the tombstone that ends the group. Raises ProtocolError."""
        match key.kind:
            case Kind.GROUP if raw is not None:
                self.epoch = GROUP_EPOCH.read(raw).epoch
            case Kind.TOPICS:
                self.topics = {} if raw is None else TOPICS.read(raw).topics
            case Kind.TARGET_EPOCH:
                self.target_epoch = 0 if raw is None else TARGET_EPOCH.read(raw).epoch
            case Kind.MEMBER:
                self._put_member(key.member, None if raw is None else MEMBER.read(raw))
            case Kind.TARGET:
                if raw is None:
                    self.targets.pop(key.member, None)
                else:
                    self.targets[key.member] = TARGET.read(raw).partitions
            case Kind.CURRENT:
                self._put_current(key.member, None if raw is None else CURRENT.read(raw))

    def _put_member(self, member_id: str, member: MemberInfo | None) -> None:
        old = self.members.get(member_id)
        if old is not None and old.instance_id is not None and self.instances.get(old.instance_id) == member_id:
            del self.instances[old.instance_id]
        if old is not None and old.classic is not None:
            del self.classic[member_id]
            self._supporters.subtract({name for name, _ in old.classic.protocols})
            self._supporters = +self._supporters
        if member is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = member
        if member.classic is not None:
            self.classic[member_id] = None
            self._supporters.update({name for name, _ in member.classic.protocols})
        if member.instance_id is not None:
            self.instances[member.instance_id] = member_id

    def _put_current(self, member_id: str, current: Current | None) -> None:
        old = self.current.pop(member_id, None)
        if old is not None:
            for one in _held(old):
                if self.owners.get(one) == member_id:
                    del self.owners[one]
        if current is not None:
            self.current[member_id] = current
            self.owners.update(dict.fromkeys(_held(current), member_id))

    # Records

    def tombstones(self) -> Iterator[Record]:
        """Tombstones of all records of the group, which delete it."""
        for of_members, known in ((CURRENT, self.current), (TARGET, self.targets), (MEMBER, self.members)):
            for member_id in known:
                yield of_members.record(OfMember(self.group_id, member_id), None)
        for of_group in (TARGET_EPOCH, TOPICS, GROUP_EPOCH):
            yield of_group.record(OfGroup(self.group_id), None)


def _held(current: Current) -> Iterator[Partition]:
    yield from pairs(current.assigned)
    yield from pairs(current.revoking)


class Draft:
    """Planned changes of a group, and the records that make them. The group itself is not changed."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self.topics = group.topics
        self._members: dict[str, MemberInfo | None] = {}
        self._targets: dict[str, Assignment | None] = {}
        self._current: dict[str, Current | None] = {}

    # Looking

    def member(self, member_id: str) -> MemberInfo | None:
        return self._members[member_id] if member_id in self._members else self.group.members.get(member_id)

    def members(self) -> dict[str, MemberInfo]:
        """All members, by member id."""
        merged = {**self.group.members, **self._members}
        return {member_id: member for member_id, member in merged.items() if member is not None}

    def target(self, member_id: str) -> Assignment:
        found = self._targets[member_id] if member_id in self._targets else self.group.targets.get(member_id)
        return NOTHING if found is None else found

    def now(self, member_id: str) -> Current:
        found = self._current[member_id] if member_id in self._current else self.group.current.get(member_id)
        return Current() if found is None else found

    def is_taken(self, partition: Partition, member_id: str) -> bool:
        """True if another member has the partition."""
        owner = self.group.owners.get(partition)
        if owner is None or owner == member_id:  # rule C9/partition-given-twice
            return False
        return not (owner in self._current and self._current[owner] is None)

    # Changing

    def put_member(self, member_id: str, member: MemberInfo) -> None:
        self._members[member_id] = member

    def put_target(self, member_id: str, target: Assignment) -> None:
        self._targets[member_id] = target

    def put_current(self, member_id: str, current: Current) -> None:
        self._current[member_id] = current

    def remove(self, member_id: str) -> None:
        """Remove a member with its assignments."""
        self._members[member_id] = self._targets[member_id] = self._current[member_id] = None

    def records(self) -> Iterator[Record]:
        """Records of the changes. Removals come first, so that their partitions are free for the other members."""
        group, group_id = self.group, self.group.group_id
        changed = (
            (CURRENT, self._current, group.current),
            (TARGET, self._targets, group.targets),
            (MEMBER, self._members, group.members),
        )
        for kind, new, old in changed:
            for member_id, value in new.items():
                if value is None and member_id in old:
                    yield kind.record(OfMember(group_id, member_id), None)
        for member_id, member in self._members.items():
            if member is not None and member != group.members.get(member_id):
                yield MEMBER.record(OfMember(group_id, member_id), member)
        if self.topics != group.topics:
            yield TOPICS.record(OfGroup(group_id), Topics(self.topics))
        if self.epoch != group.epoch:
            yield GROUP_EPOCH.record(OfGroup(group_id), Epoch(self.epoch))
        for member_id, target in self._targets.items():
            if target is not None and target != group.targets.get(member_id):
                yield TARGET.record(OfMember(group_id, member_id), Target(target))
        if self.target_epoch != group.target_epoch:
            yield TARGET_EPOCH.record(OfGroup(group_id), Epoch(self.target_epoch))
        for member_id, current in self._current.items():
            if current is not None and current != group.current.get(member_id):
                yield CURRENT.record(OfMember(group_id, member_id), current)
