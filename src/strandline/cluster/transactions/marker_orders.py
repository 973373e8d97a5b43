"""Orders of markers that are on their way, each marker to the leader of its partition: a pure core. Time, leaders and
answers come in as arguments.

A transaction is decided once its Prepare record is committed. From then on its markers are sent until each partition
has taken its own or is deleted:

    added ──> ready ──(has a leader)──> under way ──> NONE: this partition is done
                ^                          |
                |                          +──> INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED: another
             waiting <────anything else────+    coordinator has the transaction; the whole order is given up

What waits is sent again after a pause that doubles, or at once when the metadata change its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from strandline.cluster.transactions.commands import MarkerOrder
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, NodeId, TopicPartition

RETRY_MS = (20.0, 500.0)
"""First and longest pause before a marker is sent again. A new leader is told at once: its election is news."""

ANOTHER_HAS_IT = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Answers after which this coordinator has no say over the transaction any more."""


Written = Callable[[MarkerOrder], None]
"""Told once that every partition of an order has its marker in every replica in sync, or is deleted."""

LeaderOf = Callable[[TopicPartition], NodeId | None]
"""The leader of a partition; NO_NODE where nobody leads it; None: it is deleted."""


class Addressed(NamedTuple):
    """One order's marker for one partition."""

    number: int
    partition: TopicPartition


class Done(NamedTuple):
    """An order that is carried out, and who is to be told."""

    order: MarkerOrder
    written: Written


class _Order:
    """An order that is not carried out. `failures`: of each partition that is left, how often it was sent in vain."""

    __slots__ = ("failures", "order", "written")

    def __init__(self, order: MarkerOrder, written: Written) -> None:
        self.order = order
        self.written = written
        self.failures = dict.fromkeys(sorted(order.partitions), 0)  # a set's order is chance


class MarkerOrders:
    """Every order of one broker.

    Invariants: a marker that is left is ready, waiting or under way, and only one of them; of an order somebody is told
    once at most.
    """

    def __init__(self) -> None:
        self._orders: dict[int, _Order] = {}
        self._added = 0
        self._ready: dict[Addressed, None] = {}
        self._waiting: dict[Addressed, float] = {}
        self._heap: list[tuple[float, Addressed]] = []

    def __len__(self) -> int:
        return len(self._orders)

    def add(self, order: MarkerOrder, written: Written) -> int:
        """Take an order; returns its number, which no other one of this process has."""
        self._added += 1
        found = self._orders[self._added] = _Order(order, written)
        for partition in found.failures:
            self._ready[Addressed(self._added, partition)] = None
        return self._added

    def drop(self, state_partition: int, coordinator_epoch: int) -> None:
        """Send no more of what a leadership of a partition of transactions has ordered; nobody is told."""
        for number, found in list(self._orders.items()):
            if (found.order.state_partition, found.order.marker.coordinator_epoch) == (
                state_partition,
                coordinator_epoch,
            ):
                del self._orders[number]  # rule C16/a-dropped-shard-goes-on-sending

    def order(self, number: int) -> MarkerOrder | None:
        """An order that is not over."""
        found = self._orders.get(number)
        return None if found is None else found.order

    def failures(self, addressed: Addressed) -> int:
        """How often this marker was sent in vain."""
        found = self._orders.get(addressed.number)
        return 0 if found is None else found.failures.get(addressed.partition, 0)

    @property
    def next_ms(self) -> float | None:
        """When the first of those that wait is to be sent again."""
        while self._heap and self._waiting.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def waiting(self) -> Iterator[TopicPartition]:
        """The partition of each marker that waits to be sent again."""
        return (addressed.partition for addressed in self._waiting if addressed.number in self._orders)

    def look_again(self, concerns: Callable[[TopicPartition], bool]) -> None:
        """The metadata of some partitions changed: what waits for them is sent at once."""
        for addressed in [one for one in self._waiting if concerns(one.partition)]:
            del self._waiting[addressed]
            self._ready[addressed] = None

    def due(self, leader_of: LeaderOf, now_ms: float) -> tuple[dict[NodeId, list[Addressed]], list[Done]]:
        """What is to be sent now, by the broker that it goes to: it is under way from now on. And the orders that are
        carried out because what was left of them is deleted."""
        while (next_ms := self.next_ms) is not None and next_ms <= now_ms:
            addressed = heappop(self._heap)[1]
            del self._waiting[addressed]
            self._ready[addressed] = None
        ready, self._ready = self._ready, {}
        to_send: dict[NodeId, list[Addressed]] = {}
        done: list[Done] = []
        for addressed in ready:
            found = self._orders.get(addressed.number)
            if found is None:
                continue
            leader = leader_of(addressed.partition)
            if leader is None:  # rule C16/a-deleted-partition-holds-its-transaction
                done += self._take_off(addressed, found)
            elif leader == NO_NODE:
                self._wait(addressed, found, now_ms)
            else:
                to_send.setdefault(leader, []).append(addressed)
        return to_send, done

    def answered(self, answers: Iterable[tuple[Addressed, ErrorCode]], now_ms: float) -> list[Done]:
        """Answers to what was under way; the orders that are carried out by them."""
        done: list[Done] = []
        for addressed, code in answers:
            found = self._orders.get(addressed.number)
            if found is None or addressed.partition not in found.failures:
                continue
            if code is ErrorCode.NONE:
                done += self._take_off(addressed, found)
            elif code in ANOTHER_HAS_IT:  # rule C16/a-fenced-coordinator-goes-on-sending
                del self._orders[addressed.number]
            else:
                self._wait(addressed, found, now_ms)  # rule C16/a-marker-is-sent-once
        return done

    def _take_off(self, addressed: Addressed, found: _Order) -> list[Done]:
        """One partition is done."""
        del found.failures[addressed.partition]
        if found.failures:  # rule C16/one-partition-ends-the-order
            return []
        del self._orders[addressed.number]
        return [Done(found.order, found.written)]

    def _wait(self, addressed: Addressed, found: _Order, now_ms: float) -> None:
        first_ms, longest_ms = RETRY_MS
        failed = found.failures[addressed.partition]
        found.failures[addressed.partition] = failed + 1
        due_ms = now_ms + min(first_ms * 2 ** min(failed, 16), longest_ms)
        self._waiting[addressed] = due_ms
        heappush(self._heap, (due_ms, addressed))
