"""A plan that is carried out: a few moves at a time, watched to their ends. Each step asks the cluster anew, so that
whoever goes on after an interruption knows as much as who began."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from strandline.client.admin import Admin
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock
from strandline.tools.moves.layout import Cluster, Left, Move, Partition, Plan, next_moves
from strandline.tools.moves.survey import survey
from strandline.tools.moves.throttle import Throttle, rates

DEAD_MS = 60_000
"""Milliseconds of a broker's outage after which moves to it are cancelled."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a move waits for.

    Attributes:
        lacks: bytes that its new replicas lack.
        why: in words.
    """

    tp: TopicPartition
    lacks: int
    why: tuple[str, ...]


@dataclass(slots=True)
class Progress:
    """How far it is.

    Attributes:
        done, under_way, waiting: moves. `waiting` are not begun.
        copied, bytes: what is copied, of all.
        waits: why those that are under way are not done.
        left: what was given up, and why.
    """

    done: int = 0
    under_way: int = 0
    waiting: int = 0
    copied: int = 0
    bytes: int = 0
    waits: list[Wait] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return not (self.under_way or self.waiting)


class Running:
    """Carries a plan out.

    Args:
        at_once: moves that one broker sends or receives at a time.
        throttle: limits what is copied; None: nothing does.
    """

    def __init__(self, admin: Admin, plan: Plan, *, clock: Clock, at_once: int, throttle: Throttle | None) -> None:
        self._admin = admin
        self._clock = clock
        self._at_once = at_once
        self._throttle = throttle
        self._waiting: dict[TopicPartition, Move] = {move.tp: move for move in plan.moves}
        self._under_way: dict[TopicPartition, Move] = {}
        self._cancel = list(plan.cancel)
        self._bytes = plan.bytes
        self._down_since_ms: dict[int, float] = {}
        self.moved: list[Move] = []
        self._left: list[Left] = []

    def step(self) -> Progress:
        """Look at the cluster, begin what may begin, and say how far it is.

        Raises:
            KafkaError, ClientTimeout: nobody tells of the cluster, or the moves are refused altogether.
        """
        cluster = survey(self._admin)
        if self._cancel:
            cancel(self._admin, [left.tp for left in self._cancel])
            self._left += [Left(left.tp, f"its move was cancelled: {left.why}") for left in self._cancel]
            self._cancel = []
        self._settle(cluster)
        self._give_up(cluster)
        begun = next_moves(self._waiting.values(), self._under_way.values(), self._at_once)
        self._begin(cluster, [move for move in begun if all(_takes(cluster, node) for node in move.added)])
        partitions = {one.tp: one for one in cluster.partitions}
        moving = [(move, partitions[tp]) for tp, move in self._under_way.items() if tp in partitions]
        progress = Progress(len(self.moved), len(self._under_way), len(self._waiting), bytes=self._bytes)
        progress.copied = sum(move.bytes for move in self.moved) + sum(copied(*pair) for pair in moving)
        limits = {} if self._throttle is None else dict.fromkeys(cluster.brokers, self._throttle.rate)
        progress.waits = [wait(cluster, partition, limits) for _, partition in moving]
        progress.left = self._left
        return progress

    def _settle(self, cluster: Cluster) -> None:
        """Note which moves are over, however they ended."""
        partitions = {one.tp: one for one in cluster.partitions}
        for tp, move in list(self._under_way.items()):
            partition = partitions.get(tp)
            if partition is not None and partition.moves:
                continue
            del self._under_way[tp]
            if partition is None:
                self._left.append(Left(tp, "its topic was deleted"))
            elif partition.replicas == move.after:
                self.moved.append(move)
            else:
                now = ",".join(map(str, partition.replicas))
                self._left.append(Left(tp, f"its move was cancelled or replaced meanwhile: it has {now}"))

    def _give_up(self, cluster: Cluster) -> None:
        """Cancel, or do not begin, moves to a broker that stays down."""
        now_ms = self._clock.monotonic_ms()
        down = {node for node in self._targets() if not _alive(cluster, node)}
        self._down_since_ms = {node: self._down_since_ms.get(node, now_ms) for node in down}
        # schedule 149/a-move-to-a-dead-broker-goes-on
        dead = {node for node, since_ms in self._down_since_ms.items() if now_ms - since_ms >= DEAD_MS}
        for moves, cancels in ((self._waiting, False), (self._under_way, True)):
            for tp, move in list(moves.items()):
                gone = [node for node in move.added if node in dead]
                barred = [node for node in move.added if _alive(cluster, node) and not _takes(cluster, node)]
                if not gone and (cancels or not barred):
                    continue
                if cancels and cancel(self._admin, [tp]):
                    continue
                del moves[tp]
                state = "has been down for a minute" if gone else "is cordoned"
                what = "was cancelled" if cancels else "was not begun"
                self._left.append(Left(tp, f"its move {what}: broker {(gone or barred)[0]} {state}"))

    def _targets(self) -> set[int]:
        moves = (*self._waiting.values(), *self._under_way.values())
        return {node for move in moves for node in move.added}

    def _begin(self, cluster: Cluster, moves: list[Move]) -> None:
        if not moves:
            return
        if self._throttle is not None:
            self._throttle.begin(cluster, [move for move in moves if move.added])
        outcomes = self._admin.alter_partition_reassignments({move.tp: move.after for move in moves})
        for one in outcomes:
            tp = TopicPartition(one.topic, one.partition)
            move = self._waiting.pop(tp)
            if one.error:
                self._left.append(Left(tp, f"{one.error.name}: {one.message}"))
            else:
                self._under_way[tp] = move


def _alive(cluster: Cluster, node: int) -> bool:
    return node in cluster.brokers and cluster.brokers[node].alive


def _takes(cluster: Cluster, node: int) -> bool:
    return node in cluster.brokers and cluster.brokers[node].takes


def cancel(admin: Admin, partitions: Iterable[TopicPartition]) -> list[Left]:
    """Cancel moves: each partition has its replicas of before. What could not be, with the reason."""
    wanted = list(partitions)
    if not wanted:
        return []
    outcomes = admin.alter_partition_reassignments(dict.fromkeys(wanted, None))
    return [Left(TopicPartition(one.topic, one.partition), one.message) for one in outcomes if one.error]


def copied(move: Move, partition: Partition) -> int:
    """Bytes that have come of a move."""
    return min(move.bytes, sum(partition.sizes.get(node, 0) for node in move.added))


def wait(cluster: Cluster, partition: Partition, limits: Mapping[int, int]) -> Wait:
    """Reason a move is not finished. `limits`: bytes a second that a throttle leaves each broker, by node id."""
    why: list[str] = []
    lacks = 0
    if partition.leader is None:
        why.append("it has no leader, and nothing is copied without one: `strandline why` says why")
    for node in partition.target:
        broker = cluster.brokers.get(node)
        new = node in partition.adding
        if broker is None or not broker.alive:
            what = "to which it moves" if new else "which stays"
            why.append(f"broker {node}, {what}, is down: start it, or cancel the move")
        elif node not in partition.isr:
            less = max(0, partition.size - partition.sizes.get(node, 0))
            lacks += less
            behind = f"lacks {less:,} bytes" if less else "has all bytes, and is about to join the ISR"
            limit = limits.get(node)
            at = f", at {limit:,} bytes a second at most (throttle)" if limit is not None and less else ""
            why.append(f"the replica on broker {node} {behind}{at}")
    if not why:
        why.append("all its replicas are in sync, and it is about to end")
    return Wait(partition.tp, lacks, tuple(why))


def watched(admin: Admin, which: Callable[[Partition], bool]) -> tuple[Cluster, list[Wait]]:
    """The moves under way that are asked for, whoever began them, with what each waits for."""
    cluster = survey(admin)
    limits = rates(admin, cluster)
    return cluster, [wait(cluster, one, limits) for one in cluster.partitions if one.moves and which(one)]


def elect(admin: Admin, partitions: Iterable[TopicPartition]) -> list[Left]:
    """Give the preferred replicas the leaderships. What was not given, and why."""
    wanted = list(partitions)
    if not wanted:
        return []
    found = admin.elect_leaders(wanted, unclean=False)
    return [
        Left(TopicPartition(one.topic, one.partition), one.message or one.error.name)
        for one in found
        if not one.held and one.error is not ErrorCode.ELECTION_NOT_NEEDED
    ]
