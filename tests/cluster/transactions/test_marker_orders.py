"""Orders of markers on their way: what is sent to whom, again, and until when (rule C16)."""

from __future__ import annotations

import random

import pytest

from strandline.cluster.transactions.commands import MarkerOrder
from strandline.cluster.transactions.marker_orders import RETRY_MS, Addressed, MarkerOrders
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, NodeId, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ONE, TWO = NodeId(1), NodeId(2)


class Case:
    """Orders, the leaders as the metadata have them, and what was told."""

    def __init__(self) -> None:
        self.orders = MarkerOrders()
        self.leaders: dict[TopicPartition, NodeId] = {A0: ONE, A1: TWO, B0: ONE}
        self.told: list[str] = []
        self.now_ms = 0.0

    def add(self, name: str, *partitions: TopicPartition, epoch: int = 3) -> int:
        order = MarkerOrder(name, 5, 1, Marker(7, 0, True, epoch), frozenset(partitions), 1)
        return self.orders.add(order, lambda told: self.told.append(told.transactional_id))

    def due(self) -> dict[NodeId, list[Addressed]]:
        to_send, done = self.orders.due(self.leaders.get, self.now_ms)
        for one in done:
            one.written(one.order)
        return to_send

    def answer(self, code: ErrorCode, *markers: Addressed) -> None:
        for one in self.orders.answered([(marker, code) for marker in markers], self.now_ms):
            one.written(one.order)


def test_each_partition_gets_its_marker_from_its_leader() -> None:
    """One call a broker for all orders of a turn; an order ends with its last partition."""
    case = Case()
    first, second = case.add("first", A0, A1), case.add("second", B0)
    assert case.due() == {ONE: [Addressed(first, A0), Addressed(second, B0)], TWO: [Addressed(first, A1)]}
    assert case.due() == {}, "what is under way is not sent again"
    case.answer(ErrorCode.NONE, Addressed(first, A0), Addressed(second, B0))
    assert case.told == ["second"]
    case.answer(ErrorCode.NONE, Addressed(first, A1))
    assert case.told == ["second", "first"]
    assert len(case.orders) == 0


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
    ids=lambda code: code.name,
)
def test_a_marker_is_sent_for_ever(code: ErrorCode) -> None:
    """Whatever a leader answers, unless another coordinator has the transaction: again, after a pause that doubles."""
    case = Case()
    marker = Addressed(case.add("one", A0), A0)
    pauses = []
    for _ in range(40):
        assert case.due() == {ONE: [marker]}
        case.answer(code, marker)
        assert case.due() == {}
        next_ms = case.orders.next_ms
        assert next_ms is not None
        pauses.append(next_ms - case.now_ms)
        case.now_ms = next_ms
    assert pauses[:3] == [RETRY_MS[0], 2 * RETRY_MS[0], 4 * RETRY_MS[0]]
    assert pauses[-1] == RETRY_MS[1]
    assert case.orders.failures(marker) == 40
    assert case.due() == {ONE: [marker]}
    case.answer(ErrorCode.NONE, marker)
    assert case.told == ["one"]


def test_a_new_leader_is_told_at_once() -> None:
    """The marker goes to the leader of the moment, also where there was none."""
    case = Case()
    case.leaders[A0] = NO_NODE
    marker = Addressed(case.add("one", A0), A0)
    assert case.due() == {}
    case.leaders[A0] = TWO
    case.orders.look_again(lambda partition: partition == B0)
    assert case.due() == {}, "the metadata of another partition changed"
    case.orders.look_again(lambda partition: partition == A0)
    assert case.due() == {TWO: [marker]}
    case.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, marker)
    case.leaders[A0] = ONE
    case.orders.look_again(lambda partition: partition == A0)
    assert case.due() == {ONE: [marker]}
    assert case.orders.next_ms is None, "it does not wait as well"


def test_a_deleted_partition_holds_nothing_up() -> None:
    """It counts as done: nobody will ever read what the marker would end."""
    case = Case()
    number = case.add("one", A0, A1)
    del case.leaders[A0]
    assert case.due() == {TWO: [Addressed(number, A1)]}
    case.answer(ErrorCode.NONE, Addressed(number, A1))
    assert case.told == ["one"]
    second = Addressed(case.add("two", A1), A1)
    case.due()
    case.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, second)
    del case.leaders[A1]
    case.orders.look_again(lambda partition: True)
    assert case.due() == {}
    assert case.told == ["one", "two"]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED],
    ids=lambda code: code.name,
)
def test_a_fenced_coordinator_stops(code: ErrorCode) -> None:
    """Another has the transaction: what is left of the order is sent no more, and counts for nothing."""
    case = Case()
    number = case.add("one", A0, A1, B0)
    case.leaders[B0] = NO_NODE
    case.due()
    case.answer(code, Addressed(number, A0))
    assert len(case.orders) == 0
    case.answer(ErrorCode.NONE, Addressed(number, A1))
    case.leaders[B0] = ONE
    case.orders.look_again(lambda partition: True)
    assert case.due() == {}
    assert case.told == []


def test_a_shard_that_is_dropped_sends_no_more() -> None:
    """The next coordinator orders the markers anew; orders of other leaderships go on."""
    case = Case()
    number = case.add("one", A0, A1)
    other = case.add("other", B0, epoch=4)
    case.due()
    case.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, Addressed(number, A0))
    case.orders.drop(5, 3)
    case.orders.drop(5, 3)
    case.answer(ErrorCode.NONE, Addressed(number, A1), Addressed(other, B0))
    case.now_ms = 10_000
    assert case.due() == {}
    assert (case.told, len(case.orders), case.orders.next_ms) == (["other"], 0, None)


@pytest.mark.parametrize("seed", range(30))
def test_every_order_ends_once(seed: int) -> None:
    """Random answers, elections, deletions and drops: of each order somebody is told once, when nothing is left of it,
    unless its shard was dropped."""
    rng = random.Random(seed)
    case = Case()
    partitions = [TopicPartition("t", number) for number in range(8)]
    case.leaders = {partition: NodeId(rng.randrange(3)) for partition in partitions}
    left: dict[str, set[TopicPartition]] = {}
    names: dict[int, str] = {}
    under_way: list[Addressed] = []
    dropped: set[str] = set()
    codes = [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]
    for step in range(300):
        case.now_ms += rng.choice((0, 1, 50))
        if step < 200 and rng.random() < 0.4:
            left[f"order {step}"] = set(rng.sample(partitions, rng.randint(1, 4)))
            names[case.add(f"order {step}", *left[f"order {step}"], epoch=step % 5)] = f"order {step}"
        if rng.random() < 0.1:
            partition = rng.choice(partitions)
            if rng.random() < 0.1:
                case.leaders.pop(partition, None)
            elif partition in case.leaders:
                case.leaders[partition] = NodeId(rng.randrange(-1, 3))
            case.orders.look_again(lambda changed, partition=partition: changed == partition)  # type: ignore[misc]
        if rng.random() < 0.01:
            dropped |= {name for name in left if int(name.split()[1]) % 5 == step % 5 and name not in case.told}
            case.orders.drop(5, step % 5)
        for leader, markers in case.due().items():
            assert all(case.leaders[marker.partition] == leader for marker in markers)
            assert not set(markers) & set(under_way)
            under_way += markers
        rng.shuffle(under_way)
        for _ in range(rng.randint(0, 3)):
            if under_way:
                marker, code = under_way.pop(), rng.choice(codes)
                if code is ErrorCode.NONE:
                    left[names[marker.number]].discard(marker.partition)
                case.answer(code, marker)
        for name in set(case.told):
            assert not left[name] & set(case.leaders), "told before each partition had it"
    case.leaders = {partition: leader for partition, leader in case.leaders.items() if leader != NO_NODE}
    while len(case.orders):
        case.now_ms += RETRY_MS[1]
        case.answer(ErrorCode.NONE, *under_way)
        under_way = [marker for markers in case.due().values() for marker in markers]
    assert sorted(case.told) == sorted(set(left) - dropped)
