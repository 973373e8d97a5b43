"""Addresses of the other controllers (rule A37): from the voter set, from peers, and from the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.voters import VoterSet
from strandline.proto.ids import Endpoint, NodeId

_FIRST_STAND_IN = -2
"""Kafka's: of addresses at which some controller answers, whichever it is, the first is node -2, the next one -3."""


def stand_ins(bootstrap: Sequence[Endpoint]) -> tuple[NodeId, ...]:
    """Node ids that stand for bootstrap addresses."""
    return tuple(NodeId(_FIRST_STAND_IN - place) for place in range(len(bootstrap)))


class Addresses:
    """Endpoints by node id.

    What a peer tells of the leader counts until the log says something newer: the voter set that this node has may
    lack the leader, or say where it was before it moved.
    """

    def __init__(
        self,
        core: RaftCore,
        own: Endpoint | None,
        configured: Mapping[NodeId, Endpoint],
        bootstrap: Sequence[Endpoint],
    ) -> None:
        self._core = core
        self._own = own
        self._configured = configured
        self._bootstrap = dict(zip(stand_ins(bootstrap), bootstrap, strict=True))
        self._told: dict[NodeId, Endpoint] = {}
        self._failures: dict[NodeId, int] = {}
        """Failed calls of each node since the current voter set took effect."""
        self._voters: VoterSet = core.voters

    def to_call(self, node_id: NodeId) -> Endpoint | None:
        """Endpoint to call a node at; None if none is known. If the node does not answer there, every other call tries
        a bootstrap address, one after the other: all voters may have moved at once, which cannot be recorded before one
        of them leads."""
        known, failures = self.of(node_id), self._failures.get(node_id, 0)
        elsewhere = [at for at in self._bootstrap.values() if at not in (known, self._own)]
        # rule A37/a-voter-that-moved-is-looked-for-nowhere
        if node_id < 0 or failures % 2 == 0 or not elsewhere or not self._core.voters.dynamic:
            return known
        return elsewhere[failures // 2 % len(elsewhere)]

    def of(self, node_id: NodeId) -> Endpoint | None:
        """Endpoint of a node; None if none is known."""
        if node_id < 0:
            return self._bootstrap.get(node_id)
        if self._voters is not self._core.voters:  # rule A37/what-was-told-counts-for-ever
            self._take_over(self._core.voters)
        known = self._told.get(node_id) or self._core.voters.endpoints.get(node_id)
        if known is None and node_id == self._core.key.node_id:
            return self._own
        return known or self._configured.get(node_id)

    def _take_over(self, voters: VoterSet) -> None:
        """Another set counts. A leader that it lacks was removed, and leads until that is committed: it is where it
        was."""
        known = {**self._voters.endpoints, **self._told}
        leader_id = self._core.leader_id
        self._told.clear()
        self._failures.clear()
        # rule A37/a-removed-leader-is-lost-sight-of
        if leader_id is not None and leader_id in known and leader_id not in voters.endpoints:
            self._told[leader_id] = known[leader_id]
        self._voters = voters

    def hear(self, leader_id: NodeId | None, leader_at: Endpoint | None) -> None:
        """Take in where the leader is, as a peer tells it."""
        if leader_id is not None and leader_at is not None:
            self._told = {leader_id: leader_at}

    def failed(self, node_id: NodeId) -> None:
        """Take in that a call has not found the node: what was told of it is forgotten."""
        self._told.pop(node_id, None)
        self._failures[node_id] = self._failures.get(node_id, 0) + 1

    def to_tell(self, leader_id: NodeId | None) -> Endpoint | None:
        """Endpoint of the leader to tell a peer; None if the voters are configured statically on every node."""
        return self.of(leader_id) if leader_id is not None and self._core.voters.dynamic else None
