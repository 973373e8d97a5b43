"""The role in which a node comes back (rule A2)."""

from __future__ import annotations

from strandline.controller.raft.messages import ReplicaKey
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.role import Move
from strandline.controller.raft.transitions import Event
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark


def first_move(node: QuorumNode, saved: ElectionState, now_ms: float) -> Move:
    """The move that follows from the quorum-state file and the log.

    The first wait of a starting node is short: a pre-vote disturbs no node, and finds a leader if there is one.
    """
    soon_ms = now_ms + node.config.election_timeout_ms * (0.05 + 0.2 * node.rng.random())
    if len(node.voters) == 1:
        soon_ms = now_ms
    if not node.may_stand:
        return _as_observer(node, saved)
    if saved.epoch < node.log.last_epoch:  # rule A2/restart-in-an-epoch-before-the-logs
        return Move(Event.STARTED, node.log.last_epoch, election_deadline_ms=soon_ms)
    if saved.leader_id == node.key.node_id:
        mark("restarted-as-leader")
        successors = node.voters.others(node.key.node_id)
        # rule A2/restarted-leader-forgets-that-it-led
        return Move(Event.STARTED_AS_LEADER, saved.epoch, successors=successors, election_deadline_ms=soon_ms)
    if saved.voted_for == node.key and saved.epoch > node.log.last_epoch:  # rule A2/restarted-candidate-only-waits
        return Move(Event.STARTED_AS_CANDIDATE, saved.epoch)
    voted_for = saved.voted_for  # rule A2/restart-forgets-the-vote
    if saved.leader_id is not None:
        if saved.leader_id in node.voters.places:
            return Move(Event.STARTED_AS_FOLLOWER, saved.epoch, leader_id=saved.leader_id)
        voted_for = _a_former_leader(saved.leader_id)  # rule A2/restart-forgets-a-leader-of-old
    return Move(Event.STARTED, saved.epoch, voted_for=voted_for, election_deadline_ms=soon_ms)


def _as_observer(node: QuorumNode, saved: ElectionState) -> Move:
    event = Event.STARTED_WITHOUT_VOTE
    if saved.epoch < node.log.last_epoch:
        return Move(event, node.log.last_epoch)
    if saved.leader_id == node.key.node_id:
        return Move(event, saved.epoch, voted_for=node.key)
    if saved.leader_id is not None and saved.leader_id not in node.voters.places:
        return Move(event, saved.epoch, voted_for=_a_former_leader(saved.leader_id))
    return Move(event, saved.epoch, leader_id=saved.leader_id, voted_for=saved.voted_for)


def _a_former_leader(leader_id: NodeId) -> ReplicaKey:
    """The epoch's leader is no voter any more, so its address is unknown. Counting it as voted for keeps this node from
    voting for another in that epoch."""
    return ReplicaKey(leader_id, None)
