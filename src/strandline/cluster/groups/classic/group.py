"""Classic group: members, generation and state. The rules of the protocol are in `classic.protocol`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strandline.cluster.groups.commands import JoinedMember
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.consumer_protocol import subscribed_topics
from strandline.proto.kafka.group_records import NEVER, GroupValue, MemberValue
from strandline.proto.transitions import Transitions, next_state

CONSUMER_PROTOCOL = "consumer"
"""Protocol type whose subscriptions name topics."""


class GroupState(Enum):
    """States of a classic group, in Kafka's words."""

    EMPTY = "Empty"
    """The group has no members; offsets may remain."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The group waits until every member has joined again."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The group waits for the leader's assignment."""
    STABLE = "Stable"
    """Every member has its assignment."""


class GroupEvent(Enum):
    """Events that change the state of a classic group; docs/states.md shows them."""

    CREATED = "is created, or loaded without members"
    LOADED = "is loaded with members"
    MEMBER_JOINED = "a member joins, or joins again with something new"
    MEMBER_LEFT = "a member leaves, or its session ends"
    SYNC_TIMEOUT = "a member does not ask for its assignment in time"
    ASSIGNMENT_NOT_STORED = "the assignment cannot be stored"
    RESTORED = "is loaded after a change of protocol, or with too many members"
    ALL_JOINED = "every member has joined, or the time to join is over"
    NONE_JOINED = "no member is left when the time to join is over"
    ASSIGNED = "the leader's assignment is committed"


TRANSITIONS: Transitions[GroupState, GroupEvent] = {
    (None, GroupEvent.CREATED): GroupState.EMPTY,
    (None, GroupEvent.LOADED): GroupState.STABLE,
    (GroupState.EMPTY, GroupEvent.MEMBER_JOINED): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.ALL_JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.NONE_JOINED): GroupState.EMPTY,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.ASSIGNED): GroupState.STABLE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.MEMBER_JOINED): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.MEMBER_LEFT): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.SYNC_TIMEOUT): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.ASSIGNMENT_NOT_STORED): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, GroupEvent.MEMBER_JOINED): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, GroupEvent.MEMBER_LEFT): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, GroupEvent.SYNC_TIMEOUT): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, GroupEvent.RESTORED): GroupState.PREPARING_REBALANCE,
}


@dataclass(slots=True, eq=False)
class Member:
    """Member of a classic group.

    Attributes:
        protocols: (name, subscription) of the member's assignors, in its order of preference.
        join_to, sync_to: request that waits for the answer to JoinGroup or SyncGroup; None: none waits.
        is_new: the member has no generation yet, so it sends no heartbeats yet.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join_to: Any = None
    sync_to: Any = None
    is_new: bool = False

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def waits(self) -> bool:
        """True if a request of the member waits for its answer: its silence is then caused by this coordinator."""
        return self.join_to is not None or self.sync_to is not None

    def subscription(self, protocol: str) -> bytes:
        """Return the member's subscription for one assignor; empty if the member does not support that assignor."""
        return next((subscription for name, subscription in self.protocols if name == protocol), b"")


@dataclass(slots=True, eq=False)
class Group:
    """Group of the classic protocol.

    Invariants:
    - `leader` is a member, or None in a group without members;
    - `instances` has exactly the static members;
    - a pending member (KIP-394: it has an id and has not joined yet) is not in `members`;
    - `pending_sync` is a subset of `members`, and is empty unless a generation is being completed or is stable.

    Attributes:
        protocol_type: None for a group that only keeps offsets.
        state_ms: wall-clock time in milliseconds at which the group entered this state; -1: unknown.
        members_added: a new member joined while the first rebalance waits for more members.
        stored: a record of the group is in the log.
        came_down: the group used the consumer protocol before (`consumer_protocol.migration`) and has had no generation
            of the classic protocol yet.
    """

    group_id: str
    state: GroupState = TRANSITIONS[None, GroupEvent.CREATED]
    before: GroupState = TRANSITIONS[None, GroupEvent.CREATED]
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    state_ms: int = NEVER
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    pending_sync: dict[str, None] = field(default_factory=dict)
    members_added: bool = False
    stored: bool = False
    came_down: bool = False
    joined: int = 0
    """Number of members whose JoinGroup waits."""
    _supporters: Counter[str] = field(default_factory=Counter)

    # State

    def move(self, event: GroupEvent, wall_ms: int) -> None:
        """Change to the state that follows from `event`. Raises FatalError if the table has no such transition."""
        self.before, self.state, self.state_ms = self.state, next_state(TRANSITIONS, self.state, event), wall_ms

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def all_joined(self) -> bool:
        """True if the rebalance waits for no member."""
        return self.joined == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """Longest rebalance timeout of all members, in milliseconds."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def size(self) -> int:
        """Number of members, including those that got an id but have not joined yet."""
        return len(self.members) + len(self.pending)

    # Members

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a new member."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._supporters.update({name for name, _ in member.protocols})

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending member."""
        self.pending.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self.stop_joining(member)
        self._support_no_more(member.protocols)
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace(self, old: Member, new: Member) -> None:
        """Replace a static member that returned under another id: the new one takes the old one's place, also as the
        leader."""
        place = [new.member_id if member_id == old.member_id else member_id for member_id in self.members]
        members = {**self.members, new.member_id: new}
        self.members = {member_id: members[member_id] for member_id in place}
        self.stop_joining(old)
        if new.join_to is not None:
            self.joined += 1
        self._support_no_more(old.protocols)
        self._supporters.update({name for name, _ in new.protocols})
        if old.member_id in self.pending_sync:
            del self.pending_sync[old.member_id]
            self.pending_sync[new.member_id] = None
        if new.instance_id is not None:
            self.instances[new.instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id

    def update(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Update a member's subscriptions."""
        self._support_no_more(member.protocols)
        member.protocols = protocols
        self._supporters.update({name for name, _ in protocols})

    def _support_no_more(self, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Forget assignors that no member supports any more."""
        for name in {name for name, _ in protocols}:  # rule A24/all-protocols-are-looked-at-for-each-that-leaves
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def start_joining(self, member: Member, to: Any) -> None:
        """Let the member's JoinGroup wait for the others."""
        if member.join_to is None:
            self.joined += 1
        member.join_to = to

    def stop_joining(self, member: Member) -> Any:
        """Return the waiting JoinGroup, to be answered now; None if none waits."""
        to, member.join_to = member.join_to, None
        if to is not None:
            self.joined -= 1
        return to

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member that sent a request.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID for a static member whose place another process has taken.
        """
        if instance_id is not None:
            holder = self.instances.get(instance_id)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # Protocols and leader

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Return whether a member with these assignors can join: at least one of them is supported by all members."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters[name] == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the elected assignor: each member votes for the first of its assignors that all members support; of
        equal votes the first one wins."""
        common = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next((name for name, _ in member.protocols if name in common), None)
            if vote is not None:
                votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first member that has. Returns False if no member has
        joined."""
        leader = None if self.leader is None else self.members.get(self.leader)
        if leader is not None and leader.join_to is not None:
            return True
        for member in self.members.values():
            if member.join_to is not None:
                self.leader = member.member_id
                return True
        return False

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return the members for the leader's assignment."""
        protocol = self.protocol_name or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.subscription(protocol))
            for member in self.members.values()
        )

    def next_generation(self, wall_ms: int) -> None:
        """Begin the next generation: the rebalance has its members."""
        self.generation = self.generation + 1 if self.generation < 2**31 - 1 else 0
        self.members_added = self.came_down = False
        if self.members:
            self.protocol_name = self.select_protocol()
            self.move(GroupEvent.ALL_JOINED, wall_ms)
        else:
            self.protocol_name = None
            self.move(GroupEvent.NONE_JOINED, wall_ms)

    def subscribed(self) -> tuple[str, ...] | None:
        """Return the topics that the members read, sorted; None if they are not known (another protocol type, or bytes
        that do not parse)."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return ()
        if self.protocol_name is None:
            return None
        topics: dict[str, None] = {}
        for member in self.members.values():
            found = subscribed_topics(member.subscription(self.protocol_name))
            if found is None:
                return None
            topics.update(dict.fromkeys(found))
        return tuple(sorted(topics))

    # Records

    def value(self, assignments: Mapping[str, bytes] | None = None) -> GroupValue:
        """Return the record of this generation. `assignments`: member id -> assignment; None: the members' current
        ones."""
        protocol = self.protocol_name or ""
        return GroupValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            state_ms=self.state_ms,
            members=tuple(
                MemberValue(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.subscription(protocol),
                    assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def from_value(cls, group_id: str, value: GroupValue) -> Group:
        """Return a group from its last record: stable, or empty."""
        group = cls(group_id, generation=value.generation, stored=True)
        group.protocol_type = value.protocol_type or None
        for member in value.members:
            group.add(
                Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    protocols=((value.protocol or "", member.subscription),),
                    assignment=member.assignment,
                ),
                value.protocol_type,
            )
        group.protocol_name = value.protocol
        group.came_down = value.leader is None and bool(group.members)
        group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
        event = GroupEvent.LOADED if group.members else GroupEvent.CREATED
        group.state = group.before = next_state(TRANSITIONS, None, event)
        group.state_ms = value.state_ms
        return group
