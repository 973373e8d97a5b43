"""The planner of moves: what holds of every plan (rule B47), and what each goal reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.proto.ids import TopicPartition
from strandline.tools.moves.layout import Broker, Cluster, Directory, Move, Partition, Plan, next_moves
from strandline.tools.moves.planner import TOLERANCE, By, change_factor, move_off, move_to, rebalance, why_not_empty


def part(number: int, *replicas: int, topic: str = "t", size: int = 0, **more: object) -> Partition:
    """A partition whose replicas are all in sync."""
    fields = {"leader": replicas[0], "isr": replicas, "size": size, **more}
    return Partition(TopicPartition(topic, number), replicas, **fields)  # type: ignore[arg-type]


@st.composite
def clusters(draw: st.DrawFn, *, racks: bool = True, states: bool = True) -> Cluster:
    """Brokers with or without racks, some down or cordoned, and partitions of several topics."""
    count = draw(st.integers(2, 7))
    brokers = []
    for node in range(1, count + 1):
        rack = draw(st.sampled_from([None, "a", "b", "c"])) if racks else None
        down, cordoned = (draw(st.integers(0, 5)) == 0, draw(st.integers(0, 5)) == 0) if states else (False, False)
        brokers.append(Broker(node, rack, alive=not down, cordoned=cordoned))
    partitions = []
    for number in range(draw(st.integers(0, 24))):
        factor = draw(st.integers(1, min(3, count)))
        nodes = tuple(draw(st.permutations(range(1, count + 1)))[:factor])
        topic = draw(st.sampled_from("xyz"))
        partitions.append(
            part(number, *nodes, topic=topic, size=draw(st.integers(0, 50)), load=draw(st.integers(0, 50)))
        )
    return Cluster.of(brokers, partitions)


def applied(cluster: Cluster, plan: Plan) -> Cluster:
    """The cluster once the plan is done."""
    after = {move.tp: move.after for move in plan.moves}
    homes = {(move.tp, move.broker): move.target for move in plan.directories}
    partitions = []
    for one in cluster.partitions:
        nodes = after.get(one.tp, one.target)
        paths = {node: homes.get((one.tp, node), path) for node, path in one.homes.items()}
        partitions.append(replace(one, replicas=nodes, leader=nodes[0], isr=nodes, adding=(), removing=(), homes=paths))
    return replace(cluster, partitions=tuple(partitions))


def zones(cluster: Cluster, nodes: tuple[int, ...]) -> int:
    """The number of racks, a broker without one being one by itself."""
    return len({cluster.brokers[node].zone for node in nodes})


def check(cluster: Cluster, plan: Plan, *, fewer_racks: bool = False) -> None:
    """Rule B47: what holds of each plan."""
    for move in plan.moves:
        assert len(move.after) >= len(move.before)
        assert len(set(move.after)) == len(move.after)
        assert all(cluster.brokers[node].takes for node in move.added)
        assert fewer_racks or zones(cluster, move.after) >= zones(cluster, move.before)
        assert move.reasons
        assert move.after != move.before
    dead = {node for node, one in cluster.brokers.items() if not one.alive}
    waiting = {(node, move.tp) for move in plan.moves if {*move.before} != {*move.after} for node in move.after}
    assert {(one.broker, tp) for one in plan.held_up for tp in one.partitions} == {
        (node, tp) for node, tp in waiting if node in dead
    }
    assert [move.bytes for move in plan.moves] == sorted(move.bytes for move in plan.moves)


def per_broker(cluster: Cluster, weight: Callable[[Partition], int]) -> dict[int, int]:
    """Of the brokers that may get replicas."""
    found = {node: 0 for node, one in cluster.brokers.items() if one.takes}
    for one in cluster.partitions:
        for node in one.replicas:
            if node in found:
                found[node] += weight(one)
    return found


def spread(figures: dict[int, int]) -> int:
    return max(figures.values(), default=0) - min(figures.values(), default=0)


# --- rebalance --------------------------------------------------------------------------------------------------------
@settings(max_examples=100)
@given(clusters(), st.sampled_from(["replicas", "bytes"]), st.sampled_from(["count", "load"]))
def test_a_plan_keeps_what_must_be_kept_and_needs_no_second_one(cluster: Cluster, by: By, leaders: str) -> None:
    plan = rebalance(cluster, by=by, leaders=leaders)  # type: ignore[arg-type]
    check(cluster, plan)
    after = applied(cluster, plan)
    assert rebalance(after, by=by, leaders=leaders).is_empty  # type: ignore[arg-type]
    assert all(len(move.after) == len(move.before) for move in plan.moves)


@given(clusters(racks=False))
def test_brokers_end_with_as_many_replicas(cluster: Cluster) -> None:
    after = applied(cluster, rebalance(cluster))
    assert spread(per_broker(after, lambda _: 1)) <= 1


@given(clusters(racks=False, states=False))
def test_no_more_replicas_move_than_are_too_many(cluster: Cluster) -> None:
    """The least movement: what brokers have above their part of the whole, and no replica twice."""
    plan = rebalance(cluster)
    counts = sorted(per_broker(cluster, lambda _: 1).values(), reverse=True)
    whole, rest = divmod(sum(counts), len(counts))
    parts = [whole + (place < rest) for place in range(len(counts))]
    least = sum(max(0, have - of_it) for have, of_it in zip(counts, parts, strict=True))
    assert sum(len(move.added) for move in plan.moves) == least


@given(clusters())
def test_copies_part_where_there_are_racks_enough(cluster: Cluster) -> None:
    after = applied(cluster, rebalance(cluster))
    racks = {one.zone for one in cluster.brokers.values() if one.takes}
    for one in after.partitions:
        has = {cluster.brokers[node].zone for node in one.replicas}
        assert len(has) == len(one.replicas) or not racks - has


@given(clusters(racks=False))
def test_no_broker_has_a_tenth_more_bytes_than_one_replica_explains(cluster: Cluster) -> None:
    after = applied(cluster, rebalance(cluster, by="bytes"))
    figures = per_broker(after, lambda one: one.size)
    largest = max((one.size for one in cluster.partitions), default=0)
    mean = sum(figures.values()) / max(1, len(figures))
    assert spread(figures) <= max(2 * largest, TOLERANCE * mean, 2)


@given(clusters(racks=False, states=False))
def test_leaders_differ_by_one_where_paths_lead_there(cluster: Cluster) -> None:
    """With three copies on three brokers every leader can be anywhere."""
    three = [Broker(node) for node in (1, 2, 3)]
    partitions = [part(index, 1, 2, 3) for index in range(len(cluster.partitions))]
    plan = rebalance(Cluster.of(three, partitions))
    led = Counter(one.replicas[0] for one in applied(Cluster.of(three, partitions), plan).partitions)
    assert spread({node: led[node] for node in (1, 2, 3)}) <= 1
    assert plan.bytes == 0


def test_leaders_go_along_a_path() -> None:
    """Broker 1 shares nothing with broker 3, which leads nothing: broker 2 stands between them."""
    cluster = Cluster.of(
        [Broker(1), Broker(2), Broker(3)], [part(0, 1, 2), part(1, 1, 2), part(2, 2, 3), part(3, 2, 3)]
    )
    plan = rebalance(cluster, replicas=False)
    led = Counter(one.replicas[0] for one in applied(cluster, plan).partitions)
    assert sorted(led.values()) == [1, 1, 2]


def test_leaders_go_by_load() -> None:
    cluster = Cluster.of([Broker(1), Broker(2)], [part(0, 1, 2, load=90), part(1, 1, 2, load=80), part(2, 2, 1)])
    plan = rebalance(cluster, leaders="load")
    assert [(move.tp.partition, move.after, move.bytes) for move in plan.moves] == [(1, (2, 1), 0)]
    assert plan.moves[0].reasons == ("the load of leaders is evened",)


def test_a_new_broker_gets_a_part_of_each_topic() -> None:
    rows = [part(index, 1 + index % 3, 1 + (index + 1) % 3, topic=topic) for topic in "ab" for index in range(12)]
    cluster = Cluster.of([Broker(node) for node in (1, 2, 3, 4)], rows)
    after = applied(cluster, rebalance(cluster))
    assert per_broker(after, lambda _: 1) == {1: 12, 2: 12, 3: 12, 4: 12}
    on_new = Counter(one.tp.topic for one in after.partitions if 4 in one.replicas)
    assert on_new == {"a": 6, "b": 6}


def test_smallest_replicas_go_to_the_new_broker() -> None:
    cluster = Cluster.of([Broker(1), Broker(2)], [part(index, 1, size=size) for index, size in enumerate((9, 1, 5, 3))])
    assert [move.bytes for move in rebalance(cluster).moves] == [1, 3]


def test_a_broker_that_is_down_or_cordoned_gets_nothing() -> None:
    rows = [part(index, 1) for index in range(4)]
    for other in (Broker(2, alive=False), Broker(2, cordoned=True)):
        assert rebalance(Cluster.of([Broker(1), other], rows)).is_empty


def test_who_is_down_and_holds_moves_up_is_named() -> None:
    """A move ends once all replicas that it leaves are in sync (rule B44), and copies nothing without a leader."""
    brokers = [Broker(1), Broker(2, alive=False), Broker(3), Broker(4)]
    partitions = [
        part(0, 1, 2),
        part(1, 1, 3),
        part(2, 2, leader=None),
        part(3, 2, 1, leader=1),
    ]
    cluster = Cluster.of(brokers, partitions)
    drained = move_off(cluster, [1])
    assert [(one.broker, [tp.partition for tp in one.partitions]) for one in drained.held_up] == [(2, [0, 3])]
    [lost] = move_off(cluster, [2], lambda tp: tp.partition == 2).held_up
    assert lost == (2, (TopicPartition("t", 2),)), "nobody has what is to be copied"
    assert move_off(cluster, [2], lambda tp: tp.partition == 0).held_up == ()
    assert move_to(cluster, {TopicPartition("t", 3): (1, 2)}).held_up == (), "another order is no move"
    kept = move_to(cluster, {TopicPartition("t", 3): (4, 2)})
    assert kept.held_up == ((2, (TopicPartition("t", 3),)),)


def test_what_a_broker_has_already_does_not_go_there() -> None:
    rows = [part(0, 1, 2), *(part(index, 1, size=5) for index in (1, 2, 3))]
    plan = rebalance(Cluster.of([Broker(1, "a"), Broker(2, "a")], rows), leaders="none")
    assert [(move.tp.partition, move.after) for move in plan.moves] == [(1, (2,))]


def test_even_brokers_are_not_worth_a_rack() -> None:
    """Broker 3 is new, in the rack of broker 2: it gets replicas of that one alone."""
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, "b")]
    plan = rebalance(Cluster.of(brokers, [part(index, 1, 2) for index in range(4)]), leaders="none")
    assert {(move.removed, move.added) for move in plan.moves} == {((2,), (3,))}
    assert len(plan.moves) == 2


def test_a_broker_without_room_gets_nothing() -> None:
    full = Broker(2, directories=(Directory("/a", 10), Directory("/b", 90)))
    cluster = Cluster.of(
        [Broker(1), full], [part(index, 1, size=size) for index, size in enumerate((80, 100, 100, 100))]
    )
    assert [move.bytes for move in rebalance(cluster).moves] == [80]


def test_log_directories_are_evened_within_their_broker() -> None:
    two = (Directory("/a", 1000), Directory("/b", 1000))
    rows = [part(index, 1, size=10, homes={1: "/a"}) for index in range(10)]
    cluster = Cluster.of([Broker(1, directories=two)], rows)
    plan = rebalance(cluster, directories=True)
    assert len(plan.directories) == 5
    assert {(move.source, move.target, move.broker) for move in plan.directories} == {("/a", "/b", 1)}
    assert rebalance(applied(cluster, plan), directories=True).is_empty


def test_a_move_to_a_broker_that_died_goes_to_another_or_is_cancelled() -> None:
    moves = part(0, 1, 2, 3, adding=(3,), removing=(2,), isr=(1, 2))
    brokers = [Broker(1), Broker(2, cordoned=True), Broker(3, alive=False)]
    plan = rebalance(Cluster.of(brokers, [moves]))
    assert [(left.tp.partition, left.why) for left in plan.cancel] == [(0, "broker 3, to which it moves, is down")]
    assert not plan.moves
    plan = rebalance(Cluster.of([*brokers, Broker(4)], [moves]))
    assert [set(move.after) for move in plan.moves] == [{1, 4}]


def test_a_hundred_thousand_partitions_take_a_bounded_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near linear: counted in looks at a candidate, not in seconds."""
    count = 100_000
    from strandline.tools.moves.draft import Draft

    looks = 0
    before = Draft.may_move

    def counted(draft: Draft, index: int, old: int, new: int) -> bool:
        nonlocal looks
        looks += 1
        return before(draft, index, old, new)

    monkeypatch.setattr(Draft, "may_move", counted)
    brokers = [Broker(node, "abc"[node % 3]) for node in range(12)]
    rows = [part(index, index % 9, (index + 1) % 9, (index + 2) % 9, size=index % 7) for index in range(count)]
    plan = rebalance(Cluster.of(brokers, rows))
    assert sum(len(move.added) for move in plan.moves) == pytest.approx(count * 3 / 4, rel=0.02)
    assert looks < 6 * count


# --- move off ---------------------------------------------------------------------------------------------------------
@settings(max_examples=100)
@given(clusters(), st.sets(st.integers(1, 7), min_size=1, max_size=2), st.sampled_from(["replicas", "bytes"]))
def test_brokers_are_empty_or_it_is_said_why_not(cluster: Cluster, off: set[int], by: By) -> None:
    off &= cluster.brokers.keys()
    plan = move_off(cluster, off, by=by)
    check(cluster, plan, fewer_racks=True)
    kept = {left.tp for left in plan.left}
    for one in applied(cluster, plan).partitions:
        assert not off & set(one.replicas) or one.tp in kept
    takers = {node for node, one in cluster.brokers.items() if one.takes and node not in off}
    for one in cluster.partitions:
        if one.tp in kept:
            assert len(takers - set(one.replicas)) < len(off & set(one.replicas))
    for move in plan.moves:
        assert set(move.removed) <= off or not set(move.before) & off


@given(clusters(), st.integers(1, 7))
def test_racks_stay_apart_where_they_can(cluster: Cluster, node: int) -> None:
    for move in move_off(cluster, [node]).moves:
        [new] = move.added or (None,)
        if new is None:
            continue
        rest = {cluster.brokers[one].zone for one in move.before if one != node}
        others = [one for one in cluster.brokers.values() if one.takes and one.node_id not in (node, *move.before)]
        if any(one.zone not in rest for one in others):
            assert cluster.brokers[new].zone not in rest


def test_a_drain_fills_the_rack_that_is_missing() -> None:
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, "a"), Broker(4, "b")]
    rows = [part(0, 1, 2), *(part(index, 4) for index in range(1, 9))]  # broker 4 has most, and the right rack
    plan = move_off(Cluster.of(brokers, rows), [2])
    assert [move.added for move in plan.moves] == [(4,)]


def test_a_broker_that_cannot_be_emptied_is_told_with_numbers() -> None:
    cluster = Cluster.of([Broker(1), Broker(2), Broker(3), Broker(4, cordoned=True)], [part(0, 1, 2, 3)])
    plan = move_off(cluster, [3])
    assert not plan.moves
    assert [left.why for left in plan.left] == [
        "3 copies, and 2 brokers that may have them (broker 4 is cordoned): without broker 3 there is a copy too few"
    ]


def test_brokers_that_are_emptied_at_once_get_nothing_of_each_other() -> None:
    """Brokers 1 and 2 have least, and would be the first choice: what leaves one does not come to the other."""
    rows = [part(0, 1, 3), part(1, 2, 4), part(2, 1, 2), *(part(index, 3, 4, 5) for index in range(3, 9))]
    plan = move_off(Cluster.of([Broker(node) for node in range(1, 6)], rows), [1, 2])
    assert not plan.left
    assert len(plan.moves) == 3
    assert not {1, 2} & {node for move in plan.moves for node in move.after}


def test_too_few_brokers_for_a_factor_are_told_first() -> None:
    """Two of four at once, and a topic of three copies: the sentence has the numbers, for one broker as for several."""
    cluster = Cluster.of(
        [*map(Broker, (1, 2, 3)), Broker(4, cordoned=True)], [part(0, 1, 2, 3), part(1, 1, 2, topic="u")]
    )
    told = why_not_empty(cluster, [1, 2], move_off(cluster, [1, 2]).left)
    assert told.startswith(
        "brokers 1,2 cannot be emptied: 3 of their 4 replicas have nowhere to go. t-0 has 3 copies, and brokers that "
        "would be left for them: 1 (3). t-0: 3 copies, and 1 brokers that may have them (broker 4 is cordoned)"
    )
    told = why_not_empty(cluster, [3], move_off(cluster, [3]).left)
    assert told.startswith("broker 3 cannot be emptied: 1 of its 1 replicas have nowhere to go. t-0 has 3 copies")


def test_what_was_on_the_broker_is_spread() -> None:
    rows = [part(index, 4, 1 + index % 3) for index in range(6)]
    cluster = Cluster.of([Broker(node) for node in (1, 2, 3, 4)], rows)
    plan = move_off(cluster, [4])
    after = applied(cluster, plan)
    assert per_broker(after, lambda _: 1) | {4: 0} == {1: 4, 2: 4, 3: 4, 4: 0}
    led = Counter(one.replicas[0] for one in after.partitions)
    assert led == {1: 2, 2: 2, 3: 2}
    assert all("off broker 4" in move.reasons for move in plan.moves)


def test_a_move_that_is_under_way_is_not_planned_again() -> None:
    cluster = Cluster.of([Broker(1), Broker(2), Broker(3)], [part(0, 1, 2, 3, adding=(2,), removing=(3,))])
    assert move_off(cluster, [3]).is_empty


# --- factor -----------------------------------------------------------------------------------------------------------
@settings(max_examples=100)
@given(clusters(), st.integers(1, 4))
def test_partitions_have_as_many_copies_as_asked_for(cluster: Cluster, factor: int) -> None:
    plan = change_factor(cluster, factor, lambda _: True)
    kept = {left.tp for left in plan.left}
    for before, after in zip(cluster.partitions, applied(cluster, plan).partitions, strict=True):
        assert len(after.replicas) == (len(before.replicas) if after.tp in kept else factor)
        assert len(set(after.replicas)) == len(after.replicas)
        if len(before.replicas) <= factor:
            assert set(before.replicas) <= set(after.replicas)


def test_copies_that_are_not_in_sync_go_first_and_the_leader_stays() -> None:
    cluster = Cluster.of([Broker(1), Broker(2), Broker(3)], [part(0, 1, 2, 3, leader=3, isr=(2, 3))])
    assert set(change_factor(cluster, 2, lambda _: True).moves[0].after) == {2, 3}
    assert set(change_factor(cluster, 1, lambda _: True).moves[0].after) == {3}


def test_more_copies_than_brokers_are_refused_with_numbers() -> None:
    cluster = Cluster.of([Broker(1), Broker(2), Broker(3, alive=False)], [part(0, 1)])
    plan = change_factor(cluster, 3, lambda _: True)
    assert not plan.moves
    assert [left.why for left in plan.left] == ["3 copies: 2 brokers may have one (broker 3 is down), with room for it"]


# --- move to ----------------------------------------------------------------------------------------------------------
def test_an_assignment_is_taken_as_it_stands() -> None:
    cluster = Cluster.of([Broker(1), Broker(2), Broker(3)], [part(0, 1, 2, size=7), part(1, 2, 3)])
    plan = move_to(cluster, {TopicPartition("t", 0): (3, 1), TopicPartition("t", 1): (2, 3)})
    assert plan.moves == (Move(TopicPartition("t", 0), (1, 2), (3, 1), (1,), 7, ("asked for: 3,1",)),)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ((), "each broker once, and one at least"),
        ((1, 1), "each broker once, and one at least"),
        ((1, 9), "there is no broker 9"),
        ((1, 3), "broker 3 is down"),
        ((1, 4), "broker 4 is cordoned"),
        ((1, 5), "broker 5 has no room for it"),
    ],
)
def test_what_cannot_be_is_left(nodes: tuple[int, ...], why: str) -> None:
    brokers = [Broker(1), Broker(2), Broker(3, alive=False), Broker(4, cordoned=True)]
    full = Broker(5, directories=(Directory("/a", 5),))
    plan = move_to(Cluster.of([*brokers, full], [part(0, 1, 2, size=7)]), {TopicPartition("t", 0): nodes})
    assert not plan.moves
    assert [left.why for left in plan.left] == [why]


# --- pace -------------------------------------------------------------------------------------------------------------
def move(number: int, new: int, size: int) -> Move:
    return Move(TopicPartition("t", number), (1, 2), (1, new), (1,), size, ("why",))


def test_no_broker_has_more_than_it_may() -> None:
    waiting = [move(number, 3 + number % 2, number) for number in range(6)]
    begun = next_moves(waiting, [], 2)
    assert [move.tp.partition for move in begun] == [0, 1]  # broker 1 sends them all
    assert next_moves(waiting[2:], begun, 2) == []
    assert [move.tp.partition for move in next_moves(waiting[2:], begun[:1], 2)] == [2]


def test_what_copies_nothing_begins_at_once() -> None:
    reorders = [Move(TopicPartition("t", number), (1, 2), (2, 1), (1,), 0, ("why",)) for number in range(9)]
    assert next_moves(reorders, [move(50, 3, 1)], 1) == reorders


def test_time_goes_by_the_broker_that_has_most_to_do() -> None:
    plan = Plan((move(0, 3, 100), move(1, 4, 300)))
    assert plan.received() == {3: 100, 4: 300}
    assert plan.estimate_s(100.0) == 4.0  # broker 1 sends all of it
