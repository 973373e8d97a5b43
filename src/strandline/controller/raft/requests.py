"""Judgement of what peers ask, before the role answers, in Kafka's order and with Kafka's error codes."""

from __future__ import annotations

from strandline.controller.raft.config import EPOCH_LEAD_MAX, EPOCH_MAX
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    VoteRequest,
)
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.role import Role
from strandline.controller.raft.transitions import RoleKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark

_LED = (RoleKind.LEADER, RoleKind.RESIGNED)
"""Roles of a node that knows the leader of its epoch best: it was this node."""


def judge(node: QuorumNode, role: Role, request: Request) -> ErrorCode:
    """Error code for a request; NONE if a node in this role is to answer."""
    if request.cluster_id != node.cluster_id:  # rule A7/fetch-of-another-cluster-is-served
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if isinstance(request, VoteRequest):
        return _judge_vote(node, role, request)
    if isinstance(request, BeginQuorumEpochRequest):
        return _judge_begin(node, role, request)
    if isinstance(request, EndQuorumEpochRequest):
        return _judge_end(node, role, request)
    return _judge_fetch(role, request)


def _judge_vote(node: QuorumNode, role: Role, request: VoteRequest) -> ErrorCode:
    """Error code for a request to vote: the voter is of the set and its directory the recorded one, and its epoch is
    not behind (rules A3, A4 and A11)."""
    if request.candidate_epoch < role.epoch:  # rule A3/stale-candidate-is-heard
        return ErrorCode.FENCED_LEADER_EPOCH
    last_epoch_max = request.candidate_epoch if request.pre_vote else request.candidate_epoch - 1
    # rule A3/candidate-with-records-of-its-own-epoch
    if request.candidate.node_id == node.key.node_id or request.last.epoch > last_epoch_max:
        return ErrorCode.INVALID_REQUEST
    if _unreachable(node, request.candidate_epoch, request.candidate.node_id):
        return ErrorCode.INVALID_REQUEST
    recorded = node.voters.recorded(request.candidate.node_id)
    asked = request.voter.counts(node.key, voteless=node.voteless)
    # A candidate whose voter set is newer than ours may have been given its vote in it.
    # rule A11/stale-voter-knows-best
    known = recorded is None or recorded.admits(request.candidate) or request.voters_offset > node.voters_offset
    # rule A17/stranger-stands-for-election, rule A11/wiped-candidate-is-heard
    # rule A11/wiped-voter-votes-in-its-old-name
    if not asked or not known or not node.voters.believes(request.candidate.node_id):
        mark("vote-refused-directory")
        return ErrorCode.INVALID_VOTER_KEY
    return ErrorCode.NONE


def _judge_begin(node: QuorumNode, role: Role, request: BeginQuorumEpochRequest) -> ErrorCode:
    if request.epoch < role.epoch:  # rule A3/stale-leader-is-followed
        return ErrorCode.FENCED_LEADER_EPOCH
    if not request.voter.counts(node.key, voteless=node.voteless):
        return ErrorCode.INVALID_VOTER_KEY
    return _judge_leader(node, role, request.epoch, request.leader_id)


def _judge_end(node: QuorumNode, role: Role, request: EndQuorumEpochRequest) -> ErrorCode:
    if request.epoch < role.epoch:  # rule A3/stale-resignation-is-heard
        return ErrorCode.FENCED_LEADER_EPOCH
    return _judge_leader(node, role, request.epoch, request.leader_id)


def _judge_leader(node: QuorumNode, role: Role, epoch: int, leader_id: NodeId) -> ErrorCode:
    """Whether that node can be the leader of that epoch."""
    # rule A11/stale-voter-follows-only-whom-it-knows
    if leader_id == node.key.node_id or not node.voters.believes(leader_id):
        return ErrorCode.INVALID_REQUEST
    if (epoch == role.epoch and role.kind in _LED) or _unreachable(node, epoch, leader_id):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _judge_fetch(role: Role, request: FetchRequest | FetchSnapshotRequest) -> ErrorCode:
    if request.epoch < role.epoch:  # rule A7/stale-fetch-is-served
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.epoch > role.epoch:  # rule A7/fetch-of-an-unknown-epoch-is-served
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE


def _unreachable(node: QuorumNode, epoch: int, sender: NodeId) -> bool:
    """Whether a request names an epoch that no elections can have reached since this node last had proof (rule A17)."""
    # rule A17/any-epoch-is-adopted, rule A17/epoch-bound-climbs-with-the-claims
    if epoch <= min(node.proven_epoch + EPOCH_LEAD_MAX, EPOCH_MAX):
        return False
    mark("epoch-refused")
    node.notice(
        f"refused: a request in the name of node {sender} claims epoch {epoch}, more than {EPOCH_LEAD_MAX} above "
        f"{node.proven_epoch}, the last that a voter has proven to this node"
    )
    return True
