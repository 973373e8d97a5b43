"""The server's assignors: complete, even, and moving few partitions (KIP-848, "server-side assignors")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from shard_case import topic_id_of

from strandline.cluster.groups.consumer_protocol.assignors import (
    ASSIGNORS,
    Subscriber,
    assign_range,
    assign_uniform,
)
from strandline.cluster.groups.consumer_protocol.reconcile import pairs
from strandline.proto.kafka.consumer_group_records import Assignment, TopicShape

NAMES = ("a", "b", "c", "d")


def shapes(**partitions: int) -> dict[str, TopicShape]:
    return {name: TopicShape(topic_id_of(name), count) for name, count in partitions.items()}


def subscribers(*topics: str, before: Mapping[str, Assignment] | None = None) -> list[Subscriber]:
    """Members m0, m1, ..., each reading the topics that its word spells."""
    return [
        Subscriber(f"m{number}", f"m{number}", frozenset(word), (before or {}).get(f"m{number}", {}))
        for number, word in enumerate(topics)
    ]


def check_complete(
    members: Sequence[Subscriber], topics: Mapping[str, TopicShape], found: Mapping[str, Assignment]
) -> None:
    """Each partition that somebody reads has one owner, and that one reads it."""
    assert found.keys() == {member.member_id for member in members}
    owned = [one for assignment in found.values() for one in pairs(assignment)]
    assert len(owned) == len(set(owned))
    read = {name for member in members for name in member.topics if name in topics}
    assert set(owned) == {(topics[name].topic_id, number) for name in read for number in range(topics[name].partitions)}
    for member in members:
        assert set(found[member.member_id]) <= {topics[name].topic_id for name in member.topics if name in topics}


WORDS = st.lists(st.sets(st.sampled_from(NAMES), max_size=4).map(lambda word: "".join(sorted(word))), max_size=6)
COUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), max_size=4)


@given(WORDS, COUNTS, WORDS, st.sampled_from(sorted(ASSIGNORS)))
@settings(max_examples=200, deadline=None)
def test_complete_whatever_was_before(
    words: list[str], counts: dict[str, int], next_words: list[str], name: str
) -> None:
    """From any assignment to that of other members and topics; asked again, nothing moves."""
    assign, topics = ASSIGNORS[name], shapes(**counts)
    first = assign(subscribers(*words), topics)
    check_complete(subscribers(*words), topics, first)
    grown = shapes(**{name: count + 2 for name, count in counts.items()})
    members = subscribers(*next_words, before=first)
    second = assign(members, grown)
    check_complete(members, grown, second)
    assert assign(subscribers(*next_words, before=second), grown) == second


@given(st.integers(1, 12), st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_uniform_is_even_and_moves_few(count: int, sizes: list[int], next_count: int) -> None:
    """Members that read the same: nobody has two more than another, and only what evenness takes is moved."""
    topics = shapes(**dict(zip(NAMES, sizes, strict=False)))
    total, word = sum(sizes), "".join(topics)
    first = assign_uniform(subscribers(*[word] * count), topics)
    loads = sorted(len(pairs(one)) for one in first.values())
    assert loads[-1] - loads[0] <= 1
    members = subscribers(*[word] * next_count, before=first)
    second = assign_uniform(members, topics)
    loads = sorted(len(pairs(one)) for one in second.values())
    assert loads[-1] - loads[0] <= 1
    kept = sum(len(pairs(first[one]).keys() & pairs(second[one]).keys()) for one in second if one in first)
    quota, larger = divmod(total, next_count)
    had = sorted((len(pairs(one)) for name, one in first.items() if name in second), reverse=True)
    most = sum(min(load, quota + (number < larger)) for number, load in enumerate(had))
    assert kept == most, "as many stay as can"


@given(WORDS, COUNTS)
@settings(max_examples=150, deadline=None)
def test_uniform_is_even_where_subscriptions_differ(words: list[str], counts: dict[str, int]) -> None:
    """No partition can move from its owner to a subscriber that has two fewer."""
    topics, members = shapes(**counts), subscribers(*words)
    found = assign_uniform(members, topics)
    loads = {name: len(pairs(one)) for name, one in found.items()}
    by_id = {shape.topic_id: name for name, shape in topics.items()}
    for owner, assignment in found.items():
        for topic_id in assignment:
            readers = [member.member_id for member in members if by_id[topic_id] in member.topics]
            assert loads[owner] - min(loads[reader] for reader in readers) < 2


def test_range_cuts_topics_of_one_size_alike() -> None:
    """Keys of two topics meet in one member; the first members have one more; static members stand by instance id."""
    topics = shapes(a=5, b=5, c=2)
    found = assign_range(subscribers("ab", "abc", "ab"), topics)
    for assignment in found.values():
        assert assignment.get(topic_id_of("a")) == assignment.get(topic_id_of("b"))
    assert [found[f"m{number}"][topic_id_of("a")] for number in range(3)] == [(0, 1), (2, 3), (4,)]
    assert found["m1"][topic_id_of("c")] == (0, 1)
    members = [Subscriber("x", "2", frozenset("a")), Subscriber("y", "1", frozenset("a"))]
    assert assign_range(members, topics) == {"x": {topic_id_of("a"): (3, 4)}, "y": {topic_id_of("a"): (0, 1, 2)}}


def test_many_members_take_little_time() -> None:
    """1,000 members, 10,000 partitions, subscriptions of two kinds: the loop must not notice much. No clock here, for
    the machine is shared: what is held is that it ends, complete."""
    topics = shapes(a=5_000, b=5_000)
    members = subscribers(*["ab", "a"] * 500)
    check_complete(members, topics, assign_uniform(members, topics))
