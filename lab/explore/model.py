"""Interface of an explored model: states, the steps from each to the next, and the names under which steps are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple, Protocol

from lab.explore.parts import Parts
from lab.explore.values import Node
from strandline.proto.ids import NodeId

NODES = (NodeId(Node(1)), NodeId(Node(2)), NodeId(Node(3)))

State = tuple[int, ...]
"""(budget, node 1, node 2, node 3, shared, messages in order of their digests): digests of parts but for the first,
which is a packed number."""

FIRST_NODE, SHARED, FIRST_MESSAGE = 1, 4, 5


class Violation(NamedTuple):
    """An invariant that a step broke."""

    invariant: str
    message: str


def refused(node: NodeId, error: Exception) -> Violation:
    """Violation that a core has found by itself. Of what it says the first line: the same in each process."""
    name = "CoreAssertion" if isinstance(error, AssertionError) else type(error).__name__
    return Violation(name, f"{node}: {str(error).partition(chr(10))[0] or 'an assertion failed'}")


class Step(NamedTuple):
    """One step from a state: what happens (see `Model.tell`), and the state after it or what it broke."""

    event: tuple[Any, ...]
    state: State | None
    violation: Violation | None = None


class View(NamedTuple):
    """A state in words, for stories.

    Attributes:
        replicas: node -> role, epoch, high watermark, log end, epoch of the last record, a note.
        committed: of a partition, what its metadata say: leader, leader epoch, partition epoch, ISR, ELR, recovering.
        words: what there is -> what it is, in full.
    """

    replicas: dict[str, tuple[str, int, int, int, int, str]]
    committed: tuple[int, int, int, tuple[int, ...], tuple[int, ...], bool] | None
    words: dict[str, str]


class Model(Protocol):
    """States and steps. Everything is decided by the state: two runs of a model meet the same states.

    Attributes:
        name: by which the command line knows it; subject: what its stories are about.
        bounds: a dataclass.
    """

    name: str
    subject: str
    bounds: Any
    parts: Parts

    def starts(self) -> Sequence[State]:
        """States where the search begins."""
        ...

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that can happen next. Steps that leave the bounds are left out."""
        ...

    def tell(self, state: State, event: tuple[Any, ...]) -> str:
        """The name of a step from a state."""
        ...

    def view(self, state: State) -> View:
        """State in words."""
        ...

    def forget(self, but: set[int]) -> None:
        """Forget every part that is not named, and all that was computed from it."""
        ...


def _renamings() -> tuple[Mapping[Node, Node], ...]:
    names = [Node(node) for node in NODES]
    blind = dict.fromkeys(names, Node(0))
    return (blind, *(dict(zip(names, order, strict=True)) for order in permutations(names)))


RENAMINGS = _renamings()
_TARGETS = tuple(
    tuple(FIRST_NODE + renaming[Node(node)] - 1 for node in NODES) if index else ()
    for index, renaming in enumerate(RENAMINGS)
)
"""Renaming -> where the parts of node 1, 2 and 3 stand in a renamed state."""

_BY_ORDER = {targets: index for index, targets in enumerate(_TARGETS) if index}


def fingerprint(parts: Parts, state: State) -> int:
    """64 bits that are the same for all states that differ in the names of the nodes alone."""
    renamed = parts.renamed
    one, two, three = state[1], state[2], state[3]
    signs = (renamed(one, 0), renamed(two, 0), renamed(three, 0))
    order = sorted((0, 1, 2), key=signs.__getitem__)
    a, b, c = signs[order[0]], signs[order[1]], signs[order[2]]
    places = [0, 0, 0]
    for rank, node in enumerate(order):
        places[node] = FIRST_NODE + rank
    best = _hash(parts, state, _BY_ORDER[tuple(places)])
    if b in {a, c}:
        for index in range(1, 7):
            targets = _TARGETS[index]
            if all(signs[node] == (a, b, c)[targets[node] - FIRST_NODE] for node in (0, 1, 2)):
                best = min(best, _hash(parts, state, index))
    return best


def _hash(parts: Parts, state: State, renaming: int) -> int:
    renamed = parts.renamed
    targets = _TARGETS[renaming]
    arranged = [state[0], 0, 0, 0, renamed(state[SHARED], renaming)]
    arranged[targets[0]] = renamed(state[1], renaming)
    arranged[targets[1]] = renamed(state[2], renaming)
    arranged[targets[2]] = renamed(state[3], renaming)
    messages = state[FIRST_MESSAGE:]
    if messages:
        arranged += sorted([renamed(message, renaming) for message in messages])
    return hash(tuple(arranged)) & 0xFFFFFFFFFFFFFFFF
