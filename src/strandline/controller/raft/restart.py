"""In what role a node comes back (rule A2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.controller.raft.candidate import Candidate
from strandline.controller.raft.follower import Follower
from strandline.controller.raft.messages import ReplicaKey
from strandline.controller.raft.observer import Observer
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.resigned import Resigned
from strandline.controller.raft.state import Role
from strandline.controller.raft.unattached import Unattached
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark

if TYPE_CHECKING:
    from strandline.controller.raft.core import RaftCore


def initial_role(core: RaftCore, saved: ElectionState, now_ms: float) -> Role:
    """The role that follows from the quorum-state file and the log.

    The first wait of a starting node is short: a pre-vote disturbs nobody, and finds a leader if there is one.
    """
    soon_ms = now_ms + core.config.election_timeout_ms * (0.05 + 0.2 * core.rng.random())
    if len(core.voters) == 1:
        soon_ms = now_ms
    if not core.is_voter:
        return _initial_observer(core, saved)
    if saved.epoch < core.log.last_epoch:
        return Unattached(core, core.log.last_epoch, election_deadline_ms=soon_ms)
    if saved.leader_id == core.key.node_id:
        mark("restarted-as-leader")
        successors = core.voters.others(core.key.node_id)
        return Resigned(core, saved.epoch, successors=successors, election_deadline_ms=soon_ms)
    if saved.voted_for == core.key and saved.epoch > core.log.last_epoch:
        return Candidate(core, saved.epoch, now_ms=now_ms)
    voted_for = saved.voted_for
    if saved.leader_id is not None:
        if saved.leader_id in core.voters.places:
            return Follower(core, saved.epoch, saved.leader_id, now_ms=now_ms)
        voted_for = _a_leader_of_old(saved.leader_id)
    return Unattached(core, saved.epoch, election_deadline_ms=soon_ms, voted_for=voted_for)


def _initial_observer(core: RaftCore, saved: ElectionState) -> Observer:
    if saved.epoch < core.log.last_epoch:
        return Observer(core, core.log.last_epoch)
    if saved.leader_id == core.key.node_id:
        return Observer(core, saved.epoch, voted_for=core.key)
    if saved.leader_id is not None and saved.leader_id not in core.voters.places:
        return Observer(core, saved.epoch, voted_for=_a_leader_of_old(saved.leader_id))
    return Observer(core, saved.epoch, leader_id=saved.leader_id, voted_for=saved.voted_for)


def _a_leader_of_old(leader_id: NodeId) -> ReplicaKey:
    """The epoch's leader is no voter any more, so its address is unknown. Counting it as voted for keeps this node from
    voting for another in that epoch."""
    return ReplicaKey(leader_id, None)
