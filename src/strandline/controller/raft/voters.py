"""The voter set: which directory of each controller votes.

Which nodes may vote is configured and the same for the whole life of a cluster; it makes the number of votes. Which
directory of such a node holds its vote is a matter of the metadata log (KIP-853, reduced to what a lost disk needs): a
voter can be removed, which leaves its place vacant, and a replica that has caught up can be added in a vacant place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strandline.controller.raft.messages import ReplicaKey
from strandline.proto.ids import NodeId


class VoterSet:
    """Voters in the order of their node ids, and vacant places.

    A vacant place counts in the majority like a voter that never answers. So of two sets that differ in one place the
    majorities always meet: those of the set with the vacancy are majorities of the other one, too.

    Invariants:
    - no node id occurs twice; there is at least one place.
    """

    __slots__ = ("_by_id", "keys", "places")

    def __init__(self, keys: Iterable[ReplicaKey], places: Iterable[NodeId] = ()) -> None:
        """`places` are the configured node ids; those of `keys` are among them."""
        self.keys: tuple[ReplicaKey, ...] = tuple(sorted(keys, key=lambda key: key.node_id))
        self._by_id = {key.node_id: key for key in self.keys}
        self.places = frozenset(places) | self._by_id.keys()
        if not self.places or len(self._by_id) != len(self.keys):
            raise ValueError(f"a voter set needs voters with distinct node ids, not {self.keys}")

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[ReplicaKey]:
        return iter(self.keys)

    @property
    def majority(self) -> int:
        """Number of voters that decide: 1 of 1, 2 of 2 and 3, 3 of 4 and 5; vacant places are counted too."""
        return len(self.places) // 2 + 1  # rule A11/vacant-place-does-not-count

    def filled(self, keys: Iterable[ReplicaKey]) -> VoterSet:
        """The same places with these voters; keys of other nodes are left out."""
        return VoterSet((key for key in keys if key.node_id in self.places), self.places)

    def contains_id(self, node_id: NodeId) -> bool:
        """Whether some directory of this node is a voter."""
        return node_id in self._by_id

    def recorded(self, node_id: NodeId) -> ReplicaKey | None:
        """The key recorded for this node id."""
        return self._by_id.get(node_id)

    def is_voter(self, presented: ReplicaKey, *, voteless: bool = False) -> bool:
        """Whether this very replica is a voter; a wiped disk under a voter's node id is not (schedule 26), nor one that
        has lost its log (`voteless`), unless its directory id is the one recorded (rule A14)."""
        recorded = self._by_id.get(presented.node_id)
        return recorded is not None and recorded.counts(presented, voteless=voteless)

    def others(self, node_id: NodeId) -> tuple[ReplicaKey, ...]:
        """All voters but this node."""
        return tuple(key for key in self.keys if key.node_id != node_id)

    def succession(self, leader_id: NodeId, node_id: NodeId) -> int:
        """Place of `node_id` in the ring of nodes after `leader_id`: 0 is the first to ask for an election."""
        ring = sorted(self.places)
        after = [place for place in ring if place > leader_id]
        before = [place for place in ring if place < leader_id]
        return [*after, *before].index(node_id)
