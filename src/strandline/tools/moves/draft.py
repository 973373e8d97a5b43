"""A plan while it is made: the assignment as it would be, with what each broker then has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from strandline.proto.ids import TopicPartition
from strandline.tools.moves.layout import Broker, Cluster, HeldUp, Left, Move, Partition, Plan

ROOM_KEPT = 0.05
"""Part of a directory's free bytes that moves leave free."""


class Draft:
    """The assignment as it would be.

    Attributes:
        replicas: of each partition, by its place in the cluster's list.
        on: by broker the partitions that have a replica there, in a fixed order.
        off: brokers that are to be left without replicas.
        bytes: by broker, of its replicas.
        by: what is spread evenly: the number of replicas, or their bytes.
    """

    def __init__(
        self, cluster: Cluster, off: Iterable[int] = (), by: Literal["replicas", "bytes"] = "replicas"
    ) -> None:
        self.cluster = cluster
        self.by = by
        self.off = frozenset(off)
        self.replicas = [list(partition.target) for partition in cluster.partitions]
        self.on: dict[int, dict[int, None]] = {node: {} for node in sorted(cluster.brokers)}
        self.bytes: dict[int, int] = dict.fromkeys(self.on, 0)
        for index, partition in enumerate(cluster.partitions):
            for node in self.replicas[index]:
                self._put(index, node, partition.size)
        self._rooms = {
            node: [int((one.usable_bytes or 0) * (1 - ROOM_KEPT)) for one in broker.directories]
            for node, broker in cluster.brokers.items()
            if broker.directories and all(one.usable_bytes is not None for one in broker.directories)
        }
        self._why: dict[int, dict[str, None]] = {}
        self.left: list[Left] = []
        self.cancel: list[Left] = []

    def _put(self, index: int, node: int, size: int) -> None:
        self.on.setdefault(node, {})[index] = None
        self.bytes[node] = self.bytes.get(node, 0) + size

    @property
    def takers(self) -> list[Broker]:
        """The brokers that may get replicas, by id."""
        brokers = (self.cluster.brokers[node] for node in sorted(self.cluster.brokers))
        # rule B47/a-broker-that-is-down-gets-replicas, rule B47/a-drain-goes-to-another-that-is-drained
        return [one for one in brokers if one.takes and one.node_id not in self.off]

    def zone(self, node: int) -> object:
        """Rack of a broker, or the broker itself: brokers of one zone may fail together."""
        broker = self.cluster.brokers.get(node)
        return ("broker", node) if broker is None else broker.zone

    def zones(self, nodes: Iterable[int]) -> set[object]:
        return {self.zone(node) for node in nodes}

    def fits(self, index: int, node: int) -> bool:
        """Room for the partition on the broker. One that does not say what it has takes what comes."""
        rooms = self._rooms.get(node)
        return rooms is None or max(rooms) >= self.cluster.partitions[index].size

    def may_move(self, index: int, old: int, new: int) -> bool:
        """Whether `new` may take the place of `old`: once a partition, with room, in no fewer zones."""
        replicas = self.replicas[index]
        if new in replicas or not self.fits(index, new):  # rule B47/a-broker-gets-a-partition-twice
            return False
        others = self.zones(node for node in replicas if node != old)
        # rule B47/racks-are-forgotten
        return self.zone(new) not in others or self.zone(old) in others

    def best(self, index: int, without: int | None = None) -> int | None:
        """The broker that should get a replica of the partition, as if `without` had none: another zone first, then the
        fewest replicas (or bytes). None: there is no such broker."""
        replicas = self.replicas[index]
        zones = self.zones(node for node in replicas if node != without)
        # rule B47/a-drain-forgets-racks
        found = [
            ((one.zone in zones, *self.burden(one.node_id)), one.node_id)
            for one in self.takers
            if one.node_id not in replicas and self.fits(index, one.node_id)
        ]
        return min(found)[1] if found else None

    def burden(self, node: int) -> tuple[int, int]:
        """Load of a broker, as (what is balanced first, what is balanced next)."""
        count, size = len(self.on[node]), self.bytes[node]
        return (size, count) if self.by == "bytes" else (count, size)

    def swap(self, index: int, old: int, new: int, why: str) -> None:
        """`new` takes the place of `old`, also as the preferred leader."""
        replicas = self.replicas[index]
        replicas[replicas.index(old)] = new
        self._take(index, old)
        self._give(index, new)
        self._say(index, why)

    def add(self, index: int, node: int, why: str) -> None:
        """One replica more."""
        self.replicas[index].append(node)
        self._give(index, node)
        self._say(index, why)

    def drop(self, index: int, node: int, why: str) -> None:
        """One replica less."""
        self.replicas[index].remove(node)
        self._take(index, node)
        self._say(index, why)

    def lead(self, index: int, node: int, why: str) -> None:
        """Another preferred leader among the replicas."""
        replicas = self.replicas[index]
        replicas.remove(node)
        replicas.insert(0, node)
        self._say(index, why)

    def assign(self, index: int, nodes: Sequence[int], why: str) -> None:
        """Exactly these replicas."""
        for node in [one for one in self.replicas[index] if one not in nodes]:
            self._take(index, node)
        for node in [one for one in nodes if one not in self.replicas[index]]:
            self._give(index, node)
        self.replicas[index] = list(nodes)
        self._say(index, why)

    def leave(self, index: int, why: str) -> None:
        """Note that the request for this partition cannot be met, and why."""
        self.left.append(Left(self.cluster.partitions[index].tp, why))

    def _give(self, index: int, node: int) -> None:
        size = self.cluster.partitions[index].size
        self._put(index, node, size)
        rooms = self._rooms.get(node)
        if rooms:
            rooms[rooms.index(max(rooms))] -= size

    def _take(self, index: int, node: int) -> None:
        self.on[node].pop(index, None)
        self.bytes[node] -= self.cluster.partitions[index].size

    def _say(self, index: int, why: str) -> None:
        self._why.setdefault(index, {})[why] = None

    def plan(self) -> Plan:
        """The differences from the cluster as moves, the smallest first."""
        moves = []
        waiting: dict[int, list[TopicPartition]] = {}
        cancelled = {left.tp for left in self.cancel}
        for index, why in self._why.items():
            partition = self.cluster.partitions[index]
            before, after = partition.target, tuple(self.replicas[index])
            if before == after or partition.tp in cancelled:
                continue
            copied = partition.size * sum(node not in before for node in after)
            sources = () if partition.leader is None else (partition.leader,)
            moves.append(Move(partition.tp, before, after, sources, copied, tuple(why)))
            for node in self._waited_for(partition, after):
                waiting.setdefault(node, []).append(partition.tp)
        moves.sort(key=lambda move: (move.bytes, move.tp))
        held_up = tuple(HeldUp(node, tuple(sorted(waiting[node]))) for node in sorted(waiting))
        return Plan(tuple(moves), cancel=tuple(self.cancel), left=tuple(self.left), held_up=held_up)

    def _waited_for(self, partition: Partition, after: Sequence[int]) -> set[int]:
        """The brokers that are down without which a move to these replicas does not end. Another order is no move."""
        if {*after} == {*partition.target}:
            return set()
        nodes = {*after} if partition.leader is not None else {*after, *partition.replicas}
        alive = {one.node_id for one in self.cluster.brokers.values() if one.alive}
        return nodes - alive
