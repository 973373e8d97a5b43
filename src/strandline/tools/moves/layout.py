"""A cluster as the planner sees it, and what a plan consists of. Plain values: nothing here asks anybody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.proto.ids import TopicPartition


class Directory(NamedTuple):
    """A log directory of a broker. `usable_bytes`: None where the broker does not say."""

    path: str
    usable_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker.

    Attributes:
        alive: it serves, as far as the cluster knows: it is not fenced.
        cordoned: it gets no new replicas (`cordoned.log.dirs=*`).
        directories: those that are online; empty where they are not known.
    """

    node_id: int
    rack: str | None = None
    alive: bool = True
    cordoned: bool = False
    directories: tuple[Directory, ...] = ()

    @property
    def takes(self) -> bool:
        """Whether the broker may get replicas."""
        return self.alive and not self.cordoned

    @property
    def zone(self) -> object:
        """Rack of the broker, or the broker itself: brokers of one zone may fail together."""
        return ("broker", self.node_id) if self.rack is None else ("rack", self.rack)

    @property
    def why_not(self) -> str:
        """Reason the broker may get no replicas, or ""."""
        return f"broker {self.node_id} is {'cordoned' if self.alive else 'down'}"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as it stands.

    Attributes:
        replicas: all that are assigned, in order; the first is the preferred leader.
        size: bytes of one replica.
        load: bytes that it is sent in a day, or whatever weighs leaders; 0 where it is not known.
        adding, removing: of a move that is under way.
        homes: the log directory of a replica, by broker, where it is known.
        sizes: bytes of each replica, by broker, where they are known: one that is copied has fewer.
    """

    tp: TopicPartition
    replicas: tuple[int, ...]
    leader: int | None = None
    isr: tuple[int, ...] = ()
    size: int = 0
    load: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    homes: Mapping[int, str] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once the move that is under way is done."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def moves(self) -> bool:
        """A move is under way."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Brokers by id, and partitions."""

    brokers: Mapping[int, Broker]
    partitions: tuple[Partition, ...]

    @staticmethod
    def of(brokers: Iterable[Broker], partitions: Iterable[Partition]) -> Cluster:
        return Cluster({one.node_id: one for one in brokers}, tuple(partitions))


@dataclass(frozen=True, slots=True)
class Move:
    """A partition gets other replicas, or another order of them.

    Attributes:
        before: what it has, or will have once a move that is under way is done.
        after: what it is to have.
        sources: the brokers that send the data: its leader.
        bytes: what is copied over the network.
        reasons: why, in words.
    """

    tp: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    sources: tuple[int, ...]
    bytes: int
    reasons: tuple[str, ...]

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(node for node in self.after if node not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(node for node in self.before if node not in self.after)

    @property
    def busy(self) -> frozenset[int]:
        """The brokers that the copy keeps busy; none where nothing is copied."""
        return frozenset((*self.added, *self.sources)) if self.added else frozenset()


class DirectoryMove(NamedTuple):
    """A replica goes to another log directory of its broker."""

    tp: TopicPartition
    broker: int
    source: str
    target: str
    bytes: int


class Left(NamedTuple):
    """A partition that stays as it is though it was to move, and why."""

    tp: TopicPartition
    why: str


class HeldUp(NamedTuple):
    """A broker that is down, and the moves of a plan that cannot end before it is back: a move ends once all replicas
    that it leaves are in sync (rule B44), and copies nothing while its partition has no leader."""

    broker: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Attributes:
        moves: the smallest first.
        directories: moves within brokers, the smallest first.
        cancel: partitions whose move goes to a broker that is down, with no other to go to.
        left: what cannot be done.
        held_up: brokers that are down and that moves wait for, by id.
    """

    moves: tuple[Move, ...] = ()
    directories: tuple[DirectoryMove, ...] = ()
    cancel: tuple[Left, ...] = ()
    left: tuple[Left, ...] = ()
    held_up: tuple[HeldUp, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.moves or self.directories or self.cancel)

    @property
    def bytes(self) -> int:
        """Bytes to copy over the network."""
        return sum(move.bytes for move in self.moves)

    def received(self) -> dict[int, int]:
        """The bytes that each broker gets."""
        into: dict[int, int] = {}
        for move in self.moves:
            for node in move.added:
                into[node] = into.get(node, 0) + move.bytes // len(move.added)
        return into

    def estimate_s(self, bytes_per_second: float) -> float:
        """Estimated seconds, if each broker receives and sends `bytes_per_second`."""
        sent: dict[int, int] = {}
        for move in self.moves:
            for node in move.sources[:1]:
                sent[node] = sent.get(node, 0) + move.bytes
        return max((*self.received().values(), *sent.values(), 0)) / bytes_per_second


def next_moves(waiting: Iterable[Move], under_way: Iterable[Move], at_once: int) -> list[Move]:
    """The moves to begin now, so that no broker has more than `at_once` of them: in the order in which they wait.

    What copies nothing begins at once.
    """
    busy: dict[int, int] = {}
    for move in under_way:
        for node in move.busy:
            busy[node] = busy.get(node, 0) + 1
    chosen = []
    for move in waiting:
        # rule B48/a-broker-gets-all-moves-at-once
        if any(busy.get(node, 0) >= at_once for node in move.busy):
            continue
        for node in move.busy:
            busy[node] = busy.get(node, 0) + 1
        chosen.append(move)
    return chosen
