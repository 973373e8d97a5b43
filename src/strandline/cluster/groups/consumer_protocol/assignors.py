"""Assignors of the coordinator: they decide which member reads which partition.

Pure functions of subscriptions, topics and the previous assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from strandline.proto.ids import TopicId
from strandline.proto.kafka.consumer_group_records import NOTHING, Assignment, TopicShape, sorted_assignment

Partition = tuple[TopicId, int]


class Subscriber(NamedTuple):
    """Member as an assignor sees it.

    Attributes:
        order: sort key of members: the instance id of a static member, else the member id.
        topics: subscribed names of existing topics.
        before: the member's part of the previous target assignment.
    """

    member_id: str
    order: str
    topics: frozenset[str]
    before: Assignment = NOTHING


Assignor = Callable[[Sequence[Subscriber], Mapping[str, TopicShape]], dict[str, Assignment]]
"""Function (members, topics) -> assignment by member id. The assignment contains every member, and every subscribed
partition once."""


def assign_uniform(members: Sequence[Subscriber], topics: Mapping[str, TopicShape]) -> dict[str, Assignment]:
    """Spread all partitions together evenly; each member keeps as many of its own as possible.

    If all members read the same topics, their numbers of partitions differ by at most one. If not, no partition can
    move from its owner to a subscriber that has at least two fewer.
    """
    members = sorted(members, key=lambda member: (member.order, member.member_id))
    owned = _kept(members, topics)
    free = _free(members, topics, owned)
    if len({member.topics for member in members}) <= 1:
        _spread_evenly(members, owned, free)
    else:
        _spread_by_load(members, topics, owned, free)
    return {member.member_id: sorted_assignment(owned[member.member_id]) for member in members}


def _kept(members: Sequence[Subscriber], topics: Mapping[str, TopicShape]) -> dict[str, dict[Partition, None]]:
    """Return the partitions that each member had and may keep."""
    names = {shape.topic_id: name for name, shape in topics.items()}
    taken: set[Partition] = set()
    owned: dict[str, dict[Partition, None]] = {}
    for member in members:
        mine = owned[member.member_id] = {}
        for topic_id, partitions in member.before.items():
            name = names.get(topic_id)
            if name is None or name not in member.topics:
                continue
            for partition in partitions:
                if partition < topics[name].partitions and (topic_id, partition) not in taken:
                    taken.add((topic_id, partition))
                    mine[topic_id, partition] = None
    return owned


def _free(
    members: Sequence[Subscriber], topics: Mapping[str, TopicShape], owned: Mapping[str, Mapping[Partition, None]]
) -> list[tuple[str, Partition]]:
    """Return (topic, partition) of each subscribed partition without an owner."""
    taken = {partition for mine in owned.values() for partition in mine}
    read = {topic for member in members for topic in member.topics}
    return [
        (name, (topics[name].topic_id, partition))
        for name in sorted(read & topics.keys())
        for partition in range(topics[name].partitions)
        if (topics[name].topic_id, partition) not in taken
    ]


def _spread_evenly(
    members: Sequence[Subscriber], owned: Mapping[str, dict[Partition, None]], free: list[tuple[str, Partition]]
) -> None:
    if not members:
        return
    pool = [partition for _, partition in free]
    total = len(pool) + sum(map(len, owned.values()))
    quota, larger = divmod(total, len(members))
    # Those that have most keep the larger shares: so the fewest partitions move.
    for member in sorted(members, key=lambda member: -len(owned[member.member_id])):
        mine = owned[member.member_id]
        limit = quota
        if larger and len(mine) > quota:
            limit, larger = quota + 1, larger - 1
        while len(mine) > limit:
            pool.append(mine.popitem()[0])
    pool.reverse()
    for member in members:
        mine = owned[member.member_id]
        while len(mine) < quota:
            mine[pool.pop()] = None
    for member in members:
        if pool and len(owned[member.member_id]) == quota:
            owned[member.member_id][pool.pop()] = None


def _spread_by_load(
    members: Sequence[Subscriber],
    topics: Mapping[str, TopicShape],
    owned: Mapping[str, dict[Partition, None]],
    free: list[tuple[str, Partition]],
) -> None:
    readers = {name: tuple(one.member_id for one in members if name in one.topics) for name in sorted(topics)}
    lightest: dict[tuple[str, ...], list[_Load]] = {}
    for name, partition in sorted(free, key=lambda one: len(readers[one[0]])):
        heap = lightest.get(readers[name])
        if heap is None:
            heap = lightest[readers[name]] = _by_load(readers[name], owned)
        # Loads only grow here: an entry that is too small is put back where it belongs.
        while (load := len(owned[heap[0][2]])) != heap[0][0]:
            heapreplace(heap, (load, *heap[0][1:]))
        owned[heap[0][2]][partition] = None
    # Each move makes the loads more even (the sum of their squares falls), so this ends.
    moved = True
    while moved:
        moved = False
        for name, subscribers in readers.items():
            if len(subscribers) > 1:
                moved |= _even_out(topics[name], subscribers, owned)


_Load = tuple[int, int, str]
"""(number of partitions, position in the order of members, member id), in a heap."""


def _by_load(member_ids: Sequence[str], owned: Mapping[str, Mapping[Partition, None]]) -> list[_Load]:
    heap = [(len(owned[member_id]), place, member_id) for place, member_id in enumerate(member_ids)]
    heapify(heap)
    return heap


def _even_out(shape: TopicShape, readers: Sequence[str], owned: Mapping[str, dict[Partition, None]]) -> bool:
    """Move partitions of one topic from the member with most to the member with fewest. Returns whether one moved."""
    having = {member_id: sorted(one for one in owned[member_id] if one[0] == shape.topic_id) for member_id in readers}
    places = {member_id: place for place, member_id in enumerate(readers)}
    light = _by_load(readers, owned)
    heavy = [(-len(owned[member_id]), places[member_id], member_id) for member_id in having]
    heapify(heavy)
    moved = False
    while heavy:
        # Every change is pushed as a new entry: one that is not true any more is dropped.
        most, _, giver = heavy[0]
        if -most != len(owned[giver]) or not having[giver]:
            heappop(heavy)
            continue
        least, _, taker = light[0]
        if least != len(owned[taker]):
            heappop(light)
            continue
        if -most - least < 2:
            break
        partition = having[giver].pop()
        del owned[giver][partition]
        owned[taker][partition] = None
        having.setdefault(taker, []).append(partition)
        for member_id in (giver, taker):
            heappush(light, (len(owned[member_id]), places[member_id], member_id))
            heappush(heavy, (-len(owned[member_id]), places[member_id], member_id))
        moved = True
    return moved


def assign_range(members: Sequence[Subscriber], topics: Mapping[str, TopicShape]) -> dict[str, Assignment]:
    """Divide each topic separately into ranges: the first members get one more if it does not divide evenly. Topics
    with the same number of partitions and the same readers are divided alike, so that a key has the same reader in
    both."""
    found: dict[str, list[Partition]] = {member.member_id: [] for member in members}
    line = sorted(members, key=lambda member: (member.order, member.member_id))
    for name in sorted(topics):
        shape = topics[name]
        readers = [member.member_id for member in line if name in member.topics]
        begin = 0
        for number, member_id in enumerate(readers):
            end = begin + shape.partitions // len(readers) + (number < shape.partitions % len(readers))
            found[member_id] += [(shape.topic_id, partition) for partition in range(begin, end)]
            begin = end
    return {member_id: sorted_assignment(partitions) for member_id, partitions in found.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""Assignors by Kafka's name."""
