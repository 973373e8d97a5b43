"""The voter set: which directory of each controller votes.

At kraft.version 0 it is configured which nodes may vote, the same for the whole life of a cluster; it makes the number
of votes. Which directory of such a node holds its vote is a matter of the metadata log: a voter can be removed, which
leaves its place vacant, and a replica that has caught up can be added in a vacant place.

From kraft.version 1 on (KIP-853) the latest set in the log is all there is: who votes, and where each one listens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from strandline.controller.raft.messages import ReplicaKey, VotersChange
from strandline.proto.ids import Endpoint, NodeId


class VoterSet:
    """Voters in the order of their node ids, and vacant places.

    A vacant place counts in the majority like a voter that never answers. So of two sets that differ in one place the
    majorities always meet: those of the set with the vacancy are majorities of the other one, too. A set of
    kraft.version 1 has no vacant places: it differs from the one before it in one voter, so that the majorities meet.

    Invariants:
    - no node id occurs twice; there is at least one place, or the node knows none and looks for them (`dynamic`).
    """

    __slots__ = ("_by_id", "dynamic", "endpoints", "keys", "places")

    def __init__(
        self,
        keys: Iterable[ReplicaKey],
        places: Iterable[NodeId] = (),
        *,
        endpoints: Mapping[NodeId, Endpoint] = MappingProxyType({}),
        dynamic: bool = False,
    ) -> None:
        """Make a set.

        Args:
            places: the configured node ids; those of `keys` are among them.
            endpoints: the internal listener of each place, as far as it is known.
            dynamic: the set is of kraft.version 1; or empty, on a node that is to learn it from the log.
        """
        self.keys: tuple[ReplicaKey, ...] = tuple(sorted(keys, key=lambda key: key.node_id))
        self._by_id = {key.node_id: key for key in self.keys}
        self.places = frozenset(places) | self._by_id.keys()
        self.endpoints = endpoints
        self.dynamic = dynamic
        if len(self._by_id) != len(self.keys) or not (self.places or dynamic):
            raise ValueError(f"a voter set needs voters with distinct node ids, not {self.keys}")

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[ReplicaKey]:
        return iter(self.keys)

    @property
    def majority(self) -> int:
        """Number of voters that decide: 1 of 1, 2 of 2 and 3, 3 of 4 and 5; vacant places are counted too."""
        return len(self.places) // 2 + 1  # rule A11/vacant-place-does-not-count

    def filled(self, said: VotersChange) -> VoterSet:
        """The set that a log says, where this is the configured one: the same places with these voters, keys of other
        nodes left out; or, from kraft.version 1 on and where none are configured, these alone."""
        if said.kraft_version > 0 or self.dynamic:
            nodes = (key.node_id for key in said.voters)
            return VoterSet(said.voters, endpoints=dict(zip(nodes, said.endpoints, strict=False)), dynamic=True)
        keys = (key for key in said.voters if key.node_id in self.places)
        return VoterSet(keys, self.places, endpoints=self.endpoints)

    def contains_id(self, node_id: NodeId) -> bool:
        """Whether some directory of this node is a voter."""
        return node_id in self._by_id

    def believes(self, node_id: NodeId) -> bool:
        """Whether this node can be a candidate, or lead. Where voters come and go it may be one of a newer set than
        this node has read: that set counts, not what is known of it here (KIP-853)."""
        return self.dynamic or node_id in self.places

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
        """Place of `node_id` in the ring of nodes after `leader_id`: 0 is the first to ask for an election, and who is
        no voter comes last."""
        ring = sorted(self.places)
        after = [place for place in ring if place > leader_id]
        before = [place for place in ring if place < leader_id]
        line = [*after, *before]
        return line.index(node_id) if node_id in line else len(line)
