"""Orders to write transaction markers, while their markers are sent to the leaders of the partitions. This is a core
without I/O: time, leaders and answers are arguments.

A transaction is decided once its Prepare record is committed. From then on its markers are sent until each partition
has its marker or is deleted:

    added ──> ready ──(has a leader)──> under way ──> NONE: this partition is done
                ^                          |
                |                          +──> INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED: another
             waiting <────anything else────+    coordinator has the transaction; the whole order is dropped

A waiting marker is sent again after a pause that doubles each time, or at once when its partition's metadata change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from strandline.cluster.transactions.commands import MarkerOrder
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, NodeId, TopicPartition

RETRY_MS = (20.0, 500.0)
"""First and longest pause in milliseconds before a marker is sent again. A new leader gets it without a pause."""

ANOTHER_HAS_IT = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Error codes that mean that another coordinator now manages the transaction."""


Written = Callable[[MarkerOrder], None]
"""Callback, called once when every partition of an order has its marker on all in-sync replicas or is deleted."""

LeaderOf = Callable[[TopicPartition], NodeId | None]
"""Function that returns the leader of a partition: NO_NODE if there is none, None if the partition is deleted."""


class Addressed(NamedTuple):
    """Marker of one order (`number`) for one partition."""

    number: int
    partition: TopicPartition


class Done(NamedTuple):
    """A completed order, and the callback to call for it."""

    order: MarkerOrder
    written: Written


class _Order:
    """An open order. `failures`: remaining partition -> number of failed attempts to send its marker."""

    __slots__ = ("failures", "order", "written")

    def __init__(self, order: MarkerOrder, written: Written) -> None:
        self.order = order
        self.written = written
        self.failures = dict.fromkeys(sorted(order.partitions), 0)  # a set has no fixed order


class MarkerOrders:
    """All open orders of one broker.

    Invariants:
        * a remaining marker is in exactly one of the states ready, waiting and under way;
        * the callback of an order is called at most once.
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
        """Add an order. Returns its number, which is unique in this process."""
        self._added += 1
        found = self._orders[self._added] = _Order(order, written)
        for partition in found.failures:
            self._ready[Addressed(self._added, partition)] = None
        return self._added

    def drop(self, state_partition: int, coordinator_epoch: int) -> None:
        """Drop the orders of the leader of a `__transaction_state` partition in this epoch, without their callbacks."""
        for number, found in list(self._orders.items()):
            if (found.order.state_partition, found.order.marker.coordinator_epoch) == (
                state_partition,
                coordinator_epoch,
            ):
                del self._orders[number]  # rule C16/a-dropped-shard-goes-on-sending

    def order(self, number: int) -> MarkerOrder | None:
        """The open order with this number; None if there is none."""
        found = self._orders.get(number)
        return None if found is None else found.order

    def failures(self, addressed: Addressed) -> int:
        """Number of failed attempts to send this marker."""
        found = self._orders.get(addressed.number)
        return 0 if found is None else found.failures.get(addressed.partition, 0)

    @property
    def next_ms(self) -> float | None:
        """Time in milliseconds at which the next waiting marker is to be sent again; None if none waits."""
        while self._heap and self._waiting.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def waiting(self) -> Iterator[TopicPartition]:
        """Partition of each marker that waits to be sent again."""
        return (addressed.partition for addressed in self._waiting if addressed.number in self._orders)

    def look_again(self, concerns: Callable[[TopicPartition], bool]) -> None:
        """Make waiting markers ready whose partition `concerns` selects, because its metadata changed."""
        for addressed in [one for one in self._waiting if concerns(one.partition)]:
            del self._waiting[addressed]
            self._ready[addressed] = None

    def due(self, leader_of: LeaderOf, now_ms: float) -> tuple[dict[NodeId, list[Addressed]], list[Done]]:
        """Markers to send now, by the id of the receiving broker; they are under way from now on. Also the orders that
        are complete because their remaining partitions were deleted."""
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
        """Apply answers to markers that were under way. Returns the orders that are now complete."""
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
        """Remove a partition that is done from its order. Returns the order if that was its last one."""
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
