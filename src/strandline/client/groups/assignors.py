"""Strategies by which a group's leader shares out partitions: Kafka's range, roundrobin, sticky and cooperative-sticky.

Pure functions of the members' subscriptions and the topics' partition counts, so every leader comes to the same result.
The sticky ones keep what members have as far as balance allows. The cooperative one gives a partition that moves to
nobody until its old owner has let go of it (KIP-429): the round after that gives it away.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.consumer_protocol import (
    Subscription,
    decode_partitions,
    encode_partitions,
)


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the leader sees it. `instance_id` is None for dynamic members."""

    member_id: str
    instance_id: str | None
    subscription: Subscription

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first and by their names, which outlive restarts; as in Kafka."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Shares = dict[str, list[TopicPartition]]
"""Member id -> its partitions."""
Assign = Callable[[list[Member], Mapping[str, int]], Shares]
Remember = Callable[[tuple[TopicPartition, ...], int], bytes | None]


@dataclass(frozen=True, slots=True)
class Assignor:
    """One strategy.

    Attributes:
        name: on the wire.
        cooperative: members keep their partitions while they join.
        assign: (members, topic -> number of partitions) -> shares. Topics without partitions are left out.
        remember: (partitions, generation) -> what a member tells the next leader in `user_data`.
    """

    name: str
    cooperative: bool
    assign: Assign
    remember: Remember


def _range(members: list[Member], counts: Mapping[str, int]) -> Shares:
    """Topic by topic, neighbours together; the first members get one more where it does not divide."""
    shares: Shares = {member.member_id: [] for member in members}
    for topic in sorted(counts):
        takers = [member for member in members if topic in member.subscription.topics]
        if not takers:
            continue
        each, more = divmod(counts[topic], len(takers))
        start = 0
        for place, member in enumerate(takers):
            end = start + each + (place < more)
            shares[member.member_id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return shares


def _round_robin(members: list[Member], counts: Mapping[str, int]) -> Shares:
    """All partitions in one row, dealt out in turn to the members that subscribe to their topic."""
    shares: Shares = {member.member_id: [] for member in members}
    wanted = {member.member_id: frozenset(member.subscription.topics) for member in members}
    turn = 0
    for topic in sorted(counts):
        if not any(topic in topics for topics in wanted.values()):
            continue
        for number in range(counts[topic]):
            while topic not in wanted[members[turn % len(members)].member_id]:
                turn += 1
            shares[members[turn % len(members)].member_id].append(TopicPartition(topic, number))
            turn += 1
    return shares


def _owners(
    members: list[Member],
    counts: Mapping[str, int],
    had: Callable[[Subscription], tuple[tuple[TopicPartition, ...], int]],
) -> dict[TopicPartition, str]:
    """The owner of each partition, by the newest claim; one that two claim of one generation belongs to neither."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        topics = frozenset(member.subscription.topics)
        partitions, generation = had(member.subscription)
        for item in partitions:
            if item.topic not in topics or item.partition >= counts.get(item.topic, 0):
                continue
            known = best.get(item)
            if known is None or generation > known[0]:
                best[item] = (generation, member.member_id)
            elif generation == known[0] and known[1] != member.member_id:
                best[item] = (generation, None)
    return {item: owner for item, (_, owner) in best.items() if owner is not None}


def _balanced(members: list[Member], counts: Mapping[str, int], owners: Mapping[TopicPartition, str]) -> Shares:
    """Balanced assignment. Members keep their partitions; free ones go to the member with fewest; then partitions are
    moved until no move improves the balance."""
    wanted = {member.member_id: frozenset(member.subscription.topics) for member in members}
    shares: Shares = {member.member_id: [] for member in members}
    everything = [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]
    takers = {topic: [name for name, topics in wanted.items() if topic in topics] for topic in counts}
    for item in everything:
        if item in owners:
            shares[owners[item]].append(item)
    for item in everything:
        if item not in owners and takers[item.topic]:
            shares[min(takers[item.topic], key=lambda name: len(shares[name]))].append(item)
    while _move_one(shares, takers):
        pass
    return shares


def _move_one(shares: Shares, takers: Mapping[str, list[str]]) -> bool:
    """Move one partition to a member with at least two fewer. Returns False if there is none to move."""
    for giver in sorted(shares, key=lambda name: -len(shares[name])):
        lightest = {topic: min(names, key=lambda name: len(shares[name])) for topic, names in takers.items() if names}
        for place in range(len(shares[giver]) - 1, -1, -1):
            item = shares[giver][place]
            taker = lightest[item.topic]
            if len(shares[taker]) + 2 <= len(shares[giver]):
                shares[taker].append(shares[giver].pop(place))
                return True
    return False


def _owned_by_sticky(subscription: Subscription) -> tuple[tuple[TopicPartition, ...], int]:
    """Kafka's StickyAssignorUserData, version 1: partitions, generation. A member that owns some says so itself."""
    if subscription.owned or not subscription.user_data:
        return subscription.owned, subscription.generation
    try:
        partitions, rest = decode_partitions(subscription.user_data)
    except ProtocolError:
        return (), -1  # what another client noted for itself is no reason to fail the group
    return partitions, struct.unpack_from(">i", rest)[0] if len(rest) >= 4 else -1


def _owned_by_cooperative(subscription: Subscription) -> tuple[tuple[TopicPartition, ...], int]:
    """Owned partitions; the generation from the subscription, or in `user_data` of clients older than KIP-792."""
    generation = subscription.generation
    if generation < 0 and subscription.user_data is not None and len(subscription.user_data) >= 4:
        generation = struct.unpack_from(">i", subscription.user_data)[0]
    return subscription.owned, generation


def _sticky(members: list[Member], counts: Mapping[str, int]) -> Shares:
    return _balanced(members, counts, _owners(members, counts, _owned_by_sticky))


def _cooperative(members: list[Member], counts: Mapping[str, int]) -> Shares:
    """Shares as sticky has them, but what moves rests for one round."""
    owners = _owners(members, counts, _owned_by_cooperative)
    shares = _balanced(members, counts, owners)
    held: dict[TopicPartition, list[str]] = {}
    for member in members:
        for item in member.subscription.owned:
            held.setdefault(item, []).append(member.member_id)
    return {
        name: [item for item in items if owners.get(item) == name or not held.get(item)]
        for name, items in shares.items()
    }


def _nothing(partitions: tuple[TopicPartition, ...], generation: int) -> bytes | None:
    return None


ASSIGNORS = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", False, _range, _nothing),
        Assignor("roundrobin", False, _round_robin, _nothing),
        Assignor("sticky", False, _sticky, lambda items, at: encode_partitions(items) + struct.pack(">i", at)),
        Assignor("cooperative-sticky", True, _cooperative, lambda items, at: struct.pack(">i", at)),
    )
}
"""Strategies by the name that members agree on."""


def share_out(name: str, members: list[Member], counts: Mapping[str, int]) -> Shares:
    """The shares of every member, by one strategy."""
    return ASSIGNORS[name].assign(sorted(members, key=attrgetter("order")), counts)
