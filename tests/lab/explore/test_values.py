"""Objects as values: what a core is comes back whole, differs where the core does, and can be renamed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest

from lab.explore.model import NODES, RENAMINGS
from lab.explore.parts import Parts
from lab.explore.values import Codec, Fresh, Node


class Slotted:
    __slots__ = ("clock", "peer", "progress", "queue")

    def __init__(self, peer: Plain | None = None) -> None:
        self.clock = object()
        self.peer = peer
        self.progress: dict[int, int] = {}
        self.queue: deque[bytes] = deque()


class Plain:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.back: Slotted | None = None
        self.scratch: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Fact:
    node: Node
    isr: tuple[Node, ...] = ()


@dataclass
class Root:
    fact: Fact
    one: Slotted
    same: Slotted
    facts: list[Fact] = field(default_factory=list)


CLOCK = "the clock"


def codec(**more: Any) -> Codec:
    return Codec({(Slotted, "clock"): CLOCK, (Plain, "scratch"): Fresh(dict)}, **more)


def graph() -> Root:
    """Two references to one object, and a way back to it from what it holds."""
    plain = Plain(Node(2))
    slotted = Slotted(plain)
    plain.back = slotted
    slotted.progress = {Node(3): 1, Node(1): 2}
    slotted.queue.append(b"frame")
    return Root(Fact(Node(1), (Node(2), Node(1))), slotted, slotted, [Fact(Node(3))])


def test_what_is_frozen_comes_back() -> None:
    """Identity within it too: two names of one object are two names of one object again."""
    made = codec().thaw(codec().freeze(graph()))
    assert made.one is made.same
    assert made.one.peer.back is made.one
    assert made.one.queue == deque([b"frame"])
    assert made.one.progress == {Node(1): 2, Node(3): 1}
    assert made.fact == Fact(Node(1), (Node(2), Node(1)))


def test_what_is_no_state_is_set_anew() -> None:
    """It does not make two states differ, and writing into it does not reach the next state."""
    mine = codec()
    first, second = graph(), graph()
    first.one.peer.scratch["x"] = 1  # type: ignore[union-attr]
    assert mine.freeze(first) == mine.freeze(second)
    made = mine.thaw(mine.freeze(first))
    assert made.one.clock == CLOCK
    made.one.peer.scratch["y"] = 2
    assert mine.thaw(mine.freeze(first)).one.peer.scratch == {}


def test_every_attribute_counts() -> None:
    mine = codec()
    changed = graph()
    changed.one.queue.append(b"another")
    assert mine.freeze(changed) != mine.freeze(graph())
    changed = graph()
    changed.one.peer.added_tomorrow = 5  # type: ignore[union-attr]
    assert mine.freeze(changed) != mine.freeze(graph())
    assert mine.thaw(mine.freeze(changed)).one.peer.added_tomorrow == 5


def test_what_is_no_value_is_refused() -> None:
    """A generator or a task in a core is named, and not left out in silence."""
    odd = graph()
    odd.one.peer = object()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="is no state"):
        codec().freeze(odd)


def test_order_that_says_nothing() -> None:
    mine = codec(unordered={(Fact, "isr"): lambda node: node})
    assert mine.freeze(Fact(Node(1), (Node(2), Node(1)))) == mine.freeze(Fact(Node(1), (Node(1), Node(2))))
    assert codec().freeze(Fact(Node(1), (Node(2), Node(1)))) != codec().freeze(Fact(Node(1), (Node(1), Node(2))))


def test_renaming_is_what_the_renamed_cluster_would_be() -> None:
    """Also where the order of keys changes by it, and with that the order in which objects are met."""

    def cluster(one: int, two: int) -> dict[int, Slotted]:
        first, second = Slotted(), Slotted()
        first.progress, second.progress = {Node(one): 1}, {Node(two): 2}
        return {Node(one): first, Node(two): second}

    mine = codec()
    swapped = {Node(1): Node(3), Node(2): Node(2), Node(3): Node(1)}
    assert mine.freeze(cluster(1, 2), swapped) == mine.freeze(cluster(3, 2))


def test_parts_have_one_digest_in_every_process() -> None:
    """What another process packed has the digest it had there, and can be taken apart here."""
    there, here = Parts(codec(), RENAMINGS), Parts(codec(), RENAMINGS)
    digest = there.put(graph())
    assert here.put(graph()) == digest
    fresh = Parts(codec(), RENAMINGS)
    fresh.adopt(there.pack([digest]))
    assert fresh.get(digest).one.peer.node == Node(2)
    assert fresh.put(graph()) == digest


def test_the_blind_renaming_is_the_same_for_all_names() -> None:
    parts = Parts(codec(), RENAMINGS)
    digests = set()
    for order in permutations(NODES):
        plain = Plain(order[0])
        slotted = Slotted(plain)
        slotted.progress = {order[1]: 1, order[2]: 2}
        digests.add(parts.renamed(parts.put(slotted), 0))
    assert len(digests) == 1
