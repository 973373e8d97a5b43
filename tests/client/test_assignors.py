"""Assignors and the bytes that members exchange, held against Kafka's rules and kio's schemas (rows S56 to S58,
KIP-429)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription
from kio.serial import entity_reader

from strandline.client.groups.assignors import ASSIGNORS, Member, Shares, share_out
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

NAMES = tuple(ASSIGNORS)
STICKY = ("sticky", "cooperative-sticky")


def members(*wanted: str, static: str = "") -> list[Member]:
    """m0, m1, ...: each subscribes to the topics named by the letters."""
    return [
        Member(f"m{place}", f"i{place}" if str(place) in static else None, Subscription(tuple(topics)))
        for place, topics in enumerate(wanted)
    ]


def again(name: str, before: list[Member], shares: Shares, generation: int) -> list[Member]:
    """The members as they join next, with what they have."""
    joined = []
    for member in before:
        owned = tuple(shares.get(member.member_id, ()))
        kept = owned if ASSIGNORS[name].cooperative else ()
        data = ASSIGNORS[name].remember(owned, generation)
        topics = member.subscription.topics
        joined.append(Member(member.member_id, member.instance_id, Subscription(topics, kept, generation, data)))
    return joined


@pytest.mark.parametrize("name", NAMES)
@given(
    wanted=st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=6), counts=st.tuples(*[st.integers(0, 7)] * 3)
)
@settings(max_examples=40, deadline=None)
def test_every_wanted_partition_has_one_owner_who_wants_it(
    name: str, wanted: list[set[str]], counts: tuple[int, int, int]
) -> None:
    """Rows S56, S57: no partition twice, none left out, none given to who did not subscribe."""
    group = members(*("".join(sorted(topics)) for topics in wanted))
    topics = dict(zip("abc", counts, strict=True))
    shares = share_out(name, group, topics)
    owners = Counter(item for items in shares.values() for item in items)
    expected = {
        TopicPartition(topic, number)
        for topic, count in topics.items()
        if any(topic in one for one in wanted)
        for number in range(count)
    }
    assert set(owners) == expected
    assert set(owners.values()) <= {1}
    for member in group:
        assert all(item.topic in member.subscription.topics for item in shares[member.member_id])


@pytest.mark.parametrize("name", NAMES)
def test_even_shares(name: str) -> None:
    """Rows S57, S58: 8 over 3 is 3, 3, 2; 3 over 4 leaves one idle."""
    eight = share_out(name, members("a", "a", "a"), {"a": 8})
    assert sorted(len(items) for items in eight.values()) == [2, 3, 3]
    three = share_out(name, members("a", "a", "a", "a"), {"a": 3})
    assert sorted(len(items) for items in three.values()) == [0, 1, 1, 1]


def test_range_and_roundrobin_as_in_kafka() -> None:
    """The worked examples of Kafka's javadoc; static members come first, by their names."""
    two = {"a": 3, "b": 3}
    assert share_out("range", members("ab", "ab"), two)["m0"] == [
        TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("b", 1),
    ]  # fmt: skip
    assert share_out("roundrobin", members("ab", "ab"), two)["m0"] == [
        TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1),
    ]  # fmt: skip
    mixed = share_out("roundrobin", members("a", "ab", "abc"), {"a": 1, "b": 2, "c": 3})
    assert {name: [str(item) for item in items] for name, items in mixed.items()} == {
        "m0": ["a-0"], "m1": ["b-0"], "m2": ["b-1", "c-0", "c-1", "c-2"],
    }  # fmt: skip
    assert share_out("range", members("a", "a", static="1"), {"a": 1})["m1"] == [TopicPartition("a", 0)]


@pytest.mark.parametrize("name", STICKY)
@given(sizes=st.lists(st.integers(1, 7), min_size=2, max_size=5), count=st.integers(1, 24))
@settings(max_examples=40, deadline=None)
def test_sticky_moves_no_more_than_balance_needs(name: str, sizes: list[int], count: int) -> None:
    """Members come and go: shares differ by one at most once it has settled, and whoever had no more than his share
    keeps all of it."""
    group = members(*["a"] * 7)
    shares: Shares = {}
    for generation, (_, size) in enumerate(pairwise([0, *sizes])):
        joined = again(name, group[:size], shares, generation)
        floor = count // size
        settled = share_out(name, joined, {"a": count})
        if ASSIGNORS[name].cooperative:
            held = {item: member.member_id for member in joined for item in member.subscription.owned}
            assert all(held.get(item, owner) == owner for owner, items in settled.items() for item in items)
            settled = share_out(name, again(name, joined, settled, generation), {"a": count})
        lengths = [len(items) for items in settled.values()]
        assert sum(lengths) == count
        assert max(lengths) - min(lengths) <= 1
        for member in joined:
            had = shares.get(member.member_id, [])
            if len(had) <= floor:
                assert set(had) <= set(settled[member.member_id])
        shares = settled


def test_cooperative_gives_nothing_that_another_still_has() -> None:
    """KIP-429, KIP-792: a newer claim wins; a partition that two claim of one generation rests for a round."""
    item, other = TopicPartition("a", 0), TopicPartition("a", 1)
    newer = [
        Member("m0", None, Subscription(("a",), (item, other), 4)),
        Member("m1", None, Subscription(("a",), (item, other), 7)),
    ]
    shares = share_out("cooperative-sticky", newer, {"a": 2})
    assert shares == {"m0": [], "m1": [item]} or shares == {"m0": [], "m1": [other]}
    equal = [Member(name, None, Subscription(("a",), (item,), 7)) for name in ("m0", "m1")]
    assert share_out("cooperative-sticky", equal, {"a": 1}) == {"m0": [], "m1": []}


def test_bytes_as_kafka_has_them() -> None:
    """Version 3 of both messages, read by kio's generated schema; older versions are read, nonsense is refused."""
    owned = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))
    item = Subscription(("a", "b"), owned, 5, b"data", "rack-1")
    raw = encode_subscription(item)
    assert decode_subscription(raw) == item
    theirs, _ = entity_reader(ConsumerProtocolSubscription)(raw[2:], 0)
    assert (theirs.topics, theirs.user_data, theirs.generation_id, theirs.rack_id) == (("a", "b"), b"data", 5, "rack-1")
    assert [(one.topic, one.partitions) for one in theirs.owned_partitions] == [("a", (0, 2)), ("b", (1,))]
    given_out, _ = entity_reader(ConsumerProtocolAssignment)(encode_assignment(owned)[2:], 0)
    assert [(one.topic, one.partitions) for one in given_out.assigned_partitions] == [("a", (0, 2)), ("b", (1,))]
    assert decode_assignment(encode_assignment(owned)) == owned
    assert decode_assignment(b"") == ()
    assert decode_subscription(b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff") == Subscription(("a",))
    for end in range(2, len(raw) - 8):
        with pytest.raises(ProtocolError):
            decode_subscription(raw[:end])
    with pytest.raises(ProtocolError):
        decode_subscription(b"\0\3\x7f\xff\xff\xff")
